//! `growth`: what the tasks of known keys feel while new keys come without end and the map of every shard doubles again and
//! again.
//!
//! One producer, open loop: one task in ten goes to a known key, the others to keys never seen before. The latency of the known
//! ones counts, from the intended send time. Beside it the same load with no new keys: the nine go round over other known
//! keys. With feature `measure` also maps that rehash at once, and how long shards were under a claim (processor time).

use std::{
    error::Error,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use bgrp::{Engine, Workers};
use serde_json::{Value, json};

use super::latency::{now, open_loop};
use crate::{
    histogram::{self, Percentiles},
    process,
    report::{Report, round},
};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// New keys
    #[arg(long, default_value_t = 3_000_000)]
    pub groups: u64,
    /// Known keys
    #[arg(long, default_value_t = 1_000)]
    pub keys: u64,
    /// Tasks per second, those of new keys included
    #[arg(long, default_value_t = 500_000.0)]
    pub rate: f64,
    /// Runs of each kind, interleaved; the row shows the one with the median p99.9
    #[arg(long, default_value_t = 3)]
    pub repetitions: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    NoGrowth,
    Growth,
    #[cfg(feature = "measure")]
    AtOnce,
}

const KINDS: &[Kind] = &[
    Kind::NoGrowth,
    Kind::Growth,
    #[cfg(feature = "measure")]
    Kind::AtOnce,
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::NoGrowth => "no new keys",
            Self::Growth => "maps grow, a few entries at a time",
            #[cfg(feature = "measure")]
            Self::AtOnce => "maps grow, all entries at once",
        }
    }
}

/// Of ten tasks one goes to a known key.
const OF: u64 = 10;
/// New keys begin here.
const NEW: u64 = 1 << 32;

/// Runs it.
///
/// # Errors
/// The engine could not be started, order was violated, or a group is missing.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let mut runs: Vec<Vec<(f64, Value)>> = KINDS.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.repetitions.max(1) {
        for (kind, runs) in KINDS.iter().zip(&mut runs) {
            runs.push(one(args, *kind)?);
        }
    }
    let mut report = Report::new(json);
    for mut runs in runs {
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        report.add(runs.swap_remove(runs.len() / 2).1);
    }
    report.finish();
    Ok(())
}

fn one(args: &Args, kind: Kind) -> Result<(f64, Value), Box<dyn Error>> {
    static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
    VIOLATIONS.store(0, Relaxed);
    let tasks = args.groups * OF / (OF - 1);
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .idle_groups(usize::try_from(args.groups + args.keys)? * 2)
        .group_capacity(1 << 24)
        .state(|_| 0u64)
        .task_handler(|last: &mut u64, task| {
            // Those that made the known keys are sent at no time.
            if *task.key() < NEW && **task > 0 {
                histogram::record(now().saturating_sub(**task));
            }
            // The oracle: intended times of a key only go up.
            if *last > **task {
                VIOLATIONS.fetch_add(1, Relaxed);
            }
            *last = **task;
        })
        .build()?;
    for key in 0..args.keys {
        engine.submit(key, 0)?;
    }
    if !engine.wait_drain(Duration::from_secs(60)) {
        return Err("not drained within a minute".into());
    }
    drop(histogram::take());
    #[cfg(feature = "measure")]
    {
        bgrp::measure::rehash_at_once(kind == Kind::AtOnce);
        bgrp::measure::take_claims();
    }
    let before = process::threads();
    let mut new = 0;
    open_loop(tasks, args.rate, |i, intended| {
        if i % OF == 0 {
            engine.submit(i / OF % args.keys, intended).expect("open");
            return;
        }
        let key = if kind == Kind::NoGrowth { i / OF % args.keys } else { new };
        new = new.max(key + 1);
        engine.submit(NEW + key, intended).expect("open");
    });
    let drained = engine.wait_drain(Duration::from_secs(60));
    let workers = process::workers_since(&before);
    let groups = engine.stats().groups;
    let report = engine.close(Duration::from_secs(60));
    drop(engine);
    let violations = VIOLATIONS.load(Relaxed);
    if !drained || violations > 0 || report.done != tasks + args.keys || groups != args.keys + new {
        return Err(format!(
            "{} of {} tasks done, {violations} out of order, {groups} of {} groups",
            report.done,
            tasks + args.keys,
            args.keys + new
        )
        .into());
    }
    let p = Percentiles::of(&histogram::take());
    let mut row = json!({
        "kind": kind.name(),
        "groups": groups,
        "tasks": p.count,
        "p50_us": round(p.p50, 1),
        "p99_us": round(p.p99, 1),
        "p999_us": round(p.p999, 1),
        "p9999_us": round(p.p9999, 1),
        "max_us": round(p.max, 1),
        "workers_without_cpu_ms": round(workers.delayed as f64 / 1e6, 1),
    });
    add_claims(&mut row);
    Ok((p.p999, row))
}

#[cfg(not(feature = "measure"))]
fn add_claims(_: &mut Value) {}

/// Processor time under a claim.
#[cfg(feature = "measure")]
fn add_claims(row: &mut Value) {
    let (claims, longest) = bgrp::measure::take_claims();
    let all: u64 = claims.iter().map(|(_, n)| n).sum();
    let at = |share: f64| {
        let mut left = (all as f64 * share).ceil() as u64;
        let found = claims.iter().find(|(_, n)| {
            let reached = left <= *n;
            left = left.saturating_sub(*n);
            reached
        });
        round(found.map_or(0, |(ns, _)| *ns) as f64 / 1e3, 1)
    };
    row["claims"] = all.into();
    row["claim_p50_us"] = at(0.5).into();
    row["claim_p999_us"] = at(0.999).into();
    row["claim_p9999_us"] = at(0.9999).into();
    let long = claims.iter().filter(|(ns, _)| *ns > 1_000_000);
    row["claims_over_1ms"] = long.map(|(_, n)| n).sum::<u64>().into();
    row["claim_max_us"] = round(longest as f64 / 1e3, 1).into();
}
