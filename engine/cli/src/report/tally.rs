//! Counts of records and attempts, raised where things happen, read by progress and summary.
//!
//! I1: every record read ends in exactly one of ok, failed, input error, skipped, left; at the end of the
//! run `total` is their sum.

use std::sync::atomic::{AtomicU64, Ordering};

/// One count.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Raises it by `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Lowers it by `n`.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Its value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Records read.
    pub total: Count,
    /// Records whose command succeeded.
    pub ok: Count,
    /// Records that failed for good.
    pub failed: Count,
    /// Records that could not be read.
    pub input_errors: Count,
    /// Records without a key, passed over on request.
    pub skipped: Count,
    /// Records read and not finished.
    pub left: Count,
    /// Attempts that were followed by another one.
    pub retried: Count,
    /// Commands started.
    pub commands: Count,
    /// Commands that run now.
    pub running: Count,
    /// Groups halted by a failure.
    pub halted_groups: Count,
    /// Dead letters that could not be written.
    pub lost_letters: Count,
}

impl Tally {
    /// Records that are over.
    #[must_use]
    pub fn over(&self) -> u64 {
        self.ok.get()
            + self.failed.get()
            + self.input_errors.get()
            + self.skipped.get()
            + self.left.get()
    }
}
