//! The control block of a group, and the slab that keeps a shard's blocks where they are.
//!
//! | field | idle group | busy group |
//! |---|---|---|
//! | `link` | nobody | the list in which the token rests |
//! | `word` | claim holder | claim holder and token holder (group/state.rs) |
//! | `tail`, `pins`, `pending` | claim holder | claim holder |
//! | `head`, `opened`, `since`, `trouble`, state | claim holder | token holder |
//! | `key` | written at creation, read by both | read by both |
//!
//! A block never moves and its memory stays a block until the engine goes, so a late look at a word is harmless
//! (it finds another sequence or a quiet word). Blocks are made, reused and reclaimed under the claim only.

use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr::{self, NonNull},
};

use super::{ring::End, state::Word};
use crate::{outcome::Trouble, ready::link::Link, sync::sized};

/// What the claim holder owns of a group, always.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Producer<T> {
    pub(crate) tail: End<T>,
    /// Live handles; a pinned group is not reclaimed. Sticks at its greatest value.
    pub(crate) pins: u16,
    /// The block holds a group (as opposed to being free for reuse).
    pub(crate) live: bool,
    /// The block is in the shard's list of groups that have a segment.
    pub(crate) listed: bool,
    /// Tasks written in this chunk and not published yet.
    pub(crate) pending: u32,
    /// The hash bits under which the map knows the group.
    pub(crate) hash: u32,
}

/// What the token holder owns of a busy group, and the claim holder of an idle one.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Consumer<T> {
    pub(crate) head: End<T>,
    /// Milliseconds on the engine's clock (low 32 bits) since when the oldest task waits, for linger.
    pub(crate) since: u32,
    /// Attempts and failures of the tasks at the head; none for a group without failures.
    pub(crate) trouble: Option<Box<Trouble>>,
}

/// The part of a block that does not depend on the per-group state.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Group<K, T> {
    link: Link,
    pub(crate) word: Word,
    producer: UnsafeCell<Producer<T>>,
    consumer: UnsafeCell<Consumer<T>>,
    pub(crate) shard: u32,
    /// The per-group state is initialised. Whose it is: as `consumer`.
    opened: UnsafeCell<bool>,
    key: UnsafeCell<MaybeUninit<K>>,
}

impl<K, T> Group<K, T> {
    /// # Safety
    /// The caller holds the claim of the group's shard, and keeps one such reference at a time.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn producer(&self) -> &mut Producer<T> {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.producer.get() }
    }

    /// # Safety
    /// The caller holds the group's run token, or the claim while the group is quiet; one reference at a time.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn consumer(&self) -> &mut Consumer<T> {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.consumer.get() }
    }

    /// # Safety
    /// As [`Group::consumer`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn opened(&self) -> &mut bool {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.opened.get() }
    }

    /// # Safety
    /// The group is live, and the caller holds its token, its claim, or the gate's lock while it is FULL.
    pub(crate) unsafe fn key(&self) -> &K {
        // SAFETY: the caller's promise: the key is written at creation and taken at reclaim, which needs a quiet
        // group under the claim.
        unsafe { (*self.key.get()).assume_init_ref() }
    }

    /// # Safety
    /// The caller holds the claim and the block is not live.
    pub(crate) unsafe fn set_key(&self, key: K) {
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
    pub(crate) fn new(shard: u32) -> Self {
        Self {
            group: Group {
                link: Link::new(),
                word: Word::new(),
                producer: UnsafeCell::new(Producer {
                    tail: End::detached(),
                    pins: 0,
                    live: false,
                    listed: false,
                    pending: 0,
                    hash: 0,
                }),
                consumer: UnsafeCell::new(Consumer {
                    head: End::detached(),
                    since: 0,
                    trouble: None,
                }),
                shard,
                opened: UnsafeCell::new(false),
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
    shard: u32,
}

/// log2 of the blocks in a chunk.
const CHUNK_SHIFT: u32 = sized(8, 1) as u32;
const CHUNK: u32 = 1 << CHUNK_SHIFT;

// SAFETY: the slab owns its blocks; they are touched under the claim or by token holders (module text).
unsafe impl<K: Send, T: Send, S: Send> Send for Slab<K, T, S> {}

impl<K, T, S> Slab<K, T, S> {
    pub(crate) fn new(shard: u32) -> Self {
        Self { chunks: Vec::new(), used: 0, free: Vec::new(), shard }
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
            let shard = self.shard;
            let chunk: Box<[Block<K, T, S>]> = (0..CHUNK).map(|_| Block::new(shard)).collect();
            self.chunks.push(NonNull::from(Box::leak(chunk)).cast());
        }
        self.used += 1;
        self.used - 1
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
        self.chunks.len() * CHUNK as usize * size_of::<Block<K, T, S>>()
            + self.chunks.capacity() * size_of::<usize>()
            + self.free.capacity() * size_of::<u32>()
    }
}

impl<K, T, S> Drop for Slab<K, T, S> {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            let chunk = ptr::slice_from_raw_parts_mut(chunk.as_ptr(), CHUNK as usize);
            // SAFETY: leaked in `add` from a box of this length. Keys, states and tasks were taken out before
            // (lifecycle/close.rs); blocks themselves own nothing else but `trouble`, which drops here.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}
