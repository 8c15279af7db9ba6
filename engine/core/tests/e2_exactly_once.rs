//! Row E2: every accepted task is executed exactly once or given back, and dropped exactly once, whatever happens.
//! What tasks do to their own engine: e2_from_inside_a_task.rs.

mod common;

use std::{
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use bgrp::{Engine, Failure, OnExhausted, Outcome, Retry, SubmitReason, Workers};
use common::{Count, Counted, LONG, Latch, MS, Rng, Tally, WANTED, lock, quiet, scale, watch};

/// A key that counts how many of its kind live.
struct LiveKey(u64, #[allow(dead_code)] Arc<()>);

impl PartialEq for LiveKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for LiveKey {}
impl Hash for LiveKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn tasks_keys_and_states_are_dropped_once_with_every_way_in() {
    let tasks = scale(8_000, 80_000) as usize;
    let tally = Tally::new(tasks);
    let live = Arc::new(());
    let states = live.clone();
    let engine = Engine::<LiveKey, Counted>::builder()
        .workers(Workers::fixed(3))
        .idle_groups(20)
        .state(move |_| states.clone())
        .task_handler(|_, task| task.run())
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("drops", &engine);
    let key = |n: u64| LiveKey(n, live.clone());
    let mut lane = engine.producer();
    let handles: Vec<_> = (0..10).map(|n| engine.group(key(n))).collect();
    let mut many = Vec::new();
    let mut rng = Rng(3);
    for id in 0..tasks {
        let (n, task) = (rng.below(200), tally.task(id));
        match rng.below(4) {
            0 => engine.submit(key(n), task).expect("open"),
            1 => lane.submit(key(n), task).expect("open"),
            2 => handles[n as usize % 10].submit(task).expect("open"),
            _ => many.push((key(n), task)),
        }
        if many.len() > 300 {
            engine.submit_many(&mut many).expect("open");
        }
    }
    engine.submit_many(&mut many).expect("open");
    assert_eq!(engine.close(LONG).done, tasks as u64);
    tally.all_dropped_once();
    assert!((0..tasks).all(|id| tally.runs(id) == 1));
    drop((engine, lane, handles, many));
    assert_eq!(Arc::strong_count(&live), 1, "keys and states are all dropped");
}

/// Tasks of many keys, some of which panic or fail, with retries.
fn faulty(batched: bool, policy: fn() -> OnExhausted<u64, Counted>) {
    quiet();
    let (tasks, keys, attempts) = (scale(3_000, 30_000) as usize, 50u64, 3);
    let tally = Tally::new(tasks);
    let answer = |task: &Counted, attempt: u32| {
        task.run();
        match common::mix(task.id as u64 * 7 + u64::from(attempt)) % 10 {
            0 => panic!("{WANTED}"),
            1 | 2 => Outcome::Retry(Failure::new("again")),
            3 => Outcome::RetryAfter(MS, Failure::new("later")),
            4 => Outcome::Fail(Failure::new("never")),
            _ => Outcome::Done,
        }
    };
    let builder = Engine::<u64, Counted>::builder()
        .workers(Workers::fixed(3))
        .batch_size(5)
        .idle_groups(10)
        .retry(Retry::fixed(Duration::ZERO).attempts(attempts))
        .on_exhausted(policy());
    let configured = if batched {
        builder.handler(move |(), batch| {
            let outcomes =
                (0..batch.len()).map(|i| answer(batch.get(i).expect("there"), batch.attempt(i)));
            outcomes.collect::<Vec<_>>()
        })
    } else {
        builder.task_handler(move |(), task| answer(task, task.attempt()))
    };
    let engine = Arc::new(configured.build().expect("valid settings"));
    let _watch = watch("faulty", &engine);
    let mut accepted = 0u64;
    for id in 0..tasks {
        accepted += u64::from(engine.submit(id as u64 % keys, tally.task(id)).is_ok());
    }
    engine.wait_drain(LONG);
    let report = engine.close(LONG);
    assert_eq!(report.running, 0);
    let left = report.left_tasks() as u64;
    assert_eq!(report.done + report.failed + left, accepted, "{report:?}");
    assert!(report.left.iter().all(|left| left.tasks.is_sorted_by_key(|task| task.id)), "in order");
    for id in 0..tasks {
        assert!(tally.runs(id) <= attempts, "task {id} ran more often than it may");
    }
    drop(report);
    tally.all_dropped_once();
}

#[test]
fn panics_and_retries_lose_and_double_nothing() {
    faulty(false, OnExhausted::skip);
    faulty(true, OnExhausted::skip);
}

#[test]
fn halted_groups_give_their_tasks_back() {
    faulty(false, OnExhausted::halt_group);
    faulty(true, OnExhausted::halt_group);
}

#[test]
fn a_halted_engine_gives_its_tasks_back() {
    for _ in 0..20 {
        faulty(false, OnExhausted::halt_engine);
        faulty(true, OnExhausted::halt_engine);
    }
}

#[test]
fn close_at_its_deadline_gives_back_what_did_not_run() {
    let tally = Tally::new(1_000);
    let (latch, started) = (Latch::new(), Count::new());
    let (gate, begun) = (latch.clone(), started.clone());
    let engine = Engine::<u64, Counted>::builder()
        .workers(Workers::fixed(2))
        .task_handler(move |_, task| {
            begun.add(1);
            gate.wait();
            task.run();
        })
        .build()
        .expect("valid settings");
    for id in 0..1_000 {
        engine.submit(id as u64 % 10, tally.task(id)).expect("open");
    }
    started.wait_for(2);
    let first = engine.close(MS);
    assert_eq!(first.running, 2);
    assert_eq!(first.left_tasks(), 800, "eight groups of ten");
    latch.open();
    let second = engine.close(LONG);
    assert_eq!((second.running, second.done), (0, 2));
    assert_eq!(second.left_tasks(), 198);
    assert_eq!(tally.total_runs(), 2);
    drop((first, second));
    tally.all_dropped_once();
}

#[test]
fn dropping_the_engine_runs_what_was_accepted() {
    let tally = Tally::new(2_000);
    let engine = Engine::<u64, Counted>::builder()
        .workers(Workers::fixed(2))
        .flush_interval(Duration::from_secs(3_600))
        .batch_size(16)
        .task_handler(|_, task| task.run())
        .build()
        .expect("valid settings");
    let handle = engine.group(3);
    let mut lane = engine.producer();
    for id in 0..2_000 {
        match id % 3 {
            0 => engine.submit(id as u64 % 99, tally.task(id)).expect("open"),
            1 => handle.submit(tally.task(id)).expect("open"),
            _ => lane.submit(id as u64 % 99, tally.task(id)).expect("open"),
        }
    }
    drop(engine);
    assert!((0..2_000).all(|id| tally.runs(id) == 1), "a drop is a close without a deadline");
    tally.all_dropped_once();
    let refused = handle.submit(tally.task(0)).expect_err("nobody runs it any more");
    assert_eq!(refused.reason, SubmitReason::Closed);
}

#[test]
fn dropping_a_simulated_engine_drops_what_lies_in_ring_lane_and_group_once() {
    for steps in 0..12 {
        let tally = Tally::new(600);
        let mut sim = Engine::<u64, Counted>::builder()
            .workers(Workers::fixed(2))
            .batch_size(1)
            .task_handler(|_, task| task.run())
            .build_sim(steps)
            .expect("valid settings");
        let mut lane = sim.producer();
        for id in 0..600 {
            match id % 2 {
                0 => sim.submit(id as u64 % 5, tally.task(id)).expect("room"),
                _ => lane.try_submit(id as u64 % 5, tally.task(id)).expect("room"),
            }
        }
        for step in 0..steps {
            sim.step(step as usize % 2);
        }
        drop(sim);
        drop(lane);
        tally.all_dropped_once();
    }
}

#[test]
fn a_task_whose_drop_panics_fails_and_harms_nobody() {
    quiet();
    struct Bad(Counted, bool);
    impl Drop for Bad {
        fn drop(&mut self) {
            if self.1 {
                panic!("{WANTED} in a drop");
            }
        }
    }
    for batched in [false, true] {
        let tally = Tally::new(500);
        let builder = Engine::<u64, Bad>::builder().workers(Workers::fixed(2)).batch_size(8);
        let configured = if batched {
            builder.handler(|(), batch| batch.iter().for_each(|task| task.0.run()))
        } else {
            builder.task_handler(|(), task| task.0.run())
        };
        let engine = configured.build().expect("valid settings");
        for id in 0..500 {
            let task = Bad(tally.task(id), id % 10 == 0);
            assert!(engine.submit(id as u64 % 3, task).is_ok());
        }
        let report = engine.close(LONG);
        assert_eq!((report.done, report.failed, report.left.len()), (450, 50, 0));
        tally.all_dropped_once();
        assert!((0..500).all(|id| tally.runs(id) == 1));
    }
}

#[test]
fn a_batch_answer_of_the_wrong_length_fails_the_batch_and_loses_nothing() {
    /// An answer of the user's own making, which writes what it likes.
    struct Sloppy(usize);
    impl bgrp::IntoOutcomes for Sloppy {
        fn write(self, _: usize, out: &mut Vec<Outcome>) {
            out.resize(self.0, Outcome::Retry(Failure::new("sloppy")));
        }
    }
    for length in [0usize, 1, 3, 4, 5, 9] {
        let tally = Tally::new(40);
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let sink = reasons.clone();
        let mut sim = Engine::<u64, Counted>::builder()
            .workers(Workers::fixed(1))
            .batch_size(4)
            .on_exhausted(OnExhausted::with(move |failed: bgrp::Exhausted<'_, u64, Counted>| {
                lock(&sink).push(failed.failure.reason().to_owned());
                bgrp::Verdict::Skip
            }))
            .handler(move |(), batch| {
                batch.iter().for_each(Counted::run);
                Sloppy(length)
            })
            .build_sim(1)
            .expect("valid settings");
        for id in 0..40 {
            sim.submit(0, tally.task(id)).expect("room");
        }
        sim.run();
        let report = sim.close();
        assert!(report.is_complete(), "{length}: {report:?}");
        assert_eq!(report.done + report.failed, 40, "{length} outcomes for 4 tasks");
        assert_eq!(
            report.done,
            if length == 0 { 40 } else { 0 },
            "none at all stands for all done"
        );
        if ![0, 4].contains(&length) {
            assert!(lock(&reasons).iter().all(|reason| reason.contains("outcomes for a batch of")));
        }
        tally.all_dropped_once();
        assert_eq!(tally.total_runs(), 40);
    }
}
