//! Backpressure: where submitters wait, and how they learn that one group is full without touching groups.
//!
//! Two things can be full. The *ring* of a shard is the hard bound for everybody who submits to it. A *group* over its
//! capacity must not stop its shard, so its tasks are taken out of the ring all the same; the claim holder notes
//! the group as full here and sets a bit for its hash in a small filter (flow/filter.rs) that every submitter reads (read-only in
//! the usual case, so it costs nothing). A submitter that finds the bit set takes the exact, slower path under the
//! gate's lock: another group with the same bit passes, the full one waits or hands the task back.
//!
//! A group that its owner closed is noted here in the same way; its submitters are turned away at once, as are those of a group
//! that is full and halted by the policy: nobody makes room in it before somebody decides what becomes of it.
//!
//! Futures wait as threads do, with their wakers instead of a sleep (front_async.rs). They are woken without a lock, after the
//! claim was released: by the claim holder, by who relieves a group, by close, and by calls about groups.
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

use std::{collections::HashMap, ptr::NonNull, task::Waker, time::Duration};

use ahash::RandomState;

use super::filter::Filter;
use crate::{
    group::block::{Group, Place},
    outcome::drop_quietly,
    sync::{AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, fence, mutant, wait},
};

/// Groups that take no task now, by their hash bits: mostly one for each.
type FullGroups<K, T> = HashMap<u32, Vec<Barred<K, T>>, RandomState>;

/// A group that takes no task now.
#[derive(Debug)]
struct Barred<K, T> {
    group: NonNull<Group<K, T>>,
    full: bool,
    closed: bool,
}

/// Why a submitter does not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bar {
    /// The group is full: wait.
    Full,
    /// It is full, and halted by the policy.
    Halted,
    /// It was closed by its owner.
    Closed,
}

/// Changes what bars the group, if anything is new about it. `true`: it was.
fn change<K, T>(
    groups: &mut FullGroups<K, T>,
    filter: &Filter,
    hash: u32,
    group: NonNull<Group<K, T>>,
    change: impl FnOnce(&mut Barred<K, T>),
) -> bool {
    let list = groups.entry(hash).or_default();
    let known = list.iter().position(|other| other.group == group);
    let at = known.unwrap_or_else(|| {
        list.push(Barred { group, full: false, closed: false });
        list.len() - 1
    });
    let entry = &mut list[at];
    let before = (entry.full, entry.closed);
    change(entry);
    let after = (entry.full, entry.closed);
    let barred = after != (false, false);
    if barred && known.is_none() {
        filter.set(hash);
    }
    if !barred {
        list.swap_remove(at);
        if list.is_empty() {
            groups.remove(&hash);
        }
        if known.is_some() {
            filter.clear(hash);
        }
    }
    before != after
}

/// The gate of one shard.
#[derive(Debug)]
pub(crate) struct Gate<K, T> {
    full: Mutex<FullGroups<K, T>>,
    changed: Condvar,
    waiters: AtomicU32,
    /// Futures that wait, counted in `waiters`.
    futures: AtomicU32,
    wakers: Mutex<Wakers>,
    /// Some wakers are due.
    due: AtomicBool,
}

/// Wakers of futures that wait at a gate, and of those that are to be woken when no lock is held.
#[derive(Debug, Default)]
struct Wakers {
    waiting: Vec<(u64, Waker)>,
    due: Vec<Waker>,
    tickets: u64,
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
        // Nothing depends on the order, and shuttle wants the same in every run.
        let full = Mutex::new(HashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4)));
        Self {
            full,
            changed: Condvar::new(),
            waiters: AtomicU32::new(0),
            futures: AtomicU32::new(0),
            wakers: Mutex::new(Wakers::default()),
            due: AtomicBool::new(false),
        }
    }

    /// Under the gate's lock, or after it was taken: whoever waits looks again.
    fn tell(&self) {
        self.changed.notify_all();
        // Relaxed: a future counts itself under the gate's lock.
        if self.futures.load(Ordering::Relaxed) > 0 {
            self.make_due();
        }
    }

    #[cold]
    fn make_due(&self) {
        let mut wakers = self.wakers.lock();
        let Wakers { waiting, due, .. } = &mut *wakers;
        let n = waiting.len() as u32;
        due.extend(waiting.drain(..).map(|(_, waker)| waker));
        self.futures.fetch_sub(n, Ordering::Relaxed);
        self.waiters.fetch_sub(n, Ordering::Relaxed);
        self.due.store(true, Ordering::Relaxed);
    }

    /// Without any lock, by who may have told: wakes the futures that are due.
    #[inline]
    pub(crate) fn wake_due(&self) {
        // Relaxed: who told sees its own store, or somebody else has taken the wakers.
        if self.due.load(Ordering::Relaxed) {
            self.wake_futures();
        }
    }

    #[cold]
    fn wake_futures(&self) {
        let due = {
            let mut wakers = self.wakers.lock();
            self.due.store(false, Ordering::Relaxed);
            std::mem::take(&mut wakers.due)
        };
        for waker in due {
            // What it does is somebody else's code.
            drop_quietly(Waking(Some(waker)));
        }
    }

    /// The future with this ticket waits no more.
    pub(crate) fn leave(&self, ticket: u64) {
        let mut wakers = self.wakers.lock();
        let at = wakers.waiting.iter().position(|(other, _)| *other == ticket);
        let left = at.map(|at| wakers.waiting.swap_remove(at));
        drop(wakers);
        if left.is_some() {
            self.futures.fetch_sub(1, Ordering::Relaxed);
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
        drop_quietly(left);
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
        self.tell();
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
        change(&mut full, filter, hash, group, |barred| barred.full = true);
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
        drop(full);
        self.wake_due();
    }

    fn reopen(&self, full: &mut FullGroups<K, T>, filter: &Filter, group: NonNull<Group<K, T>>) {
        // SAFETY: as in `relieve`.
        let group_ref = unsafe { group.as_ref() };
        change(full, filter, group_ref.hash(), group, |barred| barred.full = false);
        group_ref.word.clear_full();
        self.tell();
    }

    /// Claim holder: the group takes no task from now on. `true`: it did until now.
    pub(crate) fn shut(&self, filter: &Filter, hash: u32, group: NonNull<Group<K, T>>) -> bool {
        let changed = change(&mut self.full.lock(), filter, hash, group, |barred| {
            barred.closed = true;
        });
        self.tell();
        changed
    }

    /// Under the claim: the group was closed by its owner.
    pub(crate) fn is_shut(&self, hash: u32, group: NonNull<Group<K, T>>) -> bool {
        let full = self.full.lock();
        let list = full.get(&hash);
        list.is_some_and(|list| list.iter().any(|barred| barred.group == group && barred.closed))
    }

    /// Claim holder: the group takes tasks again. `true`: it did not until now.
    pub(crate) fn open(&self, filter: &Filter, hash: u32, group: NonNull<Group<K, T>>) -> bool {
        change(&mut self.full.lock(), filter, hash, group, |barred| barred.closed = false)
    }
}

impl<K: Eq, T> Held<'_, K, T> {
    /// Does anything bar the group with this key?
    pub(crate) fn bar_of_key(&self, hash: u32, key: &K) -> Option<Bar> {
        self.bar(hash, |group| {
            // SAFETY: while the entry stands FULL is set or the group is pinned, so its block is not reclaimed under the lock.
            unsafe { group.as_ref().key() == key }
        })
    }

    /// Does anything bar the group in this block?
    pub(crate) fn bar_of_block(&self, hash: u32, block: NonNull<Group<K, T>>) -> Option<Bar> {
        self.bar(hash, |group| group == block)
    }

    fn bar(&self, hash: u32, is_it: impl Fn(NonNull<Group<K, T>>) -> bool) -> Option<Bar> {
        let entry = self.full.as_ref()?.get(&hash)?.iter().find(|entry| is_it(entry.group))?;
        // SAFETY: as in `bar_of_key`.
        let place = unsafe { entry.group.as_ref() }.place();
        Some(match place {
            _ if entry.closed => Bar::Closed,
            Place::Halted => Bar::Halted,
            _ => Bar::Full,
        })
    }

    /// Leaves the waker of a future here: it is woken when something changed. Returns its ticket.
    pub(crate) fn stay(self, waker: Waker) -> u64 {
        let gate = self.gate;
        gate.waiters.fetch_add(1, Ordering::Relaxed);
        gate.futures.fetch_add(1, Ordering::Relaxed);
        let mut wakers = gate.wakers.lock();
        wakers.tickets += 1;
        let ticket = wakers.tickets;
        wakers.waiting.push((ticket, waker));
        ticket
    }

    /// Sleeps until something changed, at most for `timeout`.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        if let Some(full) = self.full.take() {
            self.full = Some(wait(&self.gate.changed, full, timeout));
        }
    }
}

/// Wakes when dropped.
struct Waking(Option<Waker>);

impl Drop for Waking {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

impl<K, T> Drop for Held<'_, K, T> {
    fn drop(&mut self) {
        self.gate.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}
