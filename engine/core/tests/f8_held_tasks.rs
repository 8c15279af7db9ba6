//! Where rows F6 and F8 meet: tickets of tasks that are held for a dead-letter sink.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Batch, Ended, Engine, Failure, OnExhausted, Outcome, Ticket};
use common::{MS, lock};

/// Found by the fuzz target `flow`: the wait was refused as one that could never end.
#[test]
fn a_handler_may_ask_for_a_task_before_it_whose_dead_letter_was_written_at_last() {
    let ticket: Arc<Mutex<Option<Ticket>>> = Arc::default();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let disk_is_full = Arc::new(AtomicBool::new(true));
    let (asks, hears, full) = (ticket.clone(), heard.clone(), disk_is_full.clone());
    let mut sim = Engine::<u32, u32>::builder()
        .batch_size(8)
        .on_exhausted(OnExhausted::dead_letter(10 * MS, move |_: bgrp::Exhausted<'_, u32, u32>| {
            if full.load(SeqCst) { Err("the disk is full") } else { Ok(()) }
        }))
        .handler(move |(), batch: &mut Batch<'_, u32, u32>| {
            let answer = |task: &u32| match task {
                0 => Outcome::Fail(Failure::new("wanted")),
                _ => {
                    let ticket = lock(&asks);
                    let ticket = ticket.as_ref().expect("submitted");
                    lock(&hears).push(ticket.wait_timeout(Duration::ZERO));
                    Outcome::Done
                }
            };
            batch.iter().map(answer).collect::<Vec<_>>()
        })
        .build_sim(1)
        .expect("valid settings");
    *lock(&ticket) = Some(sim.engine().try_submit_tracked(7, 0).expect("room"));
    sim.run();
    // Behind the held one, so that both are dealt with in one turn.
    sim.submit(7, 1).expect("room");
    sim.run();
    assert!(lock(&heard).is_empty(), "the head is held");
    disk_is_full.store(false, SeqCst);
    sim.advance(10 * MS);
    sim.run();
    let heard = std::mem::take(&mut *lock(&heard));
    match heard.as_slice() {
        [Ok(Ended::Failed { attempts: 1, .. })] => {}
        other => panic!("{other:?}"),
    }
    assert_eq!((sim.stats().done, sim.stats().failed, sim.stats().dead_lettered), (1, 1, 1));
    assert!(sim.close().is_complete());
}
