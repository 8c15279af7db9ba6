//! Row F4: a downstream that says "not now" pauses the gate; order holds, nothing is lost, no attempt is used up. Adaptive concurrency
//! finds the cap by itself.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Engine, InFlight, Outcome, Retry, Workers};
use common::{LONG, Log, MS, Order, watch};

#[test]
fn a_throttled_task_stops_all_groups_for_so_long_and_keeps_its_place() {
    let (now, log) = (Arc::new(AtomicU64::new(0)), Log::<(u64, char, u32, u32)>::new());
    let (clock, events) = (now.clone(), log.clone());
    let mut sim = Engine::<char, u32>::builder()
        .workers(Workers::fixed(2))
        .retry(Retry::none())
        .task_handler(move |(), task| {
            let at = clock.load(SeqCst);
            events.push((at, *task.key(), **task, task.attempt()));
            if *task.key() == 'A' && at < 70 { Outcome::Throttled(35 * MS) } else { Outcome::Done }
        })
        .build_sim(1)
        .expect("valid settings");
    sim.submit('A', 1).expect("room");
    sim.run();
    for task in [('A', 2), ('B', 1), ('B', 2), ('C', 1)] {
        sim.submit(task.0, task.1).expect("room");
    }
    for _ in 0..100 {
        sim.run();
        sim.advance(MS);
        now.fetch_add(1, SeqCst);
    }
    let events = log.take();
    let times = |key| -> Vec<(u64, u32, u32)> {
        let of = events.iter().filter(|event| event.1 == key);
        of.map(|event| (event.0, event.2, event.3)).collect()
    };
    // The first call of A pauses all until 35 ms; then A is throttled once more, before or after the others had their turn.
    assert_eq!(times('A'), [(0, 1, 1), (35, 1, 1), (70, 1, 1), (70, 2, 1)]);
    for key in ['B', 'C'] {
        assert!(times(key).iter().all(|event| event.0 == 35 || event.0 == 70), "{events:?}");
    }
    assert_eq!(times('B').iter().map(|event| event.1).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((sim.stats().done, sim.engine().limits().throttled), (5, 2));
}

#[test]
fn throttled_tasks_of_a_batch_go_again_and_the_others_are_over() {
    let log = Log::<Vec<u32>>::new();
    let batches = log.clone();
    let mut sim = Engine::<u8, u32>::builder()
        .handler(move |(), batch: &mut bgrp::Batch<'_, u8, u32>| {
            batches.push(batch.iter().copied().collect());
            let first = batches.len() == 1;
            let answer = |n: &u32| match n {
                2 | 4 if first => Outcome::Throttled(Duration::from_secs(1)),
                _ => Outcome::Done,
            };
            batch.iter().map(answer).collect::<Vec<_>>()
        })
        .build_sim(1)
        .expect("valid settings");
    let mut tasks: Vec<_> = (1..=5).map(|n| (0, n)).collect();
    sim.submit_many(&mut tasks).expect("room");
    sim.run();
    sim.advance(999 * MS);
    sim.run();
    assert_eq!((log.len(), sim.stats().done), (1, 3));
    sim.advance(MS);
    sim.run();
    assert_eq!(log.take(), [vec![1, 2, 3, 4, 5], vec![2, 4]]);
    assert_eq!((sim.stats().done, sim.stats().failed), (5, 0));
}

#[test]
fn the_cap_of_a_downstream_is_found_and_order_holds_meanwhile() {
    const CAP: u32 = 6;
    let (now, order) = (Arc::new(AtomicU32::new(0)), Order::new(50, 1));
    let (calls, oracle) = (now.clone(), order.clone());
    let engine = Arc::new(
        Engine::<usize, u64>::builder()
            .workers(Workers::fixed(16))
            .in_flight(InFlight::adaptive(1, 100))
            .batch_size(1)
            .task_handler(move |(), task| {
                let over = calls.fetch_add(1, SeqCst) >= CAP;
                if !over {
                    oracle.task(*task.key(), 0, **task, || std::thread::sleep(MS / 2));
                }
                calls.fetch_sub(1, SeqCst);
                if over { Outcome::Throttled(Duration::ZERO) } else { Outcome::Done }
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("adaptive", &engine);
    for number in 1..=100 {
        for key in 0..50 {
            engine.submit(key, number).expect("room");
        }
    }
    assert_eq!(engine.close(LONG).done, 5_000);
    order.assert_clean(5_000);
    let limits = engine.limits();
    // How near depends on the schedule of the machine; that it stays well below the bound, and has climbed, does not.
    assert!((2..=12).contains(&limits.limit.expect("set")), "{limits:?}");
    assert!(limits.throttled > 0, "{limits:?}");
}
