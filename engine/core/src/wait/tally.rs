//! How many of the tasks of some groups ended, and how: counted dispatch by dispatch, waited for as a whole.

use std::time::Instant;

use super::cell::Ended;
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, wait};

/// See the module text.
#[derive(Debug)]
pub(crate) struct Tally {
    submitted: AtomicU64,
    figures: Mutex<Figures>,
    changed: Condvar,
}

/// What became of the tasks submitted through a [`Split`](crate::Split).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Tasks that were done.
    pub done: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks that were given back before their end: the engine was closed, or they were cancelled.
    pub given_back: u64,
    /// Tasks that were dropped before their end.
    pub discarded: u64,
}

impl Figures {
    /// Tasks that ended, one way or the other.
    pub fn ended(&self) -> u64 {
        self.done + self.failed + self.given_back + self.discarded
    }
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            submitted: AtomicU64::new(0),
            figures: Mutex::new(Figures::default()),
            changed: Condvar::new(),
        }
    }

    /// Before a submit, so that no task ends before it counts.
    pub(crate) fn submits(&self) {
        // ORDERING: SeqCst, here and in `join`: who learned of a submit by any other way finds it counted.
        self.submitted.fetch_add(1, Ordering::SeqCst);
    }

    /// The task was not accepted.
    pub(crate) fn refused(&self) {
        // ORDERING: SeqCst, as in `submits`.
        self.submitted.fetch_sub(1, Ordering::SeqCst);
        // Who waits compares with the number of its own moment; a task that never was must not be waited for.
        let _ended = self.figures.lock();
        self.changed.notify_all();
    }

    pub(crate) fn submitted(&self) -> u64 {
        // ORDERING: SeqCst, see `submits`.
        self.submitted.load(Ordering::SeqCst)
    }

    /// The token holder has settled so many.
    pub(crate) fn settled(&self, done: u32, failed: u32) {
        let mut figures = self.figures.lock();
        figures.done += u64::from(done);
        figures.failed += u64::from(failed);
        self.changed.notify_all();
    }

    /// So many were taken out of their group.
    pub(crate) fn out(&self, tasks: u64, ended: &Ended) {
        let mut figures = self.figures.lock();
        match ended {
            Ended::GivenBack => figures.given_back += tasks,
            _ => figures.discarded += tasks,
        }
        self.changed.notify_all();
    }

    pub(crate) fn figures(&self) -> Figures {
        *self.figures.lock()
    }

    /// Waits until all that was submitted before this call has ended. `Err`: the deadline came first.
    pub(crate) fn join(&self, deadline: Option<Instant>) -> Result<Figures, Figures> {
        let before = self.submitted();
        let mut figures = self.figures.lock();
        loop {
            // Less than before: some of the tasks were not accepted after all.
            if figures.ended() >= before.min(self.submitted()) {
                return Ok(*figures);
            }
            let left = deadline.map(|end| end.saturating_duration_since(crate::sync::instant()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(*figures);
            }
            figures = wait(&self.changed, figures, left);
        }
    }
}
