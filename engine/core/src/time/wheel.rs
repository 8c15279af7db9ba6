//! A hierarchical timing wheel: entries that wait for a tick, in the order of their deadlines.
//!
//! One thread owns it at a time (plain `&mut self`). A tick is what the caller makes it, 1 ms in
//! the engine.
//!
//! ```text
//!  deadline bits  63 ... 36 | 35..30 | 29..24 | 23..18 | 17..12 | 11..6 | 5..0
//!  level             beyond |   5    |   4    |   3    |   2    |   1   |  0
//!
//!  An entry sits on the level of the highest 6 bits in which its deadline differs from `elapsed`,
//!  in the slot those bits name: level 0 within the current 64 ticks, level 1 within the current
//!  4,096, and so on; `beyond` (2.2 years of milliseconds) is a sorted map of blocks of 2^36 ticks.
//!  When `elapsed` enters a slot of a level above 0, its entries move down.
//! ```
//!
//! Invariants:
//! * I1: an occupied slot lies ahead of `elapsed`. So the lowest occupied level, at its lowest
//!   occupied slot, has the next deadline; no search over ticks is ever needed.
//! * I2: entries of one deadline are in one list, in the order they came: a slot that is entered
//!   moves down as a whole, into levels that are empty by then.
//! * I3: between calls every entry outside `due` has a deadline after `elapsed`.
//! * I4: `min` of a slot is the least deadline in it, so `next_deadline` is exact.
//!
//! Cost: `insert` is O(1), beyond 2^36 ticks O(log n). `advance` is O(slots occupied + entries that
//! fire or move down), whatever the distance; an entry moves down 6 times at most. `next_deadline`
//! is O(1). 12 KB when empty; the lists keep their capacity, so nothing is allocated once each has
//! seen its peak.

use std::collections::BTreeMap;
use std::mem;

use crate::sync::mutant;

const LEVELS: usize = 6;
const BITS: usize = 6;
const SLOTS: usize = 1 << BITS;
/// Bits of a deadline that the levels cover.
const RANGE_BITS: usize = LEVELS * BITS;

/// Entries of type `E` by deadline. See the module for how it works.
pub(crate) struct Wheel<E> {
    /// The last tick advanced to.
    elapsed: u64,
    len: usize,
    /// Entries that were due when they came, and fire at the next advance.
    due: Slot<E>,
    /// A bit for each slot that holds an entry.
    occupied: [u64; LEVELS],
    slots: Box<[[Slot<E>; SLOTS]; LEVELS]>,
    /// By deadline >> RANGE_BITS.
    beyond: BTreeMap<u64, Slot<E>>,
}

/// Entries in the order they came.
struct Slot<E> {
    /// The least deadline; `u64::MAX` if there is no entry.
    min: u64,
    entries: Vec<(u64, E)>,
}

impl<E> Default for Slot<E> {
    fn default() -> Self {
        Self { min: u64::MAX, entries: Vec::new() }
    }
}

impl<E> Slot<E> {
    fn push(&mut self, deadline: u64, entry: E) {
        self.min = self.min.min(deadline);
        self.entries.push((deadline, entry));
    }

    fn remove(&mut self, wanted: impl Fn(&E) -> bool) -> Option<E> {
        let at = self.entries.iter().position(|(_, entry)| wanted(entry))?;
        let (_, entry) = self.entries.remove(at);
        self.min = self.entries.iter().map(|(deadline, _)| *deadline).min().unwrap_or(u64::MAX);
        Some(entry)
    }
}

impl<E> Wheel<E> {
    /// An empty wheel at tick `now`.
    pub(crate) fn new(now: u64) -> Self {
        let levels: Vec<[Slot<E>; SLOTS]> =
            (0..LEVELS).map(|_| std::array::from_fn(|_| Slot::default())).collect();
        let Ok(slots) = levels.into_boxed_slice().try_into() else {
            unreachable!("as many levels as were made")
        };
        Self {
            elapsed: now,
            len: 0,
            due: Slot::default(),
            occupied: [0; LEVELS],
            slots,
            beyond: BTreeMap::new(),
        }
    }

    #[cfg(test)]
    /// Entries held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        let slots = self.slots.iter().flatten().chain(self.beyond.values());
        slots.chain([&self.due]).flat_map(|slot| slot.entries.iter().map(|(_, entry)| entry))
    }

    /// Adds an entry that fires at the first [`advance`](Wheel::advance) to `deadline` or later; at
    /// the very next one if `deadline` has passed.
    pub(crate) fn insert(&mut self, deadline: u64, entry: E) {
        self.len += 1;
        if deadline <= self.elapsed {
            self.due.push(deadline, entry);
        } else {
            self.place(deadline, entry);
        }
    }

    /// Moves on to tick `now` and appends to `out` every entry whose deadline is not after it, by
    /// deadline, and in the order of insertion where deadlines are equal. A `now` before the last
    /// one counts as the last one.
    pub(crate) fn advance(&mut self, now: u64, out: &mut Vec<E>) {
        let now = now.max(self.elapsed);
        let before = out.len();
        self.fire_due(out);
        loop {
            if let Some((level, slot)) = self.next_slot() {
                let start = self.start_of(level, slot);
                if start > now.saturating_add(mutant("wheel-early").into()) {
                    break;
                }
                self.elapsed = start;
                self.enter(level, slot, out);
            } else if let Some(first) = self.beyond.first_entry()
                && let start = *first.key() << RANGE_BITS
                && start <= now
            {
                self.elapsed = start;
                for (deadline, entry) in first.remove().entries {
                    self.place(deadline, entry);
                }
            } else {
                break;
            }
        }
        self.elapsed = now;
        self.len -= out.len() - before;
    }

    /// The least deadline held, exactly; `None` if the wheel is empty.
    ///
    /// It is after the last tick advanced to, unless an entry was due already when it came: then
    /// the answer is in the past, and an advance, to any tick, fires that entry. Either way a
    /// caller that sleeps until the answer and then advances makes progress.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if !self.due.entries.is_empty() {
            return Some(self.due.min);
        }
        match self.next_slot() {
            Some((level, slot)) => Some(self.slots[level][slot].min),
            None => self.beyond.first_key_value().map(|(_, block)| block.min),
        }
    }

    /// Takes every entry out, in the order they would have fired. The time stays as it is.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = E> + use<E> {
        let now = self.elapsed;
        let mut all = Vec::with_capacity(self.len);
        self.advance(u64::MAX, &mut all);
        self.elapsed = now;
        all.into_iter()
    }

    /// Removes the first entry found that is wanted, by a look at each.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&E) -> bool) -> Option<E> {
        if let Some(entry) = self.due.remove(&wanted) {
            self.len -= 1;
            return Some(entry);
        }
        for (level, occupied) in self.occupied.iter_mut().enumerate() {
            let mut left = *occupied;
            while left != 0 {
                let at = left.trailing_zeros() as usize;
                left &= left - 1;
                let slot = &mut self.slots[level][at];
                if let Some(entry) = slot.remove(&wanted) {
                    if slot.entries.is_empty() {
                        *occupied &= !(1 << at);
                    }
                    self.len -= 1;
                    return Some(entry);
                }
            }
        }
        let found = self.beyond.iter_mut().find_map(|(block, slot)| {
            slot.remove(&wanted).map(|entry| (*block, slot.entries.is_empty(), entry))
        });
        let (block, empty, entry) = found?;
        if empty {
            self.beyond.remove(&block);
        }
        self.len -= 1;
        Some(entry)
    }

    fn fire_due(&mut self, out: &mut Vec<E>) {
        // A stable sort, and none at all in the common case: it may allocate.
        if !self.due.entries.is_sorted_by_key(|(deadline, _)| *deadline) {
            self.due.entries.sort_by_key(|(deadline, _)| *deadline);
        }
        self.due.min = u64::MAX;
        out.extend(self.due.entries.drain(..).map(|(_, entry)| entry));
    }

    /// Files an entry that is not due before `elapsed`.
    fn place(&mut self, deadline: u64, entry: E) {
        let differing = (deadline ^ self.elapsed) | 1;
        let level = differing.ilog2() as usize / BITS;
        if level >= LEVELS {
            if mutant("wheel-far-lost") {
                return;
            }
            self.beyond.entry(deadline >> RANGE_BITS).or_default().push(deadline, entry);
            return;
        }
        let off = usize::from(mutant("wheel-slot-off") && level > 0);
        let slot = ((deadline >> (level * BITS)) as usize + off) % SLOTS;
        self.occupied[level] |= 1 << slot;
        self.slots[level][slot].push(deadline, entry);
    }

    /// Level and number of the occupied slot that is entered next (I1).
    fn next_slot(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// The first tick of a slot.
    fn start_of(&self, level: usize, slot: usize) -> u64 {
        let block = self.elapsed >> ((level + 1) * BITS);
        (block << BITS | slot as u64) << (level * BITS)
    }

    /// Fires the entries of a slot of level 0; moves those of another down. `elapsed` is its start.
    fn enter(&mut self, level: usize, slot: usize, out: &mut Vec<E>) {
        self.occupied[level] &= !(1 << slot);
        let this = &mut self.slots[level][slot];
        this.min = u64::MAX;
        if level == 0 {
            out.extend(this.entries.drain(..).map(|(_, entry)| entry));
            return;
        }
        let mut entries = mem::take(&mut this.entries);
        for (deadline, entry) in entries.drain(..) {
            self.place(deadline, entry);
        }
        self.slots[level][slot].entries = entries;
    }
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
