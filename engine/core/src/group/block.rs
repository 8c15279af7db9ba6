//! The control block of a group, and the slab that keeps a shard's blocks where they are.
//!
//! ```text
//!  0      8      16     24     32    36   38 39 40
//! +------+------+------+------+-----+----+--+--+------ ... --+------ ... --+
//! | link | word | tail | head |hash |pend|fl|op|     key     |    state    |      64 bytes, one line, where key
//! +------+------+------+------+-----+----+--+--+------ ... --+------ ... --+      and state have 24 together
//! ```
//!
//! | field | idle group | busy group |
//! |---|---|---|
//! | `link` | nobody | the list in which the token rests |
//! | `word` | claim holder | claim holder and token holder (group/state.rs) |
//! | `tail`, `pending`, `flags` | claim holder | claim holder |
//! | `head`, `rest`, state | claim holder | token holder |
//! | `key`, `hash` | written at creation, read by both | read by both |
//!
//! What only busy groups need stands in their segments (group/segment.rs), how many handles pin a group in a table of
//! its shard (shard/back.rs).
//!
//! A block never moves and its memory stays a block until the engine goes, so a late look at a word is harmless
//! (it finds another sequence or a quiet word). Blocks are made, reused and reclaimed under the claim only.

use std::{alloc::Layout, cell::UnsafeCell, mem::MaybeUninit, ptr::NonNull};

use super::{
    ring::{End, Head},
    state::Word,
};
use crate::{
    ready::link::Link,
    sync::{AtomicU8, AtomicU32, Ordering, mutant, sized},
    topology::memory::Home,
};

/// Where a run token rests that is not simply ready or running; for the watch (who is stuck, and why).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// On the ready list, or in a hand.
    Ready = 0,
    /// In the timer, before another attempt.
    BackOff = 1,
    /// In the timer, until its own rate lets it go on.
    GroupRate = 2,
    /// In the queue of admission: for a permit, the rate of the engine, or a throttled downstream.
    Admission = 3,
    /// In a lease that is out (lease/mod.rs).
    Lease = 8,
    /// On the ready list, with the outcomes of a lease at the head.
    Returned = 9,
    /// In the table of held groups: paused.
    Paused = 4,
    /// In the table of held groups: halted by the policy.
    Halted = 5,
    /// In the table of held groups: closed.
    Closed = 6,
}

/// Beside the place: the state is open.
const OPEN: u8 = 0x80;

impl Place {
    fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::BackOff,
            2 => Self::GroupRate,
            3 => Self::Admission,
            8 => Self::Lease,
            9 => Self::Returned,
            4 => Self::Paused,
            5 => Self::Halted,
            6 => Self::Closed,
            _ => Self::Ready,
        }
    }
}

/// What the claim holder knows of a group beside its ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// The block holds a group (as opposed to being free for reuse).
    pub(crate) const LIVE: Self = Self(1);
    /// The block is in the shard's list of groups that have a segment.
    pub(crate) const LISTED: Self = Self(2);
    /// A handle names the group: it is not reclaimed.
    pub(crate) const PINNED: Self = Self(4);

    pub(crate) const fn bit(n: u32) -> Self {
        Self(1 << n)
    }

    pub(crate) fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }
    pub(crate) fn set(&mut self, flag: Self) {
        self.0 |= flag.0;
    }
    pub(crate) fn clear(&mut self, flag: Self) {
        self.0 &= !flag.0;
    }
}

/// What the claim holder owns of a group, always.
#[derive(Debug)]
pub(crate) struct Producer<'a, T> {
    pub(crate) tail: &'a mut End<T>,
    /// Tasks written in this chunk and not published yet.
    pub(crate) pending: &'a mut u16,
    pub(crate) flags: &'a mut Flags,
}

/// The part of a block that does not depend on the per-group state.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Group<K, T> {
    link: Link,
    pub(crate) word: Word,
    tail: UnsafeCell<End<T>>,
    head: Head<T>,
    /// The hash bits under which the map knows the group; its low bits are those of the shard, in every life of the block.
    hash: AtomicU32,
    pending: UnsafeCell<u16>,
    flags: UnsafeCell<Flags>,
    /// Where the token rests, and whether the per-group state is open. Written by whom `head` belongs to, read by the watch.
    rest: AtomicU8,
    key: UnsafeCell<MaybeUninit<K>>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Block<u64, u32, [u64; 2]>>() == 64);

impl<K, T> Group<K, T> {
    /// # Safety
    /// The caller holds the claim of the group's shard, and keeps one such set of references at a time.
    #[inline(always)]
    pub(crate) unsafe fn producer(&self) -> Producer<'_, T> {
        // SAFETY: the caller's promise.
        unsafe {
            Producer {
                tail: &mut *self.tail.get(),
                pending: &mut *self.pending.get(),
                flags: &mut *self.flags.get(),
            }
        }
    }

    /// A copy of the consumer's end of the ring. What moves it must put it back with [`Group::set_head`] before it gives the
    /// token away; its trouble and its times stand in the segment and need no putting back.
    ///
    /// # Safety
    /// The caller holds the group's run token, or the claim while the group is quiet.
    #[inline(always)]
    pub(crate) unsafe fn head_end(&self) -> End<T> {
        // SAFETY: the caller's promise.
        unsafe { self.head.get() }
    }

    /// # Safety
    /// As [`Group::head_end`].
    #[inline(always)]
    pub(crate) unsafe fn set_head(&self, end: End<T>) {
        // SAFETY: the caller's promise.
        unsafe { self.head.set(end) };
    }

    /// Since when the group has not got on, in ns, as far as can be seen from outside; see [`Head::glance`].
    ///
    /// # Safety
    /// The caller holds the claim of the group's shard, and the engine is alive.
    pub(crate) unsafe fn glance_stamp(&self) -> Option<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.head.glance() }
    }

    /// The per-group state is initialised. Read it only as the owner of `head`.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: what orders the state orders this too.
        self.rest.load(Ordering::Relaxed) & OPEN != 0
    }

    /// As the owner of `head`: the state was opened, or taken.
    pub(crate) fn set_open(&self, open: bool) {
        let place = self.rest.load(Ordering::Relaxed) & !OPEN;
        self.rest.store(place | if open { OPEN } else { 0 }, Ordering::Relaxed);
    }

    /// Where the token was put to rest last. A hint for the watch: it may have moved on since.
    pub(crate) fn place(&self) -> Place {
        Place::from_bits(self.rest.load(Ordering::Relaxed) & !OPEN)
    }

    /// As the holder of the token, before it is put there.
    #[inline(always)]
    pub(crate) fn set_place(&self, place: Place) {
        let open = self.rest.load(Ordering::Relaxed) & OPEN;
        self.rest.store(open | place as u8, Ordering::Relaxed);
    }

    /// As the holder of a lease's token: its record stands at the head. See [`Group::place_now`].
    pub(crate) fn return_lease(&self) {
        let open = self.rest.load(Ordering::Relaxed) & OPEN;
        // ORDERING: Release pairs with the Acquire of `place_now`: a close that finds `Returned` sees the record, and all that was
        // done to tasks and state.
        let order =
            if mutant("lease-place-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.rest.store(open | Place::Returned as u8, order);
    }

    /// Close, after a halt: where the token of a group that no worker has in hand is, as far as leases go.
    pub(crate) fn place_now(&self) -> Place {
        // ORDERING: Acquire pairs with the Release of `return_lease`.
        Place::from_bits(self.rest.load(Ordering::Acquire) & !OPEN)
    }

    /// The hash bits of the group's key. Exact while the group is live; a late look finds those of another group of the
    /// same shard.
    pub(crate) fn hash(&self) -> u32 {
        self.hash.load(Ordering::Relaxed)
    }

    /// # Safety
    /// The group is live, and the caller holds its token, its claim, the gate's lock while it is FULL, or the lock of the
    /// table of held groups while it has an entry there.
    pub(crate) unsafe fn key(&self) -> &K {
        // SAFETY: the caller's promise: the key is written at creation and taken at reclaim, which needs a quiet
        // group under the claim.
        unsafe { (*self.key.get()).assume_init_ref() }
    }

    /// # Safety
    /// The caller holds the claim and the block is not live.
    pub(crate) unsafe fn set_key(&self, hash: u32, key: K) {
        self.hash.store(hash, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { (*self.key.get()).write(key) };
    }

    /// # Safety
    /// The caller holds the claim of a live, quiet group (or the whole engine), and the block is not live after.
    pub(crate) unsafe fn take_key(&self) -> K {
        // SAFETY: the caller's promise.
        unsafe { (*self.key.get()).assume_init_read() }
    }
}

/// A group with its state.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Block<K, T, S> {
    pub(crate) group: Group<K, T>,
    state: UnsafeCell<MaybeUninit<S>>,
}

impl<K, T, S> Block<K, T, S> {
    pub(crate) fn new() -> Self {
        Self {
            group: Group {
                link: Link::new(),
                word: Word::new(),
                tail: UnsafeCell::new(End::detached()),
                head: Head::new(),
                hash: AtomicU32::new(0),
                pending: UnsafeCell::new(0),
                flags: UnsafeCell::new(Flags::default()),
                rest: AtomicU8::new(0),
                key: UnsafeCell::new(MaybeUninit::uninit()),
            },
            state: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The slot of the per-group state.
    pub(crate) fn state(&self) -> *mut MaybeUninit<S> {
        self.state.get()
    }
}

/// Blocks of one shard: chunks that never move, and a list of free blocks.
#[derive(Debug)]
pub(crate) struct Slab<K, T, S> {
    chunks: Vec<NonNull<Block<K, T, S>>>,
    used: u32,
    free: Vec<u32>,
    home: Home,
    /// A chunk for when the last one is used up, made when nobody waited for the shard. One as a rule.
    spare: Vec<Chunk<K, T, S>>,
}

/// Fresh blocks that belong to no slab yet.
///
/// They are made outside the claim: the first touch of their memory may take milliseconds, where the system hands out pages
/// of 2 MB and clears them first, and the shard would stand still for that time.
#[derive(Debug)]
pub(crate) struct Chunk<K, T, S>(NonNull<Block<K, T, S>>);

/// log2 of the blocks in a chunk.
const CHUNK_SHIFT: u32 = sized(8, 1) as u32;
const CHUNK: u32 = 1 << CHUNK_SHIFT;
/// Chunks begin at a line, so that a block of a line's size is one.
const LINE: usize = 64;

// SAFETY: the slab owns its blocks; they are touched under the claim or by token holders (module text).
unsafe impl<K: Send, T: Send, S: Send> Send for Slab<K, T, S> {}

impl<K, T, S> Slab<K, T, S> {
    /// Blocks that lie on `home`, whoever makes them.
    pub(crate) fn new(home: Home) -> Self {
        Self { chunks: Vec::new(), used: 0, free: Vec::new(), home, spare: Vec::new() }
    }

    /// The block with this index.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> NonNull<Block<K, T, S>> {
        debug_assert!(index < self.used);
        // SAFETY: indices come from `add`, so the chunk exists and the offset is inside it.
        unsafe {
            self.chunks
                .get_unchecked((index >> CHUNK_SHIFT) as usize)
                .add((index & (CHUNK - 1)) as usize)
        }
    }

    /// A block for a new group: a reclaimed one, or a fresh one.
    pub(crate) fn add(&mut self) -> u32 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        if self.used.is_multiple_of(CHUNK) {
            let chunk = self.spare.pop().unwrap_or_else(|| Self::chunk(&self.home));
            self.chunks.push(chunk.0);
        }
        self.used += 1;
        self.used - 1
    }

    fn layout() -> Layout {
        Layout::array::<Block<K, T, S>>(CHUNK as usize)
            .and_then(|layout| layout.align_to(LINE))
            .expect("256 groups fit the address space")
    }

    /// Blocks for [`Slab::put_by`] of a slab with this home.
    #[cold]
    pub(crate) fn chunk(home: &Home) -> Chunk<K, T, S> {
        // SAFETY: the layout is not empty: a block has a word.
        let chunk = unsafe { home.alloc(Self::layout()) }.cast::<Block<K, T, S>>();
        for i in 0..CHUNK as usize {
            // SAFETY: inside the fresh chunk.
            unsafe { chunk.add(i).write(Block::new()) };
        }
        Chunk(chunk)
    }

    /// Where a spare chunk should come from, if the slab wants one: it grows, and has none.
    #[inline]
    pub(crate) fn wants_spare(&self) -> Option<&Home> {
        (self.spare.is_empty() && self.used >= CHUNK && self.free.is_empty()).then_some(&self.home)
    }

    /// Keeps a chunk for when it is needed. It came from [`Slab::chunk`] with the home that [`Slab::wants_spare`] named.
    pub(crate) fn put_by(&mut self, chunk: Chunk<K, T, S>) {
        self.spare.push(chunk);
    }

    /// The block holds no group any more.
    pub(crate) fn remove(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Blocks ever made: indices are below.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Bytes of the blocks and of the free list.
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.chunks.len() + self.spare.len()) * CHUNK as usize * size_of::<Block<K, T, S>>()
            + self.chunks.capacity() * size_of::<usize>()
            + self.free.capacity() * size_of::<u32>()
    }
}

impl<K, T, S> Drop for Slab<K, T, S> {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..).chain(self.spare.drain(..).map(|chunk| chunk.0)) {
            // SAFETY: allocated with this layout. Blocks own nothing any more: keys, states, tasks and segments were
            // taken out before (`Drop` of the core).
            unsafe { self.home.free(chunk.cast(), Self::layout()) };
        }
    }
}
