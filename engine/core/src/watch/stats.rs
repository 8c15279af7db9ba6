//! Counters without a shared line on the hot path: each worker writes its own, readers add them up.

use crate::sync::{AtomicU64, Ordering};

/// Counters of one worker; only that worker writes them.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Tasks moved from the ingress into groups.
    pub(crate) taken: AtomicU64,
    /// Tasks that ended as done.
    pub(crate) done: AtomicU64,
    /// Tasks that ended as failed.
    pub(crate) failed: AtomicU64,
    /// Attempts that were followed by another one.
    pub(crate) retries: AtomicU64,
    /// Dispatches.
    pub(crate) turns: AtomicU64,
    /// Claims: looks at a shard.
    pub(crate) looks: AtomicU64,
    /// Batches that were lent.
    pub(crate) lent: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            lent: AtomicU64::new(0),
        }
    }

    /// Tasks that ended, one way or the other. Who compares it with what was accepted must read this first.
    pub(crate) fn settled(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `add`: what the tasks did is seen by who counts them.
        self.done.load(Ordering::Acquire) + self.failed.load(Ordering::Acquire)
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    if n > 0 {
        // ORDERING: Release pairs with the Acquire in `settled`.
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Release);
    }
}

/// Figures of an engine at one moment. Counters of tasks only grow; each is exact for what had happened when it
/// was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Tasks that a submit accepted.
    pub accepted: u64,
    /// Tasks that ended as done.
    pub done: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks that were given back while the engine ran, see [`Engine::cancel_pending`](crate::Engine::cancel_pending).
    pub cancelled: u64,
    /// Attempts that were followed by another one.
    pub retries: u64,
    /// Dispatches: turns of a group.
    pub dispatches: u64,
    /// Claims: chunks of records that a worker took from a shard, empty ones included.
    pub claims: u64,
    /// Tasks that wait in halted, paused and closed groups.
    pub held: u64,
    /// Batches that are leased out now.
    pub leased: u64,
    /// Groups that exist now, idle ones included.
    pub groups: u64,
    /// Groups made since the start; reclaimed ones that came back count again.
    pub groups_made: u64,
    /// Bytes of control blocks and maps.
    pub group_bytes: u64,
    /// Workers that sleep now.
    pub sleeping_workers: u64,
}

impl Stats {
    /// Tasks that were accepted and have not ended.
    pub fn backlog(&self) -> u64 {
        self.accepted.saturating_sub(self.done + self.failed + self.cancelled)
    }
}
