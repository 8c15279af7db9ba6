//! Rows F4 and E6 together: a limit that has risen is used at once. Found by the fuzz target `flow`.

mod common;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::SeqCst},
    mpsc::channel,
};

use bgrp::{Engine, Failure, InFlight, Lease, OnExhausted, Outcome};
use common::{MS, lock};

#[test]
fn a_group_that_goes_on_with_its_permit_leaves_what_the_limit_rose_by_to_those_who_wait() {
    let (sender, leases) = channel::<Lease<u32, u32>>();
    let sender = Mutex::new(sender);
    let disk_is_full = Arc::new(AtomicBool::new(true));
    let full = disk_is_full.clone();
    let mut sim = Engine::<u32, u32>::builder()
        .batch_size(1)
        .in_flight(InFlight::adaptive(1, 8))
        .weight(|_| 2)
        .on_exhausted(OnExhausted::dead_letter(10 * MS, move |_: bgrp::Exhausted<'_, u32, u32>| {
            if full.load(SeqCst) { Err("the disk is full") } else { Ok(()) }
        }))
        .lease_handler(move |lease| lock(&sender).send(lease).expect("somebody takes leases"))
        .build_sim(1)
        .expect("valid settings");
    // Group 0: its first task is held for the sink, one waits behind it. The answer raises the limit to two.
    sim.submit(0, 0).expect("room");
    sim.submit(0, 1).expect("room");
    sim.run();
    leases.try_recv().expect("a permit").complete(Outcome::Fail(Failure::new("wanted")));
    sim.run();
    // Groups 2 and 3 have both permits; 0, and then 1 and 4, wait for one.
    let mut out = Vec::new();
    for key in [2, 3] {
        sim.submit(key, 0).expect("room");
        sim.run();
        out.push(leases.try_recv().expect("a permit"));
    }
    disk_is_full.store(false, SeqCst);
    sim.advance(10 * MS);
    sim.run();
    for key in [1, 4] {
        sim.submit(key, 0).expect("room");
        sim.run();
    }
    let limits = sim.engine().limits();
    assert_eq!((limits.limit, limits.in_flight, limits.waiting), (Some(2), 2, 3));
    // A third permit: 0 and 1 go. Group 0 gets rid of its dead letter and goes on with its permit, which raises the limit again.
    out.remove(0).complete(());
    sim.run();
    let limits = sim.engine().limits();
    assert_eq!((limits.limit, limits.in_flight, limits.waiting), (Some(4), 4, 0));
    assert_eq!(leases.try_iter().map(|lease| *lease.key()).max(), Some(4));
}
