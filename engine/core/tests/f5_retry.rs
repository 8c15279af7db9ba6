//! Row F5 (and F6): a failing task keeps the head of its group; other groups go on. All in virtual time.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{
    Builder, Engine, Exhausted, Failure, FailureKind, OnExhausted, Outcome, Retry, Sim, Verdict,
    Workers,
};
use common::{LONG, Log, MS, lock, watch};

/// Time in ms, task, attempt.
type Tries = Log<(u64, &'static str, u32)>;

struct Stage {
    sim: Sim<char, &'static str>,
    now: Arc<AtomicU64>,
    log: Tries,
}

impl Stage {
    /// Tasks are named by key and number. `answer` gets the name and the attempt.
    fn new(retry: Retry, answer: impl Fn(&str, u32) -> Outcome + Send + Sync + 'static) -> Self {
        Self::with(Engine::builder().retry(retry), answer)
    }

    fn with(
        builder: Builder<char, &'static str>,
        answer: impl Fn(&str, u32) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        let (now, log) = (Arc::new(AtomicU64::new(0)), Tries::new());
        let (clock, tries) = (now.clone(), log.clone());
        let sim = builder
            .workers(Workers::fixed(2))
            .task_handler(move |(), task| {
                tries.push((clock.load(SeqCst), **task, task.attempt()));
                answer(**task, task.attempt())
            })
            .build_sim(3)
            .expect("valid settings");
        Self { sim, now, log }
    }

    fn submit(&self, names: &[&'static str]) {
        for name in names {
            self.sim.submit(name.chars().next().expect("a key"), name).expect("room");
        }
    }

    /// Runs millisecond by millisecond.
    fn pass(&mut self, ms: u64) {
        self.sim.run();
        for _ in 0..ms {
            self.sim.advance(MS);
            self.now.fetch_add(1, SeqCst);
            self.sim.run();
        }
    }
}

fn fails_before(last: u32) -> impl Fn(&str, u32) -> Outcome {
    move |name, attempt| match name {
        "A1" if attempt < last => Outcome::Retry(Failure::new("not yet")),
        _ => Outcome::Done,
    }
}

#[test]
fn the_failing_task_keeps_the_head_and_others_are_not_delayed() {
    // Pulsar #9582, azure-sdk-for-java #30027: redelivery let later messages of the key overtake.
    let mut stage = Stage::new(Retry::fixed(50 * MS), fails_before(3));
    stage.submit(&["A1", "A2", "A3", "B1", "B2", "C1"]);
    stage.pass(40);
    stage.submit(&["B3", "A4"]);
    stage.pass(100);
    let (of_a, others): (Vec<_>, Vec<_>) =
        stage.log.take().into_iter().partition(|(_, name, _)| name.starts_with('A'));
    let wanted = [
        (0, "A1", 1),
        (50, "A1", 2),
        (100, "A1", 3),
        (100, "A2", 1),
        (100, "A3", 1),
        (100, "A4", 1),
    ];
    assert_eq!(of_a, wanted);
    let late: Vec<_> = others.iter().filter(|(at, name, _)| *at > 0 && *name != "B3").collect();
    assert!(late.is_empty(), "{late:?}");
    assert!(others.contains(&(40, "B3", 1)), "{others:?}");
    let stats = stage.sim.stats();
    assert_eq!((stats.done, stats.failed, stats.retries), (8, 0, 2));
}

#[test]
fn back_off_holds_under_linger_too() {
    let builder =
        Engine::builder().retry(Retry::fixed(50 * MS)).flush_interval(20 * MS).batch_size(8);
    let mut stage = Stage::with(builder, fails_before(3));
    stage.submit(&["A1", "A2", "A3"]);
    stage.pass(200);
    let tries = stage.log.take();
    let order: Vec<_> = tries.iter().map(|(_, name, attempt)| (*name, *attempt)).collect();
    assert_eq!(order, [("A1", 1), ("A1", 2), ("A1", 3), ("A2", 1), ("A3", 1)]);
    let at: Vec<_> = tries.iter().map(|(at, ..)| *at).collect();
    assert_eq!(at[0], 20);
    assert!(at[1] >= 70 && at[2] >= at[1] + 50, "{at:?}");
}

fn times(retry: Retry, total: u64) -> Vec<u64> {
    let mut stage = Stage::new(retry, |_, _| Outcome::Retry(Failure::new("always")));
    stage.submit(&["A1"]);
    stage.pass(total);
    stage.log.take().into_iter().map(|(at, ..)| at).collect()
}

#[test]
fn waits_are_as_the_policy_says() {
    assert_eq!(times(Retry::none(), 50), [0]);
    assert_eq!(times(Retry::fixed(10 * MS).attempts(4), 100), [0, 10, 20, 30]);
    assert_eq!(
        times(Retry::exponential(10 * MS, 50 * MS).attempts(6), 300),
        [0, 10, 30, 70, 120, 170]
    );
    let custom = Retry::custom(|attempts, failure| {
        assert_eq!(failure.reason(), "always");
        (attempts < 4).then(|| attempts * attempts * MS)
    });
    assert_eq!(times(custom, 100), [0, 1, 5, 14]);
    assert_eq!(times(Retry::fixed(Duration::ZERO).attempts(3), 5), [0, 0, 0]);
    assert_eq!(times(Retry::fixed(Duration::MAX), 50), [0], "longer than anything");
}

#[test]
fn jitter_spreads_each_wait_over_its_upper_half() {
    let mut gaps = Vec::new();
    for seed in 0..3 {
        let at = times(Retry::fixed((100 + seed) * MS).with_jitter().attempts(20), 2_500);
        gaps.extend(at.windows(2).map(|pair| pair[1] - pair[0]));
    }
    assert!(gaps.iter().all(|gap| (50..=103).contains(gap)), "{gaps:?}");
    let distinct: std::collections::HashSet<_> = gaps.iter().collect();
    assert!(distinct.len() > 20, "spread: {gaps:?}");
}

#[test]
fn the_handler_may_say_when_but_not_how_often() {
    let mut stage = Stage::new(Retry::fixed(10 * MS).attempts(3), |_, _| {
        Outcome::RetryAfter(33 * MS, Failure::new("throttled"))
    });
    stage.submit(&["A1", "A2"]);
    stage.pass(200);
    let tries: Vec<_> = stage.log.take();
    let wanted =
        [(0, "A1", 1), (33, "A1", 2), (66, "A1", 3), (66, "A2", 1), (99, "A2", 2), (132, "A2", 3)];
    assert_eq!(tries, wanted);
    assert_eq!(stage.sim.stats().failed, 2);
}

#[test]
fn a_failure_for_good_is_not_tried_again() {
    let mut stage = Stage::new(Retry::fixed(MS), |_, _| Outcome::Fail(Failure::new("no")));
    stage.submit(&["A1", "A2"]);
    stage.pass(5);
    assert_eq!(stage.log.take(), [(0, "A1", 1), (0, "A2", 1)]);
}

#[test]
fn a_retried_task_is_the_same_value_as_the_handler_left_it() {
    let mut sim = Engine::<u8, Vec<u32>>::builder()
        .workers(Workers::fixed(1))
        .retry(Retry::fixed(Duration::ZERO).attempts(4))
        .task_handler(|_, task| {
            let attempt = task.attempt();
            task.push(attempt);
            assert!(task.iter().copied().eq(1..=attempt));
            if attempt < 4 { Err("again") } else { Ok(()) }
        })
        .build_sim(1)
        .expect("valid settings");
    sim.submit(1, Vec::new()).expect("room");
    sim.run();
    assert_eq!((sim.stats().done, sim.stats().retries), (1, 3));
}

#[test]
fn mixed_outcomes_of_a_batch_keep_the_order_of_what_stays() {
    for size in [1usize, 3, 8, 100] {
        let runs = Log::new();
        let seen = runs.clone();
        let mut sim = Engine::<u8, u64>::builder()
            .workers(Workers::fixed(1))
            .batch_size(size)
            .retry(Retry::fixed(10 * MS).attempts(4))
            .handler(move |_, batch| {
                seen.push(batch.iter().copied().collect::<Vec<_>>());
                let outcomes = (0..batch.len()).map(|i| {
                    let task = *batch.get(i).expect("inside");
                    match (task % 5, batch.attempt(i)) {
                        (0 | 3, attempt) if u64::from(attempt) <= task % 4 => {
                            Outcome::Retry(Failure::new("again"))
                        }
                        (4, _) => Outcome::Fail(Failure::new("never")),
                        _ => Outcome::Done,
                    }
                });
                outcomes.collect::<Vec<_>>()
            })
            .build_sim(1)
            .expect("valid settings");
        for n in 0..700 {
            sim.submit(1, n).expect("room");
        }
        for _ in 0..3_000 {
            sim.run();
            sim.advance(10 * MS);
        }
        assert_eq!(sim.stats().done + sim.stats().failed, 700);
        assert_eq!(sim.stats().failed, 140);
        // What stays leads the next batch, in order; new tasks follow it. So numbers rise inside every batch.
        let batches = runs.take();
        assert!(batches.iter().all(|batch| batch.is_sorted()), "{size}");
        let mut first_seen = batches.into_iter().flatten().collect::<Vec<_>>();
        let mut known = std::collections::HashSet::new();
        first_seen.retain(|n| known.insert(*n));
        assert!(first_seen.into_iter().eq(0..700), "{size}");
    }
}

/// As a process does it that dies in the middle of a batch: what it had not begun is no worse off.
#[test]
fn what_was_not_run_keeps_its_place_and_its_attempts_and_waits_for_nothing_of_its_own() {
    for (flush, pause) in [(0, 0), (0, 30), (20, 0), (20, 30)] {
        let (runs, now) = (Log::new(), Arc::new(AtomicU64::new(0)));
        let (seen, clock) = (runs.clone(), now.clone());
        let mut sim = Engine::<u8, u64>::builder()
            .workers(Workers::fixed(1))
            .batch_size(4)
            .flush_interval(flush * MS)
            .retry(Retry::fixed(pause * MS).attempts(3))
            .handler(move |_, batch| {
                let tried: Vec<_> =
                    batch.iter().copied().zip((0..).map(|i| batch.attempt(i))).collect();
                let lost = tried.iter().position(|(task, attempt)| task % 6 == 1 && *attempt < 3);
                let outcomes = (0..tried.len()).map(|i| match lost {
                    Some(lost) if i == lost => Outcome::Retry(Failure::new("the process died")),
                    Some(lost) if i > lost => Outcome::NotRun,
                    _ => Outcome::Done,
                });
                let outcomes = outcomes.collect::<Vec<_>>();
                seen.push((clock.load(SeqCst), tried));
                outcomes
            })
            .build_sim(1)
            .expect("valid settings");
        for task in 0..12 {
            sim.submit(1, task).expect("room");
        }
        for _ in 0..400 {
            sim.run();
            sim.advance(MS);
            now.fetch_add(1, SeqCst);
        }
        assert_eq!((sim.stats().done, sim.stats().failed, sim.stats().retries), (12, 0, 4));
        let runs = runs.take();
        let tasks: Vec<_> = runs.iter().map(|(_, tried)| tried.clone()).collect();
        let first = |task: u64| (task, 1);
        assert_eq!(tasks[0], [0, 1, 2, 3].map(first));
        assert_eq!(tasks[1], [(1, 2), (2, 1), (3, 1), (4, 1)]);
        assert_eq!(tasks[2], [(1, 3), (2, 1), (3, 1), (4, 1)]);
        assert_eq!(tasks[3], [5, 6, 7, 8].map(first));
        assert_eq!(tasks[4], [(7, 2), (8, 1), (9, 1), (10, 1)]);
        assert_eq!(tasks[5], [(7, 3), (8, 1), (9, 1), (10, 1)]);
        assert_eq!(tasks[6], [(11, 1)]);
        let waits: Vec<u64> = runs.windows(2).map(|two| two[1].0 - two[0].0).collect();
        let pause = u64::from(pause);
        assert_eq!(waits[..5], [pause, pause, 0, pause, pause], "flush {flush}");
    }
}

#[test]
fn a_held_task_keeps_the_head_until_its_letter_is_written() {
    let (asked, now) = (Log::new(), Arc::new(AtomicU64::new(0)));
    let (log, clock) = (asked.clone(), now.clone());
    let letter =
        OnExhausted::dead_letter(5 * MS, move |failed: Exhausted<'_, char, &'static str>| {
            log.push((clock.load(SeqCst), *failed.task, failed.attempts));
            // The sink is down until 12.
            if clock.load(SeqCst) < 12 { Err("disk full") } else { Ok(()) }
        });
    let builder = Engine::builder().retry(Retry::fixed(2 * MS).attempts(2)).on_exhausted(letter);
    let mut stage = Stage::with(builder, |name, _| match name {
        "A1" | "A3" => Outcome::Retry(Failure::new("no")),
        _ => Outcome::Done,
    });
    stage.now = now.clone();
    stage.submit(&["A1", "A2", "A3", "B1"]);
    for _ in 0..40 {
        stage.sim.run();
        stage.sim.advance(MS);
        now.fetch_add(1, SeqCst);
    }
    let names: Vec<_> = stage.log.take().into_iter().map(|(_, name, n)| (name, n)).collect();
    let of_a: Vec<_> = names.iter().filter(|(name, _)| name.starts_with('A')).collect();
    assert_eq!(of_a, [&("A1", 1), &("A1", 2), &("A2", 1), &("A3", 1), &("A3", 2)]);
    assert_eq!(asked.take(), [(2, "A1", 2), (7, "A1", 2), (12, "A1", 2), (14, "A3", 2)]);
    assert_eq!((stage.sim.stats().done, stage.sim.stats().failed), (2, 2));
}

#[test]
fn the_policy_sees_key_task_attempts_and_why() {
    common::quiet();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let policy = OnExhausted::with(move |failed: Exhausted<'_, u32, String>| {
        let why = (failed.failure.kind(), failed.failure.to_string());
        lock(&log).push((*failed.key, std::mem::take(failed.task), failed.attempts, why));
        Verdict::Skip
    });
    let mut sim = Engine::<u32, String>::builder()
        .workers(Workers::fixed(1))
        .retry(Retry::fixed(Duration::ZERO).attempts(2))
        .on_exhausted(policy)
        .task_handler(|_, task| match task.as_str() {
            "panic" => panic!("{} over {}", common::WANTED, task.key()),
            "fail" => Outcome::Fail(Failure::new("never")),
            _ => Outcome::Retry(Failure::new("again")),
        })
        .build_sim(1)
        .expect("valid settings");
    for (key, task) in [(1, "panic"), (2, "fail"), (3, "retry")] {
        sim.submit(key, task.to_owned()).expect("room");
    }
    sim.run();
    let mut seen = std::mem::take(&mut *lock(&seen));
    seen.sort_by_key(|(key, ..)| *key);
    let panic = format!("panic: {} over 1", common::WANTED);
    let wanted = [
        (1, "panic".to_owned(), 2, (FailureKind::Panicked, panic)),
        (2, "fail".to_owned(), 1, (FailureKind::Reported, "never".to_owned())),
        (3, "retry".to_owned(), 2, (FailureKind::Reported, "again".to_owned())),
    ];
    assert_eq!(seen, wanted);
}

#[test]
fn a_halted_group_stops_and_others_do_not() {
    let builder = Engine::builder().on_exhausted(OnExhausted::halt_group());
    let mut stage = Stage::with(builder, |name, _| match name {
        "A2" => Outcome::Fail(Failure::new("poison")),
        _ => Outcome::Done,
    });
    stage.submit(&["A1", "A2", "A3", "B1"]);
    stage.pass(1);
    stage.submit(&["A4", "B2"]);
    stage.pass(1);
    let names: Vec<_> = stage.log.take().into_iter().map(|(_, name, _)| name).collect();
    assert!(!names.contains(&"A3") && !names.contains(&"A4"), "{names:?}");
    assert!(names.contains(&"B2"));
    assert_eq!(stage.sim.stats().held, 2);
    let report = stage.sim.close();
    assert_eq!(report.left.len(), 1);
    assert_eq!((report.left[0].key, &*report.left[0].tasks), ('A', &["A3", "A4"][..]));
    assert_eq!((report.done, report.failed), (3, 1));
}

#[test]
fn many_failing_groups_over_an_hour_each_end_once() {
    // parallel-consumer #817: a set of tasks with changing delays lost entries over time.
    let mut sim = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(3))
        .retry(Retry::custom(|attempts, failure| {
            let task: u64 = failure.reason().parse().expect("a number");
            (attempts < 10).then(|| {
                Duration::from_millis(common::mix(task * 99 + u64::from(attempts)) % 400_000)
            })
        }))
        .task_handler(|_, task| Err::<(), _>(**task))
        .build_sim(1)
        .expect("valid settings");
    for n in 0..200 {
        sim.submit(n % 150, n).expect("room");
    }
    for _ in 0..8_000 {
        sim.run();
        sim.advance(Duration::from_secs(1));
    }
    assert_eq!((sim.stats().failed, sim.stats().retries), (200, 1_800));
    assert!(sim.close().is_complete());
}

#[test]
fn a_retry_is_not_held_up_by_a_long_task_elsewhere() {
    // Real threads: one worker has a long task in hand; the other must keep the time for the back-off.
    for _ in 0..common::scale(60, 400) {
        let (latch, retried) = (common::Latch::new(), common::Count::new());
        let (gate, count) = (latch.clone(), retried.clone());
        let engine = Engine::<u32, ()>::builder()
            .workers(Workers::fixed(2))
            .retry(Retry::fixed(MS).attempts(3))
            .task_handler(move |_, task| match (*task.key(), task.attempt()) {
                (0, _) => {
                    gate.wait();
                    Ok(())
                }
                (_, 3) => {
                    count.add(1);
                    Ok(())
                }
                _ => Err("again"),
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("retry beside a long task", &engine);
        for key in [3, 0, 1, 2] {
            engine.submit(key, ()).expect("open");
        }
        retried.wait_for(3);
        latch.open();
        assert!(engine.close(LONG).is_complete());
    }
}
