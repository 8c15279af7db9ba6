//! Cases from public reports: what is one key, what keys that never come back cost, and what a blocked key costs others.

mod common;

use std::{
    cell::Cell,
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, Failure, Outcome, Retry, Sim, Workers, topology::Snapshot};
use common::{Count, LONG, Latch, Log, MS, lock, scale, watch};

/// `make(n)` makes the key number `n`, in memory of its own each time. However a task comes in, it comes to the one
/// group of its key.
fn equal_keys_are_one_group<K>(make: impl Fn(usize) -> K + Copy)
where
    K: Hash + Eq + Clone + Debug + Send + Sync + 'static,
{
    let keys = 5;
    let runs = Log::new();
    let seen = runs.clone();
    let mut sim = Engine::<K, usize>::builder()
        .machine(Snapshot::one_node(2))
        .workers(Workers::fixed(2))
        .task_handler(move |_, task| seen.push((task.key().clone(), **task)))
        .build_sim(1)
        .expect("valid settings");
    let mut lane = sim.producer();
    for n in 0..300 {
        let key = make(n % keys);
        match n / keys % 4 {
            0 => sim.submit(key, n).expect("room"),
            1 => sim.group(key).try_submit(n).expect("room"),
            2 => sim.submit_many(&mut vec![(key, n)]).expect("room"),
            _ => {
                // A lane has an order of its own: whatever came before is let through first.
                sim.run();
                lane.try_submit(key, n).expect("room");
                sim.run();
            }
        }
    }
    sim.run();
    let runs = common::by_key(runs.take());
    for key in 0..keys {
        let wanted: Vec<usize> = (key..300).step_by(keys).collect();
        assert_eq!(runs[&make(key)], wanted, "key {:?}", make(key));
    }
    assert_eq!(sim.stats().groups, keys as u64);
}

#[test]
fn parallel_consumer_579_equal_keys_are_one_group_whatever_memory_they_lie_in() {
    // Keys that were compared by the address of their bytes made a group for each buffer.
    equal_keys_are_one_group(|n| -> Box<[u8]> { format!("merchant {n}").into_bytes().into() });
    equal_keys_are_one_group(|n| format!("merchant {n}"));
    equal_keys_are_one_group(|n| -> Arc<str> { format!("merchant {n}").into() });
    equal_keys_are_one_group(|n| {
        // The same bytes in a buffer with room to spare, and in one without.
        let mut bytes = Vec::with_capacity(n * 100);
        bytes.extend_from_slice(&n.to_le_bytes());
        (bytes, n.is_multiple_of(2).then(|| n.to_string()))
    });
    equal_keys_are_one_group(|n| n);
}

#[test]
fn parallel_consumer_184_one_key_from_two_sources_is_one_group() {
    // The same key in two topics was two queues, which ran side by side. Here the sources are threads with a way in of
    // their own; the state of a key counts who runs, without a lock.
    let (keys, each) = (50usize, scale(4_000, 40_000) as usize);
    let opened = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let (opening, runs) = (opened.clone(), Log::new());
    let seen = runs.clone();
    let engine = Engine::<String, (usize, usize)>::builder()
        .workers(Workers::fixed(4))
        .state(move |key: &String| {
            *lock(&opening).entry(key.clone()).or_default() += 1;
            Vec::new()
        })
        .task_handler(move |sources: &mut Vec<(usize, usize)>, task| {
            sources.push(**task);
            if sources.len() == 100 {
                seen.push((task.key().clone(), std::mem::take(sources)));
            }
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("two sources", &engine);
    thread::scope(|scope| {
        for source in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                let mut lane = engine.producer();
                for n in 0..each {
                    let (key, task) = ((n % keys).to_string(), (source, n));
                    match source {
                        0 => engine.submit(key, task).expect("open"),
                        1 => engine.submit_many(&mut vec![(key, task)]).expect("open"),
                        2 => engine.group(key).submit(task).expect("open"),
                        _ => lane.submit(key, task).expect("open"),
                    }
                }
            });
        }
    });
    assert!(engine.wait_drain(LONG));
    assert_eq!(engine.stats().groups, keys as u64);
    assert_eq!(engine.close(LONG).done, 4 * each as u64);
    let opened = lock(&opened);
    assert_eq!(opened.len(), keys);
    assert!(opened.values().all(|times| *times == 1), "a key with two groups: {opened:?}");
    for (key, parts) in common::by_key(runs.take()) {
        let tasks: Vec<_> = parts.concat();
        for source in 0..4 {
            let of_source = tasks.iter().filter(|task| task.0 == source).map(|task| task.1);
            assert!(of_source.is_sorted(), "key {key}, source {source}");
        }
    }
}

/// Rounds of keys that are never seen again go in through `submit`; the groups and bytes that stay.
fn one_shot<K>(submit: impl Fn(&mut Sim<K, u64>, u64), rounds: u64, limit: usize)
where
    K: Hash + Eq + Send + Sync + 'static,
{
    const ROUND: u64 = 2_000;
    let mut sim = Engine::<K, u64>::builder()
        .machine(Snapshot::one_node(2))
        .workers(Workers::fixed(2))
        .idle_groups(limit)
        .task_handler(|_, _| ())
        .build_sim(1)
        .expect("valid settings");
    let mut bytes = Vec::new();
    for round in 0..rounds {
        for n in 0..ROUND {
            submit(&mut sim, round * ROUND + n);
        }
        sim.run();
        bytes.push(sim.stats().group_bytes);
    }
    let stats = sim.stats();
    assert_eq!((stats.done, stats.groups_made), (rounds * ROUND, rounds * ROUND));
    assert!(stats.groups <= limit as u64 + ROUND, "{stats:?}");
    let (early, late) = (bytes[bytes.len() / 4], bytes[bytes.len() - 1]);
    assert!(late <= early + early / 4, "memory grows: {early} then {late} bytes");
}

#[test]
fn google_cloud_go_4288_a_million_one_shot_keys_leave_no_memory_behind() {
    // An entry per ordering key was kept for ever; services with unbounded keys ran out of memory. The example
    // `one_shot_keys` does it with ten million keys on threads and looks at the memory of the process.
    one_shot(|sim, n| sim.submit(n, n).expect("room"), 500, 2_000);
    one_shot(|sim, n| sim.submit(n, n).expect("room"), scale(50, 500), 10);
    one_shot(|sim, n| sim.submit(format!("order {n}"), n).expect("room"), scale(50, 500), 5_000);
    // A handle that lives for one task pins its group until the task was taken.
    one_shot(|sim, n| sim.group(n).try_submit(n).expect("room"), scale(50, 500), 2_000);
}

#[test]
fn parallel_consumer_859_keys_that_fail_once_leave_no_memory_behind() {
    // What is kept for a failed task must go with it, though its key never comes again.
    let mut sim = Engine::<u64, u64>::builder()
        .machine(Snapshot::one_node(2))
        .workers(Workers::fixed(2))
        .idle_groups(1_000)
        .retry(Retry::fixed(5 * MS).attempts(2))
        .task_handler(|_, task| match (**task % 3, task.attempt()) {
            (0, 1) => Err("once"),
            (1, _) => Err("always"),
            _ => Ok(()),
        })
        .build_sim(1)
        .expect("valid settings");
    let (rounds, mut bytes) = (scale(60, 400), Vec::new());
    for round in 0..rounds {
        for n in 0..1_500 {
            sim.submit(round * 1_500 + n, n).expect("room");
        }
        for _ in 0..3 {
            sim.run();
            sim.advance(5 * MS);
        }
        sim.run();
        bytes.push(sim.stats().group_bytes);
    }
    let stats = sim.stats();
    assert_eq!((stats.done, stats.failed), (rounds * 1_000, rounds * 500));
    assert!(stats.groups <= 1_000 + 1_500, "{stats:?}");
    let (early, late) = (bytes[bytes.len() / 4], bytes[bytes.len() - 1]);
    assert!(late <= early + early / 4, "memory grows: {early} then {late} bytes");
}

#[test]
fn asio_147_two_blocked_keys_let_all_others_run() {
    // Keys were hashed onto a few strands; a blocked key blocked every other key of its strand.
    for (workers, blocked) in [(3, [0, 1]), (3, [500, 501]), (10, [7, 1_001])] {
        let (latch, others) = (Latch::new(), Count::new());
        let (gate, count) = (latch.clone(), others.clone());
        let engine = Engine::<u64, ()>::builder()
            .workers(Workers::fixed(workers))
            .task_handler(move |_, task| {
                if blocked.contains(task.key()) {
                    gate.wait();
                } else {
                    count.add(1);
                }
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("two blocked", &engine);
        for n in 0..20 {
            for key in 0..1_002 {
                engine.submit(key, ()).expect("open");
            }
            others.wait_for((n + 1) * 1_000);
        }
        latch.open();
        assert_eq!(engine.close(LONG).done, 20 * 1_002);
    }
}

#[test]
fn ozone_15338_keys_spread_evenly_over_ten_workers() {
    // Work was bound to executors by a hash that favoured some of them: a few had all the load. Two of the keys fail for
    // an hour, which must cost the balance nothing either.
    thread_local!(static RUNS_AS: Cell<usize> = const { Cell::new(0) });
    let (workers, keys) = (10usize, 1_002u64);
    // Keys that a poor hash spreads badly: all multiples of a power of two, all in the high bits, all alike but one.
    let shapes: [fn(u64) -> u64; 4] = [|n| n, |n| n << 10, |n| n << 52, |n| !n];
    for (seed, shape) in (1..).zip(shapes) {
        let load: Arc<Vec<AtomicU64>> = Arc::new((0..workers).map(|_| AtomicU64::new(0)).collect());
        let counts = load.clone();
        let (bad, worse) = (shape(0), shape(1));
        let mut sim = Engine::<u64, ()>::builder()
            .machine(Snapshot::one_node(workers))
            .workers(Workers::fixed(workers))
            .retry(Retry::fixed(Duration::from_secs(3_600)))
            .task_handler(move |_, task| {
                if [bad, worse].contains(task.key()) {
                    return Outcome::Retry(Failure::new("blocked for an hour"));
                }
                counts[RUNS_AS.get()].fetch_add(1, SeqCst);
                Outcome::Done
            })
            .build_sim(seed)
            .expect("valid settings");
        let rounds = 40;
        for _ in 0..rounds {
            for key in 0..keys {
                sim.submit(shape(key), ()).expect("room");
            }
            // One step of each worker in turn, as if each took the same time.
            let mut any = true;
            while any {
                any = false;
                for worker in 0..workers {
                    RUNS_AS.set(worker);
                    any |= sim.step(worker);
                }
            }
        }
        let load: Vec<u64> = load.iter().map(|runs| runs.load(SeqCst)).collect();
        let total: u64 = load.iter().sum();
        assert_eq!(total, rounds * (keys - 2), "all others run");
        let even = total / workers as u64;
        assert!(load.iter().all(|runs| (even / 2..=2 * even).contains(runs)), "{load:?}");
        assert_eq!(sim.close().left_tasks() as u64, 2 * rounds);
    }
}
