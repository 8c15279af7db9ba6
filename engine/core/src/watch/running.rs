//! What is in each worker's hand: for how long, how many tasks, which attempt.
//!
//! Only the worker writes; whoever looks compares the group before and after, and so tells what was true in between or
//! nothing. Relaxed: a hint, by which nothing is decided.

use std::{ptr::NonNull, sync::atomic::Ordering};

use crate::{core::Hand, group::block::Group, outcome::Trouble};

/// A group that runs.
#[derive(Debug)]
pub(crate) struct Running<K, T> {
    pub(crate) group: NonNull<Group<K, T>>,
    pub(crate) worker: usize,
    /// In ns on the engine's clock.
    pub(crate) since: u64,
    pub(crate) tasks: u32,
    /// Of its first task; 0: not known to be more than the first.
    pub(crate) attempt: u32,
}

const ATTEMPT_SHIFT: u32 = 32;

impl<K, T> Hand<K, T> {
    /// Its worker: a dispatch of so many tasks begins.
    #[inline(always)]
    pub(crate) fn begins(&self, now: u64, tasks: u32) {
        self.since.store(now, Ordering::Relaxed);
        self.load.store(u64::from(tasks), Ordering::Relaxed);
    }

    /// Its worker: the task at the head was tried before.
    #[cold]
    pub(crate) fn note_attempt(&self, trouble: Option<&Trouble>) {
        let first = trouble.and_then(|trouble| trouble.marks.first());
        let attempt = 1 + first.map_or(0, |mark| mark.attempts);
        let tasks = self.load.load(Ordering::Relaxed) & ((1 << ATTEMPT_SHIFT) - 1);
        self.load.store(tasks | u64::from(attempt) << ATTEMPT_SHIFT, Ordering::Relaxed);
    }

    /// Anybody: what it holds, if it holds the same before and after the look.
    pub(crate) fn glance(&self, worker: usize) -> Option<Running<K, T>> {
        let group = self.holds()?;
        let (since, load) = (self.since.load(Ordering::Relaxed), self.load.load(Ordering::Relaxed));
        (self.holds() == Some(group)).then_some(Running {
            group,
            worker,
            since,
            tasks: load as u32,
            attempt: (load >> ATTEMPT_SHIFT) as u32,
        })
    }
}
