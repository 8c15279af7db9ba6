//! Row F10 under everything at once: groups are paused, resumed, relieved, drained and closed at any moment, and every task
//! still ends once, in order, in one of three ways: run, given back, or left at the end.

mod common;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{
    CloseReport, Engine, Failure, InFlight, OnExhausted, Outcome, Rate, Retry, SubmitReason,
    Workers,
};
use common::{LONG, MS, Order, Rng, lock, scale, watch};

/// What became of the tasks of each key, by their numbers.
#[derive(Default)]
struct Ends {
    ended: HashMap<u32, HashSet<u32>>,
    last_run: HashMap<u32, u32>,
}

impl Ends {
    fn end(&mut self, key: u32, task: u32, how: &str) {
        assert!(self.ended.entry(key).or_default().insert(task), "{how}: {key}/{task} ended twice");
    }
    fn run(&mut self, key: u32, task: u32) {
        let last = self.last_run.insert(key, task);
        assert!(last.is_none_or(|last| last < task), "{key}/{task} ran after {last:?}");
        self.end(key, task, "run");
    }
    fn back(&mut self, key: u32, tasks: &[u32]) {
        assert!(tasks.is_sorted(), "{tasks:?} came back out of order");
        let last = self.last_run.get(&key).copied();
        assert!(tasks.iter().all(|task| Some(*task) > last), "what ran came back");
        tasks.iter().for_each(|task| self.end(key, *task, "given back"));
    }
    fn left(&mut self, report: &CloseReport<u32, u32>) {
        report.left.iter().for_each(|left| self.back(left.key, &left.tasks));
    }
    fn total(&self) -> u64 {
        self.ended.values().map(|tasks| tasks.len() as u64).sum()
    }
}

/// One thread, a virtual clock, a seed: every place where a token can be meets every call.
#[test]
fn calls_at_any_step_end_every_task_once() {
    for seed in 0..scale(300, 3_000) {
        let mut rng = Rng(seed);
        let ends = Arc::new(Mutex::new(Ends::default()));
        let (runs, draws) = (ends.clone(), Arc::new(AtomicU64::new(seed)));
        let mut builder = Engine::<u32, u32>::builder()
            .workers(Workers::fixed(1 + rng.below(3) as usize))
            .batch_size(1 + rng.below(4) as usize)
            .idle_groups([1, 100][rng.below(2) as usize])
            .group_capacity([2, 100][rng.below(2) as usize])
            .capacity(256)
            .flush_interval([Duration::ZERO, 5 * MS][rng.below(2) as usize])
            .retry(Retry::fixed(7 * MS).attempts(3))
            .on_exhausted(if rng.below(2) == 0 {
                OnExhausted::halt_group()
            } else {
                OnExhausted::skip()
            });
        if rng.below(2) == 0 {
            builder = builder.in_flight(InFlight::batches(1 + rng.below(2) as u32));
        }
        if rng.below(3) == 0 {
            builder = builder.rate(Rate::per_second(500).burst(2));
        }
        if rng.below(3) == 0 {
            builder = builder.group_rate(Rate::per_second(300).burst(2));
        }
        let mut sim = builder
            .task_handler(move |_, task| {
                let draw = common::mix(draws.fetch_add(1, SeqCst)) % 10;
                match draw {
                    0 => return Outcome::Retry(Failure::new("wanted")),
                    1 => return Outcome::Throttled(3 * MS),
                    2 => {
                        lock(&runs).run(*task.key(), **task);
                        return Outcome::Fail(Failure::new("wanted"));
                    }
                    _ => {}
                }
                // The last attempt ends it either way.
                lock(&runs).run(*task.key(), **task);
                Outcome::Done
            })
            .build_sim(seed)
            .expect("valid settings");
        let keys = 1 + rng.below(4) as u32;
        let handles: Vec<_> = (0..keys).map(|key| sim.group(key)).collect();
        let mut next = vec![0u32; keys as usize];
        for _ in 0..400 {
            let key = rng.below(u64::from(keys)) as u32;
            match rng.below(24) {
                0..6 => {
                    for _ in 0..=rng.below(4) {
                        let n = next[key as usize];
                        next[key as usize] += u32::from(sim.submit(key, n).is_ok());
                    }
                }
                6..14 => {
                    sim.step(rng.below(sim.workers() as u64) as usize);
                }
                14 | 15 => sim.advance(Duration::from_millis(rng.below(8))),
                16 => sim.engine().pause_group(key),
                17 | 18 => {
                    sim.engine().resume_group(&key);
                }
                19 => {
                    let tasks = sim.engine().cancel_pending(&key).unwrap_or_default();
                    lock(&ends).back(key, &tasks);
                }
                20 => {
                    let tasks = handles[key as usize].discard().unwrap_or_default();
                    lock(&ends).back(key, &tasks);
                }
                21 => {
                    handles[key as usize].drain(Duration::ZERO);
                }
                22 if rng.below(3) == 0 => {
                    let report = handles[key as usize].close(Duration::ZERO);
                    lock(&ends).back(key, &report.left);
                    let refused = handles[key as usize].try_submit(0).map_err(|e| e.reason);
                    assert_eq!(refused, Err(SubmitReason::GroupClosed), "seed {seed}");
                }
                _ => {}
            }
            let stats = sim.stats();
            assert!(stats.held <= stats.backlog(), "seed {seed}: {stats:?}");
        }
        // Everything that stands goes on, and time passes: nothing may be left behind but what halts anew.
        for _ in 0..400 {
            for key in 0..keys {
                sim.engine().resume_group(&key);
            }
            sim.run();
            sim.advance(10 * MS);
        }
        for key in 0..keys {
            sim.engine().resume_group(&key);
        }
        sim.run();
        let stats = sim.stats();
        assert_eq!(stats.backlog(), 0, "seed {seed}: {stats:?} {:?}", sim.engine().halted_groups());
        assert_eq!(stats.held, 0, "seed {seed}");
        let limits = sim.engine().limits();
        assert_eq!((limits.in_flight, limits.waiting), (0, 0), "seed {seed}: a permit is lost");
        let report = sim.close();
        assert!(report.is_complete(), "seed {seed}");
        let accepted: u64 = next.iter().map(|n| u64::from(*n)).sum();
        assert_eq!(stats.accepted, accepted);
        // Tasks whose attempts were used up by retries ended without a run.
        assert!(lock(&ends).total() <= accepted);
        assert_eq!(report.done + report.failed + stats.cancelled, accepted, "seed {seed}");
    }
}

/// Threads that submit, threads that call, workers that run: each task once and in order, and all is quiet at the end.
#[test]
fn calls_from_threads_end_every_task_once() {
    const KEYS: u64 = 6;
    for round in 0..scale(6, 20) {
        let ends = Arc::new(Mutex::new(Ends::default()));
        let order = Order::new(KEYS as usize, 1);
        let (runs, exclusive) = (ends.clone(), order.clone());
        let mut builder = Engine::<u32, u32>::builder()
            .workers(Workers::fixed(1 + round as usize % 3))
            .group_capacity(16)
            .batch_size(8)
            .retry(Retry::fixed(MS).attempts(2))
            .flush_interval(if round % 2 == 0 { Duration::ZERO } else { MS });
        if round % 3 == 0 {
            builder = builder.in_flight(2);
        }
        let engine = Arc::new(
            builder
                .task_handler(move |_, task| {
                    if **task % 50 == 7 && task.attempt() == 1 {
                        return Err("wanted");
                    }
                    exclusive.task(*task.key() as usize, 0, u64::from(**task), || {
                        lock(&runs).run(*task.key(), **task);
                    });
                    Ok(())
                })
                .build()
                .expect("valid settings"),
        );
        let _watch = watch("calls from threads", &engine);
        let stop = Arc::new(AtomicBool::new(false));
        let submitters: Vec<_> = (0..2u32)
            .map(|part| {
                let engine = engine.clone();
                std::thread::spawn(move || {
                    let mut accepted = 0u64;
                    for n in 0..scale(3_000, 20_000) as u32 {
                        // Each key has one submitter, so that its numbers say its order.
                        let key = 2 * (n % 3) + part;
                        accepted += u64::from(engine.submit(key, n).is_ok());
                    }
                    accepted
                })
            })
            .collect();
        let callers: Vec<_> = (0..2)
            .map(|caller| {
                let (engine, ends, stop) = (engine.clone(), ends.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut rng = Rng(100 * round + caller);
                    while !stop.load(SeqCst) {
                        let key = rng.below(KEYS) as u32;
                        match rng.below(8) {
                            0 => engine.pause_group(key),
                            1..4 => {
                                engine.resume_group(&key);
                            }
                            4 => {
                                // Nothing of the group runs between the two locks: what comes back is behind what ran.
                                let back = engine.cancel_pending(&key).expect("not halted");
                                let mut ends = lock(&ends);
                                back.iter().for_each(|task| ends.end(key, *task, "cancelled"));
                            }
                            5 => {
                                let back = engine.group(key).discard().expect("not halted");
                                let mut ends = lock(&ends);
                                assert!(back.is_sorted());
                                back.iter().for_each(|task| ends.end(key, *task, "discarded"));
                            }
                            6 => {
                                engine.drain_group(&key, MS / 10);
                            }
                            _ => {
                                engine.group(key).pause_within(MS / 10);
                            }
                        }
                    }
                    // The last call about each group lets it go on.
                    (0..KEYS as u32).for_each(|key| _ = engine.resume_group(&key));
                })
            })
            .collect();
        let resumer = {
            let (engine, stop) = (engine.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    (0..KEYS as u32).for_each(|key| _ = engine.resume_group(&key));
                    std::thread::yield_now();
                }
            })
        };
        let accepted: u64 =
            submitters.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        stop.store(true, SeqCst);
        callers.into_iter().for_each(|thread| thread.join().expect("no panic"));
        resumer.join().expect("no panic");
        (0..KEYS as u32).for_each(|key| _ = engine.resume_group(&key));
        assert!(engine.wait_drain(LONG));
        let stats = engine.stats();
        assert_eq!((stats.backlog(), stats.held), (0, 0), "{stats:?}");
        let report = engine.close(LONG);
        lock(&ends).left(&report);
        assert!(report.is_complete());
        assert_eq!(report.done + stats.cancelled, accepted);
        assert_eq!(lock(&ends).total(), accepted, "each task ended once");
        assert_eq!(order.overlaps.load(SeqCst), 0, "two tasks of one group at once");
    }
}
