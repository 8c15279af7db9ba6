//! `throughput`: tasks per second of each system on each workload.

use std::error::Error;

use serde_json::json;

use super::{systems, workloads};
use crate::{
    measure::{Prepared, Spread},
    report::{Report, round},
};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only this workload (or several, with commas)
    #[arg(long)]
    pub workload: Option<String>,
    /// Only this system (or several, with commas)
    #[arg(long)]
    pub system: Option<String>,
    /// Repetitions of each pair
    #[arg(long, default_value_t = 5)]
    pub repetitions: usize,
    /// Share of the tasks, for a quick look
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
}

/// Runs it.
///
/// # Errors
/// A name is unknown, or an oracle disagrees.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let systems = systems(args.system.as_deref())?;
    let mut report = Report::new(json);
    for workload in workloads(args.workload.as_deref(), args.scale)? {
        let prepared = Prepared::new(workload);
        let mut runs: Vec<Vec<crate::measure::Checked>> =
            systems.iter().map(|_| Vec::new()).collect();
        // Interleaved: the machine drifts, and then it drifts for all.
        for _ in 0..args.repetitions {
            for (system, runs) in systems.iter().zip(&mut runs) {
                runs.push(prepared.run(&**system)?);
            }
        }
        for (system, runs) in systems.iter().zip(&runs) {
            let rates = Spread::of(runs.iter().map(|run| run.rate()).collect());
            let seconds = Spread::of(runs.iter().map(|run| run.seconds()).collect());
            let allocations: Option<Vec<f64>> =
                runs.iter().map(|run| run.allocations_per_task()).collect();
            let rss = runs.iter().filter_map(|run| run.peak_rss()).max();
            report.add(json!({
                "workload": prepared.workload.name,
                "system": system.name(),
                "tasks": runs[0].tasks(),
                "seconds": round(seconds.median, 4),
                "tasks_per_s": rates.median.round(),
                "min": rates.min.round(),
                "max": rates.max.round(),
                "order_violations": 0,
                "allocations_per_task": allocations.map(|a| round(Spread::of(a).median, 6)),
                "peak_rss_mb": rss.map(|bytes| round(bytes as f64 / 1e6, 1)),
            }));
        }
    }
    report.finish();
    Ok(())
}
