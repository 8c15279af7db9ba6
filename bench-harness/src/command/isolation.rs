//! `isolation`: what one bad key does to the others. Submit-to-start of the others, with and without it.

use std::{
    error::Error,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use bgrp::{Engine, Workers};
use serde_json::json;

use super::latency::{now, open_loop};
use crate::{
    histogram::{self, Percentiles},
    report::{Report, round},
};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Other keys
    #[arg(long, default_value_t = 1_000)]
    pub keys: u64,
    /// Tasks per second of the others
    #[arg(long, default_value_t = 50_000.0)]
    pub rate: f64,
    /// Seconds of each load
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scenario {
    Baseline,
    /// One key whose tasks block 50 ms, always one waiting.
    SlowKey,
    /// One key whose task blocks for the whole time, with ten times its capacity submitted by a thread of its own.
    FullKey,
}

impl Scenario {
    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::SlowKey => "one key blocks 50 ms a task",
            Self::FullKey => "one blocked key at 10 times its capacity",
        }
    }
}

const BAD: u64 = u64::MAX;
const GROUP_CAPACITY: usize = 10_000;

/// Runs it.
///
/// # Errors
/// The engine could not be started, or order was violated.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let mut report = Report::new(json);
    for scenario in [Scenario::Baseline, Scenario::SlowKey, Scenario::FullKey, Scenario::Baseline] {
        report.add(one(args, scenario)?);
    }
    for huge in [Huge::Absent, Huge::Behind, Huge::BehindSingly, Huge::Sorted, Huge::OneWorker] {
        report.add(big_group_beside_small_ones(huge)?);
    }
    report.finish();
    Ok(())
}

static RELEASED: AtomicBool = AtomicBool::new(false);

fn one(args: &Args, scenario: Scenario) -> Result<serde_json::Value, Box<dyn Error>> {
    RELEASED.store(false, Relaxed);
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .group_capacity(GROUP_CAPACITY)
        .state(|_| 0u64)
        .task_handler(move |last: &mut u64, task| {
            if *task.key() == BAD {
                let end = now() + 50_000_000;
                while scenario == Scenario::FullKey && !RELEASED.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if scenario == Scenario::SlowKey {
                    std::thread::sleep(Duration::from_nanos(end.saturating_sub(now())));
                }
                return;
            }
            histogram::record(now().saturating_sub(**task));
            assert!(*last <= **task, "order violated");
            *last = **task;
        })
        .build()?;
    let over = AtomicBool::new(false);
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        if scenario == Scenario::SlowKey {
            engine.submit(BAD, 0)?;
            engine.submit(BAD, 0)?;
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    // A refusal means that enough are waiting already.
                    std::thread::sleep(Duration::from_millis(40));
                    let _ = engine.try_submit(BAD, 0);
                }
            });
        }
        if scenario == Scenario::FullKey {
            scope.spawn(|| {
                for _ in 0..10 * GROUP_CAPACITY {
                    if over.load(Relaxed) {
                        break;
                    }
                    if engine.try_submit(BAD, 0).is_err() {
                        refused.fetch_add(1, Relaxed);
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            });
        }
        open_loop((args.rate * args.seconds) as u64, args.rate, |i, intended| {
            engine.submit(i % args.keys, intended).expect("open");
        });
        over.store(true, Relaxed);
        RELEASED.store(true, Relaxed);
        Ok(())
    })?;
    let p = end(engine)?;
    Ok(json!({
        "scenario": scenario.name(),
        "others": p.count,
        "p50_us": round(p.p50, 1),
        "p99_us": round(p.p99, 1),
        "p999_us": round(p.p999, 1),
        "max_us": round(p.max, 1),
        "refused_of_bad_key": refused.load(Relaxed),
    }))
}

/// Closes the engine; the latencies of the run, unless a task failed its check or is left.
fn end(engine: Engine<u64, u64>) -> Result<Percentiles, Box<dyn Error>> {
    let report = engine.close(Duration::from_secs(120));
    // Its threads have ended then, and their histograms are in.
    drop(engine);
    if report.failed > 0 || !report.is_complete() {
        return Err("order violated, or tasks left".into());
    }
    Ok(Percentiles::of(&histogram::take()))
}

/// When the small groups come, and by what way the huge one did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Huge {
    /// There is none.
    Absent,
    /// Right before them: its last records still lie in the ring of its shard.
    Behind,
    /// The same, submitted task by task.
    BehindSingly,
    /// A tenth of a second before them, in which the producer sleeps: all of it is sorted, and it runs.
    Sorted,
    /// As `Sorted`, with one worker, which has no other to take what comes in.
    OneWorker,
}

impl Huge {
    fn name(self) -> &'static str {
        match self {
            Self::Absent => "100 groups of one alone",
            Self::Behind => "100 groups of one right behind one of 10^6",
            Self::BehindSingly => "the same, the 10^6 submitted one by one",
            Self::Sorted => "the same, 100 ms later",
            Self::OneWorker => "the same, 100 ms later, one worker",
        }
    }
}

const BIG: u64 = 1_000_000;
/// Engines, one after the other, of which the median counts.
const ROUNDS: usize = 9;

/// A group of a million tasks of a microsecond, and a hundred groups of one. All of the hundred wait for the same thing, if
/// they wait, so one engine gives one figure.
fn big_group_beside_small_ones(huge: Huge) -> Result<serde_json::Value, Box<dyn Error>> {
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let engine = Engine::<u64, u64>::builder()
            .workers(Workers::fixed(if huge == Huge::OneWorker { 1 } else { 2 }))
            .group_capacity(2 * BIG as usize)
            .capacity(4 * BIG as usize)
            .state(|_| 0u64)
            .task_handler(|next: &mut u64, task| {
                if *task.key() == BAD {
                    assert_eq!(*next, **task, "order violated");
                    *next += 1;
                    crate::workload::Work::Microsecond.spend();
                } else {
                    histogram::record(now().saturating_sub(**task));
                }
            })
            .build()?;
        let mut tasks: Vec<(u64, u64)> = (0..BIG).map(|n| (BAD, n)).collect();
        match huge {
            Huge::Absent => {}
            Huge::BehindSingly => tasks.drain(..).try_for_each(|(key, n)| engine.submit(key, n))?,
            Huge::Behind | Huge::Sorted | Huge::OneWorker => engine.submit_many(&mut tasks)?,
        }
        if matches!(huge, Huge::Sorted | Huge::OneWorker) {
            std::thread::sleep(Duration::from_millis(100));
        }
        for key in 0..100 {
            engine.submit(key, now())?;
        }
        all.push(end(engine)?);
    }
    all.sort_by(|a, b| a.p50.total_cmp(&b.p50));
    let p = all[ROUNDS / 2];
    Ok(json!({
        "scenario": huge.name(),
        "others": p.count,
        "p50_us": round(p.p50, 1),
        "p99_us": round(p.p99, 1),
        "p999_us": round(p.p999, 1),
        "max_us": round(all.iter().map(|p| p.max).fold(0.0, f64::max), 1),
        "refused_of_bad_key": 0,
        "worst_engine_p50_us": round(all[ROUNDS - 1].p50, 1),
    }))
}
