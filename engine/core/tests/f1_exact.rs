//! Row F1, exact mode: never more than so many tasks of one group inside the engine, whatever ways they come, and a place comes
//! back on every path on which a task can leave.

mod common;

use std::{
    collections::{HashMap, VecDeque},
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, Failure, Lease, OnExhausted, Outcome, Retry, Sim, SubmitReason, Workers};
use common::{
    Count, LONG, Latch, Log, MS, Rng, WANTED, lock, quiet, scale, until, waiting::Waiting, watch,
};

fn full(engine: &Engine<u32, u64>, key: u32) -> bool {
    match engine.try_submit(key, 0) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.reason, SubmitReason::GroupFull);
            true
        }
    }
}

/// How many more tasks the group takes until it is full.
fn fill(engine: &Engine<u32, u64>, key: u32) -> u64 {
    (0..).find(|_| full(engine, key)).expect("some time")
}

#[test]
fn so_many_get_in_and_not_one_more_by_any_way() {
    for capacity in [1usize, 7, 1_000] {
        let (latch, others) = (Latch::new(), Count::new());
        let (gate, count) = (latch.clone(), others.clone());
        let engine = Engine::<u32, u64>::builder()
            .workers(Workers::fixed(2))
            .exact_group_capacity(capacity)
            .task_handler(move |_, task| match task.key() {
                0 => gate.wait(),
                _ => count.add(1),
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("so many", &engine);
        let accepted = AtomicU64::new(0);
        thread::scope(|scope| {
            for way in 0..6u64 {
                let (engine, accepted) = (&engine, &accepted);
                scope.spawn(move || {
                    let handle = engine.group(0);
                    let mut lane = engine.producer();
                    for n in 0..capacity as u64 + 50 {
                        let reason = match way {
                            0 => engine.try_submit(0, n).map_err(|e| e.reason),
                            1 => handle.try_submit(n).map_err(|e| e.reason),
                            2 => lane.try_submit(0, n).map_err(|e| e.reason),
                            3 => engine.try_submit_tracked(0, n).map(drop).map_err(|e| e.reason),
                            4 => engine.submit_timeout(0, n, Duration::ZERO).map_err(|e| e.reason),
                            _ => {
                                let mut many = vec![(0, n), (0, n), (0, n)];
                                let sent = engine.try_submit_many(&mut many);
                                accepted.fetch_add(3 - many.len() as u64, SeqCst);
                                assert_eq!(sent.is_ok(), many.is_empty());
                                sent.map_or_else(
                                    |e| Err(e.reason),
                                    |()| Err(SubmitReason::GroupFull),
                                )
                            }
                        };
                        match reason {
                            Ok(()) => {
                                accepted.fetch_add(1, SeqCst);
                            }
                            Err(SubmitReason::TimedOut(after)) => assert_eq!(after, Duration::ZERO),
                            Err(reason) => assert_eq!(reason, SubmitReason::GroupFull),
                        }
                    }
                });
            }
        });
        assert_eq!(accepted.load(SeqCst), capacity as u64);
        assert_eq!(engine.stats().backlog(), capacity as u64);
        for key in 1..=2_000 {
            engine.try_submit(key, 0).expect("others have room");
        }
        others.wait_for(2_000);
        latch.open();
        let report = engine.close(LONG);
        assert_eq!(report.done, capacity as u64 + 2_000);
    }
}

/// What was accepted and has not been handled is a part of what is inside, so it never is more than the capacity.
#[test]
fn under_threads_the_bound_holds_at_every_moment_and_order_too() {
    const KEYS: u32 = 5;
    for (capacity, batch) in [(1usize, 4usize), (3, 1), (16, 8)] {
        let inside: Arc<Vec<AtomicI64>> = Arc::new((0..KEYS).map(|_| AtomicI64::new(0)).collect());
        let log = Log::new();
        let (seen, left) = (log.clone(), inside.clone());
        let engine = Engine::<u32, (u32, u64)>::builder()
            .workers(Workers::fixed(3))
            .batch_size(batch)
            .exact_group_capacity(capacity)
            .task_handler(move |_, task| {
                left[*task.key() as usize].fetch_sub(1, SeqCst);
                seen.push(**task);
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("bound", &engine);
        let each = scale(2_000, 40_000);
        thread::scope(|scope| {
            for source in 0..4u32 {
                let (engine, inside) = (&engine, &inside);
                scope.spawn(move || {
                    let handles: Vec<_> = (0..KEYS).map(|key| engine.group(key)).collect();
                    let mut lane = engine.producer();
                    let mut rng = Rng(u64::from(source));
                    for n in 0..each {
                        let key = rng.below(u64::from(KEYS)) as u32;
                        let task = (source * 100 + key, n);
                        match rng.below(5) {
                            0 => engine.submit(key, task).expect("open"),
                            1 => handles[key as usize].submit(task).expect("open"),
                            2 => lane.submit(key, task).expect("open"),
                            3 => engine.submit_many(&mut vec![(key, task)]).expect("open"),
                            _ => engine.submit_timeout(key, task, LONG).expect("room comes"),
                        }
                        let now = inside[key as usize].fetch_add(1, SeqCst) + 1;
                        assert!(now <= capacity as i64, "{now} of {capacity} inside");
                    }
                });
            }
        });
        let report = engine.close(LONG);
        assert_eq!((report.done, report.is_complete()), (4 * each, true));
        for (source, numbers) in common::by_key(log.take()) {
            assert!(numbers.is_sorted(), "source {source}: in the order of its submits");
        }
    }
}

/// A baton goes to and fro between two threads: real-time order over threads, with a group that is full all the time.
#[test]
fn order_is_that_of_real_time_over_threads() {
    let log = Log::new();
    let seen = log.clone();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(2))
        .exact_group_capacity(2)
        .task_handler(move |_, task| seen.push(**task))
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("baton", &engine);
    let rounds = scale(3_000, 30_000);
    let baton = AtomicU64::new(0);
    thread::scope(|scope| {
        for side in 0..2 {
            let (engine, baton) = (&engine, &baton);
            scope.spawn(move || {
                for n in (0..rounds).filter(|n| n % 2 == side) {
                    until(|| baton.load(SeqCst) == n);
                    engine.submit(1, n).expect("open");
                    baton.store(n + 1, SeqCst);
                }
            });
        }
    });
    assert_eq!(engine.close(LONG).done, rounds);
    assert!(log.take().into_iter().eq(0..rounds));
}

/// An engine whose group 0 holds `capacity` tasks that wait: it is paused.
fn paused(capacity: usize) -> (Arc<Engine<u32, u64>>, Log<u64>) {
    let log = Log::new();
    let seen = log.clone();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(2))
        .batch_size(1)
        .exact_group_capacity(capacity)
        .task_handler(move |_, task| seen.push(**task))
        .build()
        .expect("valid settings");
    engine.pause_group(0);
    (0..capacity as u64).for_each(|n| engine.try_submit(0, n).expect("a place"));
    (Arc::new(engine), log)
}

#[test]
fn who_waits_gets_in_in_the_order_of_arrival_and_nobody_passes() {
    let (engine, log) = paused(4);
    let _watch = watch("in order", &engine);
    let handle = engine.group(0);
    let mut by_key: Vec<_> = (0..6).map(|n| Waiting::new(engine.submit_async(0, 10 + n))).collect();
    let mut by_handle = Waiting::new(handle.submit_async(100));
    assert!(by_key.iter_mut().all(|waiting| waiting.poll().is_pending()));
    assert!(by_handle.poll().is_pending());
    assert!(full(&engine, 0));
    assert!(by_key.iter().all(|waiting| waiting.wakes() == 0));
    assert_eq!(engine.cancel_pending(&0), Ok(vec![0, 1, 2, 3]));
    // The call tells all of them; whoever comes now, and whoever is polled before its turn, is behind them.
    assert!(full(&engine, 0));
    assert!(by_handle.poll().is_pending());
    assert!(by_key[2].poll().is_pending());
    for waiting in &mut by_key[..4] {
        assert!(waiting.poll().is_ready(), "in order");
    }
    assert!(by_key[4].poll().is_pending(), "four places");
    // Given up: the one behind it is the next.
    drop(by_key.remove(4));
    assert_eq!(engine.cancel_pending(&0), Ok(vec![10, 11, 12, 13]));
    assert!(by_key[4].wakes() > 0);
    assert!(by_handle.poll().is_pending());
    assert!(by_key[4].poll().is_ready());
    assert!(by_handle.wakes() > 0 && by_handle.poll().is_ready());
    assert!(!full(&engine, 0), "nobody waits, and there is a place");
    assert!(engine.resume_group(&0));
    assert_eq!(engine.close(LONG).done, 3);
    assert_eq!(log.take(), [15, 100, 0]);
}

/// Handlers go through it one by one, when they are let.
#[derive(Default)]
struct Turnstile {
    let_in: Mutex<u64>,
    changed: std::sync::Condvar,
}

impl Turnstile {
    fn pass(&self) {
        let mut let_in = lock(&self.let_in);
        while *let_in == 0 {
            let_in = self.changed.wait(let_in).expect("no panic");
        }
        *let_in -= 1;
    }
    fn let_in(&self, n: u64) {
        *lock(&self.let_in) += n;
        self.changed.notify_all();
    }
}

#[test]
fn a_place_is_free_when_a_task_has_ended_and_who_waits_is_woken_at_half() {
    let turnstile = Arc::new(Turnstile::default());
    let (way, log) = (turnstile.clone(), Log::new());
    let seen = log.clone();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(1))
        .batch_size(1)
        .exact_group_capacity(6)
        .task_handler(move |_, task| {
            way.pass();
            seen.push(**task);
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("half", &engine);
    for n in 0..10 {
        if n < 6 {
            engine.try_submit(0, n).expect("a place");
        } else {
            assert!(full(&engine, 0));
            turnstile.let_in(1);
            // Its word is settled before it counts as done.
            until(|| engine.stats().done == n - 5);
            engine.try_submit(0, n).expect("nobody waits, and one has ended");
        }
    }
    let mut waiting: Vec<_> = (10..13).map(|n| Waiting::new(engine.submit_async(0, n))).collect();
    assert!(waiting.iter_mut().all(|one| one.poll().is_pending()));
    for ended in 5..=6 {
        turnstile.let_in(1);
        until(|| engine.stats().done == ended);
        assert_eq!(waiting[0].wakes(), 0, "four or more are inside");
        assert!(full(&engine, 0), "places are for those who wait");
    }
    turnstile.let_in(1);
    until(|| waiting[0].wakes() == 1);
    assert_eq!(waiting[1].wakes(), 0, "one at a time");
    for n in 0..3 {
        assert!(waiting[n].poll().is_ready());
        assert!(waiting[n + 1..].iter().take(1).all(|next| next.wakes() == 1));
    }
    turnstile.let_in(100);
    assert_eq!(engine.close(LONG).done, 13);
    assert!(log.take().into_iter().eq(0..13));
}

/// After whatever happened to the tasks of the group, exactly `capacity` more get in.
fn all_places_are_free(engine: &Engine<u32, u64>, capacity: usize, what: &str) {
    // The last task may have halted it.
    engine.resume_group(&0);
    engine.pause_group(0);
    assert_eq!(fill(engine, 0), capacity as u64, "{what}");
    assert_eq!(engine.cancel_pending(&0).map(|tasks| tasks.len()), Ok(capacity), "{what}");
    engine.resume_group(&0);
    assert_eq!(engine.stats().backlog(), 0, "{what}");
}

#[test]
fn a_place_comes_back_however_its_task_leaves() {
    quiet();
    const CAPACITY: usize = 5;
    // Every other letter is not taken at first: its task is held, and keeps its place.
    let tries = AtomicU64::new(0);
    let verdicts = OnExhausted::dead_letter(MS, move |_: bgrp::Exhausted<'_, u32, u64>| {
        if tries.fetch_add(1, SeqCst).is_multiple_of(2) { Err("full") } else { Ok(()) }
    });
    for (what, exhausted) in [
        ("skipped", OnExhausted::skip()),
        ("dead letters", verdicts),
        ("halted", OnExhausted::halt_group()),
    ] {
        // 1: fails for good. 2: panics. 3: fails twice, then works. 4: is throttled once.
        let throttled = AtomicBool::new(false);
        let engine = Engine::<u32, u64>::builder()
            .workers(Workers::fixed(2))
            .batch_size(3)
            .exact_group_capacity(CAPACITY)
            .retry(Retry::fixed(MS).attempts(3))
            .on_exhausted(exhausted)
            .task_handler(move |_, task| match **task {
                1 => Outcome::Fail(Failure::new("no")),
                2 => panic!("{WANTED}"),
                3 if task.attempt() < 3 => Outcome::Retry(Failure::new("not yet")),
                4 if !throttled.swap(true, SeqCst) => Outcome::Throttled(MS),
                _ => Outcome::Done,
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("leaves", &engine);
        for round in 0..20u64 {
            for n in 0..40 {
                let task = (n + round) % 6;
                match engine.try_submit(0, task) {
                    Ok(()) => {}
                    Err(error) => {
                        assert_eq!(
                            (error.task, error.reason == SubmitReason::GroupHalted),
                            (task, error.reason != SubmitReason::GroupFull)
                        );
                        thread::yield_now();
                    }
                }
            }
            match round % 4 {
                0 => drop(engine.cancel_pending(&0).expect("open")),
                1 => drop(engine.discard_group(&0).expect("open")),
                2 => {
                    let report = engine.close_group(0, Duration::ZERO);
                    assert_eq!(
                        engine.try_submit(0, 0).map_err(|e| e.reason),
                        Err(SubmitReason::GroupClosed)
                    );
                    assert!(!report.running);
                    engine.resume_group(&0);
                }
                _ => drop(engine.resume_group(&0)),
            }
            until(|| {
                engine.resume_group(&0);
                engine.stats().backlog() == 0
            });
            all_places_are_free(&engine, CAPACITY, what);
        }
        assert!(engine.close(LONG).is_complete());
    }
}

#[test]
fn a_place_comes_back_when_its_lease_ends_or_is_dropped() {
    let (sender, leases) = std::sync::mpsc::channel::<Lease<u32, u64>>();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(2))
        .batch_size(2)
        .exact_group_capacity(4)
        .retry(Retry::fixed(MS).attempts(2))
        .lease_handler(move |lease| sender.send(lease).expect("the test listens"))
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("leases", &engine);
    for round in 0..20 {
        assert_eq!(fill(&engine, 0), 4);
        let mut ends = 0;
        while engine.stats().backlog() > 0 {
            let Ok(lease) = leases.recv_timeout(MS) else { continue };
            assert!(ends > 0 || full(&engine, 0), "out, and inside");
            ends += 1;
            match (round + ends) % 3 {
                0 => drop(lease),
                1 => lease.complete(()),
                _ => lease.complete(Outcome::Fail(Failure::new("no"))),
            }
        }
    }
    let (report, again) = (engine.close(LONG), engine.stats());
    assert_eq!((report.is_complete(), again.backlog()), (true, 0));
}

/// One thread, a seed: what the engine takes is what an oracle with a number per group says, at every step.
#[test]
fn in_simulations_a_submit_is_taken_if_and_only_if_there_is_a_place() {
    for seed in 0..scale(150, 2_000) {
        let mut rng = Rng(seed);
        let capacity = 1 + rng.below(6) as usize;
        let engine_wide = 64;
        let ended: Arc<Mutex<HashMap<u32, u64>>> = Arc::default();
        let ends = ended.clone();
        let mut sim: Sim<u32, u64> = Engine::<u32, u64>::builder()
            .workers(Workers::fixed(1 + rng.below(3) as usize))
            .batch_size(1 + rng.below(4) as usize)
            .idle_groups([1, 100][rng.below(2) as usize])
            .flush_interval([Duration::ZERO, 3 * MS][rng.below(2) as usize])
            .capacity(engine_wide)
            .exact_group_capacity(capacity)
            .retry(Retry::fixed(2 * MS).attempts(3))
            .task_handler(move |_, task| {
                if **task % 5 == 0 && task.attempt() < 3 {
                    return Outcome::Retry(Failure::new("not yet"));
                }
                *lock(&ends).entry(*task.key()).or_default() += 1;
                if **task % 7 == 0 { Outcome::Fail(Failure::new("no")) } else { Outcome::Done }
            })
            .build_sim(seed)
            .expect("valid settings");
        let mut accepted: HashMap<u32, u64> = HashMap::new();
        let mut back: HashMap<u32, u64> = HashMap::new();
        for n in 0..400u64 {
            let key = rng.below(40) as u32 % [3, 40][(seed % 2) as usize];
            match rng.below(12) {
                0..8 => {
                    let of = |map: &HashMap<u32, u64>| map.get(&key).copied().unwrap_or(0);
                    let inside = of(&accepted) - of(&lock(&ended)) - of(&back);
                    let all = accepted.values().sum::<u64>()
                        - lock(&ended).values().sum::<u64>()
                        - back.values().sum::<u64>();
                    let expected = if inside >= capacity as u64 {
                        Err(SubmitReason::GroupFull)
                    } else if all >= engine_wide as u64 {
                        Err(SubmitReason::EngineFull)
                    } else {
                        Ok(())
                    };
                    let sent = match rng.below(3) {
                        0 => sim.submit(key, n).map_err(|e| e.reason),
                        1 => sim.group(key).try_submit(n).map_err(|e| e.reason),
                        _ => sim.producer().try_submit(key, n).map_err(|e| e.reason),
                    };
                    assert_eq!(sent, expected, "seed {seed}, step {n}");
                    if sent.is_ok() {
                        *accepted.entry(key).or_default() += 1;
                    }
                }
                8 | 9 => drop(sim.step(rng.below(sim.workers() as u64) as usize)),
                10 => sim.advance(MS * rng.below(4) as u32),
                _ => {
                    if let Ok(tasks) = sim.engine().cancel_pending(&key) {
                        *back.entry(key).or_default() += tasks.len() as u64;
                    }
                }
            }
        }
        for _ in 0..20 {
            sim.advance(10 * MS);
            sim.run();
        }
        let stats = sim.stats();
        assert_eq!(stats.backlog(), 0, "seed {seed}: {stats:?}");
        assert!(sim.close().is_complete());
    }
}

/// Everything at once, at any moment; in the end all places are free.
#[test]
fn halts_cancels_retries_and_blocked_submitters_at_any_moment_lose_no_place() {
    for round in 0..scale(6, 60) {
        let capacity = 1 + (round % 4) as usize;
        let engine = Engine::<u32, u64>::builder()
            .workers(Workers::fixed(2))
            .batch_size(2)
            .exact_group_capacity(capacity)
            .retry(Retry::fixed(Duration::ZERO).attempts(2))
            .on_exhausted(OnExhausted::halt_group())
            .task_handler(|_, task| match **task % 9 {
                0 => Outcome::Fail(Failure::new("halts")),
                1 if task.attempt() == 1 => Outcome::Retry(Failure::new("again")),
                _ => Outcome::Done,
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("any moment", &engine);
        let (accepted, back) = (AtomicU64::new(0), AtomicU64::new(0));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let submitters: Vec<_> = (0..4u64)
                .map(|t| {
                    let (engine, accepted) = (&engine, &accepted);
                    scope.spawn(move || {
                        let mut rng = Rng(round * 10 + t);
                        for _ in 0..scale(400, 2_000) {
                            let (key, task) = (rng.below(2) as u32, rng.below(1_000));
                            let sent = match rng.below(3) {
                                0 => engine.try_submit(key, task).is_ok(),
                                1 => engine.submit_timeout(key, task, MS).is_ok(),
                                _ => engine.submit(key, task).is_ok(),
                            };
                            accepted.fetch_add(u64::from(sent), SeqCst);
                        }
                    })
                })
                .collect();
            let (engine, back, over) = (&engine, &back, &over);
            scope.spawn(move || {
                let mut rng = Rng(round);
                while !over.load(SeqCst) {
                    let key = rng.below(2) as u32;
                    let tasks = match rng.below(5) {
                        0 => engine.cancel_pending(&key).expect("open"),
                        1 => engine.discard_group(&key).expect("open"),
                        2 => engine.close_group(key, Duration::ZERO).left,
                        3 => {
                            engine.pause_group(key);
                            Vec::new()
                        }
                        _ => Vec::new(),
                    };
                    back.fetch_add(tasks.len() as u64, SeqCst);
                    engine.resume_group(&key);
                    thread::yield_now();
                }
            });
            for submitter in submitters {
                submitter.join().expect("no panic");
            }
            over.store(true, SeqCst);
        });
        until(|| {
            (0..2).for_each(|key| {
                engine.resume_group(&key);
            });
            engine.stats().backlog() == 0
        });
        let stats = engine.stats();
        assert_eq!(stats.accepted, accepted.load(SeqCst));
        assert_eq!(stats.done + stats.failed + back.load(SeqCst), stats.accepted);
        for key in 0..2 {
            engine.resume_group(&key);
            engine.pause_group(key);
            assert_eq!(fill(&engine, key), capacity as u64);
        }
        let report = engine.close(LONG);
        assert_eq!(report.left_tasks(), 2 * capacity);
    }
}

#[test]
fn close_and_the_close_of_a_group_wake_who_waits_and_the_tasks_come_back() {
    for round in 0..scale(20, 200) {
        let (engine, _) = paused(2);
        let _watch = watch("close wakes", &engine);
        let handle = engine.group(0);
        let refused = Log::new();
        thread::scope(|scope| {
            for way in 0..4 {
                let (engine, handle, refused) = (&engine, &handle, refused.clone());
                scope.spawn(move || {
                    refused.push(match way {
                        0 => engine.submit(0, 77).map_err(|e| (e.task, e.reason)),
                        1 => handle.submit(77).map_err(|e| (e.task, e.reason)),
                        2 => engine.submit_timeout(0, 77, LONG).map_err(|e| (e.task, e.reason)),
                        _ => {
                            let mut many = vec![(0, 77)];
                            let sent = engine.submit_many(&mut many);
                            sent.map_err(|e| (many[0].1, e.reason))
                        }
                    });
                });
            }
            if round % 2 == 0 {
                thread::yield_now();
            }
            if round % 4 < 2 {
                let report = engine.close(MS);
                assert_eq!(report.left_tasks(), 2);
                until(|| refused.len() == 4);
                assert!(refused.take().iter().all(|r| *r == Err((77, SubmitReason::Closed))));
            } else {
                assert_eq!(engine.close_group(0, Duration::ZERO).left, [0, 1]);
                until(|| refused.len() == 4);
                assert!(refused.take().iter().all(|r| *r == Err((77, SubmitReason::GroupClosed))));
            }
        });
    }
}

/// A key whose `Eq`, `Hash` or drop panics when it is told to.
#[derive(Debug)]
struct Touchy {
    name: u32,
    eq: Arc<AtomicBool>,
    drop: bool,
}

impl PartialEq for Touchy {
    fn eq(&self, other: &Self) -> bool {
        assert!(!self.eq.load(SeqCst), "{WANTED}");
        self.name == other.name
    }
}
impl Eq for Touchy {}
impl Hash for Touchy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
impl Drop for Touchy {
    fn drop(&mut self) {
        assert!(!self.drop, "{WANTED}");
    }
}

#[test]
fn a_panic_in_a_key_costs_no_task_and_no_place() {
    quiet();
    let bad = Arc::new(AtomicBool::new(false));
    let engine = Engine::<Touchy, u64>::builder()
        .workers(Workers::fixed(1))
        .exact_group_capacity(4)
        .task_handler(|_, _| ())
        .build()
        .expect("valid settings");
    let key = |drop| Touchy { name: 1, eq: bad.clone(), drop };
    let handle = engine.group(key(false));
    handle.pause();
    engine.try_submit(key(false), 0).expect("a place");
    for n in 0..50 {
        bad.store(true, SeqCst);
        let error = engine.submit(key(false), n).expect_err("its key cannot be compared");
        assert_eq!((error.task, error.reason), (n, SubmitReason::KeyPanicked));
        bad.store(false, SeqCst);
    }
    // The key that is not needed is dropped when its task is inside.
    engine.try_submit(key(true), 1).expect("a place");
    engine.try_submit(key(true), 2).expect("a place");
    handle.try_submit(3).expect("a place");
    let error = engine.try_submit(key(false), 4).expect_err("full");
    assert_eq!(error.reason, SubmitReason::GroupFull);
    assert_eq!(handle.cancel_pending().expect("open"), [0, 1, 2, 3]);
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_handler_is_told_instead_of_waiting_and_its_own_task_takes_a_place() {
    let results = Log::new();
    let seen = results.clone();
    let slot: Arc<std::sync::OnceLock<Engine<u32, u64>>> = Arc::default();
    let inner = slot.clone();
    let done = Count::new();
    let count = done.clone();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(1))
        .exact_group_capacity(2)
        .task_handler(move |_, task| {
            if **task == 1 {
                let engine = inner.get().expect("set");
                seen.push(engine.submit(0, 2).map_err(|e| e.reason));
                seen.push(engine.submit(0, 3).map_err(|e| e.reason));
                seen.push(engine.submit(1, 2).map_err(|e| e.reason));
                seen.push(engine.submit(1, 2).map_err(|e| e.reason));
                seen.push(engine.submit(1, 2).map_err(|e| e.reason));
            }
            count.add(1);
        })
        .build()
        .expect("valid settings");
    assert!(slot.set(engine).is_ok());
    let engine = slot.get().expect("just set");
    engine.submit(0, 1).expect("a place");
    done.wait_for(4);
    let (own, other) = (Err(SubmitReason::OwnGroup), Err(SubmitReason::OwnWorker));
    assert_eq!(results.take(), [Ok(()), own, Ok(()), Ok(()), other]);
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn the_capacity_of_the_engine_is_exact_too_and_tasks_that_stand_do_not_count() {
    let (latch, begun) = (Latch::new(), Count::new());
    let (gate, count) = (latch.clone(), begun.clone());
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(2))
        .capacity(100)
        .exact_group_capacity(60)
        .task_handler(move |_, _| {
            count.add(1);
            gate.wait();
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("engine", &engine);
    engine.pause_group(9);
    (0..60).for_each(|n| engine.try_submit(9, n).expect("it stands: bounded by its own capacity"));
    for n in 0..100 {
        engine.try_submit((n % 4) as u32, n).expect("room");
    }
    let error = engine.try_submit(5, 1).expect_err("a hundred and one");
    assert_eq!(error.reason, SubmitReason::EngineFull);
    let mut waiting: VecDeque<_> =
        (0..3).map(|n| Waiting::new(engine.submit_async(6 + n, 1))).collect();
    assert!(waiting.iter_mut().all(|one| one.poll().is_pending()));
    assert_eq!(engine.try_submit(0, 1).map_err(|e| e.reason), Err(SubmitReason::EngineFull));
    latch.open();
    while let Some(mut first) = waiting.pop_front() {
        until(|| first.wakes() > 0);
        assert!(first.poll().is_ready(), "in the order of arrival");
    }
    engine.resume_group(&9);
    assert_eq!(engine.close(LONG).done, 163);
}

#[test]
fn settings_out_of_bounds_are_named() {
    for wrong in [0usize, (1 << 30) + 1] {
        let error = Engine::<u32, u32>::builder()
            .exact_group_capacity(wrong)
            .task_handler(|_, _| ())
            .build()
            .expect_err("out of bounds");
        let text = format!("exact_group_capacity is {wrong}; it must be between 1 and 1073741824");
        assert_eq!(error.to_string(), text);
    }
}

/// As many groups as there are keys, each for a moment: idle ones are reclaimed as in any engine.
#[test]
fn idle_groups_are_reclaimed() {
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(1))
        .idle_groups(100)
        .exact_group_capacity(4)
        .task_handler(|_, _| ())
        .build()
        .expect("valid settings");
    for key in 0..scale(20_000, 200_000) {
        engine.submit(key, 0).expect("open");
    }
    assert!(engine.wait_drain(LONG));
    (0..2_000).for_each(|key| engine.submit(key, 0).expect("open"));
    assert!(engine.wait_drain(LONG));
    let groups = engine.stats().groups;
    assert!(groups < 4_000, "{groups} groups are kept");
    assert!(engine.close(LONG).is_complete());
}
