//! `compare`: every system on every workload, interleaved; medians, and the ratio to the best peer that isolates keys.

use std::error::Error;

use serde_json::json;

use super::{systems, workloads};
use crate::{
    measure::{Prepared, Spread},
    report::{Report, round},
};

/// The command line asks for the same things as for `throughput`.
pub use super::throughput::Args;

/// Runs it.
///
/// # Errors
/// A name is unknown, or an oracle disagrees.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let systems = systems(args.system.as_deref())?;
    let mut report = Report::new(json);
    for workload in workloads(args.workload.as_deref(), args.scale)? {
        let prepared = Prepared::new(workload);
        let mut rates: Vec<Vec<f64>> = systems.iter().map(|_| Vec::new()).collect();
        let mut rss: Vec<Option<u64>> = vec![None; systems.len()];
        let mut tasks = vec![0u64; systems.len()];
        for _ in 0..args.repetitions {
            for (i, system) in systems.iter().enumerate() {
                let run = prepared.run(&**system)?;
                rates[i].push(run.rate());
                rss[i] = rss[i].max(run.peak_rss());
                tasks[i] = run.tasks();
            }
        }
        let medians: Vec<f64> = rates.into_iter().map(|rates| Spread::of(rates).median).collect();
        let best = systems
            .iter()
            .zip(&medians)
            .filter(|(system, _)| system.isolates() && !system.name().starts_with("bgrp"))
            .max_by(|a, b| a.1.total_cmp(b.1));
        for (i, (system, median)) in systems.iter().zip(&medians).enumerate() {
            report.add(json!({
                "workload": prepared.workload.name,
                "system": system.name(),
                "isolates_keys": system.isolates(),
                "tasks": tasks[i],
                "m_tasks_per_s": round(median / 1e6, 3),
                "x_best_isolating_peer": best.map(|(_, best)| round(median / best, 3)),
                "best_peer": best.map(|(peer, _)| peer.name()),
                "peak_rss_mb": rss[i].map(|bytes| round(bytes as f64 / 1e6, 1)),
            }));
        }
    }
    report.finish();
    Ok(())
}
