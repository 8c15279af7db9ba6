//! A table of [`Map`](super::map::Map): slots in segments, probed one after the other. It knows no growth and no keys.

use std::{
    mem,
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

use crate::sync::mutant;

/// Slots that are allocated and released at once: 32 KB. Few in tests, which then cross many edges.
pub(super) const SEGMENT: usize = if cfg!(any(test, fuzzing)) { 32 } else { 4096 };

pub(super) const VACANT: u64 = 0;

pub(super) fn pack(hash: u32, index: u32) -> u64 {
    u64::from(hash) << 32 | (u64::from(index) + 1)
}

pub(super) fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

pub(super) fn index_of(entry: u64) -> u32 {
    (entry as u32).wrapping_sub(1)
}

/// A power of two of slots, probed one after the other; or none at all.
///
/// They are in segments, so that a large table is neither cleared nor released at once (I5). A
/// segment that is all vacant need not be allocated: [`Segment::vacant`] stands for it.
#[derive(Default)]
pub(super) struct Table {
    segments: Box<[Segment]>,
    /// Slots, less one; 0 for no slots.
    pub(super) mask: usize,
    shift: u32,
    /// Segments that have their slots.
    allocated: usize,
    /// Segments of [`SEGMENT`] slots, all vacant, for those that have none.
    spare: Vec<SpareSegment>,
}

/// Spare segments that are worth having: a look at a shard brings 256 new groups at most as a rule, and they move 4,096 slots,
/// which are two segments of a table of twice the size.
pub(super) const SPARE: usize = 3;

/// Slots of a table; as many as its table has, at most [`SEGMENT`]. Owned by a table or a [`SpareSegment`].
struct Segment(NonNull<u64>);

/// A segment of [`SEGMENT`] vacant slots that was made outside the claim, and touched there.
pub(crate) struct SpareSegment(Segment);

impl SpareSegment {
    pub(crate) fn new() -> Self {
        let mut segment = Segment::vacant();
        segment.allocate(SEGMENT);
        for slot in (0..SEGMENT).step_by(4096 / size_of::<u64>()) {
            // SAFETY: a slot of the fresh segment. Volatile, since it writes what is there, and is to touch the page.
            unsafe { segment.0.add(slot).write_volatile(VACANT) };
        }
        Self(segment)
    }

    fn take(mut self) -> Segment {
        mem::replace(&mut self.0, Segment::vacant())
    }
}

impl Drop for SpareSegment {
    fn drop(&mut self) {
        self.0.release(SEGMENT);
    }
}

/// What segments without slots of their own are read from. Never written; atomic only so that it is not in the program
/// file, which it would make 32 KB longer.
static ALL_VACANT: [AtomicU64; SEGMENT] = [const { AtomicU64::new(VACANT) }; SEGMENT];

// SAFETY: a segment owns its slots, or refers to zeroes that nobody writes.
unsafe impl Send for Segment {}

impl Segment {
    fn vacant() -> Self {
        Self(NonNull::from(&ALL_VACANT).cast())
    }

    fn is_vacant(&self) -> bool {
        self.0 == Self::vacant().0
    }

    /// Gives it slots of its own, all vacant.
    fn allocate(&mut self, slots: usize) {
        debug_assert!(self.is_vacant());
        // Zeroes asked from the allocator as such, which has them at hand as a rule.
        let slots = vec![VACANT; slots].into_boxed_slice();
        self.0 = NonNull::from(Box::leak(slots)).cast();
    }

    /// Releases its `slots` slots, all vacant now.
    fn release(&mut self, slots: usize) {
        if !self.is_vacant() {
            let slots = ptr::slice_from_raw_parts_mut(self.0.as_ptr(), slots);
            // SAFETY: leaked in `allocate` from a box of this length, and not used any more.
            drop(unsafe { Box::from_raw(slots) });
            *self = Self::vacant();
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let slots = self.segment_slots();
        self.segments.iter_mut().for_each(|segment| segment.release(slots));
    }
}

impl Table {
    pub(super) fn new(bits: u32) -> Self {
        let slots = 1usize << bits;
        let segments = (0..slots.div_ceil(SEGMENT)).map(|_| Segment::vacant()).collect();
        Self { segments, mask: slots - 1, shift: 32 - bits, allocated: 0, spare: Vec::new() }
    }

    /// Spare segments that it could use.
    pub(super) fn wants_spare(&self) -> usize {
        let most = SPARE.min(self.segments.len() - self.allocated);
        if self.slots() > SEGMENT { most.saturating_sub(self.spare.len()) } else { 0 }
    }

    pub(super) fn put_by(&mut self, spare: SpareSegment) {
        self.spare.push(spare);
    }

    /// Takes over the spare segments of a table that is being left, if it has use for them.
    pub(super) fn take_spare(&mut self, of: &mut Self) {
        if self.slots() > SEGMENT {
            self.spare = mem::take(&mut of.spare);
        }
    }

    pub(super) fn slots(&self) -> usize {
        if self.segments.is_empty() { 0 } else { self.mask + 1 }
    }

    fn segment_slots(&self) -> usize {
        self.slots().min(SEGMENT)
    }

    /// Binary logarithm of the slots; 0 for a table that has none.
    pub(super) fn bits(&self) -> u32 {
        if self.segments.is_empty() { 0 } else { 32 - self.shift }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let slots = self.allocated * self.segment_slots() + self.spare.len() * SEGMENT;
        size_of_val(&*self.segments) + slots * size_of::<u64>()
    }

    /// A slot of the table, if it has any.
    #[inline(always)]
    pub(super) fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    /// # Safety
    /// The table has slots, and `slot` is at most `mask`.
    #[inline(always)]
    unsafe fn place(&self, slot: usize) -> *mut u64 {
        debug_assert!(slot < self.slots());
        // SAFETY: by the caller's promise the segment exists and has the slot (a vacant one is as long as any).
        unsafe { self.segments.get_unchecked(slot / SEGMENT).0.as_ptr().add(slot % SEGMENT) }
    }

    /// # Safety
    /// As [`Table::place`].
    #[inline(always)]
    pub(super) unsafe fn at(&self, slot: usize) -> u64 {
        // SAFETY: the caller's promise; initialised when the segment was made.
        unsafe { *self.place(slot) }
    }

    /// # Safety
    /// As [`Table::place`].
    pub(super) unsafe fn set(&mut self, slot: usize, entry: u64) {
        let slots = self.segment_slots();
        let segment = &mut self.segments[slot / SEGMENT];
        if segment.is_vacant() {
            match self.spare.pop_if(|_| slots == SEGMENT) {
                Some(spare) => *segment = spare.take(),
                None => segment.allocate(slots),
            }
            self.allocated += 1;
        }
        // SAFETY: the caller's promise, and the segment is our own.
        unsafe { *self.place(slot) = entry };
    }

    /// Releases a segment of which all slots are vacant.
    pub(super) fn release(&mut self, segment: usize) {
        let slots = self.segment_slots();
        let segment = &mut self.segments[segment];
        if !segment.is_vacant() {
            segment.release(slots);
            self.allocated -= 1;
        }
    }

    #[cfg(test)]
    pub(super) fn counts_its_segments(&self) -> bool {
        self.segments.iter().filter(|segment| !segment.is_vacant()).count() == self.allocated
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> impl Iterator<Item = u64> {
        // SAFETY: below the number of slots.
        (0..self.slots()).map(|slot| unsafe { self.at(slot) }).filter(|&entry| entry != VACANT)
    }

    #[inline(always)]
    pub(super) fn find(&self, hash: u32, eq: &mut impl FnMut(u32) -> bool) -> Option<(usize, u32)> {
        if self.mask == 0 {
            return None;
        }
        let mut slot = self.home(hash);
        loop {
            // SAFETY: the table has slots; a home, and what is masked, is one of them.
            let entry = unsafe { self.at(slot) };
            if hash_of(entry) == hash && entry != VACANT && eq(index_of(entry)) {
                return Some((slot, index_of(entry)));
            }
            if entry == VACANT {
                return None;
            }
            slot = (slot + 1) & self.mask;
        }
    }

    /// The table has slots.
    pub(super) fn vacant_from(&self, hash: u32) -> usize {
        let mut slot = self.home(hash);
        // SAFETY: as in `find`.
        while unsafe { self.at(slot) } != VACANT {
            slot = (slot + 1) & self.mask;
        }
        slot
    }

    /// The table has slots.
    pub(super) fn put(&mut self, entry: u64) {
        let slot = self.vacant_from(hash_of(entry));
        // SAFETY: as in `find`.
        unsafe { self.set(slot, entry) };
    }

    /// Empties `slot`, moving up what only it made reachable; returns the slot vacant in the end.
    pub(super) fn take(&mut self, slot: usize) -> usize {
        let (mut hole, mut slot) = (slot, slot);
        loop {
            slot = (slot + 1) & self.mask;
            // SAFETY: as in `find`.
            let entry = unsafe { self.at(slot) };
            if entry == VACANT {
                break;
            }
            let from_home = slot.wrapping_sub(self.home(hash_of(entry))) & self.mask;
            if from_home >= (slot.wrapping_sub(hole) & self.mask) + usize::from(mutant("map-hole"))
            {
                // SAFETY: as in `find`.
                unsafe { self.set(hole, entry) };
                hole = slot;
            }
        }
        // SAFETY: as in `find`.
        unsafe { self.set(hole, VACANT) };
        hole
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        if self.mask > 0 {
            // SAFETY: as in `find`.
            crate::sync::prefetch(unsafe { self.place(self.home(hash)) });
        }
    }
}
