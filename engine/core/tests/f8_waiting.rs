//! Contract row F8: tickets tell how a task ends; a wait that could not end is refused at once, with the keys (recipe R36).

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc::{Sender, channel},
    },
    time::Duration,
};

use bgrp::{
    Ended, Engine, Failure, FailureKind, InFlight, OnExhausted, Outcome, Retry, SubmitReason,
    Ticket, WaitError, WaitNode, Workers,
};
use common::{LONG, MS, Rng, WANTED, lock, quiet, scale, watch};

/// How a handler finds its own engine, which is made after it.
struct Own<K, T>(Arc<OnceLock<Weak<Engine<K, T>>>>);

impl<K, T> Own<K, T> {
    fn engine(&self) -> Arc<Engine<K, T>> {
        self.0.get().and_then(Weak::upgrade).expect("the engine lives")
    }

    fn known(&self, engine: Engine<K, T>) -> Arc<Engine<K, T>> {
        let engine = Arc::new(engine);
        assert!(self.0.set(Arc::downgrade(&engine)).is_ok(), "one engine");
        engine
    }
}

impl<K, T> Clone for Own<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, T> Default for Own<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// A task that is a piece of program.
type Job = Box<dyn FnOnce(&Program) + Send>;

/// What jobs may use: their engine, and tickets by name.
#[derive(Default)]
struct Program {
    own: Own<String, Job>,
    tickets: Mutex<HashMap<String, Ticket>>,
}

impl Program {
    fn engine(&self) -> Arc<Engine<String, Job>> {
        self.own.engine()
    }

    fn ticket(&self, name: &str) -> Ticket {
        lock(&self.tickets)[name].clone()
    }
}

fn program(workers: usize) -> (Arc<Engine<String, Job>>, Arc<Program>) {
    quiet();
    let program = Arc::new(Program::default());
    let its = program.clone();
    let engine = Engine::<String, Job>::builder()
        .workers(Workers::fixed(workers))
        .pin(false)
        .group_capacity(2)
        .task_handler(move |_, task| {
            let job = std::mem::replace(&mut **task, Box::new(|_| ()));
            job(&its);
        })
        .build()
        .unwrap();
    (program.own.known(engine), program)
}

fn key(n: usize) -> String {
    format!("group_{n}")
}

#[test]
fn a_ticket_tells_how_its_task_ended() {
    quiet();
    let letters = Arc::new(AtomicUsize::new(0));
    let sink = letters.clone();
    let engine = Engine::<u64, &'static str>::builder()
        .workers(Workers::fixed(2))
        .retry(Retry::fixed(MS).attempts(3))
        .on_exhausted(OnExhausted::dead_letter(MS, move |_: bgrp::Exhausted<u64, &str>| {
            // The first two letters cannot be written: the task is held, and so is its ticket.
            if sink.fetch_add(1, SeqCst) < 2 { Err(()) } else { Ok(()) }
        }))
        .task_handler(|_, task| match **task {
            "fails" => Outcome::Retry(Failure::new("no route")),
            "second" if task.attempt() == 1 => Outcome::Retry(Failure::new("not yet")),
            "throttled" => Outcome::from(()),
            "fatal" => Outcome::Fail(Failure::new("bad record")),
            "panics" => std::panic::panic_any(WANTED),
            _ => Outcome::Done,
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("a_ticket_tells_how_its_task_ended", &engine);
    let tickets: Vec<Ticket> = ["done", "fails", "second", "fatal", "panics", "done"]
        .into_iter()
        .map(|what| engine.submit_tracked(1, what).unwrap())
        .collect();
    let ended: Vec<Ended> = tickets.iter().map(|ticket| ticket.wait().unwrap()).collect();
    let failed =
        |reason: &'static str, attempts| Ended::Failed { failure: Failure::new(reason), attempts };
    assert_eq!(ended[0], Ended::Done);
    assert_eq!(ended[1], failed("no route", 3));
    assert_eq!(ended[2], Ended::Done);
    assert_eq!(ended[3], failed("bad record", 1));
    let Ended::Failed { failure, attempts: 3 } = &ended[4] else { panic!("{:?}", ended[4]) };
    assert_eq!((failure.reason(), failure.kind()), (WANTED, FailureKind::Panicked));
    assert_eq!(ended[5], Ended::Done);
    assert!(tickets.iter().all(|ticket| ticket.is_over()));
    assert_eq!(letters.load(SeqCst), 5, "two that failed, and one for each task that did");
    assert_eq!(engine.close(LONG).done, 3);
}

#[test]
fn tickets_of_a_batch_stay_with_their_tasks_when_some_are_retried() {
    // Tasks that stay move together inside their dispatch; each ticket must move along.
    for tracked in [1, 2, 3, 7] {
        let engine = Engine::<u64, (u64, u64)>::builder()
            .workers(Workers::fixed(1))
            .batch_size(5)
            .retry(Retry::fixed(Duration::ZERO).attempts(9))
            .handler(|_, batch| {
                let attempts: Vec<u32> = (0..batch.len()).map(|i| batch.attempt(i)).collect();
                batch
                    .iter()
                    .zip(attempts)
                    .map(|((id, fails), attempt)| {
                        if u64::from(attempt) <= *fails {
                            Outcome::Retry(Failure::new("again"))
                        } else if id % 3 == 0 {
                            Outcome::Fail(Failure::new(id.to_string()))
                        } else {
                            Outcome::Done
                        }
                    })
                    .collect::<Vec<_>>()
            })
            .build()
            .unwrap();
        let engine = Arc::new(engine);
        let _watch = watch("tickets_of_a_batch", &engine);
        let mut rng = Rng(tracked);
        let tickets: Vec<(u64, u64, Option<Ticket>)> = (0..200)
            .map(|id| {
                let fails = rng.below(4);
                if id % tracked == 0 {
                    return (id, fails, Some(engine.submit_tracked(7, (id, fails)).unwrap()));
                }
                engine.submit(7, (id, fails)).unwrap();
                (id, fails, None)
            })
            .collect();
        for (id, fails, ticket) in tickets {
            let Some(ticket) = ticket else { continue };
            let expected = if id % 3 == 0 {
                Ended::Failed { failure: Failure::new(id.to_string()), attempts: fails as u32 + 1 }
            } else {
                Ended::Done
            };
            assert_eq!(ticket.wait(), Ok(expected), "task {id}");
        }
        assert!(engine.close(LONG).is_complete());
    }
}

#[test]
fn tracked_and_other_tasks_of_a_key_run_in_the_order_of_their_submits() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .task_handler(move |_, task| lock(&log).push(**task))
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("tracked_and_other_tasks", &engine);
    let handle = engine.group(1);
    let n = scale(2_000, 20_000);
    let mut rng = Rng(3);
    let mut tickets = Vec::new();
    for i in 0..n {
        match rng.below(4) {
            0 => tickets.push(engine.submit_tracked(1, i).unwrap()),
            1 => tickets.push(handle.submit_tracked(i).unwrap()),
            2 => handle.submit(i).unwrap(),
            _ => engine.submit(1, i).unwrap(),
        }
        // Now and then the group is idle when the next task comes.
        if rng.below(50) == 0 {
            tickets.last().map(Ticket::wait);
        }
    }
    assert!(tickets.iter().all(|ticket| ticket.wait() == Ok(Ended::Done)));
    drop(handle);
    assert!(engine.close(LONG).is_complete());
    assert!(lock(&seen).iter().copied().eq(0..n), "in order, each once");
}

#[test]
fn what_close_gives_back_and_what_is_dropped_is_told_to_the_tickets() {
    quiet();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(1))
        .on_exhausted(OnExhausted::halt_group())
        .task_handler(|_, task| if **task == 0 { Err("halts the group") } else { Ok(()) })
        .build()
        .unwrap();
    let first = engine.submit_tracked(1, 0).unwrap();
    assert!(matches!(first.wait(), Ok(Ended::Failed { .. })));
    // These wait in a halted group.
    let held: Vec<Ticket> = (1..20).map(|n| engine.submit_tracked(1, n).unwrap()).collect();
    let other = engine.submit_tracked(2, 5).unwrap();
    assert_eq!(other.wait(), Ok(Ended::Done));
    assert!(held.iter().all(|ticket| !ticket.is_over()));
    assert_eq!(held[0].wait_timeout(MS), Err(WaitError::TimedOut(MS)));
    let report = engine.close(LONG);
    assert_eq!(report.left_tasks(), 19);
    assert!(held.iter().all(|ticket| ticket.ended() == Some(Ended::GivenBack)));

    // An engine without threads that nobody closes: its tasks are dropped with it, in ring and group.
    let sim = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build_sim(1).unwrap();
    let ticket = sim.engine().submit_tracked(1, 1).unwrap();
    drop(sim);
    assert_eq!(ticket.wait(), Ok(Ended::Discarded));
}

#[test]
fn a_drop_that_panics_fails_its_task_and_the_ticket_says_so() {
    quiet();
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 && !std::thread::panicking() {
                std::panic::panic_any(WANTED);
            }
        }
    }
    let engine = Engine::<u64, Bomb>::builder()
        .workers(Workers::fixed(1))
        .task_handler(|_, _| ())
        .build()
        .unwrap();
    let tickets =
        [false, true, false, true].map(|bomb| engine.submit_tracked(1, Bomb(bomb)).unwrap());
    let done = tickets.each_ref().map(|ticket| ticket.wait().unwrap().is_done());
    assert_eq!(done, [true, false, true, false]);
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (2, 2));
}

#[test]
fn a_key_that_cannot_be_compared_fails_its_task() {
    quiet();
    #[derive(Debug, Clone)]
    struct Key(Arc<AtomicBool>);
    impl PartialEq for Key {
        fn eq(&self, _: &Self) -> bool {
            if self.0.load(SeqCst) {
                std::panic::panic_any(WANTED);
            }
            true
        }
    }
    impl Eq for Key {}
    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
            7.hash(hasher);
        }
    }
    let bad = Arc::new(AtomicBool::new(false));
    let engine = Engine::<Key, u64>::builder()
        .workers(Workers::fixed(1))
        .task_handler(|_, _| ())
        .build()
        .unwrap();
    assert_eq!(engine.submit_tracked(Key(bad.clone()), 1).unwrap().wait(), Ok(Ended::Done));
    bad.store(true, SeqCst);
    let ticket = engine.submit_tracked(Key(bad.clone()), 2).unwrap();
    assert!(matches!(ticket.wait(), Ok(Ended::Failed { attempts: 0, .. })));
    bad.store(false, SeqCst);
    assert_eq!(engine.submit_tracked(Key(bad), 3).unwrap().wait(), Ok(Ended::Done));
}

#[test]
fn a_ticket_is_a_future_for_any_runtime() {
    let engine =
        Engine::<u64, u64>::builder().workers(Workers::fixed(2)).task_handler(|_, _| ()).build();
    let engine = Arc::new(engine.unwrap());
    let _watch = watch("a_ticket_is_a_future", &engine);
    for n in 0..scale(300, 3_000) {
        let ticket = engine.submit_tracked(n % 3, n).unwrap();
        assert_eq!(block_on(ticket), Ok(Ended::Done));
    }
    assert!(engine.wait_graph().is_empty());
}

/// The smallest of all runtimes.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn a_task_that_waits_for_its_own_group_is_told_at_once() {
    for by_future in [false, true] {
        let (engine, program) = program(3);
        let _watch = watch("own group", &engine);
        let (report, heard) = channel();
        engine
            .submit(
                key(1),
                Box::new(move |program: &Program| {
                    let ticket = program.engine().submit_tracked(key(1), Box::new(|_| ())).unwrap();
                    let error = if by_future { block_on(ticket) } else { ticket.wait() };
                    report.send(error.unwrap_err()).unwrap();
                }),
            )
            .unwrap();
        let error = heard.recv().unwrap();
        assert!(matches!(error, WaitError::Cycle(_)), "{error}");
        assert_eq!(error.keys(), [r#""group_1""#]);
        let wait = &error.deadlock().unwrap().waits[0];
        assert!(wait.at.file().ends_with("f8_waiting.rs") && wait.at.line() > 0);
        let text = error.to_string();
        assert!(text.contains(r#"group "group_1" waits for group "group_1" ("#), "{text}");
        assert!(text.contains("f8_waiting.rs:"), "{text}");
        let long = format!("{error:#}");
        assert!(long.contains("digraph waits {"), "{long}");
        let report = engine.close(LONG);
        assert_eq!((report.done, report.failed), (2, 0), "the group goes on");
        drop(program);
    }
}

/// Groups 0 to n - 1, each of whose tasks waits for a task that stands behind the one that runs in the next group. Returns
/// what each wait came to.
fn ring_of_waits(n: usize, untracked_between: usize) -> Vec<Result<Ended, WaitError>> {
    let (engine, program) = program(n + 1);
    let _watch = watch("ring_of_waits", &engine);
    let (report, heard) = channel::<(usize, Result<Ended, WaitError>)>();
    let barrier = Arc::new(std::sync::Barrier::new(n + 1));
    for i in 0..n {
        let (report, barrier) = (report.clone(), barrier.clone());
        let job = move |program: &Program| {
            barrier.wait();
            // Now the tickets of all are known.
            barrier.wait();
            let result = program.ticket(&key((i + 1) % n)).wait();
            report.send((i, result)).unwrap();
        };
        engine.submit(key(i), Box::new(job)).unwrap();
    }
    barrier.wait();
    for i in 0..n {
        for _ in 0..untracked_between {
            engine.submit(key(i), Box::new(|_| ())).unwrap();
        }
        let ticket = engine.submit_tracked(key(i), Box::new(|_| ())).unwrap();
        lock(&program.tickets).insert(key(i), ticket);
    }
    barrier.wait();
    let mut results: Vec<_> = (0..n).map(|_| heard.recv().unwrap()).collect();
    results.sort_by_key(|(i, _)| *i);
    assert!(engine.close(LONG).is_complete());
    assert!(engine.wait_graph().is_empty());
    results.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn a_cycle_of_any_length_is_refused_once_and_names_its_keys() {
    for (n, between) in [(2, 0), (3, 0), (10, 0), (2, 1), (3, 1)] {
        let results = ring_of_waits(n, between);
        let errors: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert_eq!(errors.len(), 1, "exactly one of {n} is refused: {results:?}");
        assert!(matches!(errors[0], WaitError::Cycle(_)), "{}", errors[0]);
        let mut keys = errors[0].keys();
        // In the order in which they wait for each other.
        for pair in errors[0].deadlock().unwrap().waits.windows(2) {
            assert_eq!(pair[0].waits_for, pair[1].waiter);
        }
        keys.sort_unstable();
        let mut all: Vec<String> = (0..n).map(|i| format!("{:?}", key(i))).collect();
        all.sort_unstable();
        assert_eq!(keys, all, "each key once");
    }
}

#[test]
fn when_all_workers_would_wait_the_last_is_told() {
    for workers in [1, 2, 4] {
        let (engine, _program) = program(workers);
        let _watch = watch("all workers", &engine);
        let (report, heard) = channel();
        // As many parents as workers; each waits for a child in a group of its own, which no worker is left to run.
        let barrier = Arc::new(std::sync::Barrier::new(workers));
        for i in 0..workers {
            let (report, barrier): (Sender<_>, _) = (report.clone(), barrier.clone());
            let job = move |program: &Program| {
                let engine = program.engine();
                barrier.wait();
                let child = engine.submit_tracked(key(100 + i), Box::new(|_| ())).unwrap();
                report.send(child.wait()).unwrap();
            };
            engine.submit(key(i), Box::new(job)).unwrap();
        }
        let results: Vec<_> = (0..workers).map(|_| heard.recv().unwrap()).collect();
        // Most of the time all meet; a child may be quicker than the last parent, and then nobody has to be told.
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            assert!(matches!(error, WaitError::AllWorkersWait(_)), "{error}");
            assert_eq!(error.keys().len(), workers, "{error}");
            assert!(error.to_string().contains(r#""group_10"#), "{error}");
        }
        if workers == 1 {
            assert!(results[0].is_err());
        }
        assert!(engine.close(LONG).is_complete());
    }
}

#[test]
fn a_blocking_submit_into_the_own_full_group_names_it() {
    let (engine, _program) = program(2);
    let _watch = watch("own full group", &engine);
    let (report, heard) = channel();
    let job = move |program: &Program| {
        let engine = program.engine();
        let why = loop {
            // The capacity is two, and a submit by key notices some tasks later.
            match engine.submit(key(1), Box::new(|_| ())) {
                Ok(()) => {}
                Err(error) => break (error.reason, error.explain()),
            }
        };
        let other = loop {
            match engine.submit(key(2), Box::new(|program| drop(program.ticket("gate").wait()))) {
                Ok(()) => {}
                Err(error) => break error.reason,
            }
        };
        report.send((why, other)).unwrap();
    };
    let gate = Arc::new(Mutex::new(()));
    let closed = lock(&gate);
    let opens = gate.clone();
    let ticket = engine.submit_tracked(key(3), Box::new(move |_| drop(lock(&opens)))).unwrap();
    lock(&_program.tickets).insert("gate".to_owned(), ticket);
    engine.submit(key(1), Box::new(job)).unwrap();
    // Both workers are busy now, and nobody takes anything out of the ingress.
    let ((why, text), other) = heard.recv().unwrap();
    drop(closed);
    assert!(matches!(why, SubmitReason::OwnGroup | SubmitReason::OwnWorker), "{why:?}");
    assert!(text.contains(r#"group "group_1" not accepted"#), "{text}");
    assert_eq!(other, SubmitReason::OwnWorker);
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_full_group_known_as_such_is_called_the_own_one() {
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .group_capacity(1)
        .task_handler(move |_, task| {
            if let Some(engine) = ENGINE.get()
                && **task == 1
            {
                let engine = engine.lock().unwrap();
                // The other worker fills the group while this one runs it.
                let own = loop {
                    match engine.as_ref().unwrap().submit(1, 2).map_err(|error| error.reason) {
                        // The ring is full: the other worker has not come round yet.
                        Ok(()) | Err(SubmitReason::OwnWorker) => std::thread::yield_now(),
                        Err(reason) => break reason,
                    }
                };
                OWN.set(own).unwrap();
            }
        })
        .build()
        .unwrap();
    type Shared = Mutex<Option<Arc<Engine<u64, u64>>>>;
    static ENGINE: OnceLock<Shared> = OnceLock::new();
    static OWN: OnceLock<SubmitReason> = OnceLock::new();
    let engine = Arc::new(engine);
    let _watch = watch("a_full_group_known_as_such", &engine);
    ENGINE.set(Mutex::new(Some(engine.clone()))).unwrap();
    engine.submit(1, 1).unwrap();
    assert!(engine.wait_drain(LONG));
    *lock(ENGINE.get().unwrap()) = None;
    assert_eq!(OWN.get(), Some(&SubmitReason::OwnGroup));
}

#[test]
fn a_wait_that_would_hold_the_last_permit_is_refused_and_others_are_not() {
    quiet();
    let cell = Own::default();
    let (report, heard) = channel();
    let its = cell.clone();
    let both = Arc::new(std::sync::Barrier::new(2));
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(4))
        .in_flight(2)
        .task_handler(move |_, task| {
            if **task < 2 {
                let engine = its.engine();
                both.wait();
                let child = engine.submit_tracked(100 + **task, 9).unwrap();
                report.send(child.wait()).unwrap();
            }
        })
        .build()
        .unwrap();
    let engine = cell.known(engine);
    let _watch = watch("permits", &engine);
    engine.submit(0, 0).unwrap();
    engine.submit(1, 1).unwrap();
    let results = [heard.recv().unwrap(), heard.recv().unwrap()];
    let errors: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(errors.len(), 1, "two workers are free, but no permit: {results:?}");
    assert!(matches!(errors[0], WaitError::AllPermitsWait(_)), "{}", errors[0]);
    let mut keys = errors[0].keys();
    keys.sort_unstable();
    assert_eq!(keys, ["0", "1"]);
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_limit_that_is_lowered_under_a_wait_ends_it() {
    // The child stands behind a task that runs, so the wait is fine; when that one gives its permit back, the limit is so low that
    // the child gets none: the waiting handler has the only one.
    let (engine, program) = program(4);
    let _watch = watch("a lowered limit", &engine);
    engine.set_in_flight(Some(InFlight::from(2))).unwrap();
    let hold = Arc::new(Mutex::new(()));
    let held = lock(&hold);
    let holds = hold.clone();
    let (starts, started) = channel();
    let block = move |_: &Program| {
        starts.send(()).unwrap();
        drop(lock(&holds));
    };
    engine.submit(key(1), Box::new(block)).unwrap();
    // Not in one dispatch with it.
    started.recv().unwrap();
    let child = engine.submit_tracked(key(1), Box::new(|_| ())).unwrap();
    lock(&program.tickets).insert("child".to_owned(), child);
    let (report, heard) = channel();
    let parent = move |program: &Program| report.send(program.ticket("child").wait()).unwrap();
    engine.submit(key(2), Box::new(parent)).unwrap();
    while engine.wait_graph().is_empty() {
        std::thread::yield_now();
    }
    engine.set_in_flight(Some(InFlight::from(1))).unwrap();
    drop(held);
    let error = heard.recv().unwrap().unwrap_err();
    assert!(matches!(error, WaitError::AllPermitsWait(_)), "{error}");
    let permits = error
        .deadlock()
        .unwrap()
        .graph
        .edges
        .iter()
        .filter(|edge| edge.to == WaitNode::Permits || edge.from == WaitNode::Permits);
    assert_eq!(permits.count(), 2, "the child waits for a permit, which the parent has: {error:#}");
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_halt_ends_the_waits_of_handlers_and_close_comes_back() {
    quiet();
    for by_close in [false, true] {
        let (engine, program) = program(3);
        let _watch = watch("a halt", &engine);
        let (report, heard) = channel();
        let (ready, go) = channel();
        let hold = Arc::new(Mutex::new(()));
        let held = lock(&hold);
        let holds = hold.clone();
        let (starts, started) = channel();
        let block = move |_: &Program| {
            starts.send(()).unwrap();
            drop(lock(&holds));
        };
        let blocker = engine.submit_tracked(key(1), Box::new(block)).unwrap();
        started.recv().unwrap();
        let behind = engine.submit_tracked(key(1), Box::new(|_| ())).unwrap();
        lock(&program.tickets).insert("behind".to_owned(), behind);
        let job = move |program: &Program| {
            ready.send(()).unwrap();
            report.send(program.ticket("behind").wait()).unwrap();
        };
        engine.submit(key(2), Box::new(job)).unwrap();
        go.recv().unwrap();
        if by_close {
            // Time is up at once: the engine is halted, and the handler that waits must not hold the close up.
            let report = engine.close(Duration::ZERO);
            assert!(report.running >= 1, "the blocker runs");
        } else {
            engine.halt();
        }
        assert_eq!(heard.recv().unwrap(), Err(WaitError::EngineHalted));
        drop(held);
        assert_eq!(blocker.wait(), Ok(Ended::Done));
        let report = engine.close(LONG);
        assert_eq!(report.left_tasks(), 1);
        assert_eq!(program.ticket("behind").wait(), Ok(Ended::GivenBack));
    }
}

#[test]
fn a_group_that_is_halted_ends_the_waits_of_handlers_for_it() {
    quiet();
    let cell = Own::default();
    let (report, heard) = channel();
    let (its, waits) = (cell.clone(), Arc::new(AtomicBool::new(false)));
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(3))
        .on_exhausted(OnExhausted::halt_group())
        .task_handler(move |_, task| {
            let engine = its.engine();
            match **task {
                0 => {
                    let behind = engine.submit_tracked(1, 5).unwrap();
                    waits.store(true, SeqCst);
                    report.send(behind.wait()).unwrap();
                }
                1 => {
                    while !waits.load(SeqCst) || engine.wait_graph().is_empty() {
                        std::thread::yield_now();
                    }
                    return Err("halts its group");
                }
                _ => {}
            }
            Ok(())
        })
        .build()
        .unwrap();
    let engine = cell.known(engine);
    let _watch = watch("a halted group", &engine);
    engine.submit(1, 1).unwrap();
    engine.submit(2, 0).unwrap();
    let error = heard.recv().unwrap().unwrap_err();
    assert_eq!(error, WaitError::GroupHalted { key: "1".to_owned() });
    assert_eq!(engine.close(LONG).left_tasks(), 1);
}

#[test]
fn waits_that_end_are_not_refused() {
    // Diamonds: one waits for two which wait for the same one; chains without a circle; an earlier task of another group.
    let (engine, program) = program(6);
    let _watch = watch("diamonds", &engine);
    for round in 0..scale(50, 500) {
        let hold = Arc::new(Mutex::new(()));
        let held = lock(&hold);
        let holds = hold.clone();
        let bottom = engine.submit_tracked(key(3), Box::new(move |_| drop(lock(&holds)))).unwrap();
        lock(&program.tickets).insert("bottom".to_owned(), bottom);
        for side in ["left", "right"] {
            let job = move |program: &Program| {
                assert_eq!(program.ticket("bottom").wait(), Ok(Ended::Done));
            };
            let ticket = engine.submit_tracked(side.to_owned(), Box::new(job)).unwrap();
            lock(&program.tickets).insert(side.to_owned(), ticket);
        }
        let (report, heard) = channel();
        let top = move |program: &Program| {
            let results = ["left", "right"].map(|side| program.ticket(side).wait());
            report.send(results).unwrap();
        };
        engine.submit(key(0), Box::new(top)).unwrap();
        if round % 2 == 0 {
            while engine.wait_graph().edges.len() < 3 {
                std::thread::yield_now();
            }
            let dot = engine.wait_graph().to_dot();
            assert!(dot.contains(r#""group \"left\"" -> "group \"group_3\"""#), "{dot}");
        }
        drop(held);
        assert_eq!(heard.recv().unwrap(), [Ok(Ended::Done), Ok(Ended::Done)]);
    }
    let report = engine.close(LONG);
    assert_eq!(report.failed, 0);
}

#[test]
fn threads_and_futures_outside_are_in_the_graph_and_wait_for_what_they_like() {
    let (engine, _program) = program(1);
    let _watch = watch("threads outside", &engine);
    let hold = Arc::new(Mutex::new(()));
    let held = lock(&hold);
    let holds = hold.clone();
    let ticket = engine.submit_tracked(key(1), Box::new(move |_| drop(lock(&holds)))).unwrap();
    let (again, third) = (ticket.clone(), ticket.clone());
    let thread = std::thread::Builder::new().name("outside".to_owned());
    let thread = thread.spawn(move || again.wait()).unwrap();
    let future = std::thread::spawn(move || block_on(third));
    let wanted = [
        (WaitNode::Thread("outside".to_owned()), WaitNode::Group(format!("{:?}", key(1)))),
        (WaitNode::Future, WaitNode::Group(format!("{:?}", key(1)))),
    ];
    loop {
        let graph = engine.wait_graph();
        let has = |(from, to): &(WaitNode, WaitNode)| {
            graph.edges.iter().any(|edge| edge.from == *from && edge.to == *to)
        };
        if wanted.iter().all(has) {
            assert_eq!(graph.nodes().len(), 3);
            break;
        }
        std::thread::yield_now();
    }
    drop(held);
    assert_eq!(thread.join().unwrap(), Ok(Ended::Done));
    assert_eq!(future.join().unwrap(), Ok(Ended::Done));
    assert!(engine.wait_graph().is_empty());
}

#[test]
fn keys_that_cannot_be_printed_are_written_by_a_function_of_the_caller() {
    #[derive(PartialEq, Eq, Hash)]
    struct Secret(u64);
    let engine = Engine::<Secret, u64>::builder()
        .workers(Workers::fixed(1))
        .task_handler(|_, _| ())
        .build()
        .unwrap();
    let ticket =
        engine.tracked_by(|key| format!("account {}", key.0 % 10)).submit(Secret(1_234), 1);
    assert_eq!(ticket.unwrap().wait(), Ok(Ended::Done));
}

#[test]
fn tickets_work_in_virtual_time() {
    let mut sim = Engine::<u64, u64>::builder()
        .retry(Retry::fixed(Duration::from_secs(3_600)).attempts(2))
        .flush_interval(Duration::from_secs(10))
        .batch_size(4)
        .task_handler(|_, task| if task.attempt() == 1 && **task == 0 { Err("no") } else { Ok(()) })
        .build_sim(5)
        .unwrap();
    let tickets: Vec<Ticket> = (0..3).map(|n| sim.engine().submit_tracked(1, n).unwrap()).collect();
    sim.run();
    assert!(tickets.iter().all(|ticket| !ticket.is_over()), "less than a batch lingers");
    sim.advance(Duration::from_secs(10));
    sim.run();
    assert!(
        tickets.iter().all(|ticket| !ticket.is_over()),
        "the first is in back-off, the others behind it"
    );
    sim.advance(Duration::from_secs(3_600));
    sim.run();
    assert!(tickets.iter().all(|ticket| ticket.ended() == Some(Ended::Done)));
}

#[test]
fn random_waits_never_hang() {
    // Each job submits tracked jobs to random groups and waits for tickets that others left lying about, own and foreign.
    // Whatever the pattern, every wait ends, with an end or with an error, and so does the engine.
    for seed in 0..scale(20, 100) {
        let workers = 1 + (seed % 5) as usize;
        let (engine, _) = program(workers);
        let engine_of_jobs = Arc::downgrade(&engine);
        let _watch = watch("random_waits_never_hang", &engine);
        if seed % 3 == 0 {
            engine.set_in_flight(Some(InFlight::from(1 + (seed % 4) as u32))).unwrap();
        }
        let shared: Arc<Mutex<Vec<Ticket>>> = Arc::default();
        let waits = Arc::new(AtomicUsize::new(0));
        fn job(
            engine: std::sync::Weak<Engine<String, Job>>,
            shared: Arc<Mutex<Vec<Ticket>>>,
            waits: Arc<AtomicUsize>,
            seed: u64,
            depth: u64,
        ) -> Job {
            Box::new(move |_| {
                let mut rng = Rng(seed);
                for _ in 0..rng.below(4) {
                    let Some(engine) = engine.upgrade() else { return };
                    if depth > 0 && rng.below(2) == 0 {
                        let next = job(
                            Arc::downgrade(&engine),
                            shared.clone(),
                            waits.clone(),
                            rng.next(),
                            depth - 1,
                        );
                        let to = key(rng.below(6) as usize);
                        if let Ok(ticket) = engine.try_submit_tracked(to, next) {
                            lock(&shared).push(ticket);
                        }
                    }
                    let ticket = {
                        let tickets = lock(&shared);
                        let n = tickets.len() as u64;
                        (n > 0).then(|| tickets[rng.below(n) as usize].clone())
                    };
                    if let Some(ticket) = ticket {
                        let result = match rng.below(3) {
                            0 => block_on(ticket),
                            1 => ticket.wait_timeout(50 * MS),
                            _ => ticket.wait(),
                        };
                        waits.fetch_add(1, SeqCst);
                        if let Err(error) = result {
                            // Every error can be printed.
                            assert!(!format!("{error:#}").is_empty());
                        }
                    }
                }
            })
        }
        let mut rng = Rng(seed);
        for _ in 0..30 {
            let next = job(engine_of_jobs.clone(), shared.clone(), waits.clone(), rng.next(), 3);
            if let Ok(ticket) = engine.submit_tracked(key(rng.below(6) as usize), next) {
                lock(&shared).push(ticket);
            }
        }
        // From outside every ticket ends well.
        loop {
            let open = lock(&shared).iter().find(|ticket| !ticket.is_over()).cloned();
            let Some(ticket) = open else { break };
            assert!(ticket.wait().is_ok());
        }
        let report = engine.close(LONG);
        assert!(report.is_complete());
        assert!(waits.load(SeqCst) > 0);
        assert!(engine.wait_graph().is_empty());
    }
}
