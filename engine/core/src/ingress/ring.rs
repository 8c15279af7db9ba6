//! The ingress of a shard: a bounded ring with many producers and one consumer at a time (the claim holder).
//!
//! ```text
//!        head (published once a chunk)            tail (reserve position, bit 63 = CLOSED)
//!          v                                        v
//! ... | free | record | record | reserved | record | free | free | ...
//!              ^ turn = position + 1: published      reserved but not yet published: the consumer stops here
//! ```
//!
//! A producer reserves a position with one compare-and-swap on `tail`, writes the cell, and publishes it by storing
//! the cell's turn. The consumer reads cells in position order and stops at the first that is not published, so
//! the order of the reservations is the order of execution: if a submit returned before another began, its position
//! is the smaller one, on whatever thread (row E1).
//!
//! | who | may touch |
//! |---|---|
//! | producer between reserve and publish | the cells of its positions |
//! | claim holder | published cells from `head` on |
//! | nobody | all other cells |
//!
//! Invariants:
//!
//! * **I1** A position is reserved once, and never after CLOSED is set: the tail then is the exact number of
//!   accepted records.
//! * **I2** A cell is written only when `position - head < capacity`, that is after the consumer gave it back.
//! * **I3** No user code runs between reserve and publish (no `Clone`, `Drop`, `Hash`), so the window is a handful
//!   of instructions and a producer cannot die in it.
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | reserve (CAS tail) | SeqCst | load of the tail in the shard's idle rule | models::ring `idle`, mutant `ring-reserve-relaxed` |
//! | publish (store turn) | Release | load turn | models::ring `order`, mutant `ring-publish-relaxed` |
//! | read (load turn) | Acquire | publish | models::ring `order`, mutant `ring-read-relaxed` |
//! | give back (store head) | Release | load head of a producer | models::ring `order`, mutant `ring-head-relaxed` |
//! | full test (load head) | Acquire | give back | models::ring `order`, mutant `ring-full-relaxed` |
//! | close (set CLOSED) | RMW | reserve: both change the one word, so the tail then is exact | models::ring `close`, mutant `ring-close-by-store` |
//!
//! Positions are u64 and never wrap in practice; turns are 31 bits of them. The tail that a producer loaded may be older
//! than the head, and then their difference is huge, as it is when the tail has its CLOSED bit: one comparison finds all three
//! cases in which nothing can be reserved at once, and the cold path tells them apart.
//!
//! Cost: one RMW a record, or one for many with [`Ring::reserve`]. Lock-free: a producer that is preempted between
//! reserve and publish delays the records of its shard only.

use std::{mem::MaybeUninit, ptr};

use crossbeam_utils::CachePadded;

use super::records::Records;
use crate::{
    outcome::drop_quietly,
    sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, mutant, prefetch_write, seqcst_for_loom},
};

/// How far ahead of its reservation a producer asks for lines.
const CELLS_AHEAD: usize = 4;

/// Bit by which the turn of a record with a ticket differs from that of any other: who reads records in order finds no
/// record there, and asks again ([`Ring::is_tracked`]).
const TRACKED: u32 = 1 << 31;

/// Bit of the tail that refuses further reservations.
const CLOSED: u64 = 1 << 63;

/// To which group a record belongs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address<K> {
    /// By key, with the 32 hash bits that the shard's map uses.
    Key(u32, K),
    /// By the index of a group that a live handle pins.
    Group(u32),
}

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

#[repr(C)]
#[derive(Debug)]
struct Cell<K, T> {
    /// `(position + 1) << 1 | by_group`, in 32 bits; differs from the turn of the lap before. With a ticket the top bit is the
    /// other one: the turn of no position for 2^30 others.
    turn: AtomicU32,
    /// Hash bits or group index.
    mark: UnsafeCell<u32>,
    key: UnsafeCell<MaybeUninit<K>>,
    task: UnsafeCell<MaybeUninit<T>>,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Ring<K, T> {
    tail: CachePadded<AtomicU64>,
    head: CachePadded<AtomicU64>,
    cells: Box<[Cell<K, T>]>,
    mask: u64,
}

// SAFETY: a cell is touched by one thread at a time (table in the module text); keys and tasks move between threads.
unsafe impl<K: Send, T: Send> Sync for Ring<K, T> {}
// SAFETY: the ring owns its records.
unsafe impl<K: Send, T: Send> Send for Ring<K, T> {}

const fn turn_of(position: u64) -> u32 {
    ((position.wrapping_add(1)) << 1) as u32
}

impl<K, T> Ring<K, T> {
    /// A ring of `capacity` cells (a power of two) whose first position is `start` (tests start near a wrap).
    pub(crate) fn new(capacity: usize, start: u64) -> Self {
        assert!(capacity.is_power_of_two() && capacity <= 1 << 24);
        let mask = capacity as u64 - 1;
        let cells = (0..capacity as u64).map(|i| Cell {
            // Any value but the turn of the first lap's position will do: the one of a lap before it.
            turn: AtomicU32::new(turn_of(
                start.wrapping_add(i.wrapping_sub(start) & mask).wrapping_sub(mask + 1),
            )),
            mark: UnsafeCell::new(0),
            key: UnsafeCell::new(MaybeUninit::uninit()),
            task: UnsafeCell::new(MaybeUninit::uninit()),
        });
        Self {
            tail: CachePadded::new(AtomicU64::new(start)),
            head: CachePadded::new(AtomicU64::new(start)),
            cells: cells.collect(),
            mask,
        }
    }

    #[inline(always)]
    fn cell(&self, position: u64) -> &Cell<K, T> {
        // SAFETY: the mask keeps the index below the number of cells.
        unsafe { self.cells.get_unchecked((position & self.mask) as usize) }
    }

    /// Reserves up to `want` positions in a row: the first one and how many. The caller writes and publishes each
    /// of them at once, with no user code in between (I3).
    #[inline(always)]
    pub(crate) fn reserve(&self, want: u32) -> Result<(u64, u32), Refused> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            // ORDERING: Acquire pairs with the Release of `give_back`: the consumer has left the cells below.
            let order =
                if mutant("ring-full-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
            let used = tail.wrapping_sub(self.head.load(order));
            // One comparison for three cases: a closed tail, and one that is older than the head, are far above too.
            if used > self.mask + u64::from(mutant("ring-one-too-many")) {
                tail = self.look_again(tail, used)?;
                continue;
            }
            let n = if want == 1 { 1 } else { (self.mask + 1 - used).min(u64::from(want)) };
            // ORDERING: SeqCst: the store of the store-load race with a shard that goes idle (shard/flag.rs): the
            // claim holder stores IDLE and loads the tail, we store the tail and load the flag.
            let order =
                if mutant("ring-reserve-relaxed") { Ordering::Relaxed } else { Ordering::SeqCst };
            match self.tail.compare_exchange_weak(tail, tail + n, order, Ordering::Relaxed) {
                Ok(_) => {
                    if !mutant("ring-reserve-relaxed") {
                        seqcst_for_loom();
                    }
                    // The consumer has read the cells ahead a lap ago: their lines come back while we do other things.
                    // The last cells of a lap ask for what lies behind the ring, which is as good as nothing.
                    let ahead = ptr::from_ref(self.cell(tail));
                    prefetch_write(ahead.wrapping_add(n as usize + CELLS_AHEAD));
                    return Ok((tail, n as u32));
                }
                Err(now) => tail = now,
            }
        }
    }

    /// A producer whose tail is closed, full, or older than the head: the tail to go on with.
    #[cold]
    fn look_again(&self, tail: u64, used: u64) -> Result<u64, Refused> {
        if tail & CLOSED != 0 {
            return Err(Refused::Closed);
        }
        let now = self.tail.load(Ordering::Relaxed);
        if now == tail && (used as i64) >= 0 { Err(Refused::Full) } else { Ok(now) }
    }

    /// Writes and publishes one reserved position.
    ///
    /// # Safety
    /// `position` came from [`Ring::reserve`] of this caller and is filled once.
    #[inline(always)]
    pub(crate) unsafe fn fill(&self, position: u64, address: Address<K>, task: T) {
        // SAFETY: the caller's promise.
        unsafe { self.fill_as(position, address, task, 0) }
    }

    /// As [`Ring::fill`], with a flag in the turn.
    ///
    /// # Safety
    /// As [`Ring::fill`].
    #[inline(always)]
    unsafe fn fill_as(&self, position: u64, address: Address<K>, task: T, flag: u32) {
        let cell = self.cell(position);
        let mut turn = turn_of(position) ^ flag;
        match address {
            Address::Key(hash, key) => {
                // SAFETY: the position is ours alone until published (I1, I2).
                cell.mark.with_mut(|mark| unsafe { mark.write(hash) });
                // SAFETY: as above.
                cell.key.with_mut(|slot| unsafe { (*slot).write(key) });
            }
            Address::Group(index) => {
                // SAFETY: as above.
                cell.mark.with_mut(|mark| unsafe { mark.write(index) });
                turn |= 1;
            }
        }
        // SAFETY: as above.
        cell.task.with_mut(|slot| unsafe { (*slot).write(task) });
        // ORDERING: Release publishes the cell to the claim holder's Acquire load in `peek`.
        let order =
            if mutant("ring-publish-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        cell.turn.store(turn, order);
    }

    /// One record, or the record back with the reason.
    #[inline]
    pub(crate) fn push(
        &self,
        address: Address<K>,
        task: T,
    ) -> Result<(), (Address<K>, T, Refused)> {
        match self.reserve(1) {
            Ok((position, _)) => {
                // SAFETY: just reserved, filled once.
                unsafe { self.fill(position, address, task) };
                Ok(())
            }
            Err(refused) => Err((address, task, refused)),
        }
    }

    /// One record with a ticket, of which `note` hears the position before the record is published. `note` is engine code
    /// that only moves values (I3).
    #[cold]
    pub(crate) fn push_tracked(
        &self,
        address: Address<K>,
        task: T,
        note: impl FnOnce(u64),
    ) -> Result<(), (Address<K>, T, Refused)> {
        match self.reserve(1) {
            Ok((position, _)) => {
                note(position);
                // SAFETY: just reserved, filled once.
                unsafe { self.fill_as(position, address, task, TRACKED) };
                Ok(())
            }
            Err(refused) => Err((address, task, refused)),
        }
    }

    /// Claim holder: the record at `position` is published and has a ticket. Its mark, and whether that is by group.
    pub(crate) fn peek_tracked(&self, position: u64) -> Option<(u32, bool)> {
        let cell = self.cell(position);
        // ORDERING: Acquire pairs with the Release of `fill_as`.
        let turn = cell.turn.load(Ordering::Acquire);
        if turn & !1 != turn_of(position) ^ TRACKED {
            return None;
        }
        // SAFETY: published and not given back: the claim holder's.
        Some((cell.mark.with(|mark| unsafe { *mark }), turn & 1 == 1))
    }

    /// Claim holder: the record at `position` is published, with a ticket or without.
    pub(crate) fn is_published(&self, position: u64) -> bool {
        self.peek(position).or_else(|| self.peek_tracked(position)).is_some()
    }

    /// Claim holder: all positions below `head` are free again. Blocked submitters are looked for next, behind a
    /// fence (`Gate::notify`).
    #[inline]
    pub(crate) fn give_back(&self, head: u64) {
        // ORDERING: Release pairs with the Acquire load of the head in `reserve`.
        let order = if mutant("ring-head-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.head.store(head, order);
    }

    /// Claim holder that gave back all below `head`: a quarter of the ring or more is free (see flow/gate.rs).
    pub(crate) fn has_room(&self, head: u64) -> bool {
        let used = (self.tail.load(Ordering::Relaxed) & !CLOSED).wrapping_sub(head);
        used <= (self.mask + 1) / 4 * 3
    }

    /// The position up to which records are given back.
    pub(crate) fn head(&self) -> u64 {
        // ORDERING: Acquire, as in `reserve`.
        self.head.load(Ordering::Acquire)
    }

    /// The next position to reserve, and whether the ring is closed.
    #[inline]
    pub(crate) fn tail(&self) -> (u64, bool) {
        // ORDERING: SeqCst: the load of the store-load race with a producer, see `reserve`.
        let tail = self.tail.load(Ordering::SeqCst);
        (tail & !CLOSED, tail & CLOSED != 0)
    }

    /// Refuses every reservation from now on (I1).
    pub(crate) fn close(&self) {
        if mutant("ring-close-by-store") {
            return self.tail.store(self.tail.load(Ordering::SeqCst) | CLOSED, Ordering::SeqCst);
        }
        // ORDERING: AcqRel: the reservations before it are those that count.
        self.tail.fetch_or(CLOSED, Ordering::AcqRel);
    }
}

/// What the claim holder reads of a ring: where its cells are never changes, so the reader has that at hand.
#[derive(Debug)]
pub(crate) struct Reader<'a, K, T> {
    cells: &'a [Cell<K, T>],
    mask: u64,
}

impl<K, T> Ring<K, T> {
    #[inline(always)]
    pub(crate) fn reader(&self) -> Reader<'_, K, T> {
        Reader { cells: &self.cells, mask: self.mask }
    }
}

impl<K, T> Reader<'_, K, T> {
    #[inline(always)]
    fn cell(&self, position: u64) -> &Cell<K, T> {
        // SAFETY: the mask keeps the index below the number of cells.
        unsafe { self.cells.get_unchecked((position & self.mask) as usize) }
    }
}

impl<K, T> Records<K, T> for Reader<'_, K, T> {
    #[inline(always)]
    fn peek(&self, position: u64) -> Option<(u32, bool)> {
        let cell = self.cell(position);
        // ORDERING: Acquire pairs with the Release of `fill`.
        let order = if mutant("ring-read-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        let turn = cell.turn.load(order);
        if turn & !1 != turn_of(position) {
            return None;
        }
        // SAFETY: published and not given back: the claim holder's.
        Some((cell.mark.with(|mark| unsafe { *mark }), turn & 1 == 1))
    }

    #[inline(always)]
    unsafe fn key(&self, position: u64) -> &K {
        // SAFETY: the caller's promise: published by key, and not taken.
        self.cell(position).key.with(|key| unsafe { (*key).assume_init_ref() })
    }

    #[inline(always)]
    unsafe fn take_key(&self, position: u64) -> K {
        // SAFETY: the caller's promise.
        self.cell(position).key.with(|key| unsafe { (*key).assume_init_read() })
    }

    #[inline(always)]
    unsafe fn take_task(&self, position: u64) -> T {
        // SAFETY: the caller's promise.
        self.cell(position).task.with(|task| unsafe { (*task).assume_init_read() })
    }
}

/// One record looked at, where no run of them is read.
impl<K, T> Records<K, T> for Ring<K, T> {
    #[inline]
    fn peek(&self, position: u64) -> Option<(u32, bool)> {
        self.reader().peek(position)
    }

    #[inline]
    unsafe fn key(&self, position: u64) -> &K {
        // SAFETY: the caller's promise: published by key, and not taken.
        self.cell(position).key.with(|key| unsafe { (*key).assume_init_ref() })
    }

    #[inline]
    unsafe fn take_key(&self, position: u64) -> K {
        // SAFETY: the caller's promise.
        unsafe { self.reader().take_key(position) }
    }

    #[inline]
    unsafe fn take_task(&self, position: u64) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.reader().take_task(position) }
    }
}

impl<K, T> Drop for Ring<K, T> {
    fn drop(&mut self) {
        // Exclusive: no producer is between reserve and publish, so records run from the head to the first gap.
        let mut position = self.head();
        while let Some((_, by_group)) = self.peek(position).or_else(|| self.peek_tracked(position))
        {
            if !by_group {
                // SAFETY: published by key, taken once.
                drop_quietly(unsafe { self.take_key(position) });
            }
            // SAFETY: published, taken once.
            drop_quietly(unsafe { self.take_task(position) });
            position += 1;
            if position - self.head() > self.mask || mutant("ring-drops-one") {
                break;
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn take(ring: &Ring<u64, String>, position: u64) -> Option<(u64, String)> {
        let (mark, by_group) = ring.peek(position)?;
        // SAFETY: peek has shown it, and each test takes a position once.
        unsafe {
            let key = if by_group { u64::from(mark) } else { ring.take_key(position) };
            Some((key, ring.take_task(position)))
        }
    }

    #[test]
    fn records_come_out_in_the_order_of_their_reservations_across_every_wrap() {
        for start in [0, (1 << 31) - 3, (1 << 32) - 3, (1 << 62) - 3] {
            let ring = Ring::new(4, start);
            let mut head = start;
            for i in 0..40u64 {
                let address =
                    if i % 3 == 0 { Address::Group(i as u32) } else { Address::Key(7, i) };
                ring.push(address, i.to_string()).expect("room");
                if i % 2 == 1 {
                    for wanted in [i - 1, i] {
                        assert_eq!(take(&ring, head), Some((wanted, wanted.to_string())));
                        head += 1;
                    }
                    assert_eq!(take(&ring, head), None);
                    ring.give_back(head);
                }
            }
        }
    }

    #[test]
    fn a_full_ring_hands_the_record_back_and_a_closed_one_too() {
        let ring = Ring::new(2, 0);
        ring.push(Address::Key(0, 1u64), "a".to_owned()).unwrap();
        ring.push(Address::Key(0, 2), "b".to_owned()).unwrap();
        let (address, task, why) = ring.push(Address::Key(0, 3), "c".to_owned()).unwrap_err();
        assert_eq!((address, task.as_str(), why), (Address::Key(0, 3), "c", Refused::Full));
        assert_eq!(take(&ring, 0), Some((1, "a".to_owned())));
        ring.give_back(1);
        ring.close();
        assert_eq!(ring.push(Address::Key(0, 3), String::new()).unwrap_err().2, Refused::Closed);
        assert_eq!(ring.tail(), (2, true));
    }

    #[test]
    fn a_reserved_gap_hides_what_comes_after_it() {
        // Recipe R3 (hew #3018): the consumer neither takes the gap nor passes it.
        let ring = Ring::new(4, 0);
        let (gap, _) = ring.reserve(1).unwrap();
        ring.push(Address::Key(0, 2u64), "second".to_owned()).unwrap();
        assert_eq!(take(&ring, 0), None);
        assert_eq!(ring.tail().0, 2, "the idle rule sees that a record is under way");
        // SAFETY: reserved above, filled once.
        unsafe { ring.fill(gap, Address::Key(0, 1), "first".to_owned()) };
        assert_eq!(take(&ring, 0), Some((1, "first".to_owned())));
        assert_eq!(take(&ring, 1), Some((2, "second".to_owned())));
        ring.give_back(2);
    }

    #[test]
    fn dropping_a_ring_drops_what_it_holds() {
        let witness = std::sync::Arc::new(());
        let ring = Ring::new(4, 6);
        for _ in 0..4 {
            ring.push(Address::Key(0, witness.clone()), witness.clone()).unwrap();
        }
        drop(ring);
        assert_eq!(std::sync::Arc::strong_count(&witness), 1);
    }
}
