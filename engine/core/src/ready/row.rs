//! A worker's row: the groups of one chunk, run straight away by the worker that sorted them, and still within reach
//! of the others.
//!
//! A look at a shard makes up to some hundreds of groups busy whose blocks and tasks are in this worker's caches now.
//! Put on the ready list they would be written and read once more, each with a locked operation, and often by
//! another worker. In the row they stay in place: the owner takes them one after the other with plain stores. When
//! it stands still (a long task), another worker takes the rest.
//!
//! ```text
//!  slots  | taken | taken | taken | waiting | waiting | waiting |        limit = 0: a thief is at it
//!                                   ^ at                         ^ limit
//! ```
//!
//! | who | does | then looks |
//! |---|---|---|
//! | owner | `at = i + 1`, light barrier | at `limit`: above `i`, slot `i` is its own; else it asks under the lock |
//! | thief, under the lock | `limit = 0`, heavy barrier | at `at`: from there up to the old limit all slots are its own; the new `limit` is where they begin |
//! | owner, under the lock | writes slots, `at = 0`, `limit = n` | |
//!
//! Invariants:
//!
//! * **I1** A slot is taken once. Both sides announce before they look, with a barrier in between, so either the owner sees
//!   that a thief is at it, or the thief sees what the owner took.
//! * **I2** Slots and `at` are set back under the lock only, so a thief never mixes two chunks.
//! * **I3** While `at < limit` the row has units, and a worker that looks for the last time before it sleeps sees that. While a
//!   thief is at it the row looks empty; a thief that takes more than it runs next wakes somebody.
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | owner: store at, light, load limit | fence | thief: store limit, heavy, load at | models::row `thief`, mutants `barrier-light-missing`, `barrier-heavy-missing` |
//! | owner asks under the lock when the limit says no | - | thief's second store | models::row `thief`, mutant `row-no-ask` |
//! | fill under the lock | lock | thief, which so sees slots and groups whole | models::row `refill`, mutant `row-fill-unlocked` |
//!
//! Cost: owner, per unit: one store, one load, one slot read; one lock per chunk. Thief: one heavy barrier (a system
//! call of some microseconds where it is asymmetric), hence only for an owner that stands.
//!
//! The asymmetric pair of announcements is that of biased locks and of hazard pointers with membarrier; the row that
//! is run in place and robbed from is a bounded cousin of the deque of Chase and Lev (2005).

use std::ptr;

use super::link::Unit;
use crate::{
    ingress::barrier::Barrier,
    sync::{AtomicPtr, AtomicU32, Mutex, Ordering, mutant, sized},
};

/// Units of one row, at most.
pub(crate) const ROW: usize = sized(256, 4);

/// See the module text.
#[derive(Debug)]
pub(crate) struct Row {
    at: AtomicU32,
    limit: AtomicU32,
    /// Held to fill, to rob, and by an owner that found the limit lowered.
    lock: Mutex<()>,
    slots: Box<[AtomicPtr<()>]>,
}

/// The owner's copy of where it stands.
#[derive(Debug, Default)]
pub(crate) struct Place {
    at: u32,
    limit: u32,
}

impl Place {
    /// Units that are left, as far as the owner knows.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        (self.limit - self.at) as usize
    }
}

impl Row {
    pub(crate) fn new() -> Self {
        Self {
            at: AtomicU32::new(0),
            limit: AtomicU32::new(0),
            lock: Mutex::new(()),
            slots: (0..ROW).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
        }
    }

    /// Owner, whose row is empty: fills it with the units that `next` gives, [`ROW`] at most.
    pub(crate) fn fill(&self, place: &mut Place, mut next: impl FnMut() -> Option<Unit>) {
        debug_assert_eq!(place.left(), 0);
        let guard = (!mutant("row-fill-unlocked")).then(|| self.lock.lock());
        let mut n = 0;
        while n < ROW
            && let Some(unit) = next()
        {
            self.slots[n].store(unit.into_raw(), Ordering::Relaxed);
            n += 1;
        }
        self.at.store(0, Ordering::Relaxed);
        *place = Place { at: 0, limit: n as u32 };
        // Relaxed: the lock hands the slots, and what was done to their groups, to a thief.
        self.limit.store(n as u32, Ordering::Relaxed);
        drop(guard);
    }

    /// Owner: the next unit.
    #[inline]
    pub(crate) fn take(&self, place: &mut Place, barrier: Barrier) -> Option<Unit> {
        if place.at == place.limit {
            return None;
        }
        let i = place.at;
        // ORDERING: store, light barrier, load of the limit; a thief stores the limit, pays the heavy barrier, and loads
        // this (I1). Relaxed: nothing else is handed over by it.
        self.at.store(i + 1, Ordering::Relaxed);
        barrier.light();
        if self.limit.load(Ordering::Relaxed) <= i && !self.ask(place, i) {
            return None;
        }
        place.at = i + 1;
        let raw = self.slots[i as usize].load(Ordering::Relaxed);
        // SAFETY: written by `fill`, and by I1 ours alone.
        Some(unsafe { Unit::from_raw(raw) })
    }

    /// Owner: a thief is or was at it. `true`: slot `i` is ours all the same.
    #[cold]
    fn ask(&self, place: &mut Place, i: u32) -> bool {
        if mutant("row-no-ask") {
            *place = Place::default();
            return false;
        }
        let _guard = self.lock.lock();
        // Relaxed: under the lock.
        place.limit = self.limit.load(Ordering::Relaxed);
        if place.limit <= i {
            *place = Place::default();
            self.at.store(0, Ordering::Relaxed);
            self.limit.store(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Anybody: takes what is left, oldest first, each handed to `take`. Returns how many.
    pub(crate) fn rob(&self, barrier: Barrier, mut take: impl FnMut(Unit)) -> usize {
        let Some(_guard) = self.lock.try_lock() else { return 0 };
        let limit = self.limit.load(Ordering::Relaxed);
        if self.at.load(Ordering::Relaxed) >= limit {
            return 0;
        }
        self.limit.store(0, Ordering::Relaxed);
        barrier.heavy();
        let at = self.at.load(Ordering::Relaxed).min(limit);
        for slot in &self.slots[at as usize..limit as usize] {
            // SAFETY: written by `fill`, and by I1 ours alone.
            take(unsafe { Unit::from_raw(slot.load(Ordering::Relaxed)) });
        }
        // What lies below is the owner's.
        self.limit.store(at, Ordering::Relaxed);
        (limit - at) as usize
    }

    /// Units that wait here, as far as anybody can see.
    pub(crate) fn left(&self) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.at.load(Ordering::Relaxed)) as usize
    }

    /// Whether units are waiting here. Relaxed; who must not miss one fences first (worker/idle.rs).
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.at.load(Ordering::Relaxed) < self.limit.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::ready::link::{Kind, Link};

    fn kinds(links: &[Link]) -> Vec<Kind> {
        links.iter().map(|link| Kind::Group(NonNull::from(link))).collect()
    }

    #[test]
    fn the_owner_takes_in_order_and_a_thief_takes_the_rest_in_order() {
        let links: Vec<Link> = (0..5).map(|_| Link::new()).collect();
        let (row, mut place, barrier) = (Row::new(), Place::default(), Barrier::detect());
        for _ in 0..3 {
            let mut units = links.iter().map(|link| Unit::group(NonNull::from(link)));
            row.fill(&mut place, || units.next());
            let mut seen: Vec<Kind> =
                (0..2).filter_map(|_| row.take(&mut place, barrier)).map(Unit::open).collect();
            assert!(row.waits());
            assert_eq!(row.rob(barrier, |unit| seen.push(unit.open())), 3);
            assert!(!row.waits());
            assert!(row.take(&mut place, barrier).is_none());
            assert_eq!(row.rob(barrier, |_| unreachable!("empty")), 0);
            assert_eq!(seen, kinds(&links));
        }
    }

    #[test]
    fn a_row_takes_no_more_than_it_holds() {
        let links: Vec<Link> = (0..ROW + 1).map(|_| Link::new()).collect();
        let (row, mut place, barrier) = (Row::new(), Place::default(), Barrier::detect());
        let mut units = links.iter().map(|link| Unit::group(NonNull::from(link)));
        row.fill(&mut place, || units.next());
        assert_eq!(units.len(), 1, "the last one has to go elsewhere");
        let seen: Vec<Kind> =
            std::iter::from_fn(|| row.take(&mut place, barrier)).map(Unit::open).collect();
        assert_eq!(seen, kinds(&links[..ROW]));
    }
}
