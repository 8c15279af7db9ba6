//! Backpressure: where submitters wait, and how they learn that one group is full without touching groups.
//!
//! Two things can be full. The *ring* of a shard is the hard bound for everybody who submits to it. A *group* over its
//! capacity must not stop its shard, so its tasks are taken out of the ring all the same; the claim holder notes
//! the group as full here and sets a bit for its hash in a small filter that every submitter reads (read-only in
//! the usual case, so it costs nothing). A submitter that finds the bit set takes the exact, slower path under the
//! gate's lock: another group with the same bit passes, the full one waits or hands the task back.
//!
//! Submitters that wait for room in a ring or lane are woken when a quarter of it is free, or it is drained: a producer that is
//! faster than the claim holder would else sleep once per chunk. (80 % of the tasks on one key: 1.3 times as fast.)
//!
//! Slack: a group may exceed its capacity by what is in the ring of its shard when it fills up, at most the ring's
//! capacity.
//!
//! | who | does | then looks | proof |
//! |---|---|---|---|
//! | submitter that waits | `waiters` + 1, fence SeqCst | tries again, then sleeps under the lock | models::gate `room`, mutant `gate-no-fence-submitter` |
//! | claim holder | gives cells back, fence SeqCst | at `waiters`, and notifies behind the lock | models::gate `room`, mutants `gate-no-fence-claim`, `gate-no-lock` |
//! | claim holder, group over its capacity | sets FULL under the lock | at the count that it found, and reopens | models::gate `full`, mutant `full-no-second-look` |
//!
//! The FULL bit of a group's word is set and cleared under the lock only. Whoever settles tasks of a FULL group and
//! leaves it at or below the low mark relieves it, even when it has just given the token up: while FULL is set
//! the block is not reclaimed, and under the lock nobody else clears it.

use std::{ptr::NonNull, time::Duration};

use crate::{
    group::block::Group,
    sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, fence, mutant, wait},
};

/// Groups that are full, with their hash bits.
type FullGroups<K, T> = Vec<(u32, NonNull<Group<K, T>>)>;

/// The gate of one shard.
#[derive(Debug)]
pub(crate) struct Gate<K, T> {
    full: Mutex<FullGroups<K, T>>,
    changed: Condvar,
    waiters: AtomicU32,
}

// SAFETY: the pointers are to blocks that live as long as the engine; keys are read under the lock while FULL.
unsafe impl<K: Send + Sync, T: Send> Send for Gate<K, T> {}
// SAFETY: as above. Keys are read by reference from several threads, hence `K: Sync`.
unsafe impl<K: Send + Sync, T: Send> Sync for Gate<K, T> {}

/// The gate's lock, held.
pub(crate) struct Held<'a, K, T> {
    gate: &'a Gate<K, T>,
    full: Option<MutexGuard<'a, FullGroups<K, T>>>,
}

impl<K, T> Gate<K, T> {
    pub(crate) fn new() -> Self {
        Self { full: Mutex::new(Vec::new()), changed: Condvar::new(), waiters: AtomicU32::new(0) }
    }

    /// Submitter's slow path.
    pub(crate) fn enter(&self) -> Held<'_, K, T> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        if !mutant("gate-no-fence-submitter") {
            // ORDERING: SeqCst fence: the announcement comes before the next try; pairs with the one in `notify`.
            fence(Ordering::SeqCst);
        }
        Held { gate: self, full: Some(self.full.lock()) }
    }

    /// Claim holder, after cells were given back, when `room` says that it is worth waking somebody; close, after the status
    /// changed.
    #[inline]
    pub(crate) fn notify(&self, room: impl FnOnce() -> bool) {
        if !mutant("gate-no-fence-claim") {
            // ORDERING: SeqCst fence: what the waiters wait for comes before the look for waiters; pairs with `enter`.
            fence(Ordering::SeqCst);
        }
        if self.waiters.load(Ordering::Relaxed) > 0 && room() {
            self.notify_slow();
        }
    }

    #[cold]
    fn notify_slow(&self) {
        // The lock makes sure that a waiter is either before its last try or asleep.
        if !mutant("gate-no-lock") {
            drop(self.full.lock());
        }
        self.changed.notify_all();
    }

    /// Claim holder: the group is over its capacity.
    pub(crate) fn close_group(
        &self,
        filter: &Filter,
        hash: u32,
        group: NonNull<Group<K, T>>,
        low: u32,
    ) {
        let mut full = self.full.lock();
        // SAFETY: the claim holder has the group in hand; blocks live as long as the engine.
        let word = unsafe { &group.as_ref().word };
        if word.load().is_full() {
            return;
        }
        full.push((hash, group));
        filter.set(hash);
        if word.set_full().count() <= low && !mutant("full-no-second-look") {
            self.reopen(&mut full, filter, group);
        }
    }

    /// Who settled tasks of a FULL group and saw it at or below the low mark.
    #[cold]
    pub(crate) fn relieve(&self, filter: &Filter, group: NonNull<Group<K, T>>, low: u32) {
        let mut full = self.full.lock();
        // SAFETY: blocks live as long as the engine. The group may have been relieved, reclaimed and made anew in
        // the meantime: then FULL is clear, or it is set for the new group and the test below is about that one.
        let state = unsafe { group.as_ref() }.word.load();
        if state.is_full() && state.count() <= low {
            self.reopen(&mut full, filter, group);
        }
    }

    fn reopen(&self, full: &mut FullGroups<K, T>, filter: &Filter, group: NonNull<Group<K, T>>) {
        if let Some(at) = full.iter().position(|(_, other)| *other == group) {
            let (hash, _) = full.swap_remove(at);
            filter.clear(hash);
        }
        // SAFETY: as in `relieve`.
        unsafe { group.as_ref() }.word.clear_full();
        self.changed.notify_all();
    }
}

impl<K: Eq, T> Held<'_, K, T> {
    /// Is the group with this key full?
    pub(crate) fn is_full(&self, hash: u32, key: &K) -> bool {
        self.entries().any(|(other, group)| {
            // SAFETY: FULL is set while the entry stands, so the block is not reclaimed under the lock.
            other == hash && unsafe { group.as_ref().key() } == key
        })
    }

    /// Is the group in this block full?
    pub(crate) fn is_block_full(&self, block: NonNull<Group<K, T>>) -> bool {
        self.entries().any(|(_, group)| group == block)
    }

    fn entries(&self) -> impl Iterator<Item = (u32, NonNull<Group<K, T>>)> {
        self.full.iter().flat_map(|full| full.iter().copied())
    }

    /// Sleeps until something changed, at most for `timeout`.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        if let Some(full) = self.full.take() {
            self.full = Some(wait(&self.gate.changed, full, timeout));
        }
    }
}

impl<K, T> Drop for Held<'_, K, T> {
    fn drop(&mut self) {
        self.gate.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One bit for each of 4,096 classes of hashes, set while a group of the class is full, and how many bits are set: as long as
/// there is none, a submitter looks at nothing else.
#[derive(Debug)]
pub(crate) struct Filter {
    any: AtomicU32,
    bits: Box<[AtomicU64]>,
    counts: Mutex<Vec<u32>>,
}

const CLASSES: usize = if cfg!(loom) { 64 } else { 4_096 };

impl Filter {
    pub(crate) fn new() -> Self {
        Self {
            any: AtomicU32::new(0),
            bits: (0..CLASSES / 64).map(|_| AtomicU64::new(0)).collect(),
            counts: Mutex::new(vec![0; CLASSES]),
        }
    }

    /// `false`: no group with this hash is full, as far as this thread has heard (the slack covers the rest).
    #[inline(always)]
    pub(crate) fn may_be_full(&self, hash: u32) -> bool {
        self.any() && self.has(hash)
    }

    /// Any group is full, as far as this thread has heard.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn has(&self, hash: u32) -> bool {
        let class = hash as usize % CLASSES;
        self.bits[class / 64].load(Ordering::Relaxed) & (1 << (class % 64)) != 0
    }

    fn set(&self, hash: u32) {
        let class = hash as usize % CLASSES;
        let mut counts = self.counts.lock();
        counts[class] += 1;
        if counts[class] == 1 {
            self.any.fetch_add(1, Ordering::Relaxed);
        }
        self.bits[class / 64].fetch_or(1 << (class % 64), Ordering::Relaxed);
    }

    fn clear(&self, hash: u32) {
        let class = hash as usize % CLASSES;
        let mut counts = self.counts.lock();
        counts[class] -= 1;
        if counts[class] == 0 {
            self.bits[class / 64].fetch_and(!(1 << (class % 64)), Ordering::Relaxed);
            self.any.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_class_stays_marked_until_its_last_full_group_is_relieved() {
        let filter = Filter::new();
        filter.set(5);
        filter.set(5 + CLASSES as u32);
        filter.clear(5);
        assert!(filter.may_be_full(5));
        assert!(!filter.may_be_full(6));
        filter.clear(5);
        assert!(!filter.may_be_full(5));
    }
}
