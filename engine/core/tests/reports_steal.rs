//! Cases from public reports about stealing and about the end of an engine: each task once, and its memory once.

mod common;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, Failure, Outcome, Retry, Workers};
use common::{Count, Counted, LONG, Latch, Order, Rng, Tally, lock, scale, spin, watch, watchdog};

/// Where a group ran last, and how often it was another thread than before.
type Home = Mutex<(Option<thread::ThreadId>, u64)>;

#[test]
fn tokio_2382_thieves_in_a_ring_lose_and_double_nothing() {
    // Workers that robbed each other in a circle while others pushed made a queue's count run below zero. Here the
    // groups outnumber the workers, every turn ends at the tail of a deque, and each worker is often out of work.
    let moved = AtomicU64::new(0);
    for (workers, keys) in [(2usize, 3usize), (3, 7), (4, 9), (8, 40)] {
        let order = Order::new(keys, 2);
        let ran_on: Arc<Vec<Home>> = Arc::new((0..keys).map(|_| Mutex::default()).collect());
        let (watched, homes) = (order.clone(), ran_on.clone());
        let engine = Engine::<usize, (usize, u64)>::builder()
            .workers(Workers::fixed(workers))
            .batch_size(1)
            .task_handler(move |_, task| {
                let (source, number) = **task;
                let key = *task.key();
                watched.task(key, source, number, || {
                    let mut home = lock(&homes[key]);
                    let here = thread::current().id();
                    home.1 += u64::from(home.0.replace(here).is_some_and(|before| before != here));
                    spin(number * 37 % 300);
                });
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("thieves in a ring", &engine);
        let each = scale(15_000, 150_000);
        thread::scope(|scope| {
            for source in 0..2 {
                let engine = &engine;
                scope.spawn(move || {
                    let mut numbers = vec![0; keys];
                    let mut rng = Rng(source as u64);
                    for n in 0..each {
                        let key = rng.below(keys as u64) as usize;
                        numbers[key] += 1;
                        engine.submit(key, (source, numbers[key])).expect("open");
                        // Now and then everybody runs dry, and has to rob or to sleep.
                        if n % 512 == 511 {
                            thread::yield_now();
                        }
                    }
                });
            }
        });
        assert!(engine.close(LONG).is_complete());
        order.assert_clean(2 * each);
        moved.fetch_add(ran_on.iter().map(|home| lock(home).1).sum(), SeqCst);
    }
    assert!(moved.load(SeqCst) > 0, "no group ever changed its worker: nothing was robbed");
}

#[test]
fn rustsec_2021_0093_more_ready_groups_than_a_deque_holds_are_run_and_dropped_once() {
    // A deque that lost a race between two thieves handed out one element twice; its drop then freed memory twice. One
    // worker's deque is filled to its limit of 64 and beyond, while that worker stands still and others rob it.
    for (workers, groups) in [(3usize, 63u64), (3, 64), (3, 65), (4, 400)] {
        for round in 0..scale(6, 40) {
            let per_group = 3;
            let tally = Tally::new((groups * per_group) as usize + workers);
            let (latch, blocked) = (Latch::new(), Count::new());
            let (gate, count) = (latch.clone(), blocked.clone());
            let engine = Engine::<u64, Counted>::builder()
                .workers(Workers::fixed(workers))
                .batch_size(1)
                .retry(Retry::fixed(Duration::ZERO).attempts(2))
                .task_handler(move |_, task| {
                    if *task.key() >= groups {
                        count.add(1);
                        gate.wait();
                    }
                    if task.attempt() == 1 && task.id % 5 == 0 {
                        return Outcome::Retry(Failure::new("once more"));
                    }
                    task.run();
                    Outcome::Done
                })
                .build()
                .expect("valid settings");
            let engine = Arc::new(engine);
            let _watch = watch("full deque", &engine);
            // All workers but two stand still with whatever lies in their deques.
            for extra in 0..workers - 2 {
                let id = (groups * per_group) as usize + extra;
                engine.submit(groups + extra as u64, tally.task(id)).expect("open");
            }
            let mut many: Vec<_> = (0..groups * per_group)
                .map(|n| ((n + round) % groups, tally.task(n as usize)))
                .collect();
            engine.submit_many(&mut many).expect("open");
            blocked.wait_for(workers as u64 - 2);
            while engine.stats().done < groups * per_group {
                thread::yield_now();
            }
            latch.open();
            let report = engine.close(LONG);
            let tasks = groups * per_group + workers as u64 - 2;
            assert_eq!((report.done, report.left.len()), (tasks, 0));
            drop((report, engine));
            for id in 0..tasks as usize {
                assert_eq!((tally.runs(id), tally.drops[id].load(SeqCst)), (1, 1), "task {id}");
            }
        }
    }
}

/// Waits at most as long as the watchdogs do for `done`.
fn until(what: &str, done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        thread::yield_now();
    }
}

#[test]
fn async_executor_163_an_engine_that_ends_while_others_submit_to_it_is_sound() {
    // The consumer ran the last task and dropped the executor between a producer's push and its notification, which
    // then touched what was gone. Handles and lanes outlive the engine here; its last owner goes inside a task.
    type Owner = Mutex<Option<Engine<u64, Item>>>;
    struct Item(#[allow(dead_code, reason = "counts its drop")] Counted, Option<Arc<Owner>>);
    for workers in [1, 2] {
        for round in 0..scale(400, 4_000) {
            let (submitters, each) = (3usize, 20usize);
            let tally = Tally::new(submitters * each + 1);
            let started = Count::new();
            let ran = Arc::new(AtomicU64::new(0));
            let (begun, count) = (started.clone(), ran.clone());
            let engine = Engine::<u64, Item>::builder()
                .workers(Workers::fixed(workers))
                .pin(false)
                .task_handler(move |_, task| {
                    task.0.run();
                    count.fetch_add(1, SeqCst);
                    if let Some(owner) = task.1.take() {
                        begun.add(1);
                        // The last owner, in the middle of the submits of the others.
                        spin(round % 64 * 50);
                        drop(owner.lock().unwrap_or_else(PoisonError::into_inner).take());
                    }
                })
                .build()
                .expect("valid settings");
            let _watch = watchdog("ends while others submit", String::new);
            let handle = engine.group(1);
            let mut lane = engine.producer();
            let other = engine.group(round);
            let owner: Arc<Owner> = Arc::new(Mutex::new(None));
            let last = Item(tally.task(submitters * each), Some(owner.clone()));
            *lock(&owner) = Some(engine);
            let took = lock(&owner).as_ref().expect("just put there").try_submit(7, last);
            assert!(took.is_ok(), "open");
            drop(owner);
            let accepted = Arc::new(AtomicU64::new(1));
            thread::scope(|scope| {
                let submit = |source: usize, mut send: Box<dyn FnMut(Item) -> bool + Send>| {
                    let (tally, accepted) = (&tally, &accepted);
                    move || {
                        for n in 0..each {
                            let took = send(Item(tally.task(source * each + n), None));
                            accepted.fetch_add(u64::from(took), SeqCst);
                        }
                    }
                };
                scope.spawn(submit(0, Box::new(move |item| handle.submit(item).is_ok())));
                scope.spawn(submit(1, Box::new(move |item| lane.submit(round, item).is_ok())));
                scope.spawn(submit(2, Box::new(move |item| other.try_submit(item).is_ok())));
            });
            started.wait_for(1);
            // What was accepted runs although nobody is left to close; what was refused came back.
            let accepted = accepted.load(SeqCst);
            until("accepted tasks run", || ran.load(SeqCst) == accepted);
            until("everything is dropped", || {
                tally.drops.iter().all(|drops| drops.load(SeqCst) == 1)
            });
        }
    }
}

#[test]
fn tokio_5041_an_engine_far_into_its_numbers_is_the_engine_it_was() {
    // Indices of 16 or 32 bits that wrapped while a thief stood still handed a task out twice. The rings' turns and the
    // words' sequences are tested at their wraps beside the code (ingress/ring.rs, ingress/lane.rs, group/state.rs,
    // and the model ring::order); a group's ring has no index that grows (its segments are linked), nor has the inbox.
    // What is left is a wrap of the smallest of all: a ring of few cells, lapped thousands of times while a worker
    // stands still with a group in hand, and its tasks in many segments.
    let order = Order::new(4, 1);
    let (latch, begun) = (Latch::new(), Count::new());
    let (watched, gate, count) = (order.clone(), latch.clone(), begun.clone());
    let engine = Engine::<usize, u64>::builder()
        .workers(Workers::fixed(2))
        .capacity(64)
        .task_handler(move |_, task| {
            watched.task(*task.key(), 0, **task, || {
                if (*task.key(), **task) == (0, 1) {
                    count.add(1);
                    gate.wait();
                }
            });
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("many laps", &engine);
    engine.submit(0, 1).expect("open");
    begun.wait_for(1);
    let laps = scale(60_000, 600_000);
    for n in 1..=laps {
        for key in 1..4 {
            engine.submit(key, n).expect("open");
        }
    }
    until("the others", || engine.stats().done >= 3 * laps);
    latch.open();
    for n in 2..=laps {
        engine.submit(0, n).expect("open");
    }
    assert!(engine.close(LONG).is_complete());
    order.assert_clean(4 * laps);
}
