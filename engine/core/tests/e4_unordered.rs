//! Row E4, rayon inside a batch: tasks of one dispatch at the same time, batches one after another, an outcome for each.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Batch, Engine, Failure, Outcome, Retry, SubmitReason, Workers};
use common::{Counted, LONG, Log, Rng, Tally, WANTED, quiet, scale, watch};
use rayon::prelude::*;

fn builder<T: Send>() -> bgrp::Builder<u32, T> {
    Engine::<u32, T>::builder().workers(Workers::fixed(2))
}

#[test]
fn tasks_of_a_batch_run_at_the_same_time_and_batches_do_not() {
    // Two tasks that wait for each other: no handler that runs one after the other gets past it.
    if rayon::current_num_threads() < 2 {
        eprintln!("SKIPPED: rayon has one thread");
        return;
    }
    let meeting = Arc::new(Barrier::new(2));
    let inside = Arc::new(AtomicU32::new(0));
    let (meets, count) = (meeting.clone(), inside.clone());
    let most = Arc::new(AtomicU32::new(0));
    let seen = most.clone();
    let engine = builder::<u32>()
        .batch_size(2)
        .flush_interval(Duration::from_secs(3_000))
        .unordered_handler(move |(), _| {
            seen.fetch_max(1 + count.fetch_add(1, SeqCst), SeqCst);
            meets.wait();
            count.fetch_sub(1, SeqCst);
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("unordered", &engine);
    (0..2 * scale(50, 500) as u32).for_each(|n| engine.submit(1, n).expect("open"));
    assert_eq!(engine.close(LONG).done, 2 * scale(50, 500));
    assert_eq!(most.load(SeqCst), 2, "never a third task: that would be of another batch");
}

#[test]
fn each_task_has_its_own_outcome_and_a_panic_is_its_own() {
    quiet();
    let tasks = scale(2_000, 20_000) as usize;
    let tally = Tally::new(tasks);
    let failures = Log::new();
    let seen = failures.clone();
    let engine = builder::<Counted>()
        .batch_size(97)
        .retry(Retry::fixed(Duration::ZERO).attempts(3))
        .state(|_| AtomicU64::new(0))
        .on_exhausted(bgrp::OnExhausted::with(move |failed: bgrp::Exhausted<'_, u32, Counted>| {
            seen.push((failed.task.id, failed.attempts, failed.failure.kind()));
            bgrp::Verdict::Skip
        }))
        .unordered_handler(|count: &AtomicU64, task| {
            count.fetch_add(1, SeqCst);
            task.run();
            match task.id % 10 {
                0 => panic!("{WANTED}"),
                1 => Outcome::Fail(Failure::new("for good")),
                2 if task.attempt() < 3 => Outcome::Retry(Failure::new("not yet")),
                _ => Outcome::Done,
            }
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("unordered outcomes", &engine);
    (0..tasks).for_each(|id| engine.submit(id as u32 % 3, tally.task(id)).expect("open"));
    let report = engine.close(LONG);
    assert!(report.is_complete());
    assert_eq!((report.done, report.failed), (tasks as u64 / 10 * 8, tasks as u64 / 10 * 2));
    for id in 0..tasks {
        let wanted = if matches!(id % 10, 0 | 2) { 3 } else { 1 };
        assert_eq!(tally.runs(id), wanted, "task {id}");
    }
    tally.all_dropped_once();
    let failed = failures.take();
    assert_eq!(failed.len(), tasks / 5);
    assert!(failed.iter().all(|(id, attempts, kind)| match id % 10 {
        0 => (*attempts, *kind) == (3, bgrp::FailureKind::Panicked),
        _ => (id % 10, *attempts, *kind) == (1, 1, bgrp::FailureKind::Reported),
    }));
}

#[test]
fn a_parallel_iterator_has_each_task_of_every_segment_once_however_it_is_split() {
    let seen = Log::new();
    let log = seen.clone();
    let engine = builder::<u64>()
        .batch_size(5_000)
        .handler(move |(), batch: &mut Batch<'_, u32, u64>| {
            let mut rng = Rng(batch.len() as u64);
            batch.par_iter_mut().for_each(|task| *task += 1);
            let forward: Vec<u64> = batch.par_iter_mut().map(|task| *task).collect();
            assert!(forward.iter().copied().eq(batch.iter().copied()), "in place and in order");
            let mut backward: Vec<u64> = batch.par_iter_mut().rev().map(|task| *task).collect();
            backward.reverse();
            assert_eq!(forward, backward);
            let least = 1 + rng.below(40) as usize;
            let zipped = batch.par_iter_mut().with_max_len(least).enumerate();
            assert!(zipped.all(|(at, task)| forward[at] == *task));
            let (from, step) = (rng.below(9) as usize, 1 + rng.below(9) as usize);
            let some: Vec<u64> =
                batch.into_par_iter().skip(from).step_by(step).map(|task| *task).collect();
            assert!(some.iter().eq(forward.iter().skip(from).step_by(step)));
            forward.into_iter().for_each(|task| log.push(task));
        })
        .build()
        .expect("valid settings");
    (0..6_000).for_each(|n| engine.submit(1, n).expect("open"));
    assert_eq!(engine.close(LONG).done, 6_000);
    assert!(seen.take().into_iter().eq(1..=6_000));
}

#[test]
fn a_panic_in_a_parallel_iterator_fails_the_batch_and_no_more() {
    quiet();
    let engine = builder::<u32>()
        .batch_size(8)
        .handler(|(), batch| {
            batch.par_iter_mut().for_each(|task| assert!(*task != 13, "{WANTED}"));
        })
        .build()
        .expect("valid settings");
    let mut tasks: Vec<_> = (0..20).map(|n| (1, n)).collect();
    engine.submit_many(&mut tasks).expect("open");
    let report = engine.close(LONG);
    assert_eq!(report.done + report.failed, 20);
    assert!((1..=8).contains(&report.failed), "{report:?}");
}

#[test]
fn a_submit_on_rayons_threads_that_would_wait_for_its_own_engine_is_refused() {
    let engine: Arc<std::sync::OnceLock<Arc<Engine<u32, u32>>>> = Arc::default();
    let refused = Log::new();
    let (own, log) = (engine.clone(), refused.clone());
    let built = builder::<u32>()
        .capacity(64)
        .group_capacity(1)
        .batch_size(16)
        .unordered_handler(move |(), task| {
            if *task.key() == 1 {
                let engine = own.get().expect("set before the first submit");
                // Sooner or later the engine is full, and only this batch could make room.
                while let Ok(()) = engine.submit(2, 0) {}
                let submitted = engine.submit(2, 0).map_err(|error| error.reason);
                log.push((rayon::current_thread_index().is_some(), submitted));
            }
        })
        .build()
        .expect("valid settings");
    let built = Arc::new(built);
    let _watch = watch("submit inside rayon", &built);
    assert!(engine.set(built.clone()).is_ok());
    let mut tasks: Vec<_> = (0..6).map(|n| (1, n)).collect();
    let _ = built.try_submit_many(&mut tasks);
    assert!(built.wait_drain(LONG));
    let reasons = refused.take();
    let on_rayon = reasons.iter().filter(|(on_rayon, _)| *on_rayon);
    assert!(on_rayon.count() >= 2, "a batch of several tasks: {reasons:?}");
    assert!(reasons.iter().all(|(_, r)| *r == Err(SubmitReason::OwnWorker)), "{reasons:?}");
    built.close(LONG);
}
