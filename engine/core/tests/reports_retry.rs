//! Cases from public reports: what becomes of tasks that fail, and of tasks that run while the engine is told to stop.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Engine, Failure, Outcome, Retry, Workers, topology::Snapshot};
use common::{Count, LONG, Latch, MS, Tally, WANTED, lock, mix, quiet, watchdog};

#[test]
fn parallel_consumer_817_for_an_hour_the_retry_set_is_the_set_of_failing_tasks() {
    // Tasks whose delay changed from attempt to attempt were ordered by it, got lost in the ordered set, and were never
    // tried again. `many_failing_groups_over_an_hour_each_end_once` in f5_retry.rs is the end of such tasks; here is
    // the hour.
    type Delay = fn(u64, u32) -> u64;
    let delays: [(&str, Delay); 4] = [
        ("random", |task, attempt| mix(task * 99 + u64::from(attempt)) % 90_000),
        ("shrinking", |task, attempt| 90_000 / u64::from(attempt) + task % 7),
        ("growing", |task, attempt| (u64::from(attempt) * (1 + task % 50)).min(60_000)),
        (
            "to and fro",
            |task, attempt| if (task + u64::from(attempt)) % 2 == 0 { 1 } else { 30_000 },
        ),
    ];
    for (name, delay) in delays {
        let failing = 200;
        let now = Arc::new(AtomicU64::new(0));
        // Per task: the attempts so far, and the time in ms before which the next one must not come.
        let tries = Arc::new(Mutex::new(BTreeMap::<u64, (u32, u64)>::new()));
        let healed = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (clock, log, well) = (now.clone(), tries.clone(), healed.clone());
        let mut sim = Engine::<u64, u64>::builder()
            .machine(Snapshot::one_node(2))
            .workers(Workers::fixed(2))
            .retry(Retry::custom(move |attempts, failure| {
                let task = failure.reason().parse().expect("a number");
                Some(Duration::from_millis(delay(task, attempts)))
            }))
            .task_handler(move |_, task| {
                let id = **task;
                if id >= failing || well.load(SeqCst) {
                    return Outcome::Done;
                }
                let (ms, mut tries) = (clock.load(SeqCst), lock(&log));
                let entry = tries.entry(id).or_insert((0, 0));
                assert!(ms >= entry.1, "{name}: task {id} at {ms} ms, asked for {}", entry.1);
                entry.0 += 1;
                assert_eq!(task.attempt(), entry.0, "{name}: task {id}");
                entry.1 = ms + delay(id, entry.0);
                Outcome::Retry(Failure::new(id.to_string()))
            })
            .build_sim(1)
            .expect("valid settings");
        let mut healthy = 0;
        for id in 0..failing {
            sim.submit(id, id).expect("room");
        }
        // An hour in steps that are no multiple of any delay, with healthy tasks of other keys beside.
        let step = 977;
        while now.load(SeqCst) < 3_600_000 {
            for n in 0..20 {
                sim.submit(failing + n, failing).expect("room");
                healthy += 1;
            }
            sim.run();
            let stats = sim.stats();
            assert_eq!((stats.done, stats.backlog()), (healthy, failing), "{name}: {stats:?}");
            // Nobody whose time has come is left out (the clock of the wheel has ticks of 1 ms).
            let ms = now.load(SeqCst);
            let late = lock(&tries).iter().filter(|(_, next)| next.1 + 1 < ms).count();
            assert_eq!(late, 0, "{name}: tasks that nobody tries again at {ms} ms");
            assert_eq!(lock(&tries).len() as u64, failing);
            sim.advance(MS * step);
            now.fetch_add(u64::from(step), SeqCst);
        }
        assert!(sim.stats().retries >= failing, "{name}");
        healed.store(true, SeqCst);
        sim.advance(MS * 90_001);
        sim.run();
        assert_eq!(sim.stats().done, healthy + failing, "{name}: all end once the fault is gone");
        assert!(sim.close().is_complete());
    }
}

#[test]
fn parallel_consumer_547_a_thousand_engines_are_stopped_with_five_running_and_count_back_to_zero() {
    // Cancelled while they ran, tasks stayed counted as in flight; after some rounds nothing was taken in any more.
    for round in 0..1_000u64 {
        let (keys, each) = (8u64, 4u64);
        let tally = Tally::new((keys * each) as usize);
        let (latch, running) = (Latch::new(), Count::new());
        let (gate, count) = (latch.clone(), running.clone());
        let engine = Engine::<u64, common::Counted>::builder()
            .workers(Workers::fixed(5))
            .batch_size(1 + round as usize % 3)
            .pin(false)
            .task_handler(move |_, task| {
                task.run();
                count.add(1);
                gate.wait();
            })
            .build()
            .expect("valid settings");
        let _watch = watchdog("stopped with five running", String::new);
        for id in 0..keys * each {
            engine.submit(id % keys, tally.task(id as usize)).expect("open");
        }
        running.wait_for(5);
        let mut back = Vec::new();
        match round % 20 {
            // Most of the time by halt: what runs may end, nothing else starts.
            0..19 => engine.halt(),
            // Now and then by a deadline that has passed.
            _ => {
                let report = engine.close(Duration::ZERO);
                assert_eq!((report.running, report.done), (5, 0), "round {round}");
                back.extend(report.left);
            }
        }
        assert!(engine.try_submit(0, tally.task(0)).is_err(), "it takes nothing in");
        latch.open();
        let report = engine.close(LONG);
        assert_eq!(report.running, 0, "round {round}");
        back.extend(report.left);
        let left: BTreeSet<usize> =
            back.iter().flat_map(|left| left.tasks.iter().map(|task| task.id)).collect();
        // Once halted no further task starts, not even in a batch that has begun.
        assert_eq!(report.done, 5, "round {round}");
        assert_eq!(left.len() as u64, keys * each - 5, "round {round}: {left:?}");
        assert!(left.iter().all(|id| tally.runs(*id) == 0), "round {round}: given back and run");
        let stats = engine.stats();
        assert_eq!(stats.done + left.len() as u64, stats.accepted, "round {round}: {stats:?}");
        drop((back, engine));
        assert_eq!(tally.total_runs(), 5);
        (1..tally.drops.len()).for_each(|id| assert_eq!(tally.drops[id].load(SeqCst), 1));
    }
}

#[test]
fn parallel_consumer_547_intake_goes_on_after_a_thousand_rounds_of_five_that_break_off() {
    // The same on one engine: five tasks at once that panic, fail for good, or are retried once while they run.
    quiet();
    let started = Count::new();
    let latches: Arc<Mutex<Vec<Arc<Latch>>>> = Arc::default();
    let (count, gates) = (started.clone(), latches.clone());
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(5))
        .retry(Retry::fixed(Duration::ZERO).attempts(2))
        .task_handler(move |_, task| {
            let gate = lock(&gates)[**task as usize].clone();
            if task.attempt() == 1 {
                count.add(1);
                gate.wait();
            }
            match task.key() {
                0 | 1 => panic!("{WANTED}: broken off"),
                2 => Outcome::Fail(Failure::new("broken off")),
                3 if task.attempt() == 1 => Outcome::Retry(Failure::new("once more")),
                _ => Outcome::Done,
            }
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = common::watch("rounds of five", &engine);
    for round in 0..1_000 {
        let latch = Latch::new();
        lock(&latches).push(latch.clone());
        for key in 0..5 {
            engine.submit(key, round).expect("intake goes on");
        }
        started.wait_for(5 * (round + 1));
        assert_eq!(engine.stats().backlog(), 5, "round {round}");
        latch.open();
        assert!(engine.wait_drain(LONG));
        let stats = engine.stats();
        assert_eq!((stats.backlog(), stats.held), (0, 0), "round {round}: {stats:?}");
    }
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed, report.running), (2_000, 3_000, 0));
}
