//! The queue of one group: segments linked into a single-producer, single-consumer ring that an idle group gives up.
//!
//! The producer is the claim holder of the group's shard, the consumer the holder of the group's run token. Neither
//! side publishes an index: the count in the group's word says how many tasks the consumer may read
//! (group/state.rs), so the ring needs no atomic at all; the head is one for the watch ([`Head::glance`]).
//!
//! ```text
//!  consumer: head = (segment, index)             producer: tail = (segment, index)
//!       v                                             v
//!  [ - - t t t t t t ] -> [ t t t t t t t t ] -> [ t t t . . . ]     8, 16, 32, ... 256 slots
//! ```
//!
//! | group | segments | who may touch `tail` | who may touch `head` |
//! |---|---|---|---|
//! | idle | none, or one that the claim holder may rewind or take | claim holder | claim holder |
//! | busy | one or more | claim holder | token holder |
//!
//! What only a busy group needs (its trouble, the time since when it lingers) stands in the segment of its head and
//! moves on with it, so that an idle group does not pay for it.
//!
//! Invariants:
//!
//! * **I1** The slots from `head` over `count` tasks are initialised, all others are not.
//! * **I2** In an idle group `head` and `tail` stand in the same segment at the same index.
//! * **I3** `next` of a segment is written by the producer before the publish that makes its first task countable.

use std::sync::atomic::Ordering;

use super::{
    place::{Cell, Place},
    segment::{CLASSES, Pool, Segment},
};
use crate::{outcome::Trouble, sync::mutant};

/// One end of a group's ring, in 8 bytes: two of them stand in every control block, idle or not.
#[repr(transparent)]
pub(crate) struct End<T>(Place<T>);

impl<T> std::fmt::Debug for End<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}[{}]", self.0.segment(), self.0.index())
    }
}

impl<T> Clone for End<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for End<T> {}

/// Where a task lies, to be compared with. Stays the task's own until it is settled, unless a dispatch moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    segment: usize,
    index: u32,
}

impl<T> End<T> {
    pub(crate) const fn detached() -> Self {
        Self(Place::NOWHERE)
    }

    pub(crate) fn is_detached(self) -> bool {
        self.0.segment().is_null()
    }

    /// The first slot of this end's segment, of which there is one.
    pub(crate) fn start(self) -> Self {
        Self(self.0.with_index(0))
    }

    /// Claim holder of an idle group with a segment: both ends to the first slot.
    pub(crate) fn rewind(tail: &mut End<T>, head: &mut End<T>) {
        debug_assert!(tail.0 == head.0, "I2");
        *tail = tail.start();
        *head = *tail;
    }

    /// The first slot of a segment from the pool: both ends of a group that had none.
    #[inline]
    pub(crate) fn attached(pool: &mut Pool<T>) -> Self {
        Self(Place::start_of(pool.take(0), 0))
    }

    /// Claim holder of an idle group, which loses its segment: the first slot of one for another group, the same if it is
    /// of the smallest size.
    #[inline]
    pub(crate) fn hand_over(tail: &mut End<T>, head: &mut End<T>, pool: &mut Pool<T>) -> Self {
        let given = tail.start();
        if given.is_detached() || given.0.class() != 0 {
            Self::detach(tail, head, pool);
            return Self::attached(pool);
        }
        debug_assert!(tail.0 == head.0, "I2");
        debug_assert!(head.trouble().is_none(), "an idle group has no trouble");
        *tail = End::detached();
        *head = End::detached();
        given
    }

    /// Claim holder of a group with a segment: writes the next task, which the publish through the word makes countable.
    #[inline]
    pub(crate) fn push(&mut self, pool: &mut Pool<T>, task: T) {
        if self.0.is_at_end() {
            self.extend(pool);
        }
        // SAFETY: index is below the capacity, and the slot is the producer's until counted (I1).
        unsafe { Segment::slot(self.0.segment(), self.0.index()).write(task) };
        self.0.pass(1);
    }

    /// Links a larger segment behind the one that is used up.
    #[cold]
    fn extend(&mut self, pool: &mut Pool<T>) {
        let spent = self.0.segment();
        debug_assert!(!spent.is_null(), "a group that gets tasks has a segment");
        let class = (self.0.class() + 1).min(CLASSES as u8 - 1);
        let next = pool.take(class);
        // SAFETY: a segment is alive while it is reachable from the tail; `next` is read by the consumer only after a
        // later publish (I3).
        unsafe { (*spent).next = next };
        self.0 = Place::start_of(next, class);
    }

    /// Goes on to the next segment, which exists since a task behind this one is counted (I3). Returns the one that
    /// is used up.
    fn advance(&mut self) -> *mut Segment<T> {
        let spent = self.0.segment();
        // SAFETY: the segment and its successor are alive, see above.
        let next = unsafe { (*spent).next };
        // SAFETY: as above.
        self.0 = Place::start_of(next, unsafe { Segment::class(next) });
        spent
    }

    #[inline]
    fn rest(&self, most: u32) -> (*mut T, u32) {
        // SAFETY: the index is below the capacity of a segment that is alive.
        let slot = unsafe { Segment::slot(self.0.segment(), self.0.index()) };
        (slot, self.0.left().min(most))
    }

    /// Token holder: the contiguous run of at most `most` tasks at this end. At least one task must be counted.
    /// Segments that are used up go to `pool`.
    #[inline]
    pub(crate) fn run(&mut self, pool: &mut Pool<T>, most: u32) -> (*mut T, u32) {
        debug_assert!(most > 0);
        if self.0.is_at_end() {
            self.leave(pool);
        } else if mutant("segment-given-early") && self.0.left() == 1 {
            pool.give(self.0.segment());
        }
        self.rest(most)
    }

    /// The head goes on to the next segment, with what goes along.
    #[cold]
    fn leave(&mut self, pool: &mut Pool<T>) {
        let spent = self.advance();
        let here = self.0.segment();
        // SAFETY: both segments are alive, and their trouble and since are the token holder's.
        unsafe {
            (*here).since = (*spent).since;
            let stamp = (*spent).stamp.load(Ordering::Relaxed);
            (*here).stamp.store(stamp, Ordering::Relaxed);
            (*here).trouble = (*spent).trouble.take();
        }
        pool.give(spent);
    }

    /// Token holder: as [`End::run`], but leaves used-up segments in place (a look ahead of the head).
    #[inline]
    pub(crate) fn peek(&mut self, most: u32) -> (*mut T, u32) {
        if self.0.is_at_end() {
            self.advance();
        }
        self.rest(most)
    }

    /// Token holder: `n` tasks of the run that [`End::run`] or [`End::peek`] showed are passed.
    #[inline]
    pub(crate) fn pass(&mut self, n: u32) {
        self.0.pass(n);
    }

    /// Claim holder, at the tail: where the task that was pushed last lies.
    pub(crate) fn last(self) -> Spot {
        let (segment, index) = self.last_slot();
        Spot { segment: segment.addr(), index }
    }

    /// Claim holder, at the tail: the slot of the task that was pushed last.
    pub(super) fn last_slot(self) -> (*mut Segment<T>, u32) {
        debug_assert!(self.0.index() > 0, "something was pushed");
        (self.0.segment(), self.0.index() - 1)
    }

    /// Token holder, after [`End::peek`]: where the run begins.
    pub(super) fn place_of_run(self) -> (*mut Segment<T>, u32) {
        (self.0.segment(), self.0.index())
    }

    /// Token holder, at the head: how many of the first `most` tasks, all counted, are before the one at `spot`.
    pub(crate) fn offset_of(mut self, spot: Spot, most: u32) -> Option<u32> {
        let mut passed = 0;
        while passed < most {
            let (_, n) = self.peek(most - passed);
            let first = self.0.index();
            if self.0.segment().addr() == spot.segment && (first..first + n).contains(&spot.index) {
                return Some(passed + spot.index - first);
            }
            self.pass(n);
            passed += n;
        }
        None
    }

    /// Token holder, at the head: the marks of the tasks there.
    #[inline]
    pub(crate) fn trouble(&mut self) -> &mut Option<Box<Trouble>> {
        debug_assert!(!self.is_detached(), "a busy group has a segment");
        // SAFETY: the segment of the head is alive while the group is busy, and its trouble is the token holder's.
        unsafe { &mut (*self.0.segment()).trouble }
    }

    /// Token holder, at the head: since when its oldest task waits (see [`Segment`]).
    #[inline]
    pub(crate) fn since(&mut self) -> &mut u32 {
        debug_assert!(!self.is_detached(), "a busy group has a segment");
        // SAFETY: as `trouble`.
        unsafe { &mut (*self.0.segment()).since }
    }

    /// Token holder, at the head: since when the group has not got on, in ns.
    #[inline(always)]
    pub(crate) fn stamp(self) -> u64 {
        debug_assert!(!self.is_detached(), "a busy group has a segment");
        // SAFETY: as `trouble`; the stamp is atomic.
        unsafe { &(*self.0.segment()).stamp }.load(Ordering::Relaxed)
    }

    /// Token holder, at the head: the group got on at this time, in ns.
    #[inline(always)]
    pub(crate) fn set_stamp(self, now: u64) {
        debug_assert!(!self.is_detached(), "a busy group has a segment");
        // SAFETY: as `stamp`.
        unsafe { &(*self.0.segment()).stamp }.store(now, Ordering::Relaxed);
    }

    /// Models only: back over the slot that was just written.
    #[cfg(loom)]
    pub(crate) fn step_back(&mut self) {
        self.0 = self.0.with_index(self.0.index() - 1);
    }

    /// Claim holder of an idle group: takes the segment away and gives it to `pool`.
    pub(crate) fn detach(tail: &mut End<T>, head: &mut End<T>, pool: &mut Pool<T>) {
        debug_assert!(tail.0.segment() == head.0.segment(), "I2");
        if !tail.is_detached() {
            *head.trouble() = None;
            pool.give(tail.0.segment());
        }
        *tail = End::detached();
        *head = End::detached();
    }
}

/// The head of a group, where the watch can glance at its stamp.
#[derive(Debug)]
pub(crate) struct Head<T>(Cell<T>);

impl<T> Head<T> {
    pub(crate) fn new() -> Self {
        Self(Cell::new(Place::NOWHERE))
    }

    /// # Safety
    /// The caller holds the group's run token, or the claim while the group is quiet.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> End<T> {
        // SAFETY: the caller's promise.
        End(unsafe { self.0.get() })
    }

    /// # Safety
    /// As [`Head::get`].
    #[inline(always)]
    pub(crate) unsafe fn set(&self, end: End<T>) {
        // SAFETY: the caller's promise.
        unsafe { self.0.set(end.0) };
    }

    /// The stamp at the head, of a group that somebody else may run: what it is about now, or was a moment ago. `None`: the
    /// head has moved meanwhile, or cannot be looked at on this kind of machine.
    ///
    /// # Safety
    /// The caller holds the claim of the group's shard, under which every segment was attached that it may see, and the
    /// engine's pool of segments is alive.
    pub(crate) unsafe fn glance(&self) -> Option<u64> {
        let seen = self.0.glance()?;
        if seen.segment().is_null() {
            return None;
        }
        // SAFETY: segments are freed with the pool only; this one may have gone on to another group, and is one still.
        let stamp = unsafe { &(*seen.segment()).stamp }.load(Ordering::Relaxed);
        (self.0.glance() == Some(seen)).then_some(stamp)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::{group::segment::SharedPool, outcome::Mark};

    #[test]
    fn i1_tasks_come_out_as_they_went_in_over_every_segment_size() {
        let mut pool = Pool::new(SharedPool::new());
        let (mut tail, mut head) = (End::detached(), End::detached());
        let mut oracle = VecDeque::new();
        let mut next = 0u64;
        for round in 0..2_000u64 {
            for _ in 0..(round * 7) % 13 {
                if tail.is_detached() {
                    tail = End::attached(&mut pool);
                    head = tail;
                }
                tail.push(&mut pool, next.to_string());
                oracle.push_back(next.to_string());
                next += 1;
            }
            let mut want = ((round * 5) % 12).min(oracle.len() as u64) as u32;
            while want > 0 {
                let (tasks, n) = head.run(&mut pool, want);
                for i in 0..n as usize {
                    // SAFETY: counted by the oracle, read once.
                    assert_eq!(Some(unsafe { tasks.add(i).read() }), oracle.pop_front());
                }
                head.pass(n);
                want -= n;
            }
            if oracle.is_empty() && !tail.is_detached() {
                if round % 2 == 0 {
                    End::rewind(&mut tail, &mut head);
                } else {
                    End::detach(&mut tail, &mut head, &mut pool);
                }
            }
        }
        while !oracle.is_empty() {
            let (tasks, n) = head.run(&mut pool, oracle.len() as u32);
            for i in 0..n as usize {
                // SAFETY: as above.
                assert_eq!(Some(unsafe { tasks.add(i).read() }), oracle.pop_front());
            }
            head.pass(n);
        }
        End::detach(&mut tail, &mut head, &mut pool);
    }

    #[test]
    fn trouble_and_since_go_along_with_the_head() {
        let mut pool = Pool::new(SharedPool::new());
        let mut tail = End::attached(&mut pool);
        let mut head = tail;
        (0..100u64).for_each(|task| tail.push(&mut pool, task));
        *head.since() = 7;
        head.set_stamp(70);
        let marks = vec![Mark { attempts: 3, ..Mark::default() }];
        *head.trouble() = Some(Box::new(Trouble { marks, lease: None }));
        for _ in 0..100 {
            head.run(&mut pool, 1);
            head.pass(1);
        }
        assert_eq!(*head.since(), 7);
        assert_eq!(head.stamp(), 70);
        assert_eq!(head.trouble().as_ref().map(|trouble| trouble.marks[0].attempts), Some(3));
        // The marks go with the segment's last owner, not into the pool.
        End::detach(&mut tail, &mut head, &mut pool);
        assert!(End::attached(&mut pool).trouble().is_none());
    }

    #[test]
    fn who_glances_at_a_head_sees_its_stamp_or_nothing() {
        let mut pool = Pool::new(SharedPool::new());
        let head = Head::new();
        // SAFETY: one thread holds the claim and the token, and the pool outlives every glance.
        let glance = || unsafe { head.glance() };
        assert_eq!(glance(), None, "an idle group has no segment");
        let mut tail = End::attached(&mut pool);
        let mut end = tail;
        end.set_stamp(5);
        // SAFETY: as above.
        unsafe { head.set(end) };
        (0..100u64).for_each(|task| tail.push(&mut pool, task));
        assert_eq!(glance(), Some(5));
        for _ in 0..100 {
            end.run(&mut pool, 1);
            end.pass(1);
        }
        // The owner works on a copy: until it puts it back, its old segment answers, wherever that is now.
        let late = End::attached(&mut pool);
        late.set_stamp(9);
        assert!(matches!(glance(), Some(5 | 9)));
        end.set_stamp(6);
        // SAFETY: as above.
        unsafe { head.set(end) };
        assert_eq!(glance(), Some(6));
        End::detach(&mut tail, &mut end, &mut pool);
        let (mut a, mut b) = (late, late);
        End::detach(&mut a, &mut b, &mut pool);
    }

    #[test]
    fn a_spot_is_found_over_segments_and_only_among_the_tasks_asked_for() {
        let mut pool = Pool::new(SharedPool::new());
        let mut tail = End::attached(&mut pool);
        let mut head = tail;
        // Tasks without a size: their addresses would all be the same.
        let spots: Vec<Spot> = (0..100)
            .map(|_| {
                tail.push(&mut pool, ());
                tail.last()
            })
            .collect();
        for passed in 0..100u32 {
            for (at, spot) in spots.iter().enumerate() {
                let found = head.offset_of(*spot, 100 - passed);
                assert_eq!(found, (at as u32).checked_sub(passed), "task {at}, {passed} passed");
            }
            assert_eq!(head.offset_of(spots[99], 99 - passed), None);
            head.run(&mut pool, 1);
            head.pass(1);
        }
        End::detach(&mut tail, &mut head, &mut pool);
    }

    #[test]
    fn a_zero_sized_task_and_an_over_aligned_one_fit() {
        #[derive(Clone, Copy, PartialEq, Debug)]
        #[repr(align(64))]
        struct Wide(u64);
        let mut pool = Pool::new(SharedPool::new());
        let mut tail = End::attached(&mut pool);
        let mut head = tail;
        tail.push(&mut pool, Wide(7));
        let (task, _) = head.run(&mut pool, 1);
        assert_eq!(task.addr() % 64, 0);
        // SAFETY: pushed above.
        assert_eq!(unsafe { task.read() }, Wide(7));
        head.pass(1);
        End::detach(&mut tail, &mut head, &mut pool);
        let mut pool = Pool::<()>::new(SharedPool::new());
        let mut tail = End::attached(&mut pool);
        let mut head = tail;
        for _ in 0..100 {
            tail.push(&mut pool, ());
        }
        for _ in 0..100 {
            head.run(&mut pool, 1);
            head.pass(1);
        }
        End::detach(&mut tail, &mut head, &mut pool);
    }
}
