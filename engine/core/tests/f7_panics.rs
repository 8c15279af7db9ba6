//! Row F7: a panic in any user code is that task's failure, or goes to the submitter; the worker lives, the group goes on.
//!
//! parallel-consumer #412: one exception in a user function stopped the consumer. Every hook panics
//! here once; those of keys in f7_panics_in_keys.rs, drops in f7_panics_in_drops.rs.

mod common;
mod hooks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Bgrp, OnExhausted, Outcome, Retry, Verdict};
use common::{LONG, WANTED, quiet};
use hooks::{Once, TASKS, builder, drive};

#[test]
fn task_handler() {
    let once = Once::armed();
    let hook = once.clone();
    let engine = builder::<u64, u64>()
        .task_handler(move |(), _| hook.fire())
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    once.assert_fired();
    assert_eq!((report.done, report.failed, report.left.len()), (2 * TASKS - 1, 1, 0));
}

#[test]
fn task_handler_with_a_retry() {
    let once = Once::armed();
    let hook = once.clone();
    let engine = builder::<u64, u64>()
        .retry(Retry::fixed(Duration::ZERO).attempts(2))
        .task_handler(move |(), _| hook.fire())
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    assert_eq!((report.done, report.failed, report.retries), (2 * TASKS, 0, 1));
}

#[test]
fn batch_handler() {
    let once = Once::armed();
    let hook = once.clone();
    let size = Arc::new(AtomicU32::new(0));
    let first = size.clone();
    let engine = builder::<u64, u64>()
        .handler(move |(), batch| {
            let _ = first.compare_exchange(0, batch.len() as u32, SeqCst, SeqCst);
            hook.fire();
        })
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    once.assert_fired();
    let lost = u64::from(size.load(SeqCst));
    assert_eq!((report.done, report.failed), (2 * TASKS - lost, lost), "that batch, and no other");
}

#[test]
fn state_opener() {
    let once = Once::armed();
    let hook = once.clone();
    let engine = builder::<u64, u64>()
        .state(move |key| {
            hook.fire();
            *key
        })
        .task_handler(|state: &mut u64, task| assert_eq!(state, task.key()))
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    once.assert_fired();
    assert_eq!((report.done, report.failed), (2 * TASKS - 1, 1));
}

#[test]
fn retry_policy() {
    let once = Once::armed();
    let hook = once.clone();
    let engine = builder::<u64, u64>()
        .retry(Retry::custom(move |_, _| {
            hook.fire();
            Some(Duration::ZERO)
        }))
        .task_handler(|(), task| if task.attempt() < 3 { Err("again") } else { Ok(()) })
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    once.assert_fired();
    assert_eq!((report.done, report.failed), (2 * TASKS - 1, 1), "no answer is: give up");
}

#[test]
fn on_exhausted() {
    let once = Once::armed();
    let hook = once.clone();
    let engine = builder::<u64, u64>()
        .on_exhausted(OnExhausted::with(move |_| {
            hook.fire();
            Verdict::Skip
        }))
        .task_handler(|(), task| if **task % 7 == 0 { Err("no") } else { Ok(()) })
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task: u64| task);
    once.assert_fired();
    assert_eq!(report.done + report.failed, 2 * TASKS);
    assert_eq!(report.failed, 2 * (TASKS.div_ceil(7)));
}

#[test]
fn on_exhausted_when_it_is_asked_again_about_a_held_task() {
    let once = Once::armed();
    let hook = once.clone();
    let engine = builder::<u64, u64>()
        .on_exhausted(OnExhausted::with(move |failed: bgrp::Exhausted<'_, u64, u64>| {
            if *failed.task == 0 {
                return Verdict::Skip;
            }
            *failed.task -= 1;
            if *failed.task == 1 {
                hook.fire();
            }
            Verdict::Hold(Duration::ZERO)
        }))
        .task_handler(|(), _| Err::<(), _>("no"))
        .build()
        .expect("valid settings");
    let report = drive(engine, |key| key, |task| task % 4);
    once.assert_fired();
    assert_eq!((report.done, report.failed), (0, 2 * TASKS));
}

#[test]
fn an_error_whose_display_panics() {
    struct Bad;
    impl std::fmt::Display for Bad {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("{WANTED}")
        }
    }
    for batched in [false, true] {
        let builder = builder::<u64, u64>();
        let configured = if batched {
            builder
                .batch_size(1)
                .handler(|(), batch| if batch.get(0) == Some(&5) { Err(Bad) } else { Ok(()) })
        } else {
            builder.task_handler(|(), task| if **task == 5 { Err(Bad) } else { Ok(()) })
        };
        let report = drive(configured.build().expect("valid settings"), |key| key, |task| task);
        assert_eq!((report.done, report.failed), (2 * TASKS - 2, 2));
    }
}

#[test]
fn an_outcome_of_the_users_own_making() {
    struct Mine;
    impl From<Mine> for Outcome {
        fn from(_: Mine) -> Self {
            panic!("{WANTED}")
        }
    }
    let engine = builder::<u64, u64>().task_handler(|(), _| Mine).build().expect("valid settings");
    let report = drive(engine, |key| key, |task| task);
    assert_eq!((report.done, report.failed), (0, 2 * TASKS));
}

#[test]
fn closures() {
    quiet();
    let bgrp = Bgrp::new(1, 4, Duration::ZERO).expect("valid settings");
    let ran = Arc::new(AtomicU32::new(0));
    for n in 0..20 {
        let ran = ran.clone();
        bgrp.submit("a", move || {
            ran.fetch_add(1, SeqCst);
            assert!(n != 3, "{WANTED}");
        })
        .expect("open");
    }
    let report = bgrp.close(LONG);
    assert_eq!((report.done, report.failed, ran.load(SeqCst)), (19, 1, 20));
}
