//! From the hash of a key to the index of its group, for one shard.
//!
//! An open addressing table of 8-byte entries. It knows no keys: the caller compares them, by the
//! index it gets. One thread owns it at a time (the holder of the shard's claim), so it is plain
//! `&mut self` and has no atomics.
//!
//! ```text
//!  entry   63........32 31.........0       home of an entry: the TOP bits of its hash, so that
//!          |   hash   | | index + 1 |      the order of homes is the same in tables of any size
//!          all zero: vacant
//!
//!  leaving  | vacant ............ stop |   a table that is being left: `next` walks down from a
//!           | still here   | next | .. |   vacant slot (`stop`), round the end, and moves what it
//!                            <----         finds into `main`. A new entry is put where the walk
//!  main     |  moved, and new ones     |   has still to come, if its home is there.
//! ```
//!
//! Invariants:
//! * I1: both tables are valid at every return and every call of `eq`: an entry is reached from its
//!   home over occupied slots only. (Walking *down* gives that for nothing: the slot above the one
//!   that is emptied is vacant, so no run leads through it.)
//! * I2: an entry is in exactly one of the two tables.
//! * I3: one `insert` or `remove` visits at most [`MOVES_PER_OP`] slots of the table being left.
//! * I4: a table has a vacant slot; a table is left for good before the next change of size is due.
//! * I5: slots are allocated when the first entry comes and released when the walk has passed, one
//!   segment of 32 KB at a time; no operation clears or releases memory in proportion to the map.
//! * I6: nor do many operations together: the new table gets its segments one after the other, as
//!   the walk comes to them. (If new entries went to it at once, wherever their homes are, the first
//!   few hundred would ask for all of its segments.)
//!
//! Why I4 holds: a table of C slots takes at most C / 16 operations to leave. Growing begins at
//! 3/4 C and ends with at most 13/16 C entries in 2 C slots, or in both tables together; shrinking
//! begins below C / 8 and ends with at most 3/16 C in C / 2. Neither meets the limit of the new table.
//!
//! Cost: `get` of a known key is one cache miss (1.5 or 2.5 slots on average at the lowest and the
//! highest load, 8 of them on a line), of an unknown key 8.5 slots at the highest load; 10.7 to 21.3
//! bytes per entry, and at most half of that again while the smaller table is being left. Measured:
//! * the limit: a load of 0.85, which a limit of 7/8 allows, made a known key 13 ns and an unknown
//!   one 26; a load of 0.72 made them 10 and 21 (0.9 and 0.76 million entries). 7/8 saves 1.6 bytes
//!   an entry at best; so the limit is 3/4.
//! * the segments: a `get` costs 1 ns more than in one piece (9.4 instead of 8.4 ns with 47,000
//!   entries, 12 instead of 11 with 760,000); but one piece of 8 MB, a million slots, took 1.1 ms to
//!   release, in which its shard stood still. With them the slowest of millions of operations took
//!   0.13 ms, as much as the machine does to any code.

use std::mem;

use super::table::{SEGMENT, SpareSegment, Table, VACANT, pack};
#[cfg(test)]
use super::table::{hash_of, index_of};
use crate::sync::mutant;

/// Slots of the table being left that one `insert` or `remove` visits at most.
pub(crate) const MOVES_PER_OP: usize = 16;

const MIN_BITS: u32 = 4;
const MAX_BITS: u32 = 32;

/// A table grows when this share of its slots would be exceeded: 3/4.
const fn limit(slots: usize) -> usize {
    slots - slots / 4
}

/// A table shrinks when fewer entries than this remain: 1/8.
const fn floor(slots: usize) -> usize {
    if slots <= 1 << MIN_BITS { 0 } else { slots / 8 }
}

const _: () = {
    // I4, for a doubling and for a halving, in slots of a table that is large enough to matter.
    let slots = 1 << 20;
    let ops = slots / MOVES_PER_OP;
    assert!(limit(slots) + ops < limit(2 * slots) && limit(slots) + ops < slots);
    assert!(floor(slots) + ops < limit(slots / 2));
    // A halving is not undone at once, nor a doubling.
    assert!(limit(slots) > floor(2 * slots) && floor(slots) < limit(slots / 2));
};

/// The map of one shard: (hash, index) pairs. See the module for how it works.
#[derive(Default)]
pub(crate) struct Map {
    main: Table,
    leaving: Option<Leaving>,
    len: usize,
}

impl Map {
    /// An empty map; allocates nothing until the first [`insert`](Map::insert).
    pub(crate) fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    /// Entries held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    /// Entries it can hold before it allocates again.
    pub(crate) fn capacity(&self) -> usize {
        limit(self.main.slots())
    }

    /// Bytes allocated, both tables counted while there are two.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.main.heap_bytes() + self.leaving.as_ref().map_or(0, |l| l.table.heap_bytes())
    }

    /// The index stored under `hash` that `eq` accepts. `eq` is called only with indices whose
    /// stored hash equals `hash`; if it panics the map is unchanged.
    #[inline]
    pub(crate) fn get(&self, hash: u32, mut eq: impl FnMut(u32) -> bool) -> Option<u32> {
        if let Some(leaving) = &self.leaving
            && leaving.may_hold(hash)
            && let Some((_, index)) = leaving.table.find(hash, &mut eq)
        {
            return Some(index);
        }
        self.main.find(hash, &mut eq).map(|(_, index)| index)
    }

    /// Adds a pair that the caller knows to be absent. The same hash may stand for many indices.
    ///
    /// # Panics
    /// If `index` is `u32::MAX`, which an entry cannot hold.
    pub(crate) fn insert(&mut self, hash: u32, index: u32) {
        assert!(index != u32::MAX, "group index {index} does not fit a map entry");
        self.migrate();
        if self.leaving.is_none() && self.len >= limit(self.main.slots()) {
            self.grow(hash);
        }
        let entry = pack(hash, index);
        if !self.leaving.as_mut().is_some_and(|leaving| leaving.take_in(hash, entry)) {
            self.main.put(entry);
        }
        self.len += 1;
    }

    /// Removes exactly this pair; `false` if it is not there.
    pub(crate) fn remove(&mut self, hash: u32, index: u32) -> bool {
        self.migrate();
        if let Some(leaving) = &mut self.leaving
            && leaving.may_hold(hash)
            && let Some((slot, _)) = leaving.table.find(hash, &mut |i| i == index)
        {
            leaving.table.take(slot);
            leaving.len -= 1;
            self.len -= 1;
            return true;
        }
        let Some((slot, _)) = self.main.find(hash, &mut |i| i == index) else { return false };
        let vacated = self.main.take(slot);
        self.len -= 1;
        if self.leaving.is_none() && self.len < floor(self.main.slots()) {
            self.leave_for(self.main.bits() - 1, vacated);
        }
        true
    }

    /// Loads the line where `hash` is looked for, ahead of a `get`, `insert` or `remove`.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if let Some(leaving) = &self.leaving
            && leaving.may_hold(hash)
        {
            leaving.table.prefetch(hash);
        }
        self.main.prefetch(hash);
    }

    /// Visits up to [`MOVES_PER_OP`] slots of the table being left, if there is one; `true` while
    /// more remain. `insert` and `remove` call it; an owner that only reads may.
    pub(crate) fn migrate(&mut self) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        for _ in 0..MOVES_PER_OP {
            if leaving.len == 0 {
                break;
            }
            if let Some(entry) = leaving.step() {
                self.main.put(entry);
            }
        }
        if leaving.len == 0 {
            self.leaving = None;
        }
        self.leaving.is_some()
    }

    /// Segments that the owner may make where nobody waits, for [`Map::put_by`]: the first touch of one takes time.
    #[inline]
    pub(crate) fn wants_spare(&self) -> usize {
        if self.leaving.is_none() { 0 } else { self.main.wants_spare() }
    }

    /// Keeps a segment for when one is needed.
    pub(crate) fn put_by(&mut self, spare: SpareSegment) {
        self.main.put_by(spare);
    }

    #[cfg(test)]
    /// Calls `f` with every index, in no order that means anything.
    pub(crate) fn for_each(&self, mut f: impl FnMut(u32)) {
        let leaving = self.leaving.iter().flat_map(|leaving| leaving.table.entries());
        self.main.entries().chain(leaving).for_each(|entry| f(index_of(entry)));
    }

    #[cold]
    fn grow(&mut self, hash: u32) {
        match self.main.bits() {
            0 => self.main = Table::new(MIN_BITS),
            // At most 2^32 - 1 indices exist, so a slot stays vacant.
            MAX_BITS => {}
            bits => {
                let vacant = self.main.vacant_from(hash);
                self.leave_for(bits + 1, vacant);
            }
        }
    }

    /// Makes a new main table and begins to leave the old one, in which slot `vacant` is.
    #[cold]
    fn leave_for(&mut self, bits: u32, vacant: usize) {
        debug_assert!(self.leaving.is_none(), "I4");
        let mut table = mem::replace(&mut self.main, Table::new(bits));
        self.main.take_spare(&mut table);
        let next = vacant.wrapping_sub(1) & table.mask;
        self.leaving = Some(Leaving { table, len: self.len, stop: vacant, next });
        #[cfg(feature = "measure")]
        if crate::watch::claims::rehashes_at_once() {
            while self.migrate() {}
        }
    }
}

/// A table whose entries are moving into the main one.
struct Leaving {
    table: Table,
    len: usize,
    /// The vacant slot at which the walk began.
    stop: usize,
    /// The slot it visits next; all from here up to `stop` are vacant.
    next: usize,
}

impl Leaving {
    fn below_stop(&self, slot: usize) -> usize {
        self.stop.wrapping_sub(slot) & self.table.mask
    }

    /// `false` when the walk has passed the home of `hash`: entries never sit below their home.
    #[inline]
    fn may_hold(&self, hash: u32) -> bool {
        let passed = self.below_stop(self.next) + usize::from(mutant("map-passed-early"));
        self.below_stop(self.table.home(hash)) >= passed
    }

    /// Puts a new entry into the table, if there is a slot for it to which the walk has still to come (I6).
    fn take_in(&mut self, hash: u32, entry: u64) -> bool {
        if !self.may_hold(hash) {
            return false;
        }
        let slot = self.table.vacant_from(hash);
        // The slots that the walk has passed are vacant, so this one is the first of them at most.
        if self.below_stop(slot) + usize::from(mutant("map-into-passed"))
            < self.below_stop(self.next)
        {
            return false;
        }
        // SAFETY: a slot of the table, which has some, since it was left because it was full of them.
        unsafe { self.table.set(slot, entry) };
        self.len += 1;
        true
    }

    /// Visits one slot and takes what is in it.
    fn step(&mut self) -> Option<u64> {
        let slot = self.next;
        self.next = slot.wrapping_sub(1) & self.table.mask;
        // SAFETY: `next` is a slot of the table, which has some: it was left because it was full of them.
        let entry = unsafe { self.table.at(slot) };
        if entry != VACANT {
            // SAFETY: as above.
            unsafe { self.table.set(slot, VACANT) };
            self.len -= 1;
        }
        // The segment of `stop` is the first and the last one, and goes with the table.
        if slot.is_multiple_of(SEGMENT) && slot / SEGMENT != self.stop / SEGMENT {
            self.table.release(slot / SEGMENT);
        }
        (entry != VACANT).then_some(entry)
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
