//! Row F7: a panic in any user code is that task's failure, or goes to the submitter; the worker lives, the group goes on.
//!
//! parallel-consumer #412: one exception in a user function stopped the consumer. Every hook panics here once.

mod common;

use std::{
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{
    Bgrp, CloseReport, Engine, OnExhausted, Outcome, Retry, SubmitReason, Verdict, Workers,
};
use common::{LONG, WANTED, quiet, watch};

const TASKS: u64 = 60;

/// Panics the first time it is asked to.
#[derive(Clone, Debug)]
struct Once(Arc<AtomicBool>);

impl Once {
    fn armed() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
    fn fire(&self) {
        if self.0.swap(false, SeqCst) {
            panic!("{WANTED}");
        }
    }
    fn assert_fired(&self) {
        assert!(!self.0.load(SeqCst), "the hook was never called: the test shows nothing");
    }
}

/// Submits tasks for four keys, closes, and returns the report and what ran. One worker: if it died, nothing ends.
fn drive<K, T>(
    engine: Engine<K, T>,
    key: impl Fn(u64) -> K,
    task: impl Fn(u64) -> T,
) -> CloseReport<K, T>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
{
    let engine = Arc::new(engine);
    let _watch = watch("panics", &engine);
    for n in 0..TASKS {
        assert!(engine.submit(key(n % 4), task(n)).is_ok());
    }
    assert!(engine.wait_drain(LONG), "the worker lives and every group goes on");
    for n in 0..TASKS {
        assert!(engine.submit(key(n % 4), task(n)).is_ok());
    }
    engine.close(LONG)
}

fn builder<K, T>() -> bgrp::Builder<K, T> {
    quiet();
    Engine::builder().workers(Workers::fixed(1)).batch_size(8)
}

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
