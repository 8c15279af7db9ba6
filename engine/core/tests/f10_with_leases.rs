//! Where rows E4, F2, F8 and F10 meet: groups whose batch is out on a lease are paused, cancelled and waited for.

mod common;

use std::sync::{
    Arc, Mutex,
    mpsc::{Receiver, channel},
};

use bgrp::{Ended, Engine, FailureKind, Lease, Outcome, Workers};
use common::{LONG, lock, until, watch};

type Leases = Receiver<Lease<u32, u32>>;

fn engine() -> (Arc<Engine<u32, u32>>, Leases) {
    let (sender, leases) = channel();
    let sender = Mutex::new(sender);
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .batch_size(2)
        .in_flight(1)
        .lease_handler(move |lease| lock(&sender).send(lease).expect("somebody takes leases"))
        .build()
        .expect("valid settings");
    (Arc::new(engine), leases)
}

fn tasks(lease: &Lease<u32, u32>) -> Vec<u32> {
    lease.iter().copied().collect()
}

#[test]
fn a_group_that_is_paused_while_its_batch_is_out_stands_when_it_is_back() {
    let (engine, leases) = engine();
    let _watch = watch("paused", &engine);
    let group = engine.group(7);
    // All five are there before the first batch is made.
    group.pause();
    (0..5).for_each(|n| group.submit(n).expect("room"));
    until(|| engine.stats().held == 5);
    group.resume();
    let first = leases.recv().expect("a lease");
    assert_eq!(tasks(&first), [0, 1]);
    group.pause();
    first.complete(());
    // The one permit is free for another group, and the paused one does not take it.
    engine.submit(8, 80).expect("room");
    let other = leases.recv().expect("a lease");
    assert_eq!((*other.key(), tasks(&other)), (8, vec![80]));
    other.complete(());
    until(|| engine.stats().done == 3 && engine.limits().in_flight == 0);
    assert!(leases.try_recv().is_err(), "nothing of a paused group");
    assert!(group.resume());
    for expected in [vec![2, 3], vec![4]] {
        let lease = leases.recv().expect("a lease");
        assert_eq!(tasks(&lease), expected);
        lease.complete(());
    }
    drop(group);
    assert_eq!(engine.close(LONG).done, 6);
}

#[test]
fn what_waits_behind_a_lease_is_cancelled_and_the_lease_is_not_touched() {
    let (engine, leases) = engine();
    let _watch = watch("cancelled", &engine);
    let group = engine.group(7);
    let tickets: Vec<_> = (0..5).map(|n| group.submit_tracked(n).expect("room")).collect();
    // It may begin before the others are there.
    let lease = leases.recv().expect("a lease");
    let mut ran = tasks(&lease);
    let cancelled = std::thread::scope(|scope| {
        let cancel = scope.spawn(|| group.cancel_pending());
        lease.complete(Outcome::Done);
        // It waits for the token of the group. A batch that is lent before it gets it runs to its end.
        while !cancel.is_finished() {
            if let Ok(next) = leases.recv_timeout(common::MS) {
                ran.extend(tasks(&next));
                next.complete(());
            }
        }
        cancel.join().expect("no panic").expect("not inside a handler")
    });
    ran.extend(&cancelled);
    assert_eq!(ran, [0, 1, 2, 3, 4], "in order, each once");
    for (n, ticket) in tickets.iter().enumerate() {
        let expected = if cancelled.contains(&(n as u32)) { Ended::GivenBack } else { Ended::Done };
        assert_eq!(ticket.wait_timeout(LONG), Ok(expected), "task {n}");
    }
    drop(group);
    let report = engine.close(LONG);
    assert_eq!(report.done as usize + cancelled.len(), 5);
    assert_eq!(engine.limits().in_flight, 0);
}

#[test]
fn a_lease_that_is_dropped_ends_the_tickets_of_its_tasks() {
    let (engine, leases) = engine();
    let _watch = watch("dropped", &engine);
    let ticket = engine.submit_tracked(1, 10).expect("room");
    drop(leases.recv().expect("a lease"));
    match ticket.wait_timeout(LONG) {
        Ok(Ended::Failed { failure, attempts: 1 }) => {
            assert_eq!(failure.kind(), FailureKind::Abandoned);
        }
        other => panic!("{other:?}"),
    }
    let ticket = engine.submit_tracked(1, 11).expect("room");
    let late = leases.recv().expect("a lease");
    let report = engine.close(common::MS);
    assert_eq!((report.failed, report.leased), (1, 1));
    late.complete(());
    assert_eq!(engine.close(LONG).done, 1);
    assert_eq!(ticket.wait_timeout(LONG), Ok(Ended::Done));
    assert_eq!(engine.limits().in_flight, 0);
}
