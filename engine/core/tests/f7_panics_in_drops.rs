//! Row F7: a panic in the drop of a task, of a state or of what a panic carries is that task's failure, and no more.

mod common;
mod hooks;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{OnExhausted, Verdict};
use common::{LONG, WANTED, quiet, watch};
use hooks::{Once, TASKS, builder, drive};

#[test]
fn drop_of_a_task() {
    for batched in [false, true] {
        let once = Once::armed();
        struct Task(Once, u64);
        impl Drop for Task {
            fn drop(&mut self) {
                if self.1 == 17 {
                    self.0.fire();
                }
            }
        }
        let builder = builder::<u64, Task>();
        let configured =
            if batched { builder.handler(|(), _| ()) } else { builder.task_handler(|(), _| ()) };
        let engine = configured.build().expect("valid settings");
        let report = drive(engine, |key| key, |task| Task(once.clone(), task));
        once.assert_fired();
        assert_eq!((report.done, report.failed), (2 * TASKS - 1, 1));
    }
}

#[test]
fn drop_of_a_task_that_goes_with_its_engine() {
    // In the ring, in a lane and in a group: the others are dropped all the same, and the dropper sees nothing of it.
    struct Task(Once, Arc<AtomicU32>);
    impl Drop for Task {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
            self.0.fire();
        }
    }
    quiet();
    for way in ["ring", "lane", "group"] {
        let (once, drops) = (Once::armed(), Arc::new(AtomicU32::new(0)));
        let task = || Task(once.clone(), drops.clone());
        let mut sim = builder::<u64, Task>()
            .flush_interval(Duration::from_secs(1))
            .task_handler(|(), _| ())
            .build_sim(1)
            .expect("valid settings");
        let mut lane = (way == "lane").then(|| sim.producer());
        for key in [1, 1, 2] {
            let submitted = match &mut lane {
                Some(lane) => lane.try_submit(key, task()),
                None => sim.submit(key, task()),
            };
            assert!(submitted.is_ok(), "room");
        }
        if way == "group" {
            sim.run();
        }
        assert!(catch_unwind(AssertUnwindSafe(|| drop((sim, lane)))).is_ok(), "{way}");
        once.assert_fired();
        assert_eq!(drops.load(SeqCst), 3, "{way}");
    }
}

#[test]
fn drop_of_a_failed_task_and_of_a_held_one() {
    struct Task(Once);
    impl Drop for Task {
        fn drop(&mut self) {
            self.0.fire();
        }
    }
    for hold in [false, true] {
        let once = Once::armed();
        let asked = AtomicBool::new(!hold);
        let engine = builder::<u64, Task>()
            .on_exhausted(OnExhausted::with(move |_| {
                if asked.swap(true, SeqCst) { Verdict::Skip } else { Verdict::Hold(Duration::ZERO) }
            }))
            .task_handler(|(), _| Err::<(), _>("no"))
            .build()
            .expect("valid settings");
        let report = drive(engine, |key| key, |_| Task(once.clone()));
        once.assert_fired();
        assert_eq!((report.done, report.failed), (0, 2 * TASKS));
    }
}

#[test]
fn drop_of_a_state() {
    let once = Once::armed();
    struct State(Once);
    impl Drop for State {
        fn drop(&mut self) {
            self.0.fire();
        }
    }
    let hook = once.clone();
    let engine = builder::<u64, u64>()
        .idle_groups(0)
        .state(move |_| State(hook.clone()))
        .task_handler(|_, _| ())
        .build()
        .expect("valid settings");
    // Many keys, so that groups are reclaimed while the engine runs.
    let engine = Arc::new(engine);
    let _watch = watch("state drop", &engine);
    for n in 0..2_000u64 {
        engine.submit(n, n).expect("open");
        if n % 100 == 0 {
            assert!(engine.wait_drain(LONG));
        }
    }
    assert!(engine.wait_drain(LONG));
    once.assert_fired();
    assert_eq!(engine.close(LONG).done, 2_000);
}

#[test]
fn a_panic_payload_whose_drop_panics() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("{WANTED} in the payload");
        }
    }
    let once = AtomicBool::new(true);
    let engine = builder::<u64, u64>()
        .task_handler(move |(), _| {
            if once.swap(false, SeqCst) {
                std::panic::resume_unwind(Box::new(Payload));
            }
        })
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    assert_eq!((report.done, report.failed), (2 * TASKS - 1, 1));
}

#[test]
fn the_payload_of_a_panicking_drop_is_dropped_too() {
    // It was forgotten: a service whose states or keys panic in their drops lost some memory with each of them.
    struct State(Arc<()>);
    impl Drop for State {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new(self.0.clone()));
        }
    }
    let witness = Arc::new(());
    let in_state = witness.clone();
    let engine = builder::<u64, u64>()
        .state(move |_| State(in_state.clone()))
        .task_handler(|_, _| ())
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    assert_eq!((report.done, report.failed), (2 * TASKS, 0));
    assert_eq!(Arc::strong_count(&witness), 1);
}
