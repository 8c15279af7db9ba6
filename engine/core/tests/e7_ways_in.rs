//! Row E7: the ways in: by key, by handle, many at once, by lane, each waiting, trying and with a timeout.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, Sim, SubmitReason, Workers, topology::Snapshot};
use common::{LONG, Log, MS, by_key, quiet, watch};

type Runs = Log<(u32, u64)>;

fn sim(capacity: usize) -> (Sim<u32, u64>, Runs) {
    let log = Runs::new();
    let runs = log.clone();
    let sim = Engine::<u32, u64>::builder()
        .machine(Snapshot::one_node(1))
        .workers(Workers::fixed(1))
        .capacity(capacity)
        .task_handler(move |_, task| runs.push((*task.key(), **task)))
        .build_sim(1)
        .expect("valid settings");
    (sim, log)
}

#[test]
fn a_handle_and_its_key_are_one_order() {
    let (mut sim, log) = sim(1 << 12);
    let (first, second) = (sim.group(1), sim.group(1));
    for n in 0..90 {
        match n % 3 {
            0 => sim.submit(1, n).expect("room"),
            1 => first.try_submit(n).expect("room"),
            _ => second.try_submit(n).expect("room"),
        }
        if n % 10 == 0 {
            sim.run();
        }
    }
    sim.run();
    assert!(log.take().into_iter().map(|(_, n)| n).eq(0..90));
    assert_eq!(sim.stats().groups, 1);
}

#[test]
fn a_full_engine_hands_key_and_task_back() {
    let (mut sim, log) = sim(64);
    let mut accepted = 0;
    let error = loop {
        match sim.submit(1, accepted) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.key, error.task, error.reason), (1, accepted, SubmitReason::EngineFull));
    assert!(error.to_string().contains("raise capacity"), "{error}");
    let handle = sim.group(1);
    let error = handle.try_submit(99).expect_err("full");
    assert_eq!((error.task, error.reason), (99, SubmitReason::EngineFull));
    sim.run();
    sim.submit(1, accepted).expect("room again");
    sim.run();
    assert!(log.take().into_iter().map(|(_, n)| n).eq(0..=accepted));
}

#[test]
fn many_at_once_keep_the_order_of_the_vector_per_key() {
    let (mut sim, log) = sim(1 << 14);
    let mut rng = common::Rng(4);
    let mut tasks: Vec<_> = (0..3_000).map(|n| (rng.below(50) as u32, n)).collect();
    let wanted = by_key(tasks.clone());
    let before = tasks.capacity();
    sim.submit_many(&mut tasks).expect("room");
    assert!(tasks.is_empty() && tasks.capacity() == before, "the vector can be used again");
    sim.run();
    assert_eq!(by_key(log.take()), wanted);
    sim.submit_many(&mut tasks).expect("nothing to do");
}

#[test]
fn many_at_once_stop_at_the_first_that_finds_no_room() {
    for seed in 0..200 {
        let (mut sim, log) = sim(64);
        let mut rng = common::Rng(seed);
        let mut tasks: Vec<_> = (0..400).map(|n| (rng.below(1 + seed) as u32, n)).collect();
        let all = tasks.clone();
        let error = sim.submit_many(&mut tasks).expect_err("more than fits");
        assert_eq!(error.reason, SubmitReason::EngineFull);
        assert_eq!(error.accepted + tasks.len(), 400);
        assert!(tasks.is_sorted_by_key(|(_, n)| *n), "the rest is in order");
        let mut rounds = 0;
        while !tasks.is_empty() {
            sim.run();
            let _ = sim.submit_many(&mut tasks);
            rounds += 1;
            assert!(rounds < 400, "no progress");
        }
        sim.run();
        assert_eq!(by_key(log.take()), by_key(all), "order per key over all the pieces");
    }
}

#[test]
fn many_at_once_wait_for_room() {
    let log = Runs::new();
    let runs = log.clone();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(2))
        .capacity(64)
        .group_capacity(4)
        .task_handler(move |_, task| runs.push((*task.key(), **task)))
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("many wait", &engine);
    let all: Vec<_> = (0..20_000u64).map(|n| ((n % 37) as u32, n)).collect();
    thread::scope(|scope| {
        // Two vectors in opposite shard order: holding room in several shards at once would deadlock them.
        for offset in [0u32, 1_000] {
            let (engine, mut tasks) = (&engine, all.clone());
            scope.spawn(move || {
                tasks.iter_mut().for_each(|(key, _)| *key += offset);
                engine.submit_many(&mut tasks).expect("open");
                assert!(tasks.is_empty());
            });
        }
    });
    assert_eq!(engine.close(LONG).done, 40_000);
    for (key, numbers) in by_key(log.take()) {
        assert!(numbers.is_sorted(), "key {key}");
    }
}

#[test]
fn a_panic_of_hash_inside_many_leaves_the_rest_in_the_vector() {
    quiet();
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Fragile(u32, bool);
    impl std::hash::Hash for Fragile {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            assert!(!self.1, "{}", common::WANTED);
            state.write_u32(self.0);
        }
    }
    for bad in [0usize, 1, 100, 255, 256, 300, 599] {
        let log = Log::new();
        let runs = log.clone();
        let mut sim = Engine::<Fragile, usize>::builder()
            .workers(Workers::fixed(2))
            .task_handler(move |_, task| runs.push(**task))
            .build_sim(1)
            .expect("valid settings");
        let mut tasks: Vec<_> = (0..600).map(|n| (Fragile(n as u32 % 9, n == bad), n)).collect();
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.submit_many(&mut tasks)));
        assert!(caught.is_err(), "the submitter gets the panic");
        sim.run();
        let mut seen = log.take();
        seen.extend(tasks.iter().map(|(_, n)| *n));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..600), "each task ran or is still in the vector");
        assert!(tasks.iter().any(|(_, n)| *n == bad));
    }
}

#[test]
fn a_lane_hands_back_what_does_not_fit_and_ends_with_its_engine() {
    let (mut sim, log) = sim(64);
    let mut lane = sim.producer();
    let mut accepted = 0;
    let error = loop {
        match lane.try_submit(1, accepted) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.key, error.task, error.reason), (1, accepted, SubmitReason::EngineFull));
    sim.run();
    assert!(log.take().into_iter().map(|(_, n)| n).eq(0..accepted));
    sim.close();
    let error = lane.try_submit(1, 7).expect_err("closed");
    assert_eq!((error.task, error.reason), (7, SubmitReason::Closed));
}

#[test]
fn lanes_that_come_and_go_leave_nothing_behind() {
    let (mut sim, log) = sim(1 << 14);
    for round in 0..500u64 {
        let mut lane = sim.producer();
        for n in 0..5 {
            lane.try_submit(3, round * 5 + n).expect("room");
        }
        drop(lane);
        sim.run();
    }
    assert_eq!(sim.stats().accepted, 2_500);
    assert!(log.take().into_iter().map(|(_, n)| n).eq(0..2_500), "one lane after the other");
    assert_eq!(sim.close().done, 2_500);
}

#[test]
fn a_pinned_group_stays_and_an_unpinned_one_may_go() {
    let mut sim = Engine::<u32, u64>::builder()
        .machine(Snapshot::one_node(1))
        .workers(Workers::fixed(1))
        .idle_groups(0)
        .state(|_| 0u64)
        .task_handler(|runs: &mut u64, task| {
            *runs += 1;
            if *task.key() == 0 {
                assert_eq!(*runs, **task, "the state of a pinned group stays");
            }
        })
        .build_sim(1)
        .expect("valid settings");
    let handle = sim.group(0);
    let mut accepted = 0;
    for round in 1..300u64 {
        handle.try_submit(round).expect("room");
        sim.submit(1 + round as u32, 0).expect("room");
        sim.run();
        accepted += 2;
    }
    let stats = sim.stats();
    assert!(stats.groups < 30 && stats.groups_made >= 299, "{stats:?}");
    drop(handle);
    let report = sim.close();
    assert_eq!((report.done, report.failed), (accepted, 0));
}

#[test]
fn timeouts_say_how_long_they_waited() {
    let latch = common::Latch::new();
    let gate = latch.clone();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(1))
        .capacity(64)
        .task_handler(move |_, _| gate.wait())
        .build()
        .expect("valid settings");
    while engine.try_submit(1, 0).is_ok() {
        thread::yield_now();
    }
    let error = loop {
        // The worker may take one more chunk out of the ring meanwhile.
        match engine.submit_timeout(1, 9, 2 * MS) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!((error.key, error.task), (1, 9));
    assert_eq!(error.reason, SubmitReason::TimedOut(2 * MS));
    let handle = engine.group(1);
    // As above: a worker that was without a CPU until now makes room once.
    let reason = loop {
        if let Err(error) = handle.submit_timeout(9, MS) {
            break error.reason;
        }
    };
    assert_eq!(reason, SubmitReason::TimedOut(MS));
    let mut lane = engine.producer();
    let reason = loop {
        if let Err(error) = lane.submit_timeout(1, 9, MS) {
            break error.reason;
        }
    };
    assert_eq!(reason, SubmitReason::TimedOut(MS));
    latch.open();
    engine.submit_timeout(1, 9, Duration::MAX).expect("room comes");
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_handle_that_is_dropped_before_its_task_is_taken_leaves_the_task_to_its_group() {
    /// All keys in one shard.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Key(u32);
    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            state.write_u8(1);
        }
    }
    struct State(bool, Arc<AtomicBool>);
    impl Drop for State {
        fn drop(&mut self) {
            self.1.fetch_or(self.0, SeqCst);
        }
    }
    let reclaimed = Arc::new(AtomicBool::new(false));
    let flag = reclaimed.clone();
    let log = Log::new();
    let runs = log.clone();
    let mut sim = Engine::<Key, u32>::builder()
        .machine(Snapshot::one_node(1))
        .workers(Workers::fixed(1))
        .idle_groups(0)
        .state(move |key: &Key| State(key.0 == 0, flag.clone()))
        .task_handler(move |_, task| runs.push((task.key().0, **task)))
        .build_sim(1)
        .expect("valid settings");
    // More than a chunk before it: the first look makes groups and sweeps idle ones, and does not come to the record.
    for n in 1..=300 {
        sim.submit(Key(n), n).expect("room");
    }
    sim.group(Key(0)).try_submit(0).expect("room");
    sim.run();
    let mut seen = log.take();
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..=300).map(|n| (n, n))), "each task with its own key");
    for n in 1_000..2_000 {
        sim.submit(Key(n), n).expect("room");
        sim.run();
    }
    assert!(reclaimed.load(SeqCst), "the group is not pinned for ever");
}

#[test]
fn a_simulation_with_the_same_seed_runs_the_same() {
    let run = |seed| {
        let log = Log::new();
        let runs = log.clone();
        let mut sim = Engine::<String, u32>::builder()
            .machine(Snapshot::one_node(4))
            .workers(Workers::fixed(4))
            .batch_size(3)
            .task_handler(move |_, task| runs.push((task.key().clone(), **task)))
            .build_sim(seed)
            .expect("valid settings");
        for n in 0..500 {
            sim.submit(format!("key {}", n % 61), n).expect("room");
            sim.step(n as usize % 4);
        }
        sim.run();
        log.take()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6), "the seed matters");
}
