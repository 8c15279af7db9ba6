//! `model`: how throughput would scale past this machine, from counted transfers of shared lines and stated costs.
//!
//! A task moves these cache lines between cores (a line that only one core uses moves never):
//!
//! | line | transfers | counted by |
//! |---|---|---|
//! | cells of the shard's ring | two for each 64 bytes: to the producer for writing, to the claim holder for reading | size of a cell |
//! | tail and flag of the shard | one each per submit when another producer or a claim holder used it since | claims, producers |
//! | head and lock of the shard | two per claim | claims |
//! | control block of a group, its segment | two lines when the turn runs on another worker than the claim or the last turn | dispatches, workers |
//!
//! The model: a core spends `own` on a task, cache misses to memory included, plus the transfers of the task times the
//! cost of one; cores add up. `own` is measured here: both cores are busy for the whole run, and what the counted
//! transfers cost at 25 ns each is taken off. It leaves out memory bandwidth and the producers' own limit (one
//! producer submits at most what one core can).

use std::{error::Error, time::Duration};

use bgrp::{Engine, Workers};
use serde_json::json;

use super::workloads;
use crate::{
    measure::{each_producer, timed},
    oracle::KeyState,
    report::{Report, round},
};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Share of the tasks
    #[arg(long, default_value_t = 0.3)]
    pub scale: f64,
}

/// Cost of moving a line between two cores in ns: within a cache complex, across the mesh of a large socket, and between
/// sockets. Published core-to-core figures of current server parts lie around these.
const MACHINES: [(&str, usize, f64); 3] = [
    ("8 cores, one L3", 8, 25.0),
    ("32 cores, mesh", 32, 60.0),
    ("64 cores, two sockets", 64, 110.0),
];

/// Runs it.
///
/// # Errors
/// The engine could not be started, or did not drain.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let mut report = Report::new(json);
    for name in ["uniform-200", "million-keys", "zipf-100k"] {
        let workload = workloads(Some(name), args.scale)?.remove(0);
        let streams = workload.streams();
        let engine = Engine::<u64, u32>::builder()
            .workers(Workers::fixed(workload.workers))
            .group_capacity(1 << 24)
            .idle_groups(workload.keys * 2)
            .state(|_| KeyState::default())
            .task_handler(move |state: &mut KeyState, number| state.run(**number, workload.work))
            .build()?;
        let time = timed(|| {
            each_producer(&streams, |stream| {
                for item in &stream.0 {
                    engine.submit(u64::from(item.key), item.number).expect("open");
                }
            });
            assert!(engine.wait_drain(Duration::from_secs(600)), "not drained");
        });
        let stats = engine.stats();
        engine.close(Duration::from_secs(60));
        let tasks = stats.accepted as f64;
        let claims = stats.claims as f64 / tasks;
        let turns = stats.dispatches as f64 / tasks;
        // turn, mark, key and task of this workload.
        let cell = 8.0 + 8.0 + 8.0;
        let lines_of = |cores: usize| {
            let away = 1.0 - 1.0 / cores as f64;
            let cells = 2.0 * cell / 64.0;
            // Tail and flag: a claim takes them once; with several producers each submit finds them elsewhere.
            let shard = 4.0 * claims + 2.0 * away.min(1.0) * f64::from(u8::from(cores > 2));
            let group = 2.0 * 2.0 * turns * away;
            cells + shard + group
        };
        // Two cores worked for the whole time; what the transfers of two cores cost is taken off.
        let here = lines_of(2);
        let own = (2.0 * time.elapsed.as_nanos() as f64 / tasks - here * 25.0).max(1.0);
        let mut row = json!({
            "workload": name,
            "claims_per_task": round(claims, 4),
            "dispatches_per_task": round(turns, 4),
            "lines_per_task_here": round(here, 2),
            "own_ns_per_task": round(own, 1),
            "measured_m_per_s": round(tasks / time.elapsed.as_secs_f64() / 1e6, 1),
        });
        for (machine, cores, cost) in MACHINES {
            let per_task = own + lines_of(cores) * cost;
            row[machine] = json!(round(cores as f64 / per_task * 1e3, 1));
        }
        report.add(row);
    }
    report.finish();
    Ok(())
}
