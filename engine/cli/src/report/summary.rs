//! The figures of a finished run, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use super::dead_letter::key_json;
use super::groups::{Distinct, Spending, Spent};
use super::tally::Tally;
use crate::key::Key;

/// How many of the slowest groups are told.
const SLOWEST: usize = 5;

/// The figures of a run.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Records read; the sum of the next five.
    pub total: u64,
    /// Records whose command succeeded.
    pub ok: u64,
    /// Records that failed for good.
    pub failed: u64,
    /// Records that could not be read.
    pub input_errors: u64,
    /// Records without a key, passed over on request.
    pub skipped: u64,
    /// Records read and not finished.
    pub left: u64,
    /// Attempts that were followed by another one.
    pub retried: u64,
    /// Commands started, all attempts.
    pub commands: u64,
    /// Groups.
    pub groups: u64,
    /// Whether `groups` is exact; above 262,144 keys it is an estimate.
    pub groups_exact: bool,
    /// Groups halted by a failure.
    pub halted_groups: u64,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// Records that ran to their end (ok or failed) per second.
    pub tasks_per_s: f64,
    /// Whether a signal ended the run.
    pub interrupted: bool,
    /// The exit code.
    pub exit_code: u8,
    /// The groups that took longest.
    pub slowest_groups: Vec<Slow>,
}

/// One of the slowest groups.
#[derive(Debug, Serialize)]
pub struct Slow {
    /// The key; null for groups without one.
    pub key: Option<Box<RawValue>>,
    /// Seconds in commands, all attempts.
    pub busy_s: f64,
    /// Commands.
    pub commands: u64,
    /// Commands that failed.
    pub failures: u64,
    #[serde(skip)]
    shown: String,
}

impl Slow {
    fn new(key: &Key, spent: Spent) -> Self {
        Self {
            key: key_json(key),
            busy_s: spent.busy.as_secs_f64(),
            commands: spent.commands,
            failures: spent.failures,
            shown: crate::input::fault::excerpt(key.to_string().as_bytes(), false),
        }
    }
}

impl Summary {
    /// The figures now.
    #[must_use]
    pub fn new(tally: &Tally, groups: &Distinct, spending: &Spending, wall: Duration) -> Self {
        let (ok, failed) = (tally.ok.get(), tally.failed.get());
        let (groups, groups_exact) = groups.count();
        let wall_s = wall.as_secs_f64();
        Self {
            total: tally.total.get(),
            ok,
            failed,
            input_errors: tally.input_errors.get(),
            skipped: tally.skipped.get(),
            left: tally.left.get(),
            retried: tally.retried.get(),
            commands: tally.commands.get(),
            groups,
            groups_exact,
            halted_groups: tally.halted_groups.get(),
            wall_s,
            tasks_per_s: if wall_s > 0.0 { (ok + failed) as f64 / wall_s } else { 0.0 },
            interrupted: false,
            exit_code: 0,
            slowest_groups: spending
                .slowest(SLOWEST)
                .iter()
                .map(|(key, spent)| Slow::new(key, *spent))
                .collect(),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.groups_exact { "" } else { "about " };
        write!(
            f,
            "{} records: {} ok, {} failed, {} input errors, {} skipped, {} left; {} retried; \
             {about}{} groups; {:.2} s, {:.1} tasks/s",
            self.total,
            self.ok,
            self.failed,
            self.input_errors,
            self.skipped,
            self.left,
            self.retried,
            self.groups,
            self.wall_s,
            self.tasks_per_s
        )?;
        if self.groups > 1 && !self.slowest_groups.is_empty() {
            f.write_str("\nbgrp: slowest groups: ")?;
            for (index, slow) in self.slowest_groups.iter().enumerate() {
                let comma = if index > 0 { ", " } else { "" };
                write!(
                    f,
                    "{comma}{} ({:.2} s, {} commands)",
                    slow.shown, slow.busy_s, slow.commands
                )?;
            }
        }
        Ok(())
    }
}
