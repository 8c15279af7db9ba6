//! `memory`: what an idle group costs, map included, and what is left of it after reclaim.

use std::{error::Error, time::Duration};

use bgrp::{Engine, Workers};
use serde_json::json;

use crate::{
    oracle::KeyState,
    process,
    report::{Report, round},
    workload::Work,
};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Groups
    #[arg(long, default_value_t = 1_000_000)]
    pub groups: u64,
}

/// Runs it.
///
/// # Errors
/// The engine could not be started, or did not drain.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let mut report = Report::new(json);
    for (name, bound, rounds) in
        [("idle", args.groups * 2, 1), ("after reclaim", args.groups / 100, 3)]
    {
        let engine = Engine::<u64, u32>::builder()
            .workers(Workers::per_core())
            .idle_groups(usize::try_from(bound)?)
            .state(|_| KeyState::default())
            .task_handler(|state: &mut KeyState, number| state.run(**number, Work::Mix))
            .build()?;
        let before = process::resident_bytes();
        for round in 0..rounds {
            for group in 0..args.groups {
                // Other keys in each round: the groups before are idle and over the bound.
                engine.submit(round * args.groups + group, 0)?;
            }
            if !engine.wait_drain(Duration::from_secs(600)) {
                return Err("not drained within ten minutes".into());
            }
        }
        let stats = engine.stats();
        let resident = process::resident_bytes().saturating_sub(before);
        report.add(json!({
            "state": name,
            "keys_seen": rounds * args.groups,
            "groups": stats.groups,
            "bytes_per_group": round(stats.group_bytes as f64 / stats.groups.max(1) as f64, 1),
            "group_mb": round(stats.group_bytes as f64 / 1e6, 1),
            "resident_growth_mb": round(resident as f64 / 1e6, 1),
        }));
        engine.close(Duration::from_secs(60));
    }
    report.finish();
    Ok(())
}
