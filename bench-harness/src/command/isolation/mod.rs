//! `isolation`: what one bad key, or some of them, do to the others.
//!
//! * Open loop: submit-to-start of the others beside one key that is slow, blocked, full, limited, failing, paused or leased out; each
//!   beside the same engine without that key, in turn, so many rounds, and the medians of both.
//! * As fast as it goes: tasks per second of the healthy keys while five of a hundred keys fail for ever.
//! * A group of a million tasks beside a hundred groups of one.
//!
//! A run in which a key was out of order, or a task was lost or run twice, ends with an error.

mod failing;
mod huge;
mod neighbour;

use std::{error::Error, time::Duration};

use bgrp::{CloseReport, Engine};

use crate::{
    histogram::{self, Percentiles},
    report::Report,
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
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Seconds for which the blocked key is blocked, and its load lasts; 60 in the report that it comes from
    #[arg(long, default_value_t = 4.0)]
    pub blocked_seconds: f64,
    /// Rounds, of which the medians are shown
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Healthy tasks of a round of the load with keys that fail
    #[arg(long, default_value_t = 10_000_000)]
    pub tasks: u64,
    /// Only rows whose name contains this
    #[arg(long, default_value = "")]
    pub only: String,
}

/// The key that is not like the others.
const BAD: u64 = u64::MAX;

/// Runs it.
///
/// # Errors
/// The engine could not be started, or order was violated.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let mut open_loop = Report::new(json);
    neighbour::add(args, &mut open_loop)?;
    open_loop.finish();
    let mut throughput = Report::new(json);
    failing::add(args, &mut throughput)?;
    throughput.finish();
    if args.only.is_empty() {
        let mut groups = Report::new(json);
        huge::add(&mut groups)?;
        groups.finish();
    }
    Ok(())
}

/// The latencies of an engine that was closed, unless a task failed its check or is left.
fn percentiles<T>(
    report: &CloseReport<u64, T>,
    engine: Engine<u64, T>,
) -> Result<Percentiles, Box<dyn Error>> {
    // Its threads have ended then, and their histograms are in.
    drop(engine);
    if report.failed > 0 || !report.is_complete() {
        return Err("order violated, or tasks left".into());
    }
    Ok(Percentiles::of(&histogram::take()))
}

/// The middle one; of an even number the lower of the two.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[(of.len() - 1) / 2]
}

/// How long a close may take.
const LONG: Duration = Duration::from_secs(120);
