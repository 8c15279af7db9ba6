//! A lane: the private ingress of one producer into one shard. No read-modify-write, order per lane only.
//!
//! | who | may touch |
//! |---|---|
//! | the producer | cells from `tail` to `head + capacity`, `tail`, `pushing` |
//! | claim holder | cells from `head` to `tail`, `head` |
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | publish (store tail) | Release | load of the tail | models::lane `order`, mutant `lane-publish-relaxed` |
//! | read (load tail) | Acquire | publish | models::lane `order`, mutant `lane-read-relaxed` |
//! | give back (store head) | Release | full test | models::lane `order`, mutant `lane-head-relaxed` |
//! | full test (load head) | Acquire | give back | models::lane `order`, mutant `lane-full-relaxed` |
//! | retire (store) | Release | `is_spent` | models::lane `retire`, mutant `lane-retire-relaxed` |
//! | end of a push (store `pushing`) | Release | `settle` | models::lane `close`, mutant `lane-end-relaxed` |
//! | publish, barrier or fence, load of the shard's flag | fence | IDLE, barrier or fence, load of the tail | shard/fenced.rs |
//! | `pushing`, light barrier, load of the status | fence | close: status, heavy barrier, wait for `pushing` to end | models::lane `close`, the same mutants |
//!
//! The last line makes the count of accepted tasks exact: after it no lane of the engine grows.
//!
//! Cost: three plain stores a record where the barrier is asymmetric. Wait-free until the lane is full.

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use super::records::Records;
use crate::outcome::drop_quietly;
use crate::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell, mutant, yield_now};

#[derive(Debug)]
struct Cell<K, T> {
    hash: UnsafeCell<u32>,
    key: UnsafeCell<MaybeUninit<K>>,
    task: UnsafeCell<MaybeUninit<T>>,
}

#[derive(Debug)]
struct ProducerSide {
    tail: AtomicU64,
    pushing: AtomicBool,
    retired: AtomicBool,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Lane<K, T> {
    producer: CachePadded<ProducerSide>,
    head: CachePadded<AtomicU64>,
    cells: Box<[Cell<K, T>]>,
    mask: u64,
}

// SAFETY: a cell is touched by one side at a time (table in the module text).
unsafe impl<K: Send, T: Send> Sync for Lane<K, T> {}
// SAFETY: the lane owns its records.
unsafe impl<K: Send, T: Send> Send for Lane<K, T> {}

impl<K, T> Lane<K, T> {
    /// A lane of `capacity` cells, a power of two.
    pub(crate) fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two());
        let cells = (0..capacity).map(|_| Cell {
            hash: UnsafeCell::new(0),
            key: UnsafeCell::new(MaybeUninit::uninit()),
            task: UnsafeCell::new(MaybeUninit::uninit()),
        });
        Self {
            producer: CachePadded::new(ProducerSide {
                tail: AtomicU64::new(0),
                pushing: AtomicBool::new(false),
                retired: AtomicBool::new(false),
            }),
            head: CachePadded::new(AtomicU64::new(0)),
            cells: cells.collect(),
            mask: capacity as u64 - 1,
        }
    }

    /// A lane without a cell, which is full for ever: its producer takes the slower path, where another way in is found for it.
    /// Nobody else knows it.
    pub(crate) fn shut() -> Self {
        let mut lane = Self::new(1);
        lane.cells = Box::default();
        lane.producer.tail.store(1, Ordering::Relaxed);
        lane
    }

    fn cell(&self, position: u64) -> &Cell<K, T> {
        // SAFETY: the mask keeps the index below the number of cells.
        unsafe { self.cells.get_unchecked((position & self.mask) as usize) }
    }

    /// Producer: starts a push. The caller then pays the light barrier and looks at the status.
    #[inline]
    pub(crate) fn begin(&self) {
        self.producer.pushing.store(true, Ordering::Relaxed);
    }

    /// Producer: the push is over, done or not.
    #[inline]
    pub(crate) fn end(&self) {
        // ORDERING: Release: whoever sees the push ended (close) sees the tail that it left.
        let order = if mutant("lane-end-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.producer.pushing.store(false, order);
    }

    /// Producer, between `begin` and `end`: one record. `false`: the lane is full, and `record` was not asked. It only moves
    /// values. `head` is the producer's copy of the head.
    #[inline(always)]
    pub(crate) fn push_with(
        &self,
        head: &mut u64,
        hash: u32,
        record: impl FnOnce() -> (K, T),
    ) -> bool {
        let tail = self.producer.tail.load(Ordering::Relaxed);
        if tail - *head > self.mask + u64::from(mutant("lane-one-too-many")) {
            // ORDERING: Acquire pairs with the Release of `give_back`.
            let order =
                if mutant("lane-full-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
            *head = self.head.load(order);
            if tail - *head > self.mask {
                return false;
            }
        }
        let (key, task) = record();
        let cell = self.cell(tail);
        // SAFETY: the cell is behind the head by less than the capacity: the producer's.
        cell.hash.with_mut(|slot| unsafe { *slot = hash });
        // SAFETY: as above.
        cell.key.with_mut(|slot| unsafe { (*slot).write(key) });
        // SAFETY: as above.
        cell.task.with_mut(|slot| unsafe { (*slot).write(task) });
        // ORDERING: Release publishes the cell to the claim holder's Acquire load in `tail`.
        let order =
            if mutant("lane-publish-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.producer.tail.store(tail + 1, order);
        true
    }

    /// As [`Lane::push_with`]; a record for which there is no room comes back.
    #[cfg(any(loom, fuzzing))]
    pub(crate) fn push(&self, head: &mut u64, hash: u32, key: K, task: T) -> Result<(), (K, T)> {
        let mut record = Some((key, task));
        self.push_with(head, hash, || record.take().expect("asked once"));
        record.map_or(Ok(()), Err)
    }

    /// The number of records ever pushed.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `push`.
        let order = if mutant("lane-read-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        self.producer.tail.load(order)
    }

    /// The number of records ever taken.
    pub(crate) fn head(&self) -> u64 {
        // ORDERING: Acquire, as in `push`.
        self.head.load(Ordering::Acquire)
    }

    /// Claim holder: the records below `end`, which is not above the tail.
    pub(crate) fn up_to(&self, end: u64) -> Published<'_, K, T> {
        Published { cells: &self.cells, mask: self.mask, end }
    }

    /// Claim holder: all positions below `head` are free again.
    pub(crate) fn give_back(&self, head: u64) {
        // ORDERING: Release pairs with the Acquire load of the head in `push`.
        let order = if mutant("lane-head-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.head.store(head, order);
    }

    /// Claim holder that gave back all below `head`: a quarter of the lane or more is free (see flow/gate.rs).
    pub(crate) fn has_room(&self, head: u64, tail: u64) -> bool {
        tail - head <= (self.mask + 1) / 4 * 3
    }

    /// The producer is gone: the lane may be removed once it is empty.
    pub(crate) fn retire(&self) {
        // ORDERING: Release: the last push comes before it.
        let order =
            if mutant("lane-retire-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.producer.retired.store(true, order);
    }

    /// The producer is gone and everything was taken.
    pub(crate) fn is_spent(&self) -> bool {
        // ORDERING: Acquire pairs with the Release of `retire`.
        self.producer.retired.load(Ordering::Acquire) && self.tail() == self.head()
    }

    /// Close, after the status and a heavy barrier: waits until no push is under way. A push has no user code in it.
    pub(crate) fn settle(&self) {
        // ORDERING: Acquire pairs with the Release of `end`.
        while self.producer.pushing.load(Ordering::Acquire) {
            yield_now();
        }
    }
}

/// The records of a lane that are known to be published.
#[derive(Debug)]
pub(crate) struct Published<'a, K, T> {
    cells: &'a [Cell<K, T>],
    mask: u64,
    end: u64,
}

impl<K, T> Published<'_, K, T> {
    #[inline(always)]
    fn cell(&self, position: u64) -> &Cell<K, T> {
        // SAFETY: the mask keeps the index below the number of cells.
        unsafe { self.cells.get_unchecked((position & self.mask) as usize) }
    }
}

impl<K, T> Records<K, T> for Published<'_, K, T> {
    #[inline(always)]
    fn peek(&self, position: u64) -> Option<(u32, bool)> {
        // SAFETY: published and not given back: the claim holder's.
        (position < self.end)
            .then(|| (self.cell(position).hash.with(|slot| unsafe { *slot }), false))
    }

    #[inline(always)]
    unsafe fn key(&self, position: u64) -> &K {
        // SAFETY: the caller's promise.
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

impl<K, T> Drop for Lane<K, T> {
    fn drop(&mut self) {
        if self.cells.is_empty() {
            return;
        }
        let records = self.up_to(self.tail());
        for position in self.head()..records.end {
            // SAFETY: exclusive; between head and tail, once.
            let (key, task) = unsafe { (records.take_key(position), records.take_task(position)) };
            drop_quietly(key);
            drop_quietly(task);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_shut_lane_is_full_for_ever() {
        let lane = Lane::<u64, String>::shut();
        for _ in 0..3 {
            assert!(!lane.push_with(&mut 0, 1, || unreachable!("full")));
        }
    }

    #[test]
    fn records_come_out_in_order_across_the_wraps_of_narrower_numbers() {
        for start in [0, (1 << 16) - 3, (1 << 31) - 3, (1 << 32) - 3, (1 << 63) - 3] {
            for capacity in [1, 2, 8] {
                let lane = Lane::<u64, String>::new(capacity);
                lane.producer.tail.store(start, Ordering::Relaxed);
                lane.head.store(start, Ordering::Relaxed);
                let (mut known, mut head, mut next) = (start, start, 0u64);
                for round in 0..60 {
                    // The producer's copy of the head is as old as it may be: only a full lane makes it look.
                    while lane.push_with(&mut known, next as u32, || (next, next.to_string())) {
                        next += 1;
                    }
                    assert_eq!(lane.tail() - lane.head(), capacity as u64, "full");
                    for _ in 0..=round % capacity {
                        let (n, records) = (head - start, lane.up_to(lane.tail()));
                        assert_eq!(records.peek(head), Some((n as u32, false)));
                        // SAFETY: between head and tail, once.
                        let record = unsafe { (records.take_key(head), records.take_task(head)) };
                        assert_eq!(record, (n, n.to_string()));
                        head += 1;
                    }
                    lane.give_back(head);
                }
            }
        }
    }
}
