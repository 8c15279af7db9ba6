//! Row F3: rates for the engine and for each group, in virtual time. Who waits sits in the timer, slows nobody else, and holds no worker.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use bgrp::{Builder, Count, Engine, Rate, Sim, Workers};
use common::{Log, MS};

/// Runs tasks under limits, millisecond by millisecond, and notes when (in ms) which key ran how many.
struct Stage {
    sim: Sim<u32, ()>,
    now: Arc<AtomicU64>,
    log: Log<(u64, u32, u64)>,
}

impl Stage {
    fn new(builder: Builder<u32, ()>) -> Self {
        let (now, log) = (Arc::new(AtomicU64::new(0)), Log::new());
        let (clock, events) = (now.clone(), log.clone());
        let sim = builder
            .workers(Workers::fixed(2))
            .handler(move |(), batch: &mut bgrp::Batch<'_, u32, ()>| {
                events.push((clock.load(SeqCst), *batch.key(), batch.len() as u64));
            })
            .build_sim(5)
            .expect("valid settings");
        Self { sim, now, log }
    }

    fn submit(&self, key: u32, tasks: u32) {
        for _ in 0..tasks {
            self.sim.submit(key, ()).expect("room");
        }
    }

    fn pass(&mut self, ms: u64) -> Vec<(u64, u32, u64)> {
        self.sim.run();
        for _ in 0..ms {
            self.sim.advance(MS);
            self.now.fetch_add(1, SeqCst);
            self.sim.run();
        }
        self.log.take()
    }
}

fn tasks(events: &[(u64, u32, u64)], is: impl Fn(&(u64, u32, u64)) -> bool) -> u64 {
    events.iter().filter(|event| is(event)).map(|event| event.2).sum()
}

/// In no window does more start than the burst and what the rate gives in it, with 2 ms for the tick of the timer.
fn assert_within(events: &[(u64, u32, u64)], per_second: u64, burst: u64) {
    for (i, first) in events.iter().enumerate() {
        let mut sum = 0;
        for event in &events[i..] {
            sum += event.2;
            let most = burst + (per_second * (event.0 - first.0 + 2)).div_ceil(1_000);
            assert!(sum <= most, "{sum} tasks from {} to {} ms, {most} allowed", first.0, event.0);
        }
    }
}

#[test]
fn the_rate_of_the_engine_holds_in_every_window_and_is_used() {
    let mut stage = Stage::new(Engine::builder().rate(Rate::per_second(500).burst(50)));
    for key in 0..100 {
        stage.submit(key, 40);
    }
    let events = stage.pass(3_000);
    assert_within(&events, 500, 50);
    let all = tasks(&events, |_| true);
    assert!((1_490..=1_560).contains(&all), "{all} in 3 s at 500/s and a burst of 50");
    // First come, first served: in a round of 100 groups nobody is served twice.
    let mut seen = std::collections::HashSet::new();
    assert!(events.iter().take(100).all(|event| seen.insert(event.1)));
}

#[test]
fn a_slow_rate_waits_in_the_timer_and_starts_on_time() {
    let mut stage = Stage::new(Engine::builder().rate(Rate::per_second(2).burst(1)));
    stage.submit(1, 4);
    let starts: Vec<u64> = stage.pass(2_000).iter().map(|event| event.0).collect();
    assert_eq!(starts, [0, 500, 1_000, 1_500]);
    assert_eq!(stage.sim.stats().backlog(), 0);
}

#[test]
fn batches_are_counted_where_batches_are_the_limit() {
    let rate = Rate::per_second(10).burst(1).counting(Count::Batches);
    let mut stage = Stage::new(Engine::builder().batch_size(30).rate(rate));
    stage.submit(1, 100);
    let events = stage.pass(1_000);
    let sizes: Vec<_> = events.iter().map(|event| (event.0, event.2)).collect();
    assert_eq!(sizes, [(0, 30), (100, 30), (200, 30), (300, 10)]);
}

#[test]
fn a_limited_group_slows_no_other() {
    // Every group has 5 tasks a second; one of them has a thousand waiting.
    let mut stage = Stage::new(Engine::builder().group_rate(Rate::per_second(5).burst(1)));
    stage.submit(7, 1_000);
    for key in 100..200 {
        stage.submit(key, 1);
    }
    let events = stage.pass(1_000);
    assert_eq!(tasks(&events, |event| event.1 >= 100 && event.0 == 0), 100, "at once");
    assert_eq!(tasks(&events, |event| event.1 == 7), 6, "0, 200, ... 1,000 ms");
    for key in 200..300 {
        stage.submit(key, 1);
    }
    let later = stage.pass(1);
    assert_eq!(tasks(&later, |event| event.1 >= 200), 100);
}

#[test]
fn rates_change_while_the_engine_runs() {
    let mut stage = Stage::new(Engine::builder().rate(Rate::per_second(1).burst(1)));
    stage.submit(1, 64);
    assert_eq!(tasks(&stage.pass(10), |_| true), 1);
    stage.sim.engine().set_rate(Some(Rate::per_second(1_000).burst(10))).expect("valid");
    let events = stage.pass(20);
    assert!((25..=35).contains(&tasks(&events, |_| true)), "{events:?}");
    stage.sim.engine().set_rate(None).expect("valid");
    assert_eq!(stage.pass(0).len(), 1, "the rest at once");
    // A group that waits an hour for its own rate need not wait when the rate goes up.
    stage
        .sim
        .engine()
        .set_group_rate(Some(Rate::per_second(1.0 / 3_600.0).burst(1)))
        .expect("valid");
    stage.submit(2, 3);
    assert_eq!(tasks(&stage.pass(100), |_| true), 1);
    stage.sim.engine().set_group_rate(Some(Rate::per_second(100).burst(1))).expect("valid");
    assert_eq!(tasks(&stage.pass(30), |_| true), 2);
    let error = stage.sim.engine().set_rate(Some(Rate::per_second(0))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rate is 0 a second; it must be more than 0 and at most 1000000000 a second"
    );
}

#[test]
fn close_gives_back_what_still_waits_for_its_rate() {
    let mut stage = Stage::new(
        Engine::builder()
            .rate(Rate::per_second(1).burst(1))
            .group_rate(Rate::per_second(1).burst(1)),
    );
    for key in 0..10 {
        stage.submit(key, 5);
    }
    let ran = tasks(&stage.pass(2_000), |_| true);
    assert_eq!(ran, 3);
    let report = stage.sim.close();
    assert_eq!(report.done, 3);
    assert_eq!(report.left_tasks(), 47);
}
