//! Segments: the memory of a group's queue, at rest in pools while no group has it.
//!
//! | field | who may touch it |
//! |---|---|
//! | `class`, `node` | written once; read by whoever holds the segment |
//! | `next` | the producer, before the publish that makes the first task behind it countable; then the consumer |
//! | `trouble`, `since` | the token holder of the group whose head stands in the segment |
//! | `stamp` | as `trouble`; read by the watch, which may come late: segments stay segments until the engine goes |
//! | slots | group/ring.rs |
//!
//! A segment at rest has no trouble and holds no task.
//!
//! Where tasks are weighed (`Builder::weigh`) the weights follow the slots, one for each, written and read with them; elsewhere
//! there is no room for any.

// A plain atomic, also for the models: nothing is decided by it.
use std::sync::atomic::AtomicU64;
use std::{
    alloc::{Layout, handle_alloc_error},
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::Arc,
};

use super::place::Place;
use crate::{
    outcome::Trouble,
    sync::{Mutex, MutexGuard, sized},
    topology::memory::Home,
};

/// Slots in the first segment of a group.
pub(crate) const FIRST: u32 = sized(8, 2) as u32;
/// Sizes of segments: 8, 16, ... 256 slots.
pub(super) const CLASSES: usize = 6;
/// Segments of one size that a worker keeps for itself, and how many it moves at a time to or from the shared pool.
const KEEP: usize = sized(64, 1);
const MOVE: usize = sized(16, 1);

/// A run of slots. Allocated by [`Pool`], freed by it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Segment<T> {
    pub(super) next: *mut Segment<T>,
    /// Attempts and failures of the tasks at the head; none for a group without failures.
    pub(super) trouble: Option<Box<Trouble>>,
    /// Since when the group has not got on, in ns on the engine's clock: since it became busy, or since its last dispatch.
    pub(super) stamp: AtomicU64,
    /// Milliseconds on the engine's clock (low 32 bits) since when the oldest task waits, for linger.
    pub(super) since: u32,
    class: u8,
    /// The node on which it lies: where it goes when it is at rest.
    node: u16,
    slots: [MaybeUninit<T>; 0],
}

/// Places in segments are packed with the low bits of their address (group/ring.rs).
const ALIGN: usize = 8;
const _: () = assert!(align_of::<Segment<u8>>() <= ALIGN);

impl<T> Segment<T> {
    pub(super) const fn capacity_of(class: u8) -> u32 {
        FIRST << class
    }

    /// Without weights.
    fn layout(class: u8) -> Layout {
        let slots = Layout::array::<T>(Self::capacity_of(class) as usize)
            .expect("a segment of 256 tasks fits the address space");
        let (layout, at) = Layout::new::<Self>().extend(slots).expect("as above");
        // Tasks of small alignment may begin inside the header's padding: then a few bytes stay unused.
        debug_assert!(at >= std::mem::offset_of!(Self, slots));
        layout.align_to(ALIGN).expect("as above").pad_to_align()
    }

    fn layout_with(class: u8, weighed: bool) -> Layout {
        let bare = Self::layout(class);
        if !weighed {
            return bare;
        }
        let weights = Layout::array::<u32>(Self::capacity_of(class) as usize)
            .expect("256 weights fit the address space");
        bare.extend(weights).expect("as in `layout`").0.pad_to_align()
    }

    /// The weight of the task in a slot.
    ///
    /// # Safety
    /// `this` is alive, of a pool whose tasks are weighed, and `index` below its capacity.
    pub(super) unsafe fn weight(this: *mut Self, index: u32) -> *mut u32 {
        // The size is a multiple of the alignment, which is that of a u32 at least.
        // SAFETY: the caller's promise: the weights follow in the same allocation.
        unsafe {
            let weights = this.cast::<u8>().add(Self::layout(Self::class(this)).size());
            weights.cast::<u32>().add(index as usize)
        }
    }

    /// # Safety
    /// `this` is alive and `index` at most its capacity.
    #[inline(always)]
    pub(super) unsafe fn slot(this: *mut Self, index: u32) -> *mut T {
        // SAFETY: the slots follow the header in the same allocation.
        unsafe { (&raw mut (*this).slots).cast::<T>().add(index as usize) }
    }

    /// # Safety
    /// `this` is alive.
    #[inline(always)]
    pub(super) unsafe fn class(this: *mut Self) -> u8 {
        // SAFETY: the caller's promise; written once, before the segment was handed out.
        unsafe { (*this).class }
    }
}

type AtRest<T> = Mutex<[Vec<*mut Segment<T>>; CLASSES]>;

/// Segments at rest, shared by all workers: by the node on which they lie.
#[derive(Debug)]
pub(crate) struct SharedPool<T> {
    nodes: Box<[(Home, AtRest<T>)]>,
    weighed: bool,
}

// SAFETY: segments at rest hold no task; they are raw memory that moves between threads.
unsafe impl<T> Send for SharedPool<T> {}
// SAFETY: as above, behind a mutex.
unsafe impl<T> Sync for SharedPool<T> {}

impl<T> SharedPool<T> {
    /// One node, anywhere.
    #[cfg(test)]
    pub(crate) fn new() -> Arc<Self> {
        Self::of_nodes(vec![Home::anywhere()], false)
    }

    /// For nodes with these homes. `weighed`: tasks have weights.
    pub(crate) fn of_nodes(homes: Vec<Home>, weighed: bool) -> Arc<Self> {
        let rest = |home| (home, Mutex::new(Default::default()));
        Arc::new(Self { nodes: homes.into_iter().map(rest).collect(), weighed })
    }

    fn rest(&self, node: u16) -> MutexGuard<'_, [Vec<*mut Segment<T>>; CLASSES]> {
        self.nodes[usize::from(node)].1.lock()
    }
}

impl<T> Drop for SharedPool<T> {
    fn drop(&mut self) {
        for (home, rest) in &self.nodes {
            for (class, segments) in rest.lock().iter_mut().enumerate() {
                for segment in segments.drain(..).filter_map(NonNull::new) {
                    let layout = Segment::<T>::layout_with(class as u8, self.weighed);
                    // SAFETY: allocated by `Pool::take` on this node, with this class's layout.
                    unsafe { home.free(segment.cast(), layout) };
                }
            }
        }
    }
}

/// One worker's segments at rest.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    own: [Vec<*mut Segment<T>>; CLASSES],
    shared: Arc<SharedPool<T>>,
    node: u16,
    tasks: PhantomData<T>,
}

// SAFETY: as `SharedPool`.
unsafe impl<T> Send for Pool<T> {}

impl<T> Pool<T> {
    /// A pool on the first node.
    pub(crate) fn new(shared: Arc<SharedPool<T>>) -> Self {
        Self::on(shared, 0)
    }

    /// The pool of a worker on this node, counted as those of the shared pool.
    pub(crate) fn on(shared: Arc<SharedPool<T>>, node: usize) -> Self {
        let own = std::array::from_fn(|_| Vec::with_capacity(KEEP + 1));
        Self { own, shared, node: node as u16, tasks: PhantomData }
    }

    /// Tasks have weights.
    pub(crate) fn is_weighed(&self) -> bool {
        self.shared.weighed
    }

    pub(super) fn take(&mut self, class: u8) -> *mut Segment<T> {
        let own = &mut self.own[class as usize];
        let segment = own.pop().or_else(|| {
            let shared = &mut self.shared.rest(self.node)[class as usize];
            own.extend(shared.drain(shared.len().saturating_sub(MOVE)..));
            own.pop()
        });
        let segment = segment.unwrap_or_else(|| self.allocate(class));
        // SAFETY: ours; the header stays initialised while at rest.
        unsafe { (*segment).next = ptr::null_mut() };
        segment
    }

    #[cold]
    fn allocate(&self, class: u8) -> *mut Segment<T> {
        let layout = Segment::<T>::layout_with(class, self.shared.weighed);
        // SAFETY: the layout is not empty: it holds the header.
        let segment = unsafe { self.shared.nodes[usize::from(self.node)].0.alloc(layout) };
        let segment = segment.as_ptr().cast::<Segment<T>>();
        if !Place::fits(segment) {
            handle_alloc_error(layout);
        }
        // SAFETY: fresh memory of the right layout.
        unsafe {
            segment.write(Segment {
                next: ptr::null_mut(),
                trouble: None,
                stamp: AtomicU64::new(0),
                since: 0,
                class,
                node: self.node,
                slots: [],
            });
        }
        segment
    }

    pub(super) fn give(&mut self, segment: *mut Segment<T>) {
        // SAFETY: the caller owns the segment.
        let class = usize::from(unsafe { (*segment).class });
        // SAFETY: as above.
        debug_assert!(unsafe { &*segment }.trouble.is_none(), "trouble goes with the head");
        // SAFETY: as above.
        let node = unsafe { (*segment).node };
        if node != self.node {
            // Its tasks were taken by a thief.
            self.shared.rest(node)[class].push(segment);
            return;
        }
        let own = &mut self.own[class];
        own.push(segment);
        if own.len() > KEEP {
            let mut shared = self.shared.rest(self.node);
            shared[class].extend(own.drain(KEEP - MOVE..));
        }
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        let mut shared = self.shared.rest(self.node);
        for (own, shared) in self.own.iter_mut().zip(shared.iter_mut()) {
            shared.append(own);
        }
    }
}
