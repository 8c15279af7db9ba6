//! Row F1, bytes: what all tasks inside weigh together is bounded exactly, large tasks are not starved, and every path on which
//! a task can leave gives its bytes back.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::Poll,
    thread,
    time::Duration,
};

use bgrp::{Engine, Failure, Lease, OnExhausted, Outcome, Retry, SubmitReason, Workers};
use common::{
    Count, LONG, Latch, Log, MS, Rng, WANTED, lock, quiet, scale, until, waiting::Waiting, watch,
};

/// Tasks are their own weight. All wait at the latch.
fn shut(capacity: usize) -> (Arc<Engine<u32, usize>>, Arc<Latch>) {
    let latch = Latch::new();
    let gate = latch.clone();
    let engine = Engine::<u32, usize>::builder()
        .workers(Workers::fixed(2))
        .weigh(|_, task| *task)
        .capacity_bytes(capacity)
        .task_handler(move |_, _| gate.wait())
        .build()
        .expect("valid settings");
    (Arc::new(engine), latch)
}

#[test]
fn what_is_inside_never_weighs_more_and_the_reason_has_the_numbers() {
    let (engine, latch) = shut(1_000);
    let _watch = watch("numbers", &engine);
    engine.try_submit(1, 600).expect("room");
    let error = engine.try_submit(2, 401).expect_err("400 are free");
    assert_eq!((error.key, error.task), (2, 401));
    let why = SubmitReason::BytesFull { bytes: 401, free: 400 };
    assert_eq!(error.reason, why);
    assert_eq!(
        why.to_string(),
        "the task weighs 401 bytes, and 400 of capacity_bytes are free; wait (submit), drop the task, or raise capacity_bytes"
    );
    engine.group(1).try_submit(400).expect("to the last byte");
    assert_eq!(engine.stats().bytes, 1_000);
    engine.try_submit(3, 0).expect("it weighs nothing");
    let why = SubmitReason::BytesFull { bytes: 1, free: 0 };
    assert_eq!(engine.producer().try_submit(4, 1).expect_err("full").reason, why);
    assert_eq!(engine.try_submit_many(&mut vec![(4, 1)]).expect_err("full").reason, why);
    let error = engine.submit_timeout(4, 1, MS).expect_err("nobody leaves");
    assert_eq!((error.task, error.reason), (1, SubmitReason::TimedOut(MS)));
    let page = engine.stats().to_prometheus();
    assert!(page.contains("\n# TYPE bgrp_task_bytes gauge\nbgrp_task_bytes 1000\n"), "{page}");
    latch.open();
    engine.submit(4, 1_000).expect("when all of them have ended");
    assert_eq!((engine.close(LONG).done, engine.stats().bytes), (4, 0));
}

#[test]
fn a_task_that_can_never_fit_is_refused_at_once_by_every_way() {
    let (engine, latch) = shut(10);
    let _watch = watch("too large", &engine);
    latch.open();
    let why = SubmitReason::TooLarge { bytes: 11, capacity: 10 };
    assert_eq!(engine.submit(1, 11).map_err(|e| (e.key, e.task, e.reason)), Err((1, 11, why)));
    assert_eq!(engine.submit_timeout(1, 11, LONG).map_err(|e| e.reason), Err(why));
    assert_eq!(engine.group(1).submit(11).map_err(|e| (e.task, e.reason)), Err((11, why)));
    assert_eq!(engine.submit_tracked(1, 11).map(drop).map_err(|e| e.reason), Err(why));
    let mut many = vec![(1, 1), (1, 11), (1, 2)];
    let error = engine.submit_many(&mut many).expect_err("the second");
    assert_eq!((error.accepted, error.reason, many), (1, why, vec![(1, 11), (1, 2)]));
    let Poll::Ready(Err(error)) = Waiting::new(engine.submit_async(1, 11)).poll() else {
        panic!("refused at once");
    };
    assert_eq!(error.reason, why);
    assert!(why.to_string().contains("11 bytes, more than capacity_bytes (10)"), "{why}");
    engine.submit(1, 10).expect("exactly all");
    assert_eq!(engine.close(LONG).done, 2);
}

#[test]
fn a_large_task_is_not_starved_by_small_ones() {
    let released = Arc::new(Mutex::new(0u64));
    let changed = Arc::new(std::sync::Condvar::new());
    let (permits, wakes) = (released.clone(), changed.clone());
    let engine = Engine::<u32, usize>::builder()
        .workers(Workers::fixed(1))
        .batch_size(1)
        .weigh(|_, task| *task)
        .capacity_bytes(100)
        .task_handler(move |_, _| {
            let mut left = lock(&permits);
            while *left == 0 {
                left = wakes.wait(left).expect("no panic");
            }
            *left -= 1;
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("starved", &engine);
    let end_one = |done: u64| {
        *lock(&released) += 1;
        changed.notify_all();
        until(|| engine.stats().done == done);
    };
    (0..10).for_each(|n| engine.try_submit(n, 10).expect("room"));
    let mut large = Waiting::new(engine.submit_async(20, 55));
    assert!(large.poll().is_pending());
    let mut small = Waiting::new(engine.submit_async(21, 1));
    assert!(small.poll().is_pending());
    for done in 1..=5 {
        end_one(done);
        assert_eq!(large.wakes(), 0, "{} are free", 10 * done);
        assert!(small.poll().is_pending(), "it would fit, but came later");
        let why = engine.try_submit(22, 1).expect_err("nor does anybody else").reason;
        let free = 10 * done as u32;
        assert_eq!(why, SubmitReason::BytesFull { bytes: 1, free });
    }
    *lock(&released) += 1;
    changed.notify_all();
    until(|| large.wakes() == 1);
    assert!(large.poll().is_ready(), "as soon as it fits");
    until(|| small.wakes() == 1);
    assert!(small.poll().is_ready());
    assert_eq!(engine.stats().bytes, 40 + 55 + 1);
    // Somebody who gives up lets the next one through.
    let mut gone = Waiting::new(engine.submit_async(23, 50));
    let mut next = Waiting::new(engine.submit_async(24, 2));
    assert!(gone.poll().is_pending() && next.poll().is_pending());
    drop(gone);
    assert!(next.wakes() == 1 && next.poll().is_ready());
    *lock(&released) = 100;
    changed.notify_all();
    assert_eq!(engine.close(LONG).done, 13);
}

/// The sum over tasks that were accepted and not handled is a part of what is inside.
#[test]
fn under_threads_the_bound_holds_at_every_moment() {
    const CAPACITY: u64 = 64;
    for exact in [None, Some(3)] {
        let inside = Arc::new(AtomicU64::new(1 << 32));
        let (left, order) = (inside.clone(), Log::new());
        let seen = order.clone();
        let mut builder = Engine::<u32, (u32, u64, u64)>::builder()
            .workers(Workers::fixed(3))
            .batch_size(4)
            .weigh(|_, (_, _, bytes)| *bytes as usize)
            .capacity_bytes(CAPACITY as usize);
        if let Some(capacity) = exact {
            builder = builder.exact_group_capacity(capacity);
        }
        let engine = builder
            .handler(move |_, batch| {
                for (source, n, bytes) in batch.iter() {
                    left.fetch_sub(*bytes, SeqCst);
                    seen.push((*source, *n));
                }
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("bound", &engine);
        let each = scale(2_000, 30_000);
        thread::scope(|scope| {
            for source in 0..4u32 {
                let (engine, inside) = (&engine, &inside);
                scope.spawn(move || {
                    let mut rng = Rng(u64::from(source));
                    let mut lane = engine.producer();
                    for n in 0..each {
                        let key = rng.below(6) as u32;
                        let bytes = [1, 2, 5, 40, CAPACITY][rng.below(5) as usize];
                        let task = (source * 100 + key, n, bytes);
                        match rng.below(4) {
                            0 => engine.submit(key, task).expect("open"),
                            1 => engine.group(key).submit(task).expect("open"),
                            2 => lane.submit(key, task).expect("open"),
                            _ => engine.submit_timeout(key, task, LONG).expect("room comes"),
                        }
                        let now = inside.fetch_add(bytes, SeqCst) + bytes;
                        assert!(now <= (1 << 32) + CAPACITY, "{} inside", now - (1 << 32));
                    }
                });
            }
        });
        let report = engine.close(LONG);
        assert_eq!((report.done, engine.stats().bytes), (4 * each, 0));
        for (source, numbers) in common::by_key(order.take()) {
            assert!(numbers.is_sorted(), "source {source}");
        }
    }
}

#[test]
fn a_full_group_holds_no_bytes_back_from_others() {
    let (latch, others) = (Latch::new(), Count::new());
    let (gate, count) = (latch.clone(), others.clone());
    let engine = Engine::<u32, usize>::builder()
        .workers(Workers::fixed(2))
        .exact_group_capacity(2)
        .weigh(|_, task| *task)
        .capacity_bytes(100)
        .task_handler(move |_, task| match task.key() {
            0 => gate.wait(),
            _ => count.add(1),
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("others", &engine);
    (0..2).for_each(|_| engine.try_submit(0, 5).expect("room"));
    // They wait for a place, and hold neither bytes nor the line of the engine.
    let mut waiting: Vec<_> = (0..5).map(|_| Waiting::new(engine.submit_async(0, 80))).collect();
    assert!(waiting.iter_mut().all(|one| one.poll().is_pending()));
    for n in 0..1_000 {
        engine.submit(1 + n % 7, 90).expect("open");
    }
    others.wait_for(1_000);
    latch.open();
    for one in &mut waiting {
        until(|| one.wakes() > 0);
        while one.poll().is_pending() {
            thread::yield_now();
        }
    }
    assert_eq!((engine.close(LONG).done, engine.stats().bytes), (1_007, 0));
}

/// Tasks change under the handler, stay, leave in any order, are given back: the weight is that of the submit.
#[test]
fn bytes_come_back_however_their_task_leaves() {
    quiet();
    for exhausted in 0..3 {
        for batch in [1usize, 5] {
            let sum = Arc::new(AtomicU64::new(0));
            let fresh = |builder: bgrp::Builder<u32, Vec<u8>>| {
                builder
                    .workers(Workers::fixed(2))
                    .batch_size(batch)
                    .weigh(|_, body: &Vec<u8>| body.len())
                    .capacity_bytes(5_000)
                    .retry(Retry::fixed(Duration::ZERO).attempts(3))
                    .on_exhausted(match exhausted {
                        0 => OnExhausted::skip(),
                        1 => OnExhausted::halt_group(),
                        _ => OnExhausted::dead_letter(MS, {
                            let tries = AtomicU64::new(0);
                            move |_: bgrp::Exhausted<'_, u32, Vec<u8>>| {
                                if tries.fetch_add(1, SeqCst).is_multiple_of(3) {
                                    Err("full")
                                } else {
                                    Ok(())
                                }
                            }
                        }),
                    })
            };
            let seen = sum.clone();
            let engine = fresh(Engine::builder())
                .handler(move |_, batch: &mut bgrp::Batch<'_, u32, Vec<u8>>| {
                    let outcomes = batch.iter_mut().map(|body| {
                        seen.fetch_add(1, SeqCst);
                        // What it would weigh now is something else.
                        body.resize(body.len() * 2 + 1, 0);
                        match body.len() % 5 {
                            0 => Outcome::Retry(Failure::new("again")),
                            1 => Outcome::Fail(Failure::new("no")),
                            2 if body.len() % 3 == 0 => Outcome::Throttled(MS),
                            _ => Outcome::Done,
                        }
                    });
                    let outcomes: Vec<Outcome> = outcomes.collect();
                    assert!(outcomes.len() != 3, "{WANTED}");
                    outcomes
                })
                .build()
                .expect("valid settings");
            let engine = Arc::new(engine);
            let _watch = watch("leave", &engine);
            let mut rng = Rng(batch as u64);
            let mut paused_sum = 0u64;
            engine.pause_group(99);
            for n in 0..scale(1_500, 15_000) {
                let body = vec![0; rng.below(60) as usize];
                match engine.try_submit(rng.below(4) as u32, body) {
                    Ok(()) => {}
                    Err(error) => {
                        assert!(matches!(error.reason, SubmitReason::BytesFull { .. }), "{error}");
                        thread::yield_now();
                    }
                }
                if n % 100 == 0 && paused_sum < 1_000 {
                    engine.submit(99, vec![0; 77]).unwrap_or_else(|e| panic!("{e}"));
                    paused_sum += 77;
                }
                if n % 50 == 49 {
                    let key = rng.below(4) as u32;
                    match rng.below(4) {
                        0 => drop(engine.cancel_pending(&key)),
                        1 => drop(engine.discard_group(&key)),
                        2 => drop(engine.close_group(key, Duration::ZERO)),
                        _ => {}
                    }
                }
                if n % 10 == 9 {
                    (0..4).for_each(|key| {
                        engine.resume_group(&key);
                    });
                }
            }
            until(|| {
                (0..4).for_each(|key| {
                    engine.resume_group(&key);
                });
                engine.stats().backlog() == paused_sum / 77
            });
            // Room is given back after the word was settled, so a moment later.
            until(|| engine.stats().bytes == paused_sum);
            let report = engine.close(LONG);
            assert_eq!(report.left_tasks() as u64, paused_sum / 77);
            assert_eq!(engine.stats().bytes, 0);
            assert!(sum.load(SeqCst) > 0);
        }
    }
}

#[test]
fn a_lease_keeps_its_bytes_until_it_ends() {
    let (sender, leases) = std::sync::mpsc::channel::<Lease<u32, usize>>();
    let engine = Engine::<u32, usize>::builder()
        .workers(Workers::fixed(2))
        .batch_size(3)
        .weigh(|_, task| *task)
        .capacity_bytes(100)
        .retry(Retry::fixed(Duration::ZERO).attempts(2))
        .lease_handler(move |lease| sender.send(lease).expect("the test listens"))
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("leases", &engine);
    engine.pause_group(1);
    [10, 20, 30].into_iter().for_each(|n| engine.try_submit(1, n).expect("room"));
    engine.resume_group(&1);
    let lease = leases.recv_timeout(LONG).expect("out");
    assert_eq!((lease.len(), engine.stats().bytes), (3, 60));
    let no = || Outcome::Fail(Failure::new("no"));
    lease.complete(vec![Outcome::Done, Outcome::Retry(Failure::new("again")), no()]);
    let lease = leases.recv_timeout(LONG).expect("the second, again");
    assert_eq!(lease.iter().copied().collect::<Vec<_>>(), [20]);
    until(|| engine.stats().bytes == 20);
    engine.try_submit(2, 80).expect("room");
    // One comes back after the engine was halted, the other stays out.
    let other = leases.recv_timeout(LONG).expect("out");
    let first = engine.close(MS);
    assert_eq!((first.leased, engine.stats().bytes), (2, 100));
    drop(lease);
    drop(other);
    let second = engine.close(LONG);
    assert_eq!((second.leased, engine.stats().bytes), (0, 0));
}

#[test]
fn a_panic_of_the_weigher_is_the_submitters_and_loses_nothing() {
    quiet();
    let bad = Arc::new(AtomicBool::new(true));
    let panics = bad.clone();
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(1))
        .weigh(move |key, task| {
            assert!(*key != 7 || !panics.load(SeqCst), "{WANTED}");
            *task as usize
        })
        .capacity_bytes(100)
        .task_handler(|_, _| ())
        .build()
        .expect("valid settings");
    let handle = engine.group(7);
    let why = SubmitReason::WeigherPanicked;
    assert_eq!(engine.submit(7, 1).map_err(|e| (e.key, e.task, e.reason)), Err((7, 1, why)));
    assert_eq!(handle.submit(2).map_err(|e| (e.task, e.reason)), Err((2, why)));
    let mut many = vec![(7, 2), (7, 3)];
    let error = engine.submit_many(&mut many).expect_err("the first");
    assert_eq!((error.accepted, error.reason, many), (0, why, vec![(7, 2), (7, 3)]));
    let mut waiting = Waiting::new(handle.submit_async(5));
    assert!(matches!(waiting.poll(), Poll::Ready(Err(error)) if error.reason == why));
    bad.store(false, SeqCst);
    handle.submit(2).expect("open");
    assert_eq!((engine.close(LONG).done, engine.stats().bytes), (1, 0));
}

#[test]
fn weights_without_a_capacity_are_counted_and_bound_nothing() {
    let latch = Latch::new();
    let gate = latch.clone();
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(1))
        .weigh(|_, task| *task as usize)
        .task_handler(move |_, _| gate.wait())
        .build()
        .expect("valid settings");
    (0..10).for_each(|key| engine.try_submit(key, 1 << 30).expect("no bound"));
    assert_eq!(engine.stats().bytes, 10 << 30);
    latch.open();
    assert_eq!(engine.close(LONG).done, 10);
}

#[test]
fn settings_out_of_bounds_are_named() {
    let zero = Engine::<u32, u32>::builder()
        .weigh(|_, _| 1)
        .capacity_bytes(0)
        .task_handler(|_, _| ())
        .build()
        .expect_err("zero");
    assert_eq!(zero.to_string(), "capacity_bytes is 0; it must be between 1 and 4294967295");
    let alone = Engine::<u32, u32>::builder()
        .capacity_bytes(5)
        .task_handler(|_, _| ())
        .build()
        .expect_err("nobody says what a task weighs");
    assert!(
        alone.to_string().starts_with("capacity_bytes is 5; it must be set together with weigh"),
        "{alone}"
    );
}
