//! Row F2: a cap on what is in flight downstream, independent of the number of workers; permits are first come, first served, held by
//! nobody who waits, and given back on every path (recipe R32).

mod common;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Class, Count, Engine, Failure, InFlight, OnExhausted, Outcome, Rate, Retry, Workers};
use common::{LONG, Latch, Log, Rng, WANTED, quiet, until, watch};

/// A downstream that counts who is there.
#[derive(Default)]
struct Downstream {
    now: AtomicU32,
    most: AtomicU32,
}

impl Downstream {
    fn call<R>(&self, tasks: u32, work: impl FnOnce() -> R) -> R {
        struct Away<'a>(&'a AtomicU32, u32);
        impl Drop for Away<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(self.1, SeqCst);
            }
        }
        self.most.fetch_max(self.now.fetch_add(tasks, SeqCst) + tasks, SeqCst);
        let _away = Away(&self.now, tasks);
        work()
    }
}

#[test]
fn no_more_than_the_limit_are_in_flight_and_who_waits_holds_no_worker() {
    let (downstream, gate) = (Arc::new(Downstream::default()), Latch::new());
    let (calls, closed) = (downstream.clone(), gate.clone());
    let engine = Arc::new(
        Engine::<u32, ()>::builder()
            .workers(Workers::fixed(6))
            .in_flight(2)
            .task_handler(move |_, _| calls.call(1, || closed.wait()))
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("permits", &engine);
    for key in 0..100 {
        engine.submit(key, ()).expect("room");
    }
    until(|| engine.limits().waiting == 98 && engine.stats().sleeping_workers == 4);
    assert_eq!(engine.limits().in_flight, 2);
    gate.open();
    assert_eq!(engine.close(LONG).done, 100);
    assert_eq!(downstream.most.load(SeqCst), 2);
    assert_eq!((engine.limits().in_flight, engine.limits().waiting), (0, 0));
}

#[test]
fn permits_are_first_come_first_served() {
    let (gate, log) = (Latch::new(), Log::<u32>::new());
    let (closed, order) = (gate.clone(), log.clone());
    let engine = Arc::new(
        Engine::<u32, ()>::builder()
            .workers(Workers::fixed(4))
            .in_flight(1)
            .task_handler(move |_, task| {
                order.push(*task.key());
                closed.wait();
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("first come", &engine);
    for key in 0..50 {
        engine.submit(key, ()).expect("room");
        until(|| engine.limits().in_flight == 1 && engine.limits().waiting == u64::from(key));
    }
    gate.open();
    assert_eq!(engine.close(LONG).done, 50);
    assert_eq!(log.take(), (0..50).collect::<Vec<_>>());
}

#[test]
fn hatchet_4494_permits_are_what_runs_whatever_goes_wrong() {
    // Panics, failures, retries, used-up attempts, throttled calls, halted groups, limits that change: 20,000 tasks of each kind at
    // random, and at the end not a permit is missing. While it runs the engine's own assertion counts along.
    quiet();
    let downstream = Arc::new(Downstream::default());
    let calls = downstream.clone();
    let engine = Arc::new(
        Engine::<u64, u64>::builder()
            .workers(Workers::fixed(4))
            .in_flight(3)
            .batch_size(4)
            .retry(Retry::fixed(Duration::ZERO).attempts(2))
            .on_exhausted(OnExhausted::with(|failed: bgrp::Exhausted<'_, u64, u64>| {
                assert!(!failed.task.is_multiple_of(11), "{WANTED}");
                bgrp::Verdict::Skip
            }))
            .handler(move |(), batch: &mut bgrp::Batch<'_, u64, u64>| {
                calls.call(1, || {
                    let answer = |n: u64, attempt| match n % 100 {
                        1 => panic!("{WANTED}"),
                        2..6 => Outcome::Retry(Failure::new("again")),
                        6 => Outcome::Fail(Failure::new("no")),
                        7 if attempt == 1 => Outcome::RetryAfter(common::MS, Failure::new("later")),
                        _ => Outcome::Done,
                    };
                    (0..batch.len())
                        .map(|i| answer(*batch.get(i).expect("in range"), batch.attempt(i)))
                        .collect::<Vec<_>>()
                })
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("all paths", &engine);
    let mut rng = Rng(7);
    for n in 0..20_000 {
        engine.submit(rng.below(300), n).expect("room");
        if n % 1_000 == 0 {
            engine.set_in_flight(Some((2 + rng.below(2) as u32).into())).expect("valid");
        }
    }
    assert!(engine.wait_drain(LONG));
    until(|| engine.limits().in_flight == 0);
    assert_eq!(engine.limits().waiting, 0);
    assert!(downstream.most.load(SeqCst) <= 3, "{:?}", downstream.most);
    let report = engine.close(LONG);
    assert_eq!(report.done + report.failed, 20_000);
    assert!(report.failed > 0 && report.retries > 0);
}

#[test]
fn a_group_that_halts_gives_its_permit_back() {
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .in_flight(1)
            .on_exhausted(OnExhausted::halt_group())
            .task_handler(|_, task| if **task == 0 { Err("halts") } else { Ok(()) })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("halted", &engine);
    for key in 0..20 {
        engine.submit(key, 0).expect("room");
    }
    engine.submit(99, 1).expect("room");
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (1, 20));
    assert_eq!(engine.limits().in_flight, 0);
}

#[test]
fn the_limit_changes_while_the_engine_runs() {
    let (downstream, gate) = (Arc::new(Downstream::default()), Latch::new());
    let (calls, closed) = (downstream.clone(), gate.clone());
    let engine = Arc::new(
        Engine::<u32, ()>::builder()
            .workers(Workers::fixed(8))
            .task_handler(move |_, _| calls.call(1, || closed.wait()))
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("live", &engine);
    engine.set_in_flight(Some(1.into())).expect("valid");
    for key in 0..40 {
        engine.submit(key, ()).expect("room");
    }
    until(|| engine.limits().waiting == 39);
    engine.set_in_flight(Some(5.into())).expect("valid");
    until(|| downstream.now.load(SeqCst) == 5 && engine.limits().waiting == 35);
    // Fewer than are in flight: nobody is interrupted, and nobody starts.
    engine.set_in_flight(Some(2.into())).expect("valid");
    assert_eq!((engine.limits().in_flight, engine.limits().waiting), (5, 35));
    engine.set_in_flight(None).expect("valid");
    until(|| downstream.now.load(SeqCst) == 8);
    let error = engine.set_in_flight(Some(InFlight::adaptive(5, 4))).unwrap_err().to_string();
    assert!(error.starts_with("in_flight is 5 to 4 batches; it must be at least 1"), "{error}");
    gate.open();
    assert_eq!(engine.close(LONG).done, 40);
}

#[test]
fn tasks_are_counted_where_tasks_are_the_limit() {
    let downstream = Arc::new(Downstream::default());
    let calls = downstream.clone();
    let engine = Arc::new(
        Engine::<u64, u64>::builder()
            .workers(Workers::fixed(4))
            .in_flight(InFlight::tasks(10))
            .batch_size(7)
            .handler(move |(), batch: &mut bgrp::Batch<'_, u64, u64>| {
                calls.call(batch.len() as u32, || common::spin(2_000));
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("tasks", &engine);
    let mut tasks: Vec<_> = (0..20_000).map(|n| (n % 50, n)).collect();
    engine.submit_many(&mut tasks).expect("room");
    assert_eq!(engine.close(LONG).done, 20_000);
    let most = downstream.most.load(SeqCst);
    assert!((7..=10).contains(&most), "{most}");
}

#[test]
fn order_and_exactly_once_under_every_limit_together() {
    // Some tasks are throttled once; that attempt does not count.
    let order = common::Order::new(40, 1);
    let oracle = order.clone();
    let throttled = std::sync::Mutex::new(HashSet::new());
    let engine = Arc::new(
        Engine::<u64, u64>::builder()
            .workers(Workers::fixed(3))
            .in_flight(2)
            .rate(Rate::per_second(200_000).burst(50))
            .group_rate(Rate::per_second(20_000).counting(Count::Batches))
            .weight(|key| 1 + (*key % 3) as u32)
            .class(|key| if key % 2 == 0 { Class::Bulk } else { Class::Interactive })
            .task_handler(move |(), task| {
                let (key, number) = (*task.key(), **task);
                assert_eq!(task.attempt(), 1, "a throttled attempt does not count");
                if number % 97 == 0 && common::lock(&throttled).insert((key, number)) {
                    return Outcome::Throttled(Duration::ZERO);
                }
                oracle.task(key as usize, 0, number, || ());
                Outcome::Done
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("all limits", &engine);
    let mut next = [0; 40];
    let mut rng = Rng(3);
    for _ in 0..20_000 {
        let key = rng.below(40);
        next[key as usize] += 1;
        engine.submit(key, next[key as usize]).expect("room");
    }
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (20_000, 0));
    order.assert_clean(20_000);
    assert!(engine.limits().throttled >= 100, "{:?}", engine.limits());
}
