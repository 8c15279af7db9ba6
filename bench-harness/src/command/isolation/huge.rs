//! A group of a million tasks beside a hundred groups of one.

use std::{error::Error, time::Duration};

use bgrp::{Engine, Workers};
use serde_json::json;

use super::{BAD, percentiles};
use crate::{
    command::latency::now,
    histogram::{self, Percentiles},
    report::{Report, round},
};

/// Its rows.
pub(super) fn add(report: &mut Report) -> Result<(), Box<dyn Error>> {
    for huge in [Huge::Absent, Huge::Behind, Huge::BehindSingly, Huge::Sorted, Huge::OneWorker] {
        report.add(big_group_beside_small_ones(huge)?);
    }
    Ok(())
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
    let mut all: Vec<Percentiles> = Vec::new();
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
        all.push(percentiles(&engine.close(super::LONG), engine)?);
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
        "worst_engine_p50_us": round(all[ROUNDS - 1].p50, 1),
    }))
}
