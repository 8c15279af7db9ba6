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
    /// Of `done`, `failed`, `retries` and `turns`: those of the bulk class.
    bulk: [AtomicU64; 4],
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
            bulk: std::array::from_fn(|_| AtomicU64::new(0)),
            lent: AtomicU64::new(0),
        }
    }

    /// Done, failed, retries, dispatches so far.
    pub(crate) fn ended(&self) -> [u64; 4] {
        [&self.done, &self.failed, &self.retries, &self.turns].map(|c| c.load(Ordering::Relaxed))
    }

    /// Its worker: what came since `before` was of the bulk class.
    pub(crate) fn add_bulk(&self, before: [u64; 4]) {
        for ((bulk, now), before) in self.bulk.iter().zip(self.ended()).zip(before) {
            add(bulk, now - before);
        }
    }

    /// What ended before what was taken: the sums never say that more ended than came.
    pub(crate) fn read_into(&self, stats: &mut Stats) {
        // ORDERING: Acquire pairs with the Release in `add`, as in `settled`.
        let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let [done, failed, retries, turns] = [0, 1, 2, 3].map(|at| read(&self.bulk[at]));
        stats.bulk.done += done;
        stats.bulk.failed += failed;
        stats.bulk.retries += retries;
        stats.bulk.dispatches += turns;
        stats.done += read(&self.done);
        stats.failed += read(&self.failed);
        stats.retries += read(&self.retries);
        stats.dispatches += read(&self.turns);
        stats.claims += read(&self.looks);
        stats.taken += read(&self.taken);
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
/// was read, and what ended is read before what was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Tasks that a submit accepted.
    pub accepted: u64,
    /// Tasks that a worker has taken out of the ingress into their groups.
    pub taken: u64,
    /// Tasks that ended as done.
    pub done: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks that were given back while the engine ran, see [`Engine::cancel_pending`](crate::Engine::cancel_pending).
    pub cancelled: u64,
    /// Attempts that were followed by another one.
    pub retries: u64,
    /// Tasks of those that failed that a dead-letter sink took.
    pub dead_lettered: u64,
    /// Dispatches that a downstream throttled.
    pub throttled: u64,
    /// Dispatches: turns of a group.
    pub dispatches: u64,
    /// Claims: chunks of records that a worker took from a shard, empty ones included.
    pub claims: u64,
    /// Dispatches that run now: workers with a group in hand.
    pub running: u64,
    /// Tasks of the dispatches that run now.
    pub running_tasks: u64,
    /// Groups that wait for a permit, for the rate of the engine, or for a throttled downstream.
    pub waiting: u64,
    /// Tasks that wait in halted, paused and closed groups.
    pub held: u64,
    /// What all tasks inside weigh now, where they are weighed ([`Builder::weigh`](crate::Builder::weigh)).
    pub bytes: u64,
    /// Batches that are leased out now.
    pub leased: u64,
    /// Groups that exist now, idle ones included, as of each shard's last look.
    pub groups: u64,
    /// Groups made since the start; reclaimed ones that came back count again.
    pub groups_made: u64,
    /// Bytes of control blocks and maps.
    pub group_bytes: u64,
    /// Workers that sleep now.
    pub sleeping_workers: u64,
    /// What of this belongs to the class [`Class::Bulk`](crate::Class::Bulk); all else belongs to the interactive class.
    pub bulk: ClassStats,
}

/// Figures of one class of groups ([`Builder::class`](crate::Builder::class)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Tasks that ended as done.
    pub done: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Attempts that were followed by another one.
    pub retries: u64,
    /// Dispatches.
    pub dispatches: u64,
    /// Groups that wait for a permit, for the rate of the engine, or for a throttled downstream.
    pub waiting: u64,
}

impl Stats {
    /// Tasks that were accepted and have not ended.
    pub fn backlog(&self) -> u64 {
        self.accepted.saturating_sub(self.done + self.failed + self.cancelled)
    }

    /// Tasks that lie in the ingress: accepted, and not yet taken into their groups. Part of the backlog.
    pub fn ingress(&self) -> u64 {
        self.accepted.saturating_sub(self.taken)
    }

    /// What does not belong to the bulk class.
    pub fn interactive(&self) -> ClassStats {
        ClassStats {
            done: self.done.saturating_sub(self.bulk.done),
            failed: self.failed.saturating_sub(self.bulk.failed),
            retries: self.retries.saturating_sub(self.bulk.retries),
            dispatches: self.dispatches.saturating_sub(self.bulk.dispatches),
            waiting: self.waiting.saturating_sub(self.bulk.waiting),
        }
    }
}
