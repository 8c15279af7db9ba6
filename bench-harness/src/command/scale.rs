//! `scale`: throughput and order by number of workers, also where they outnumber the CPUs.

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
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,64")]
    pub workers: Vec<usize>,
    /// Workloads
    #[arg(long, default_value = "uniform-200,zipf-100k,one-microsecond")]
    pub workload: String,
    /// Systems
    #[arg(long, default_value = "bgrp-key,bgrp-many,rayon-queue-per-key")]
    pub system: String,
    /// Repetitions of each pair
    #[arg(long, default_value_t = 3)]
    pub repetitions: usize,
    /// Share of the tasks, for a quick look
    #[arg(long, default_value_t = 0.5)]
    pub scale: f64,
}

/// Runs it.
///
/// # Errors
/// A name is unknown, or an oracle disagrees.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let systems = systems(Some(&args.system))?;
    let mut report = Report::new(json);
    for workload in workloads(Some(&args.workload), args.scale)? {
        let mut prepared = Prepared::new(workload);
        for workers in &args.workers {
            prepared.workload.workers = *workers;
            let mut rates: Vec<Vec<f64>> = systems.iter().map(|_| Vec::new()).collect();
            for _ in 0..args.repetitions {
                for (system, rates) in systems.iter().zip(&mut rates) {
                    rates.push(prepared.run(&**system)?.rate());
                }
            }
            for (system, rates) in systems.iter().zip(rates) {
                let spread = Spread::of(rates);
                report.add(json!({
                    "workload": prepared.workload.name,
                    "system": system.name(),
                    "workers": workers,
                    "m_tasks_per_s": round(spread.median / 1e6, 2),
                    "min": round(spread.min / 1e6, 2),
                    "max": round(spread.max / 1e6, 2),
                    "order_violations": 0,
                }));
            }
        }
    }
    report.finish();
    Ok(())
}
