//! Rows E4 and F11: drain, close, halt and drop while leases are out.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, Failure, Lease, OnExhausted, Outcome, Workers};
use common::{Counted, LONG, Log, MS, Rng, Tally, lock, quiet, scale, watch};

type Out<T> = Receiver<Lease<u32, T>>;

fn engine<T: Send + 'static>(
    with: impl FnOnce(bgrp::Builder<u32, T>) -> bgrp::Builder<u32, T>,
) -> (Arc<Engine<u32, T>>, Out<T>) {
    let (sender, leases) = channel();
    let sender = Mutex::new(sender);
    let builder = Engine::<u32, T>::builder().workers(Workers::fixed(2)).batch_size(2);
    let engine = with(builder)
        .lease_handler(move |lease| {
            // Who takes leases may be gone; then they are dropped.
            let _ = lock(&sender).send(lease);
        })
        .build()
        .expect("valid settings");
    (Arc::new(engine), leases)
}

#[test]
fn a_drain_waits_for_leased_tasks() {
    let (engine, leases) = engine(|b| b);
    let _watch = watch("drain and leases", &engine);
    engine.submit(1, 1).expect("open");
    let lease = leases.recv().expect("out");
    assert!(!engine.wait_drain(20 * MS), "a leased task has not ended");
    let waits = engine.clone();
    let waiter = thread::spawn(move || waits.wait_drain(LONG));
    lease.complete(());
    assert!(waiter.join().expect("no panic"));
    assert_eq!(engine.stats().done, 1);
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_close_waits_for_leases_and_what_they_leave() {
    let (engine, leases) = engine(|b| b);
    let _watch = watch("close and leases", &engine);
    (0..7).for_each(|n| engine.submit(n % 2, n).expect("open"));
    let closes = engine.clone();
    let closer = thread::spawn(move || closes.close(LONG));
    // Four batches, or one more where a worker was faster than the submits.
    let mut tasks = 0;
    while tasks < 7 {
        let lease = leases.recv().expect("all of them come");
        tasks += lease.len();
        lease.complete(());
    }
    let report = closer.join().expect("no panic");
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((report.done, report.leased), (7, 0));
}

#[test]
fn at_the_deadline_leases_are_reported_and_a_second_close_gives_back_what_is_left_of_them() {
    let (engine, leases) = engine(|b| b);
    let _watch = watch("deadline and leases", &engine);
    (0..5).for_each(|n| engine.submit(1, n).expect("open"));
    engine.submit(2, 20).expect("open");
    let out: Vec<_> = (0..2).map(|_| leases.recv().expect("out")).collect();
    // A retry of one and the end of the other wait for the second close.
    let first = engine.close(MS);
    assert!(!first.is_complete());
    assert_eq!((first.leased, first.running, first.done, first.left_tasks()), (2, 0, 0, 0));
    assert_eq!(engine.stats().leased, 2);
    for lease in out {
        let outcome = if *lease.key() == 1 {
            vec![Outcome::Done, Outcome::Fail(Failure::new("no"))]
        } else {
            vec![Outcome::Done]
        };
        lease.complete(outcome);
    }
    let second = engine.close(LONG);
    assert_eq!((second.leased, second.done, second.failed), (0, 2, 1));
    assert_eq!(second.left.len(), 1);
    assert_eq!((second.left[0].key, &second.left[0].tasks), (1, &vec![2, 3, 4]), "in order");
    let third = engine.close(LONG);
    assert!(third.is_complete());
    assert_eq!((third.done, third.failed), (2, 1));
}

#[test]
fn a_second_close_waits_for_a_lease_until_its_own_deadline() {
    let (engine, leases) = engine(|b| b.retry(bgrp::Retry::fixed(MS)));
    let _watch = watch("second close and leases", &engine);
    engine.submit(1, 1).expect("open");
    let lease = leases.recv().expect("out");
    engine.halt();
    assert_eq!(engine.close(20 * MS).leased, 1);
    let closes = engine.clone();
    let closer = thread::spawn(move || closes.close(LONG));
    thread::yield_now();
    lease.complete(Err("again"));
    let report = closer.join().expect("no panic");
    assert_eq!((report.leased, report.left_tasks(), report.retries), (0, 1, 1), "{report:?}");
}

#[test]
fn policies_of_late_leases_run_in_close_and_may_ask_the_engine() {
    let asked = Log::new();
    let seen = asked.clone();
    type Own = std::sync::Weak<Engine<u32, u32>>;
    let weak: Arc<Mutex<Option<Own>>> = Arc::default();
    let back = weak.clone();
    let (engine, leases) = engine::<u32>(move |b| {
        b.on_exhausted(OnExhausted::with(move |failed| {
            let engine = lock(&back).as_ref().and_then(std::sync::Weak::upgrade);
            let engine = engine.expect("somebody closes it");
            seen.push((*failed.task, engine.stats().failed, engine.close(LONG).running));
            bgrp::Verdict::Skip
        }))
    });
    *lock(&weak) = Some(Arc::downgrade(&engine));
    let _watch = watch("policies in close", &engine);
    (0..3).for_each(|n| engine.submit(1, n).expect("open"));
    let lease = leases.recv().expect("out");
    let held = lease.len() as u32;
    engine.close(MS);
    lease.complete(Outcome::Fail(Failure::new("no")));
    let report = engine.close(LONG);
    assert_eq!(report.failed, u64::from(held));
    assert_eq!(report.left_tasks() as u32, 3 - held);
    let asked = asked.take();
    assert_eq!(asked.len() as u32, held);
    assert!(
        asked.iter().all(|(_, _, running)| *running == 1),
        "no close inside a close: {asked:?}"
    );
}

#[test]
fn a_lease_may_outlive_its_engine_and_nothing_is_dropped_twice_or_never() {
    let tally = Tally::new(6);
    let (engine, leases) = engine::<Counted>(|b| b.retry(bgrp::Retry::fixed(MS)));
    (0..5).for_each(|id| engine.submit(1, tally.task(id)).expect("open"));
    engine.submit(2, tally.task(5)).expect("open");
    let mut out: Vec<_> = (0..2).map(|_| leases.recv().expect("out")).collect();
    out.sort_by_key(|lease| *lease.key());
    assert_eq!(engine.close(MS).leased, 2);
    drop(Arc::into_inner(engine).expect("the last owner"));
    let (second, first) = (out.pop().expect("two"), out.pop().expect("two"));
    first.iter().for_each(Counted::run);
    let held = first.len();
    first.complete(vec![Outcome::Done; held]);
    assert!((0..6).all(|id| tally.drops[id].load(std::sync::atomic::Ordering::SeqCst) == 0));
    // The last share of the core: it settles, and drops what waits behind.
    thread::spawn(move || drop(second)).join().expect("no panic");
    tally.all_dropped_once();
    assert_eq!(tally.total_runs(), held as u64);
}

#[test]
fn an_engine_dropped_with_leases_out_waits_for_them() {
    let tally = Tally::new(9);
    let (engine, leases) = engine::<Counted>(|b| b);
    (0..9).for_each(|id| engine.submit(id as u32 % 3, tally.task(id)).expect("open"));
    let owner = thread::spawn(move || drop(Arc::into_inner(engine).expect("the last owner")));
    let mut ran = 0;
    while ran < 9 {
        let lease = leases.recv().expect("the owner waits");
        ran += lease.len();
        lease.iter().for_each(Counted::run);
        lease.complete(());
    }
    owner.join().expect("no panic");
    tally.all_dropped_once();
    assert_eq!(tally.total_runs(), 9);
}

#[test]
fn completions_that_race_with_halt_close_and_drop_lose_nothing() {
    quiet();
    for round in 0..scale(150, 2_000) {
        let mut rng = Rng(round);
        let tasks = 1 + rng.below(30) as usize;
        let tally = Tally::new(tasks);
        let (engine, leases) = engine::<Counted>(|b| {
            let b = b
                .batch_size(1 + round as usize % 4)
                .retry(bgrp::Retry::fixed(Duration::ZERO).attempts(2));
            if round % 3 == 0 { b.in_flight(2) } else { b }
        });
        let _watch = watch("completions against close", &engine);
        let ended = Log::new();
        let log = ended.clone();
        let finisher = thread::spawn(move || {
            let mut rng = Rng(round ^ 77);
            for lease in leases {
                if rng.below(4) == 0 {
                    thread::yield_now();
                }
                match rng.below(6) {
                    0 => drop(lease),
                    1 => lease.complete(Err("no")),
                    _ => {
                        lease.iter().for_each(|task| log.push(task.id));
                        lease.complete(());
                    }
                }
            }
        });
        for id in 0..tasks {
            engine.submit(rng.below(5) as u32, tally.task(id)).expect("open");
        }
        if rng.below(2) == 0 {
            engine.halt();
        }
        let timeout = [Duration::ZERO, MS, LONG][rng.below(3) as usize];
        let reports = [engine.close(timeout), engine.close(LONG)];
        let last = &reports[1];
        assert_eq!((last.running, last.leased), (0, 0), "the finisher ends them all");
        let mut left: Vec<usize> =
            reports.iter().flat_map(|r| &r.left).flat_map(|l| &l.tasks).map(|t| t.id).collect();
        assert_eq!(last.done + last.failed + left.len() as u64, tasks as u64, "round {round}");
        assert_eq!(engine.limits().in_flight, 0, "round {round}: no permit is kept");
        drop(reports);
        drop(Arc::into_inner(engine).expect("the last owner"));
        finisher.join().expect("no panic");
        let done = ended.take();
        assert_eq!(
            done.len() as u64,
            done.iter().collect::<std::collections::HashSet<_>>().len() as u64
        );
        left.retain(|id| done.contains(id));
        assert!(left.is_empty(), "round {round}: done and given back: {left:?}");
        tally.all_dropped_once();
    }
}
