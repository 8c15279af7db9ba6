//! Row E5: batches, linger (the flush interval), the time budget, and settings that are checked.

mod common;

use std::{sync::Arc, time::Duration};

use bgrp::{
    BuildError, Engine, Exhausted, Failure, OnExhausted, Outcome, Retry, Sim, Verdict, Workers,
};
use common::{Count, LONG, Latch, Log, MS};

/// Batch sizes with the key and the virtual time at which they ran.
type Batches = Log<(u32, Vec<u64>)>;

fn sim(batch: usize, flush: Duration) -> (Sim<u32, u64>, Batches) {
    let log = Batches::new();
    let batches = log.clone();
    let sim = Engine::builder()
        .workers(Workers::fixed(2))
        .batch_size(batch)
        .flush_interval(flush)
        .handler(move |_, batch| batches.push((*batch.key(), batch.iter().copied().collect())))
        .build_sim(1)
        .expect("valid settings");
    (sim, log)
}

fn sizes(log: &Batches) -> Vec<usize> {
    log.take().iter().map(|(_, tasks)| tasks.len()).collect()
}

#[test]
fn a_batch_never_exceeds_the_batch_size_and_fills_it_where_it_can() {
    for batch in [1usize, 2, 7, 64, 1_000] {
        let (mut sim, log) = sim(batch, Duration::ZERO);
        for n in 0..500 {
            sim.submit(1, n).expect("room");
        }
        sim.run();
        let mut batches = log.take();
        assert!(batches.iter().all(|(_, tasks)| (1..=batch).contains(&tasks.len())));
        // A chunk of 256 records comes at a time, so at most one batch a chunk is short.
        assert!(batches.len() <= 500 / batch + 3, "{batch}: {}", batches.len());
        let order: Vec<u64> = batches.drain(..).flat_map(|(_, tasks)| tasks).collect();
        assert!(order.into_iter().eq(0..500));
    }
}

#[test]
fn without_a_flush_interval_nothing_waits() {
    let (mut sim, log) = sim(100, Duration::ZERO);
    sim.submit(1, 1).expect("room");
    sim.run();
    assert_eq!(log.take(), [(1, vec![1])]);
}

#[test]
fn less_than_a_batch_waits_for_the_interval_and_not_longer() {
    let (mut sim, log) = sim(10, 20 * MS);
    sim.submit(1, 0).expect("room");
    sim.run();
    sim.advance(15 * MS);
    sim.submit(1, 1).expect("room");
    sim.submit(2, 2).expect("room");
    sim.run();
    assert_eq!(log.len(), 0);
    sim.advance(4 * MS);
    sim.run();
    assert_eq!(log.len(), 0, "19 of 20 ms");
    sim.advance(2 * MS);
    sim.run();
    assert_eq!(log.take(), [(1, vec![0, 1])], "the oldest task decides");
    sim.advance(15 * MS);
    sim.run();
    assert_eq!(log.take(), [(2, vec![2])]);
}

#[test]
fn a_full_batch_goes_at_once_and_the_rest_waits() {
    let (mut sim, log) = sim(4, Duration::from_secs(3_600));
    for n in 0..10 {
        sim.submit(1, n).expect("room");
    }
    sim.run();
    assert_eq!(log.take(), [(1, vec![0, 1, 2, 3]), (1, vec![4, 5, 6, 7])]);
    sim.submit(1, 10).expect("room");
    sim.run();
    assert_eq!(log.len(), 0);
    sim.submit(1, 11).expect("room");
    sim.run();
    assert_eq!(log.take(), [(1, vec![8, 9, 10, 11])]);
    sim.submit(1, 12).expect("room");
    sim.run();
    sim.advance(Duration::from_secs(3_601));
    sim.run();
    assert_eq!(log.take(), [(1, vec![12])]);
}

#[test]
fn a_lone_rest_never_waits_twice_the_interval() {
    let (mut sim, log) = sim(4, 20 * MS);
    for n in 0..6 {
        sim.submit(1, n).expect("room");
    }
    sim.run();
    assert_eq!(sizes(&log), [4]);
    sim.advance(21 * MS);
    sim.run();
    assert_eq!(sizes(&log), [2]);
}

#[test]
fn a_rest_waits_for_the_interval_whenever_its_group_began() {
    // The rest of a group that began with a full batch waited from the start of the engine, and so not at all.
    let (mut sim, log) = sim(4, 20 * MS);
    sim.advance(200 * MS);
    for n in 0..6 {
        sim.submit(1, n).expect("room");
    }
    sim.run();
    sim.advance(19 * MS);
    sim.run();
    assert_eq!(sizes(&log), [4], "19 of 20 ms");
    sim.advance(2 * MS);
    sim.run();
    assert_eq!(sizes(&log), [2]);
}

#[test]
fn a_task_that_fails_does_not_make_the_next_ones_wait_again() {
    // A dispatch of a task handler ends with a task that fails; the tasks behind it had waited already.
    let log = Log::new();
    let tried = log.clone();
    let mut sim = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(1))
        .batch_size(4)
        .flush_interval(20 * MS)
        .task_handler(move |(), task| {
            tried.push(**task);
            if **task == 0 { Err("no") } else { Ok(()) }
        })
        .build_sim(1)
        .expect("valid settings");
    for n in 0..3 {
        sim.submit(1, n).expect("room");
    }
    sim.run();
    sim.advance(21 * MS);
    sim.run();
    assert_eq!(log.take(), [0, 1, 2]);
}

#[test]
fn a_held_task_behind_a_retried_one_does_not_linger() {
    // The policy held the second task of a batch for 3 ms; once the first was done, the second waited for a full batch.
    let asked = Log::new();
    let log = asked.clone();
    let mut sim = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(1))
        .batch_size(2)
        .flush_interval(Duration::from_secs(3_600))
        .retry(Retry::fixed(Duration::ZERO).attempts(3))
        .on_exhausted(OnExhausted::with(move |failed: Exhausted<'_, u32, u64>| {
            log.push(*failed.task);
            if log.len() == 1 { Verdict::Hold(3 * MS) } else { Verdict::Skip }
        }))
        .handler(|(), batch| {
            let failure = || Failure::new("no");
            let outcome = |(i, task): (usize, &u64)| match *task {
                0 if batch.attempt(i) == 3 => Outcome::Done,
                0 => Outcome::Retry(failure()),
                _ => Outcome::Fail(failure()),
            };
            batch.iter().enumerate().map(outcome).collect::<Vec<_>>()
        })
        .build_sim(1)
        .expect("valid settings");
    sim.submit(1, 0).expect("room");
    sim.submit(1, 1).expect("room");
    sim.run();
    sim.advance(4 * MS);
    sim.run();
    assert_eq!(asked.take(), [1, 1]);
    assert_eq!((sim.stats().done, sim.stats().failed), (1, 1));
}

#[test]
fn drain_ends_every_linger() {
    let (mut sim, log) = sim(64, Duration::from_secs(3_600));
    for key in 0..300 {
        sim.submit(key, 0).expect("room");
    }
    sim.run();
    assert_eq!(log.len(), 0);
    let report = sim.close();
    assert_eq!((report.done, report.left.len(), log.len()), (300, 0, 300));
}

#[test]
fn many_lingers_over_a_long_time_fire_once_each() {
    let (mut sim, log) = sim(3, 50 * MS);
    let mut submitted = 0;
    for round in 0..400u64 {
        for key in 0..20 {
            if common::mix(round * 20 + u64::from(key)).is_multiple_of(5) {
                sim.submit(key, round).expect("room");
                submitted += 1;
            }
        }
        sim.run();
        sim.advance(Duration::from_micros(3_700));
    }
    sim.advance(51 * MS);
    sim.run();
    let batches = log.take();
    assert_eq!(batches.iter().map(|(_, tasks)| tasks.len()).sum::<usize>(), submitted);
    for (_, tasks) in &batches {
        let waited = tasks.last().expect("a task") - tasks[0];
        assert!(waited <= 15, "a batch spans at most the interval: {tasks:?}");
    }
}

#[test]
fn linger_ends_by_itself_on_real_threads() {
    let seen = Count::new();
    let count = seen.clone();
    let engine = Engine::<u32, ()>::builder()
        .workers(Workers::fixed(2))
        .batch_size(1_000)
        .flush_interval(3 * MS)
        .handler(move |_, batch| count.add(batch.len() as u64))
        .build()
        .expect("valid settings");
    for round in 1..=50 {
        for key in 0..5 {
            engine.submit(key, ()).expect("open");
        }
        seen.wait_for(round * 5);
    }
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_dispatch_ends_when_its_time_is_used_up() {
    let latch = Latch::new();
    let gate = latch.clone();
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(1))
        .batch_size(1_000)
        .time_budget(Duration::from_nanos(1))
        .task_handler(move |_, _| gate.wait())
        .build()
        .expect("valid settings");
    for n in 0..200 {
        engine.submit(1, n).expect("open");
    }
    latch.open();
    assert!(engine.wait_drain(LONG));
    let dispatches = engine.stats().dispatches;
    assert!(
        dispatches >= 200 / 8,
        "the clock is read after 4 and 8 tasks: {dispatches} dispatches"
    );
}

#[test]
fn a_wrong_setting_is_refused_with_its_name_and_its_bounds() {
    let wrong = [
        (Engine::<u32, u32>::builder().workers(0), "workers is 0; it must be between 1 and 1024"),
        (Engine::builder().workers(1_025), "workers is 1025; it must be between 1 and 1024"),
        (Engine::builder().batch_size(0), "batch_size is 0; it must be between 1 and 65536"),
        (Engine::builder().batch_size(65_537), "batch_size is 65537; it must be"),
        (Engine::builder().capacity(63), "capacity is 63; it must be between 64 and 1073741824"),
        (Engine::builder().group_capacity(0), "group_capacity is 0; it must be between 1 and"),
        (Engine::builder().flush_interval(Duration::from_secs(3_601)), "flush_interval is 3601s"),
        (Engine::builder().time_budget(Duration::ZERO), "time_budget is zero; it must be more"),
        (Engine::builder().retry(Retry::fixed(MS).attempts(0)), "retry is 0 attempts"),
    ];
    for (builder, text) in wrong {
        let error = builder.task_handler(|_, _| ()).build_sim(1).expect_err(text);
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(matches!(error, BuildError::OutOfBounds { .. }));
    }
    for (batch, capacity, group) in [(1, 64, 1), (65_536, 64, 1 << 30), (1, 1 << 16, 1)] {
        let engine = Engine::<u32, u32>::builder()
            .workers(1)
            .batch_size(batch)
            .capacity(capacity)
            .group_capacity(group)
            .task_handler(|_, _| ())
            .build();
        let engine = Arc::new(engine.expect("inside the bounds"));
        engine.submit(1, 1).expect("open");
        assert_eq!(engine.close(LONG).done, 1);
    }
}
