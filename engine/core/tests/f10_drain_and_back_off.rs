//! Rows F5 and F10: who waits for a group to be empty does not make it hurry. Found by the fuzz target `flow`.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::channel,
    },
    time::Duration,
};

use bgrp::{Engine, Lease, Retry, Workers};
use common::{LONG, MS, lock, until, watch};

#[test]
fn a_drain_that_was_asked_for_during_a_dispatch_leaves_the_back_off_alone() {
    let (sender, leases) = channel();
    let sender = Mutex::new(sender);
    let mut sim = Engine::<u32, u32>::builder()
        .retry(Retry::fixed(1_000 * MS).attempts(3))
        .lease_handler(move |lease: Lease<u32, u32>| {
            lock(&sender).send(lease).expect("somebody takes leases");
        })
        .build_sim(1)
        .expect("valid settings");
    sim.submit(1, 10).expect("room");
    sim.run();
    let first = leases.try_recv().expect("the first attempt");
    assert!(!sim.engine().drain_group(&1, Duration::ZERO), "its batch is out");
    first.complete(Err("not yet"));
    sim.run();
    assert!(leases.try_recv().is_err(), "in back-off, whoever waits");
    sim.advance(1_000 * MS);
    sim.run();
    let second = leases.try_recv().expect("the second attempt");
    assert_eq!(second.attempt(0), 2);
    second.complete(());
    sim.run();
    assert!(sim.engine().drain_group(&1, Duration::ZERO));
    assert!(sim.close().is_complete());
}

/// A drain that waits all the time asked for the group again after each attempt, so that all of them were used up at once.
#[test]
fn a_drain_that_waits_does_not_use_up_the_attempts() {
    let tries = Arc::new(AtomicU64::new(0));
    let (count, (sender, go)) = (tries.clone(), channel::<()>());
    let go = Mutex::new(go);
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(1))
        .retry(Retry::fixed(3_600_000 * MS).attempts(1_000))
        .task_handler(move |_, _| {
            if count.fetch_add(1, SeqCst) == 0 {
                lock(&go).recv().expect("the test goes on");
            }
            Err::<(), _>("not yet")
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("a drain that waits", &engine);
    engine.submit(1, 10).expect("room");
    until(|| tries.load(SeqCst) == 1);
    let drained = std::thread::scope(|scope| {
        let drain = scope.spawn(|| engine.drain_group(&1, 300 * MS));
        // The drain has asked by then, most likely; if it has not, it waits for a group in back-off.
        std::thread::sleep(50 * MS);
        sender.send(()).expect("the handler waits");
        drain.join().expect("no panic")
    });
    assert!(!drained, "the task is in back-off");
    assert_eq!(tries.load(SeqCst), 1, "an hour has not passed");
    assert_eq!(engine.cancel_pending(&1), Ok(vec![10]));
    assert!(engine.close(LONG).is_complete());
}
