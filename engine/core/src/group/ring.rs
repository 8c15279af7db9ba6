//! The queue of one group: segments linked into a single-producer, single-consumer ring that an idle group gives up.
//!
//! The producer is the claim holder of the group's shard, the consumer the holder of the group's run token. Neither
//! side publishes an index: the count in the group's word says how many tasks the consumer may read
//! (group/state.rs), so the ring itself has no atomic at all.
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
//! Invariants:
//!
//! * **I1** The slots from `head` over `count` tasks are initialised, all others are not.
//! * **I2** In an idle group `head` and `tail` stand in the same segment at the same index.
//! * **I3** `next` of a segment is written by the producer before the publish that makes its first task countable.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    marker::PhantomData,
    mem::MaybeUninit,
    ptr,
    sync::Arc,
};

use crate::sync::{Mutex, sized};

/// Slots in the first segment of a group.
pub(crate) const FIRST: u32 = sized(8, 2) as u32;
const CLASSES: usize = 6;
/// Segments of one size that a worker keeps for itself, and how many it moves at a time to or from the shared pool.
const KEEP: usize = sized(64, 1);
const MOVE: usize = sized(16, 1);

/// A run of slots. Allocated by [`Pool`], freed by it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Segment<T> {
    next: *mut Segment<T>,
    class: u8,
    slots: [MaybeUninit<T>; 0],
}

impl<T> Segment<T> {
    const fn capacity_of(class: u8) -> u32 {
        FIRST << class
    }

    fn layout(class: u8) -> Layout {
        let slots = Layout::array::<T>(Self::capacity_of(class) as usize)
            .expect("a segment of 256 tasks fits the address space");
        let (layout, at) = Layout::new::<Self>().extend(slots).expect("as above");
        // Tasks of small alignment may begin inside the header's padding: then a few bytes stay unused.
        debug_assert!(at >= std::mem::offset_of!(Self, slots));
        layout.pad_to_align()
    }

    /// # Safety
    /// `this` is alive and `index` below its capacity.
    unsafe fn slot(this: *mut Self, index: u32) -> *mut T {
        // SAFETY: the slots follow the header in the same allocation.
        unsafe { (&raw mut (*this).slots).cast::<T>().add(index as usize) }
    }
}

/// One end of a group's ring. Packed to 12 bytes: two of them stand in every control block, idle or not.
#[repr(C, packed(2))]
pub(crate) struct End<T> {
    segment: *mut Segment<T>,
    index: u16,
    /// Slots of the segment; 0 without one. Kept here, so that a push touches nothing but its slot.
    capacity: u16,
}

impl<T> std::fmt::Debug for End<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}[{}]", { self.segment }, { self.index })
    }
}

impl<T> Clone for End<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for End<T> {}

impl<T> End<T> {
    pub(crate) const fn detached() -> Self {
        Self { segment: ptr::null_mut(), index: 0, capacity: 0 }
    }

    pub(crate) fn is_detached(self) -> bool {
        self.segment.is_null()
    }

    /// The first slot of this end's segment.
    pub(crate) fn start(self) -> Self {
        Self { index: 0, ..self }
    }

    /// Claim holder of an idle group: both ends to the first slot.
    pub(crate) fn rewind(tail: &mut End<T>, head: &mut End<T>) {
        debug_assert!(
            { tail.segment } == { head.segment } && { tail.index } == { head.index },
            "I2"
        );
        tail.index = 0;
        head.index = 0;
    }

    /// Claim holder: the slot for the next task. The caller writes it, then publishes through the word.
    /// On the first push of a detached group `head` must be set to the returned end; the flag says so.
    #[inline]
    pub(crate) fn push(&mut self, pool: &mut Pool<T>, task: T) -> bool {
        let attached = self.index == self.capacity && self.extend(pool);
        // SAFETY: index is below the capacity, and the slot is the producer's until counted (I1).
        unsafe { Segment::slot(self.segment, u32::from(self.index)).write(task) };
        self.index += 1;
        attached
    }

    /// `true`: the first segment of a group that had none.
    #[cold]
    fn extend(&mut self, pool: &mut Pool<T>) -> bool {
        let spent = self.segment;
        if spent.is_null() {
            *self = Self::at_start_of(pool.take(0));
            return true;
        }
        // SAFETY: a segment is alive while it is reachable from the tail.
        let class = unsafe { (*spent).class };
        let next = pool.take((class + 1).min(CLASSES as u8 - 1));
        // SAFETY: `next` is read by the consumer only after a later publish (I3).
        unsafe { (*spent).next = next };
        *self = Self::at_start_of(next);
        false
    }

    /// The first slot of a segment that is alive.
    fn at_start_of(segment: *mut Segment<T>) -> Self {
        // SAFETY: the callers' promise.
        let class = unsafe { (*segment).class };
        Self { segment, index: 0, capacity: Segment::<T>::capacity_of(class) as u16 }
    }

    /// Goes on to the next segment, which exists since a task behind this one is counted (I3). Returns the one that
    /// is used up.
    fn advance(&mut self) -> *mut Segment<T> {
        let spent = self.segment;
        // SAFETY: the segment and its successor are alive, see above.
        *self = Self::at_start_of(unsafe { (*spent).next });
        spent
    }

    fn rest(&self, most: u32) -> (*mut T, u32) {
        let left = u32::from(self.capacity - self.index);
        // SAFETY: the index is below the capacity of a segment that is alive.
        (unsafe { Segment::slot(self.segment, u32::from(self.index)) }, left.min(most))
    }

    /// Token holder: the contiguous run of at most `most` tasks at this end. At least one task must be counted.
    /// Segments that are used up go to `pool`.
    pub(crate) fn run(&mut self, pool: &mut Pool<T>, most: u32) -> (*mut T, u32) {
        debug_assert!(most > 0);
        if self.index == self.capacity {
            pool.give(self.advance());
        }
        self.rest(most)
    }

    /// Token holder: as [`End::run`], but leaves used-up segments in place (a look ahead of the head).
    pub(crate) fn peek(&mut self, most: u32) -> (*mut T, u32) {
        if self.index == self.capacity {
            self.advance();
        }
        self.rest(most)
    }

    /// Token holder: `n` tasks of the run that [`End::run`] or [`End::peek`] showed are passed.
    #[inline]
    pub(crate) fn pass(&mut self, n: u32) {
        self.index += n as u16;
    }

    /// Models only: back over the slot that was just written.
    #[cfg(loom)]
    pub(crate) fn step_back(&mut self) {
        self.index -= 1;
    }

    /// Claim holder of an idle group: takes the segment away and gives it to `pool`.
    pub(crate) fn detach(tail: &mut End<T>, head: &mut End<T>, pool: &mut Pool<T>) {
        debug_assert!({ tail.segment } == { head.segment }, "I2");
        if !tail.segment.is_null() {
            pool.give(tail.segment);
        }
        *tail = End::detached();
        *head = End::detached();
    }
}

/// Segments at rest, shared by all workers of a node.
#[derive(Debug)]
pub(crate) struct SharedPool<T>(Mutex<[Vec<*mut Segment<T>>; CLASSES]>);

// SAFETY: segments at rest hold no task; they are raw memory that moves between threads.
unsafe impl<T> Send for SharedPool<T> {}
// SAFETY: as above, behind a mutex.
unsafe impl<T> Sync for SharedPool<T> {}

impl<T> SharedPool<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Default::default())))
    }
}

impl<T> Drop for SharedPool<T> {
    fn drop(&mut self) {
        for (class, segments) in self.0.lock().iter_mut().enumerate() {
            for segment in segments.drain(..) {
                // SAFETY: allocated by `Pool::take` with this class's layout.
                unsafe { dealloc(segment.cast(), Segment::<T>::layout(class as u8)) };
            }
        }
    }
}

/// One worker's segments at rest.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    own: [Vec<*mut Segment<T>>; CLASSES],
    shared: Arc<SharedPool<T>>,
    tasks: PhantomData<T>,
}

// SAFETY: as `SharedPool`.
unsafe impl<T> Send for Pool<T> {}

impl<T> Pool<T> {
    pub(crate) fn new(shared: Arc<SharedPool<T>>) -> Self {
        let own = std::array::from_fn(|_| Vec::with_capacity(KEEP + 1));
        Self { own, shared, tasks: PhantomData }
    }

    fn take(&mut self, class: u8) -> *mut Segment<T> {
        let own = &mut self.own[class as usize];
        let segment = own.pop().or_else(|| {
            let shared = &mut self.shared.0.lock()[class as usize];
            own.extend(shared.drain(shared.len().saturating_sub(MOVE)..));
            own.pop()
        });
        let segment = segment.unwrap_or_else(|| Self::allocate(class));
        // SAFETY: ours; the header stays initialised while at rest.
        unsafe { (*segment).next = ptr::null_mut() };
        segment
    }

    #[cold]
    fn allocate(class: u8) -> *mut Segment<T> {
        let layout = Segment::<T>::layout(class);
        // SAFETY: the layout is not empty: it holds the header.
        let segment = unsafe { alloc(layout) }.cast::<Segment<T>>();
        if segment.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: fresh memory of the right layout.
        unsafe { segment.write(Segment { next: ptr::null_mut(), class, slots: [] }) };
        segment
    }

    fn give(&mut self, segment: *mut Segment<T>) {
        // SAFETY: the caller owns the segment.
        let class = unsafe { (*segment).class } as usize;
        let own = &mut self.own[class];
        own.push(segment);
        if own.len() > KEEP {
            let mut shared = self.shared.0.lock();
            shared[class].extend(own.drain(KEEP - MOVE..));
        }
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        let mut shared = self.shared.0.lock();
        for (own, shared) in self.own.iter_mut().zip(shared.iter_mut()) {
            shared.append(own);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn i1_tasks_come_out_as_they_went_in_over_every_segment_size() {
        let mut pool = Pool::new(SharedPool::new());
        let (mut tail, mut head) = (End::detached(), End::detached());
        let mut oracle = VecDeque::new();
        let mut next = 0u64;
        for round in 0..2_000u64 {
            for _ in 0..(round * 7) % 13 {
                if tail.push(&mut pool, next.to_string()) {
                    head = tail.start();
                }
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
    fn a_zero_sized_task_and_an_over_aligned_one_fit() {
        #[derive(Clone, Copy, PartialEq, Debug)]
        #[repr(align(64))]
        struct Wide(u64);
        let mut pool = Pool::new(SharedPool::new());
        let mut tail = End::detached();
        tail.push(&mut pool, Wide(7));
        let mut head = tail.start();
        let (task, _) = head.run(&mut pool, 1);
        assert_eq!(task.addr() % 64, 0);
        // SAFETY: pushed above.
        assert_eq!(unsafe { task.read() }, Wide(7));
        head.pass(1);
        End::detach(&mut tail, &mut head, &mut pool);
        let mut pool = Pool::<()>::new(SharedPool::new());
        let mut tail = End::detached();
        let mut head = End::detached();
        for _ in 0..100 {
            if tail.push(&mut pool, ()) {
                head = tail.start();
            }
        }
        for _ in 0..100 {
            head.run(&mut pool, 1);
            head.pass(1);
        }
        End::detach(&mut tail, &mut head, &mut pool);
    }
}
