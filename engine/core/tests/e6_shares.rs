//! Row E6: weights and classes. Measured in the deterministic mode, where every dispatch is seen.

mod common;

use bgrp::{Batch, Class, Engine, Sim, Workers};
use common::Log;

type Events = Log<(u32, usize)>;

fn sim(
    weight: fn(&u32) -> u32,
    class: Option<fn(&u32) -> Class>,
    batch: usize,
) -> (Sim<u32, ()>, Events) {
    let log = Events::new();
    let events = log.clone();
    let mut builder =
        Engine::<u32, ()>::builder().workers(Workers::fixed(1)).batch_size(batch).weight(weight);
    if let Some(class) = class {
        builder = builder.class(class);
    }
    let sim = builder
        .handler(move |(), batch: &mut Batch<'_, u32, ()>| events.push((*batch.key(), batch.len())))
        .build_sim(9)
        .expect("valid settings");
    (sim, log)
}

fn steps(sim: &mut Sim<u32, ()>, n: usize) {
    for _ in 0..n {
        sim.step(0);
    }
}

#[test]
fn a_group_of_weight_w_gets_w_batches_a_round_and_nobody_starves() {
    let (mut sim, log) = sim(|key| [1, 2, 5][*key as usize], None, 10);
    for key in 0..3 {
        for _ in 0..4_000 {
            sim.submit(key, ()).expect("room");
        }
    }
    sim.run();
    // As long as all three have something, that is until the heaviest is through.
    let events = log.take();
    let until = events.iter().rposition(|event| event.0 == 2).expect("it ran");
    let share = |key| events[..until].iter().filter(|event| event.0 == key).count() as f64;
    assert!((share(2) / share(0) - 5.0).abs() < 0.3, "{} to {}", share(2), share(0));
    assert!((share(1) / share(0) - 2.0).abs() < 0.2, "{} to {}", share(1), share(0));
    // Others wait for one round of each heavier group at most.
    let gap = events[..until]
        .iter()
        .scan(0, |since, event| {
            *since = if event.0 == 0 { 0 } else { *since + 1 };
            Some(*since)
        })
        .max();
    assert!(gap <= Some(2 * (5 + 2)), "{gap:?}");
    assert_eq!(events.iter().map(|event| event.1).sum::<usize>(), 12_000);
}

#[test]
fn weights_hold_for_permits_too() {
    // One permit, one worker: whoever has weight 4 keeps it for four batches.
    let log = Events::new();
    let events = log.clone();
    let mut sim = Engine::<u32, ()>::builder()
        .workers(Workers::fixed(1))
        .batch_size(1)
        .in_flight(1)
        .weight(|key| if *key == 0 { 4 } else { 1 })
        .handler(move |(), batch: &mut Batch<'_, u32, ()>| events.push((*batch.key(), batch.len())))
        .build_sim(2)
        .expect("valid settings");
    for key in 0..2 {
        for _ in 0..400 {
            sim.submit(key, ()).expect("room");
        }
    }
    sim.run();
    let events = log.take();
    let until = events.iter().rposition(|event| event.0 == 0).expect("it ran");
    let other = events[..until].iter().filter(|event| event.0 == 1).count();
    assert!((95..=105).contains(&other), "{other} beside 400");
    assert_eq!((events.len(), sim.engine().limits().in_flight), (800, 0));
}

#[test]
fn interactive_groups_go_first_and_bulk_groups_do_not_starve() {
    fn class(key: &u32) -> Class {
        if *key < 100 { Class::Interactive } else { Class::Bulk }
    }
    let (mut sim, log) = sim(|_| 1, Some(class), 1);
    // A thousand bulk groups are ready, then ten interactive ones come.
    for key in 100..1_100 {
        for _ in 0..5 {
            sim.submit(key, ()).expect("room");
        }
    }
    steps(&mut sim, 400);
    log.take();
    for key in 0..10 {
        for _ in 0..20 {
            sim.submit(key, ()).expect("room");
        }
    }
    sim.run();
    let events = log.take();
    let last = events.iter().rposition(|event| event.0 < 100).expect("they ran");
    let bulk = events[..last].iter().filter(|event| event.0 >= 100).count();
    // 200 interactive dispatches; looks at shards and deferrals are steps too.
    assert!(bulk >= 200 / 8, "bulk groups starve: {bulk} dispatches beside 200");
    assert!(bulk <= 200, "interactive groups wait: {bulk} bulk dispatches beside 200");
    assert_eq!(sim.stats().backlog(), 0);
}

#[test]
fn permits_go_to_interactive_groups_first_and_one_in_eight_to_bulk() {
    let log = Events::new();
    let events = log.clone();
    let mut sim = Engine::<u32, ()>::builder()
        .workers(Workers::fixed(1))
        .batch_size(1)
        .rate(bgrp::Rate::per_second(100).burst(1))
        .class(|key| if *key < 100 { Class::Interactive } else { Class::Bulk })
        .handler(move |(), batch: &mut Batch<'_, u32, ()>| events.push((*batch.key(), batch.len())))
        .build_sim(2)
        .expect("valid settings");
    for key in (100..120).chain(0..10) {
        for _ in 0..20 {
            sim.submit(key, ()).expect("room");
        }
    }
    for _ in 0..1_800 {
        sim.run();
        sim.advance(common::MS);
    }
    let events = log.take();
    let bulk = events.iter().filter(|event| event.0 >= 100).count();
    assert!((150..=181).contains(&events.len()), "{}", events.len());
    assert!(
        (events.len() / 8 - 3..=events.len() / 8 + 3).contains(&bulk),
        "{bulk} of {}",
        events.len()
    );
}

#[test]
fn a_weight_or_class_that_panics_costs_nothing() {
    common::quiet();
    let (mut sim, log) =
        sim(|_| panic!("{}", common::WANTED), Some(|_| panic!("{}", common::WANTED)), 4);
    for n in 0..100 {
        sim.submit(n % 7, ()).expect("room");
    }
    sim.run();
    assert_eq!(log.take().iter().map(|event| event.1).sum::<usize>(), 100);
}
