//! Row F12: figures and histograms against what a test counts itself.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{
    Class, Engine, Failure, Histogram, OnExhausted, Outcome, Retry, Sim, Timing, VirtualClock,
    Workers,
};
use common::{Count, LONG, Latch, MS, Rng, lock, until, watch};

#[test]
fn every_figure_is_what_the_test_has_counted_itself() {
    let letters = Arc::new(AtomicU64::new(0));
    let sink = letters.clone();
    // Tasks say what becomes of them: 0 done, 1 fails once, 2 fails for good, 3 throttled once.
    let throttled = Arc::new(AtomicU64::new(0));
    let seen = throttled.clone();
    let mut sim = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(3))
        .retry(Retry::fixed(5 * MS).attempts(2))
        .on_exhausted(OnExhausted::dead_letter(MS, move |_: bgrp::Exhausted<'_, u64, u64>| {
            sink.fetch_add(1, SeqCst);
            Ok::<(), std::io::Error>(())
        }))
        .task_handler(move |(), task| match **task {
            1 if task.attempt() == 1 => Outcome::Retry(Failure::new("once")),
            2 => Outcome::Retry(Failure::new("always")),
            3 => {
                **task = 0;
                seen.fetch_add(1, SeqCst);
                Outcome::Throttled(MS)
            }
            _ => Outcome::Done,
        })
        .build_sim(3)
        .expect("valid settings");
    let mut rng = Rng(11);
    let mut of = [0u64; 4];
    for _ in 0..4_000 {
        let what = rng.below(20);
        let what = if what < 4 { what } else { 0 };
        of[what as usize] += 1;
        sim.submit(rng.below(50), what).expect("room");
        if rng.below(3) == 0 {
            sim.step(rng.below(3) as usize);
            let stats = sim.stats();
            assert_eq!(stats.accepted, of.iter().sum::<u64>());
            assert!(stats.taken <= stats.accepted && stats.done + stats.failed <= stats.taken);
            assert_eq!(stats.backlog(), stats.accepted - stats.done - stats.failed);
            assert_eq!(stats.running, 0, "between steps nothing runs");
        }
    }
    for _ in 0..100_000 {
        sim.run();
        if sim.stats().backlog() == 0 {
            break;
        }
        sim.advance(MS);
    }
    let stats = sim.stats();
    assert_eq!(stats.done, of[0] + of[1] + of[3]);
    assert_eq!((stats.failed, stats.dead_lettered), (of[2], letters.load(SeqCst)));
    assert_eq!(stats.failed, stats.dead_lettered);
    assert_eq!(stats.retries, of[1] + of[2], "each of these is tried again once");
    assert_eq!(stats.throttled, throttled.load(SeqCst));
    assert_eq!((stats.backlog(), stats.ingress(), stats.held, stats.waiting), (0, 0, 0, 0));
    assert_eq!((stats.groups, stats.groups_made), (50, 50));
    assert!(stats.group_bytes > 50 * 40);
}

#[test]
fn what_runs_and_what_waits_is_counted_while_it_does() {
    let (latch, begun) = (Latch::new(), Count::new());
    let (gate, started) = (latch.clone(), begun.clone());
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(4))
        .in_flight(3)
        .batch_size(10)
        .handler(move |(), _: &mut bgrp::Batch<'_, u64, u64>| {
            started.add(1);
            gate.wait();
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watchdog = watch("running and waiting", &engine);
    let mut tasks: Vec<(u64, u64)> = (0..5 * 4).map(|n| (n % 5, n)).collect();
    engine.submit_many(&mut tasks).expect("room");
    begun.wait_for(3);
    // The worker that was refused may still have the group in hand for a moment.
    until(|| engine.stats().waiting == 2 && engine.stats().running == 3);
    let stats = engine.stats();
    assert!((3..=12).contains(&stats.running_tasks), "{}", stats.running_tasks);
    assert_eq!(stats.backlog(), 20);
    latch.open();
    assert!(engine.wait_drain(LONG));
    until(|| engine.stats().running == 0);
    assert_eq!(engine.stats().waiting, 0);
}

#[test]
fn classes_are_counted_apart() {
    let mut sim = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .class(|key: &u64| if key.is_multiple_of(2) { Class::Bulk } else { Class::Interactive })
        .task_handler(|(), task| if **task == 9 { Err("nine") } else { Ok(()) })
        .build_sim(2)
        .expect("valid settings");
    for n in 0..300 {
        // A third of the tasks is of the bulk class; of those of each class, every tenth fails.
        sim.submit(if n % 3 == 0 { 2 * (n % 7) } else { 2 * (n % 7) + 1 }, n % 10).expect("room");
    }
    sim.run();
    let stats = sim.stats();
    assert_eq!((stats.done, stats.failed), (270, 30));
    assert_eq!((stats.bulk.done, stats.bulk.failed), (90, 10));
    assert_eq!((stats.interactive().done, stats.interactive().failed), (180, 20));
    assert!(stats.bulk.dispatches > 0 && stats.bulk.dispatches < stats.dispatches);
}

#[test]
fn figures_are_read_while_a_claim_is_held() {
    // `Eq` of a key is called under the claim of its shard: a reader that needed the claim would wait for it for ever.
    #[derive(Clone)]
    struct Key(u64, Arc<Latch>, Arc<Count>);
    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }
    impl PartialEq for Key {
        fn eq(&self, other: &Self) -> bool {
            self.2.add(1);
            self.1.wait();
            self.0 == other.0
        }
    }
    impl Eq for Key {}
    let (latch, compared) = (Latch::new(), Count::new());
    let engine = Engine::<Key, u64>::builder()
        .workers(Workers::fixed(2))
        .task_handler(|(), _| ())
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watchdog = watch("figures under a claim", &engine);
    let key = Key(1, latch.clone(), compared.clone());
    let mut lane = engine.producer();
    lane.submit(Key(2, latch.clone(), compared.clone()), 0).expect("room");
    engine.submit(key.clone(), 1).expect("room");
    engine.submit(key, 2).expect("room");
    compared.wait_for(1);
    let stats = engine.stats();
    assert_eq!(stats.accepted, 3);
    assert!(stats.done <= 2, "one waits in the claim");
    let _ = engine.histograms();
    latch.open();
    assert!(engine.wait_drain(LONG));
}

#[test]
fn lanes_that_are_gone_still_count() {
    let engine = Arc::new(
        Engine::<u64, u64>::builder()
            .workers(Workers::fixed(2))
            .task_handler(|(), _| ())
            .build()
            .expect("valid settings"),
    );
    let _watchdog = watch("spent lanes", &engine);
    for round in 1..=60u64 {
        let mut lane = engine.producer();
        for n in 0..50 {
            lane.submit(n % 9, n).expect("room");
        }
        drop(lane);
        assert!(engine.wait_drain(LONG));
        let stats = engine.stats();
        assert_eq!((stats.accepted, stats.done), (round * 50, round * 50));
    }
}

/// One worker whose tasks say how long they take: the handler moves the clock.
fn moves_the_clock(unit: fn(u64) -> Duration) -> Sim<u64, u64> {
    let clock: Arc<Mutex<Option<VirtualClock>>> = Arc::default();
    let moved = clock.clone();
    let sim = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(1))
        .timing(Timing::EveryDispatch)
        .batch_size(1)
        .task_handler(move |(), task| {
            lock(&moved).as_ref().expect("set below").advance(unit(**task));
        })
        .build_sim(7)
        .expect("valid settings");
    *lock(&clock) = Some(sim.clock());
    sim
}

#[test]
fn histograms_hold_every_dispatch_and_tell_its_time() {
    // The handler moves the clock: what a dispatch takes, and how long the next one has waited, is known exactly.
    let mut sim = moves_the_clock(Duration::from_micros);
    let mut rng = Rng(4);
    let mut exact = Histogram::new();
    for _ in 0..40 {
        // One task a group, all taken in at one look at the least of the times.
        for key in 0..5 {
            let scale = rng.below(20);
            let took = 1 + rng.below(1 << scale);
            exact.record(Duration::from_micros(took), 1);
            sim.submit(rng.next() << 3 | key, took).expect("room");
        }
        sim.run();
    }
    let times = sim.engine().histograms();
    assert_eq!(times.batch_time, exact);
    assert_eq!(times.queue_wait.count(), 200);
    assert!(times.queue_wait.max() <= exact.sum(), "nothing waits longer than all that ran");
    assert!(
        times.queue_wait.quantile(0.0) == Duration::ZERO,
        "the first of a look waits for nothing"
    );
}

#[test]
fn a_group_that_waits_behind_another_one_has_waited_as_long_as_that_took() {
    let mut sim = moves_the_clock(Duration::from_millis);
    // Three tasks of one group: none waits longer than since the one before.
    for _ in 0..3 {
        sim.submit(1, 50).expect("room");
    }
    sim.run();
    let times = sim.engine().histograms();
    assert_eq!(times.batch_time.count(), 3);
    assert_eq!(times.queue_wait.max(), Duration::ZERO);
    // While the worker is at it, time passes for a group that has been taken in.
    sim.submit(1, 0).expect("room");
    while sim.stats().taken < 4 {
        sim.step(0);
    }
    sim.advance(30 * MS);
    sim.run();
    let waited = sim.engine().histograms().queue_wait.since(&times.queue_wait);
    assert_eq!((waited.count(), waited.sum()), (1, 30 * MS), "{waited}");
}

#[test]
fn short_dispatches_are_sampled_without_losing_count() {
    let mut sim = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .task_handler(|(), _| ())
        .build_sim(1)
        .expect("valid settings");
    for n in 0..20_000u64 {
        sim.submit(n % 1_000, n).expect("room");
        if n % 1_000 == 999 {
            sim.run();
        }
    }
    let (stats, times) = (sim.stats(), sim.engine().histograms());
    let missing = stats.dispatches - times.batch_time.count();
    assert!(missing < 2 * 64, "{missing} of {} dispatches are not in it", stats.dispatches);
    assert_eq!(times.batch_time.count(), times.queue_wait.count());
}

#[test]
fn the_page_for_prometheus_agrees_with_the_figures() {
    let mut sim = Engine::<u64, u64>::builder()
        .timing(Timing::EveryDispatch)
        .task_handler(|(), task| if **task == 0 { Err("zero") } else { Ok(()) })
        .build_sim(1)
        .expect("valid settings");
    for n in 0..500u64 {
        sim.submit(n, n % 5).expect("room");
    }
    sim.run();
    let (stats, times) = (sim.stats(), sim.engine().histograms());
    let page = stats.to_prometheus() + &times.to_prometheus();
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.split(' ').next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("{name} is missing in\n{page}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    };
    assert_eq!(value("bgrp_tasks_accepted_total") as u64, 500);
    assert_eq!(value("bgrp_tasks_failed_total") as u64, 100);
    assert_eq!(value("bgrp_tasks_done_total") as u64, 400);
    assert_eq!(value("bgrp_groups") as u64, 500);
    assert_eq!(value("bgrp_batch_seconds_count") as u64, stats.dispatches);
    assert_eq!(value("bgrp_batch_seconds_bucket{le=\"+Inf\"}") as u64, stats.dispatches);
    // Buckets are cumulative and ordered; each name has its help and type before it, once.
    let mut last = 0.0;
    for line in page.lines().filter(|line| line.starts_with("bgrp_batch_seconds_bucket")) {
        let count: f64 = line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        assert!(count >= last, "{line}");
        last = count;
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a name");
        let name =
            ["_bucket", "_sum", "_count"].iter().fold(name, |n, s| n.strip_suffix(s).unwrap_or(n));
        assert_eq!(page.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
        assert_eq!(page.matches(&format!("# HELP {name} ")).count(), 1, "{name}");
    }
}

#[test]
fn metric_series_do_not_grow_with_the_keys() {
    let mut sim = Engine::<u64, u64>::builder()
        .idle_groups(1_000)
        .task_handler(|(), _| ())
        .build_sim(1)
        .expect("valid settings");
    let mut lines = None;
    for round in 0..20u64 {
        for key in 0..2_000 {
            sim.submit(round * 2_000 + key, 1).expect("room");
        }
        sim.run();
        let page = sim.stats().to_prometheus() + &sim.engine().histograms().to_prometheus();
        let now = page.lines().count();
        assert_eq!(*lines.get_or_insert(now), now);
    }
}
