//! Cases from public reports about other systems, which fit no single row. The scenario is told in own words. More of
//! them, by theme, in the other files named `reports_*`.

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, Failure, OnExhausted, Outcome, Retry, Workers, topology::Snapshot};
use common::{Count, LONG, Latch, MS, Order, Rng, lock, scale, until, watch};

#[test]
fn hew_3018_a_producer_that_is_held_up_in_the_middle_harms_nobody() {
    // A producer raised the count of a mailbox, was preempted, and published later: the consumer spun, or lost the
    // message, or the count went below zero. Many more producers than processors make such preemptions happen.
    let (producers, keys, each) = (24usize, 40usize, scale(1_500, 15_000));
    let order = Order::new(keys, producers);
    let watched = order.clone();
    let engine = Engine::<usize, (usize, usize, u64)>::builder()
        .workers(Workers::fixed(2))
        .capacity(1 << 10)
        .task_handler(move |_, task| {
            let (key, source, number) = **task;
            watched.task(key, source, number, || ());
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("held up", &engine);
    thread::scope(|scope| {
        for source in 0..producers {
            let engine = &engine;
            scope.spawn(move || {
                let mut rng = Rng(source as u64);
                let mut numbers = vec![0; keys];
                for n in 0..each {
                    let key = rng.below(keys as u64) as usize;
                    numbers[key] += 1;
                    engine.submit(key, (key, source, numbers[key])).expect("open");
                    if n % 16 == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
    });
    let total = each * producers as u64;
    assert!(engine.wait_drain(LONG));
    let stats = engine.stats();
    assert_eq!((stats.accepted, stats.done, stats.backlog()), (total, total, 0));
    assert!(engine.close(LONG).is_complete());
    order.assert_clean(total);
}

#[test]
fn wolverine_1576_a_handler_that_yields_never_meets_another_of_its_group() {
    // Handlers that gave their thread away in the middle ran twice at once inside one group.
    let keys = 20;
    let inside: Arc<Vec<AtomicBool>> =
        Arc::new((0..keys).map(|_| AtomicBool::new(false)).collect());
    let met = Arc::new(AtomicU64::new(0));
    let (flags, count) = (inside.clone(), met.clone());
    let engine = Engine::<usize, u64>::builder()
        .workers(Workers::fixed(16))
        .retry(Retry::fixed(Duration::ZERO).attempts(2))
        .batch_size(3)
        .task_handler(move |_, task| {
            let flag = &flags[*task.key()];
            count.fetch_add(u64::from(flag.swap(true, SeqCst)), SeqCst);
            for _ in 0..**task % 5 {
                thread::yield_now();
            }
            if **task % 50 == 0 {
                thread::sleep(Duration::from_micros(50));
            }
            flag.store(false, SeqCst);
            if **task % 11 == 0 && task.attempt() == 1 { Err("again") } else { Ok(()) }
        })
        .build()
        .expect("valid settings");
    let tasks = scale(8_000, 40_000);
    for n in 0..tasks {
        engine.submit(n as usize % keys, n).expect("open");
    }
    assert_eq!(engine.close(LONG).done, tasks);
    assert_eq!(met.load(SeqCst), 0);
}

#[test]
fn pulsar_25706_a_blocked_key_that_is_flooded_holds_up_no_other_key() {
    // One key whose consumer stood still was sent many times its buffer; dispatch to all other keys stopped.
    let (latch, progress) = (Latch::new(), Count::new());
    let (gate, count) = (latch.clone(), progress.clone());
    let group_capacity = 1_000;
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .group_capacity(group_capacity)
        .task_handler(move |_, task| match *task.key() {
            0 => gate.wait(),
            _ => count.add(1),
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("flooded key", &engine);
    let flood = 10 * (group_capacity as u64 + 4_096);
    thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            for n in 0..flood {
                engine.submit(0, n).expect("open");
            }
        });
        // The others go on from the first moment, and all the time while the flood waits.
        let rounds = scale(40, 200);
        for round in 1..=rounds {
            for key in 1..=1_000 {
                engine.submit(key, round).expect("open");
            }
            progress.wait_for(round * 1_000);
        }
        assert!(!flooding.is_finished(), "the flood waits for its own group only");
        // A task counts a moment after its handler has returned.
        until(|| engine.stats().done >= rounds * 1_000);
        latch.open();
    });
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn parallel_consumer_487_keys_that_fail_for_ever_do_not_slow_the_healthy_ones() {
    // Virtual time: with one key in twenty failing at every attempt, each healthy task runs at once all the same.
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    let waits = Arc::new(Mutex::new(HashMap::<u64, u64>::new()));
    let log = waits.clone();
    let mut sim = Engine::<u64, u64>::builder()
        .machine(Snapshot::one_node(2))
        .workers(Workers::fixed(2))
        .capacity(1 << 14)
        .group_capacity(100)
        .retry(Retry::exponential(5 * MS, 100 * MS))
        .task_handler(move |_, task| {
            if task.key().is_multiple_of(20) {
                return Outcome::Retry(Failure::new("down for good"));
            }
            *lock(&log).entry(clock.load(SeqCst) - **task).or_default() += 1;
            Outcome::Done
        })
        .build_sim(1)
        .expect("valid settings");
    let (mut healthy, mut refused) = (0, 0);
    for ms in 0..1_000 {
        for key in 0..100 {
            match sim.submit(key, ms) {
                Ok(()) => healthy += u64::from(!key.is_multiple_of(20)),
                Err(error) => {
                    assert!(error.key.is_multiple_of(20), "a healthy key is refused: {error}");
                    refused += 1;
                }
            }
        }
        sim.run();
        sim.advance(MS);
        now.fetch_add(1, SeqCst);
    }
    assert!(refused > 0, "failing groups fill up");
    assert_eq!(*lock(&waits), HashMap::from([(0, healthy)]), "no healthy task waits");
}

#[test]
fn a_halt_from_many_groups_at_once_is_one_halt() {
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(4))
        .on_exhausted(OnExhausted::halt_engine())
        .task_handler(|_, _| Err::<(), _>("no"))
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("halts", &engine);
    let mut many: Vec<_> = (0..1_000).map(|n| (n % 100, n)).collect();
    let accepted = match engine.submit_many(&mut many) {
        Ok(()) => 1_000,
        Err(error) => error.accepted as u64,
    };
    let report = engine.close(LONG);
    assert!((1..=4).contains(&report.failed), "at most one a worker: {}", report.failed);
    assert_eq!(report.failed + report.left_tasks() as u64, accepted);
}
