//! Row F7: a panic in `Hash`, `Eq` or the drop of a key goes to the submitter, or costs the one task whose key it was.

mod common;
mod hooks;

use std::{
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
};

use bgrp::{Engine, OnExhausted, SubmitReason, Verdict, Workers};
use common::LONG;
use hooks::{Once, TASKS, builder, drive};

/// A key with hooks.
#[derive(Clone)]
struct Key {
    n: u64,
    hash: Once,
    eq: Once,
    drop: Once,
}

impl Key {
    fn calm(n: u64) -> Self {
        let calm = || Once(Arc::new(AtomicBool::new(false)));
        Self { n, hash: calm(), eq: calm(), drop: calm() }
    }
}
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.fire();
        self.n.hash(state);
    }
}
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.eq.fire();
        other.eq.fire();
        self.n == other.n
    }
}
impl Eq for Key {}
impl Drop for Key {
    fn drop(&mut self) {
        self.drop.fire();
    }
}

#[test]
fn hash_of_a_key_goes_to_the_submitter() {
    let engine = builder::<Key, u64>().task_handler(|(), _| ()).build().expect("valid settings");
    let bad = || {
        let mut key = Key::calm(1);
        key.hash = Once::armed();
        key
    };
    let mut lane = engine.producer();
    let calls: [&mut dyn FnMut(); 4] = [
        &mut || drop(engine.submit(bad(), 1)),
        &mut || drop(engine.try_submit(bad(), 1)),
        &mut || drop(engine.group(bad())),
        &mut || drop(lane.submit(bad(), 1)),
    ];
    for call in calls {
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    }
    let report = drive(engine, Key::calm, |task| task);
    assert_eq!((report.done, report.failed), (2 * TASKS, 0), "what panicked was never accepted");
}

#[test]
fn eq_of_a_key_costs_the_task_whose_key_it_was() {
    for by_lane in [false, true] {
        let told = Arc::new(AtomicU32::new(0));
        let count = told.clone();
        let engine = builder::<Key, u64>()
            .on_exhausted(OnExhausted::with(move |_| {
                count.fetch_add(1, SeqCst);
                Verdict::Skip
            }))
            .task_handler(|(), _| ())
            .build()
            .expect("valid settings");
        engine.submit(Key::calm(1), 0).expect("open");
        assert!(engine.wait_drain(LONG));
        let once = Once::armed();
        let mut key = Key::calm(1);
        key.eq = once.clone();
        if by_lane {
            engine.producer().submit(key, 0).expect("open");
        } else {
            engine.submit(key, 0).expect("open");
        }
        let report = drive(engine, Key::calm, |task| task);
        once.assert_fired();
        assert_eq!((report.done, report.failed), (2 * TASKS + 1, 1));
        assert_eq!(told.load(SeqCst), 1, "the policy hears of it");
    }
}

#[test]
fn eq_of_a_key_while_a_group_is_full_goes_to_the_submitter() {
    let latch = common::Latch::new();
    let gate = latch.clone();
    // Two workers: while one is held at the latch, the other finds the group full.
    let engine = builder::<Key, u64>()
        .workers(Workers::fixed(2))
        .group_capacity(1)
        .task_handler(move |(), _| gate.wait())
        .build()
        .expect("valid settings");
    let full = |engine: &Engine<Key, u64>| {
        let result = engine.try_submit(Key::calm(1), 0).map_err(|error| error.reason);
        result == Err(SubmitReason::GroupFull)
    };
    while !full(&engine) {
        std::thread::yield_now();
    }
    let mut key = Key::calm(1);
    key.eq = Once::armed();
    let once = key.eq.clone();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(engine.try_submit(key, 0)))).is_err());
    once.assert_fired();
    latch.open();
    let before = engine.stats().accepted;
    let report = drive(engine, Key::calm, |task| task);
    assert_eq!(report.done, 2 * TASKS + before);
}

#[test]
fn drop_of_a_key_harms_nobody() {
    let engine = builder::<Key, u64>().task_handler(|(), _| ()).build().expect("valid settings");
    engine.submit(Key::calm(1), 0).expect("open");
    assert!(engine.wait_drain(LONG));
    // The second key of a group that exists is dropped by the worker.
    let mut key = Key::calm(1);
    key.drop = Once::armed();
    let once = key.drop.clone();
    engine.submit(key, 0).expect("open");
    let report = drive(engine, Key::calm, |task| task);
    once.assert_fired();
    assert_eq!((report.done, report.failed), (2 * TASKS + 2, 0));
}
