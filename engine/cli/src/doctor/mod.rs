//! `bgrp doctor`: what the machine is, where workers would go on it, and what holds the engine back.
//!
//! ```text
//! kernel, or --topology FILE -> machine -> plan -> checks -> report (text, or --json)
//!                                 +--> --save FILE
//! ```
//!
//! With a machine from a file only the plan is made: what is checked is about the machine that this runs on.

mod checks;
mod report;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use bgrp::topology::{Plan, Snapshot, SnapshotError, Workers};
use clap::Args;

use checks::{Limits, checks};
use report::Report;

/// Nothing to warn about.
const WELL: u8 = 0;
/// There are warnings.
const WARNED: u8 = 1;

const CODES: &str = "\
The plan is that of the library with its defaults: one pinned worker for each CPU. `bgrp run` pins nothing, since
commands would inherit it.

Exit codes:
  0    nothing to warn about
  1    there are warnings
  2    wrong use: a file cannot be read or written, or is no machine";

/// `bgrp doctor`
#[derive(Args, Clone, Debug)]
#[command(after_help = CODES)]
pub struct DoctorOptions {
    /// Plan for so many workers [default: one for each CPU that this process may use]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Plan for the machine in FILE, which --save wrote on another one
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Write the machine to FILE as text
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A mistake in the use of `bgrp doctor`.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The machine's file cannot be read.
    #[error("cannot read {}: {error} (given as --topology)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The machine's file is none.
    #[error("{}: {error}", path.display())]
    NoMachine {
        /// The file.
        path: PathBuf,
        /// Why.
        error: SnapshotError,
    },
    /// The machine cannot be written.
    #[error("cannot write {}: {error} (given as --save)", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Looks, plans, checks and reports. Gives the exit code.
///
/// # Errors
/// A file that was named cannot be read or written, or holds no machine.
pub fn doctor(options: &DoctorOptions) -> Result<u8, DoctorError> {
    let machine = match &options.topology {
        Some(path) => from_file(path)?,
        None => Snapshot::read(),
    };
    if let Some(path) = &options.save {
        fs::write(path, machine.to_text())
            .map_err(|error| DoctorError::Save { path: path.clone(), error })?;
    }
    let workers = options.workers.map_or(Workers::per_core(), |n| Workers::fixed(usize::from(n)));
    let plan = Plan::new(&machine, workers);
    let mut report = Report::new(options.topology.as_deref(), &machine, &plan);
    if options.topology.is_none() {
        let limits = Limits::read();
        report.checks = checks(&machine, &plan, &limits);
        report.limits = Some(limits);
    }
    let code = if report.warnings() == 0 { WELL } else { WARNED };
    let text = if options.json { report.into_json() } else { report.to_string() };
    // Whoever reads the report may have seen enough of it.
    let _ = writeln!(io::stdout(), "{text}");
    Ok(code)
}

fn from_file(path: &PathBuf) -> Result<Snapshot, DoctorError> {
    let text = fs::read_to_string(path)
        .map_err(|error| DoctorError::Read { path: path.clone(), error })?;
    text.parse().map_err(|error| DoctorError::NoMachine { path: path.clone(), error })
}
