//! Row F9: hot keys, against exact counts: each share is within the error that is told, and none that is hot is missing.

mod common;

use std::{collections::HashMap, time::Duration};

use bgrp::{Engine, Sim, Workers};
use common::{Rng, Zipf};

fn sim(workers: usize) -> Sim<u64, u64> {
    Engine::builder()
        .workers(Workers::fixed(workers))
        .task_handler(|(), _| ())
        .build_sim(3)
        .expect("valid settings")
}

/// Submits keys in pieces of random size, with the workers stepping in between; returns the exact counts.
fn feed(
    sim: &mut Sim<u64, u64>,
    tasks: u64,
    rng: &mut Rng,
    mut key: impl FnMut(&mut Rng) -> u64,
) -> HashMap<u64, u64> {
    let mut exact = HashMap::new();
    let mut piece = 0;
    for n in 0..tasks {
        let key = key(rng);
        *exact.entry(key).or_insert(0) += 1;
        sim.submit(key, n).expect("room");
        if piece == 0 {
            sim.run();
            let most = 1 + rng.below(3_000);
            piece = 1 + rng.below(most);
        }
        piece -= 1;
    }
    sim.run();
    exact
}

fn check(sim: &Sim<u64, u64>, exact: &HashMap<u64, u64>, what: &str) {
    let total: u64 = exact.values().sum();
    let share = |key: &u64| exact[key] as f64 / total as f64;
    let told = sim.engine().hot_keys(64);
    assert!(!told.is_empty(), "{what}");
    for hot in &told {
        let off = (hot.share - share(&hot.key)).abs();
        assert!(off <= hot.error, "{what}: {hot}, but it is {:.4}", share(&hot.key));
    }
    // What is hot is there: more than a 64th of all, and so much more that sampling cannot have hidden it.
    let error = told.iter().map(|hot| hot.error).fold(0.0, f64::max);
    for (key, _) in exact.iter().filter(|(key, _)| share(key) > 1.0 / 64.0 + error) {
        assert!(told.iter().any(|hot| hot.key == *key), "{what}: {key} is missing");
    }
    assert!(told.is_sorted_by(|a, b| a.share >= b.share));
}

#[test]
fn shares_by_zipf_are_within_the_error_that_is_told() {
    for (keys, s, seed) in [(1_000, 1.1, 1), (100_000, 1.1, 2), (200, 0.8, 3), (50_000, 1.4, 4)] {
        let zipf = Zipf::new(keys, s);
        for workers in [1, 4] {
            let mut sim = sim(workers);
            let mut rng = Rng(seed);
            let exact = feed(&mut sim, 120_000, &mut rng, |rng| zipf.pick(rng) as u64);
            check(&sim, &exact, &format!("{keys} keys, s = {s}, {workers} workers"));
            // Neighbours may change places within their errors.
            assert!(
                sim.engine().hot_keys(3).iter().any(|hot| hot.key == 0),
                "the first is among the first"
            );
        }
    }
}

#[test]
fn eighty_percent_on_one_key_are_seen_as_that() {
    for workers in [1, 4] {
        let mut sim = sim(workers);
        let mut rng = Rng(9);
        let hot = |rng: &mut Rng| if rng.below(10) < 8 { 4_242 } else { rng.below(100_000) };
        let exact = feed(&mut sim, 120_000, &mut rng, hot);
        check(&sim, &exact, "80 % on one");
        let hot = sim.engine().hot_keys(1);
        assert_eq!(hot[0].key, 4_242);
        assert!((hot[0].share - 0.8).abs() < 0.06 && hot[0].error < 0.15, "{}", hot[0]);
    }
}

#[test]
fn where_nobody_is_hot_nobody_is_told_to_be() {
    let mut sim = sim(2);
    let mut rng = Rng(5);
    let exact = feed(&mut sim, 120_000, &mut rng, |rng| rng.below(100_000));
    for hot in sim.engine().hot_keys(10) {
        let share = exact[&hot.key] as f64 / 120_000.0;
        assert!((hot.share - share).abs() <= hot.error, "{hot}, but it is {share:.5}");
        assert!(hot.share < 0.03, "{hot}");
    }
}

#[test]
fn few_tasks_are_enough_for_a_guess_with_its_error() {
    let mut sim = sim(2);
    let mut rng = Rng(8);
    for n in 0..400u64 {
        sim.submit(if rng.below(2) == 0 { 1 } else { 10 + n }, n).expect("room");
        sim.run();
    }
    let hot = &sim.engine().hot_keys(1)[0];
    assert_eq!(hot.key, 1);
    assert!((hot.share - 0.5).abs() <= hot.error && hot.error < 0.3, "{hot}");
}

#[test]
fn yesterdays_hot_key_is_forgotten() {
    let mut sim = sim(2);
    let mut rng = Rng(6);
    feed(&mut sim, 50_000, &mut rng, |_| 1);
    sim.advance(Duration::from_secs(60));
    feed(
        &mut sim,
        50_000,
        &mut rng,
        |rng| if rng.below(2) == 0 { 2 } else { 3 + rng.below(9_999) },
    );
    let hot = sim.engine().hot_keys(2);
    assert_eq!(hot[0].key, 2);
    assert!((hot[0].share - 0.5).abs() < 0.1, "{}", hot[0]);
    let old = hot.iter().find(|hot| hot.key == 1).map_or(0.0, |hot| hot.share);
    assert!(old < 0.03, "{old} a minute later");
}

#[test]
fn a_hot_group_that_was_reclaimed_is_not_taken_for_another() {
    let mut sim = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .idle_groups(64)
        .task_handler(|(), _| ())
        .build_sim(3)
        .expect("valid settings");
    let mut rng = Rng(7);
    feed(&mut sim, 5_000, &mut rng, |_| 1);
    // Its block is reused many times over, by keys of which none is hot.
    let mut next = 1_000;
    feed(&mut sim, 20_000, &mut rng, |_| {
        next += 1;
        next
    });
    for hot in sim.engine().hot_keys(64) {
        assert!(hot.key == 1 || hot.share < 0.1, "{hot}");
    }
}

#[test]
fn a_key_whose_clone_panics_is_left_out() {
    #[derive(Debug, PartialEq, Eq, Hash)]
    struct Key(u64);
    impl Clone for Key {
        fn clone(&self) -> Self {
            assert!(self.0 != 1, "{}", common::WANTED);
            Self(self.0)
        }
    }
    common::quiet();
    let mut sim = Engine::<Key, u64>::builder()
        .workers(Workers::fixed(1))
        .task_handler(|(), _| ())
        .build_sim(3)
        .expect("valid settings");
    for n in 0..3_000 {
        sim.submit(Key(n % 3), n).expect("room");
        if n % 50 == 0 {
            sim.run();
        }
    }
    let hot = sim.engine().hot_keys(10);
    assert_eq!(hot.len(), 2);
    assert!(hot.iter().all(|hot| hot.key != Key(1)));
    // And the engine goes on.
    sim.submit(Key(1), 0).expect("room");
    sim.run();
    assert_eq!(sim.stats().backlog(), 0);
}
