//! The claim holder's work: a chunk of records goes from the ingress into the rings of their groups.
//!
//! Under the claim, in this order:
//!
//! 1. Up to a chunk of records of the ring, then of each lane: look the group up (or make it), append the task.
//!    The map is looked at 16 records ahead, the control block 8 ahead, so that their cache misses overlap.
//! 2. Give the cells back, once.
//! 3. Publish each touched group, once: by a plain store when it was quiet, otherwise by one read-modify-write.
//!    What becomes busy is handed out as units.
//!
//! A group that goes idle keeps its segment for a while: the oldest ones give it up once more than
//! [`WARM_SEGMENTS`] of the shard's groups have one.
//!
//! A panic in `Eq` of a key costs the one task whose key it was.

use std::{
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
};

use super::back::Back;
use crate::{
    front::Door,
    group::{
        block::Group,
        ring::{End, Pool},
        state::{Published, State},
    },
    ingress::{
        lane::Lane,
        ring::{Address, Ring},
    },
    outcome::{Failure, FailureKind},
    sync::{prefetch, sized},
};

/// Groups of a shard that may keep their segment while they are idle.
pub(crate) const WARM_SEGMENTS: usize = sized(256, 1);

/// A group that got tasks in this chunk.
#[derive(Debug)]
pub(crate) struct Touched<K, T> {
    pub(crate) group: NonNull<Group<K, T>>,
    /// The word if the group was quiet when it was touched: then it still is.
    quiet: Option<State>,
}

/// Buffers of one worker, reused from chunk to chunk. What is in `rejected` and `garbage` is dropped after the claim
/// was released, since a drop is user code.
#[derive(Debug)]
pub(crate) struct Scratch<K, T, S> {
    pub(crate) touched: Vec<Touched<K, T>>,
    pub(crate) rejected: Vec<(K, T, Failure)>,
    pub(crate) garbage_keys: Vec<K>,
    pub(crate) garbage_states: Vec<S>,
}

impl<K, T, S> Scratch<K, T, S> {
    pub(crate) fn new() -> Self {
        Self {
            touched: Vec::with_capacity(1_024),
            rejected: Vec::new(),
            garbage_keys: Vec::new(),
            garbage_states: Vec::new(),
        }
    }
}

// SAFETY: the pointers are to blocks of the engine, valid on every thread; the rest is owned.
unsafe impl<K: Send, T: Send, S: Send> Send for Scratch<K, T, S> {}

const MAP_AHEAD: u64 = 16;
const BLOCK_AHEAD: u64 = 8;
/// A map of this many bytes stays in the nearest caches by itself.
const NEAR_MAP: usize = 16 << 10;
const NO_GROUP: u32 = u32::MAX;

/// What was seen of the records just ahead: mark, whether by group, and the group that it probably is (the first entry
/// of the map with these hash bits; the key is compared when the record's turn comes).
struct Ahead([Option<(u32, bool, u32)>; BLOCK_AHEAD as usize]);

impl Ahead {
    fn new() -> Self {
        Self([None; BLOCK_AHEAD as usize])
    }

    #[inline]
    fn look<K, T, S>(&mut self, ring: &Ring<K, T>, back: &Back<K, T, S>, position: u64) {
        self.0[(position % BLOCK_AHEAD) as usize] = ring.peek(position).map(|(mark, by_group)| {
            let candidate =
                if by_group { mark } else { back.map.get(mark, |_| true).unwrap_or(NO_GROUP) };
            if candidate != NO_GROUP {
                prefetch_block(back, candidate);
            }
            (mark, by_group, candidate)
        });
    }

    #[inline]
    fn take(&mut self, position: u64) -> Option<(u32, bool, u32)> {
        self.0[(position % BLOCK_AHEAD) as usize].take()
    }
}

#[inline]
fn prefetch_block<K, T, S>(back: &Back<K, T, S>, index: u32) {
    let block = back.slab.at(index).as_ptr();
    prefetch(block);
    prefetch(block.cast::<u8>().wrapping_add(64));
}

/// One worker's hand in a shard.
pub(crate) struct Demux<'a, K, T, S> {
    pub(crate) door: &'a Door<K, T>,
    pub(crate) back: &'a mut Back<K, T, S>,
    pub(crate) pool: &'a mut Pool<T>,
    pub(crate) scratch: &'a mut Scratch<K, T, S>,
}

impl<K: Hash + Eq, T, S> Demux<'_, K, T, S> {
    /// Takes at most `most` records from the ring and from each lane. Returns how many.
    pub(crate) fn chunk(&mut self, most: u32) -> u32 {
        let mut taken = self.drain_ring(most);
        if !self.back.lanes.is_empty() {
            taken += self.drain_lanes(most);
        }
        taken
    }

    fn drain_ring(&mut self, most: u32) -> u32 {
        let start = self.back.head;
        let end = start + u64::from(most);
        loop {
            // A panic in `Eq` leaves `head` at the record whose key it was.
            let run = catch_unwind(AssertUnwindSafe(|| self.run_ring(end)));
            let Err(payload) = run else { break };
            let position = self.back.head;
            self.back.head += 1;
            // SAFETY: `run_ring` saw the record and took nothing of it; it is passed by the head now.
            let (key, task) =
                unsafe { (self.door.ring.take_key(position), self.door.ring.take_task(position)) };
            self.reject(key, task, payload);
        }
        if self.back.head != start {
            self.door.ring.give_back(self.back.head);
            self.door.gate.notify();
        }
        (self.back.head - start) as u32
    }

    fn run_ring(&mut self, end: u64) {
        if self.back.map.heap_bytes() > NEAR_MAP {
            self.run_far(end);
        } else {
            self.run_near(end);
        }
    }

    /// Few groups: they stay in the caches by themselves, and a look ahead only costs.
    fn run_near(&mut self, end: u64) {
        let ring = &self.door.ring;
        while self.back.head < end {
            let position = self.back.head;
            let Some((mark, by_group)) = ring.peek(position) else { return };
            self.sort(position, mark, by_group, NO_GROUP);
        }
    }

    /// Many groups: map and control blocks are fetched ahead, so that their cache misses overlap.
    fn run_far(&mut self, end: u64) {
        let ring = &self.door.ring;
        let mut ahead = Ahead::new();
        for position in self.back.head..(self.back.head + MAP_AHEAD).min(end) {
            // The look-ahead reads cells that may not be published: `peek` says so.
            if let Some((hash, false)) = ring.peek(position) {
                self.back.map.prefetch(hash);
            }
        }
        for position in self.back.head..(self.back.head + BLOCK_AHEAD).min(end) {
            ahead.look(ring, self.back, position);
        }
        while self.back.head < end {
            let position = self.back.head;
            if let Some((hash, false)) = ring.peek(position + MAP_AHEAD) {
                self.back.map.prefetch(hash);
            }
            let seen = ahead.take(position);
            if position + BLOCK_AHEAD < end {
                ahead.look(ring, self.back, position + BLOCK_AHEAD);
            }
            let (mark, by_group, candidate) = match seen {
                Some(seen) => seen,
                // It was not published when we looked ahead.
                None => match ring.peek(position) {
                    Some((mark, by_group)) => (mark, by_group, NO_GROUP),
                    None => return,
                },
            };
            self.sort(position, mark, by_group, candidate);
        }
    }

    /// Moves the published record at the head to its group. `candidate` is the group that it probably belongs to.
    #[inline(always)]
    fn sort(&mut self, position: u64, mark: u32, by_group: bool, candidate: u32) {
        let ring = &self.door.ring;
        let index = if by_group {
            mark
        } else {
            // SAFETY: published by key and not taken.
            let key = unsafe { ring.key(position) };
            // SAFETY: the map holds live groups only, and we hold the claim.
            let known = candidate != NO_GROUP && unsafe { self.back.group(candidate).key() } == key;
            match if known { Some(candidate) } else { self.back.find(mark, key) } {
                Some(index) => {
                    if std::mem::needs_drop::<K>() {
                        // SAFETY: as above; the head passes it below.
                        self.scratch.garbage_keys.push(unsafe { ring.take_key(position) });
                    }
                    index
                }
                // SAFETY: as above.
                None => self.back.make(mark, unsafe { ring.take_key(position) }),
            }
        };
        self.back.head = position + 1;
        // SAFETY: published; the head has passed it, so it is taken once.
        let task = unsafe { ring.take_task(position) };
        self.append(index, task);
    }

    fn prefetch_group(&self, mark: u32) {
        if let Some(index) = self.back.map.get(mark, |_| true) {
            prefetch_block(self.back, index);
        }
    }

    fn drain_lanes(&mut self, most: u32) -> u32 {
        let mut taken = 0;
        let mut i = 0;
        while i < self.back.lanes.len() {
            let lane = self.back.lanes[i].clone();
            taken += self.drain_lane(&lane, most);
            if lane.is_spent() {
                self.back.retired += lane.tail();
                self.back.lanes.swap_remove(i);
            } else {
                i += 1;
            }
        }
        taken
    }

    fn drain_lane(&mut self, lane: &Lane<K, T>, most: u32) -> u32 {
        let start = lane.head();
        let end = lane.tail().min(start + u64::from(most));
        for position in start..(start + MAP_AHEAD).min(end) {
            self.back.map.prefetch(lane.hash(position));
        }
        for position in start..end {
            if position + MAP_AHEAD < end {
                self.back.map.prefetch(lane.hash(position + MAP_AHEAD));
            }
            if position + BLOCK_AHEAD < end {
                self.prefetch_group(lane.hash(position + BLOCK_AHEAD));
            }
            // SAFETY: between head and tail, once.
            let (Address::Key(hash, key), task) = (unsafe { lane.take(position) }) else {
                unreachable!("lanes carry keys")
            };
            let found = catch_unwind(AssertUnwindSafe(|| self.back.find(hash, &key)));
            let index = match found {
                Ok(Some(index)) => {
                    if std::mem::needs_drop::<K>() {
                        self.scratch.garbage_keys.push(key);
                    }
                    index
                }
                Ok(None) => self.back.make(hash, key),
                Err(payload) => {
                    self.reject(key, task, payload);
                    continue;
                }
            };
            self.append(index, task);
        }
        if end > start {
            lane.give_back(end);
            self.door.gate.notify();
        }
        (end - start) as u32
    }

    #[cold]
    fn reject(&mut self, key: K, task: T, payload: Box<dyn std::any::Any + Send>) {
        let failure = Failure::from_panic(payload, FailureKind::Panicked);
        self.scratch.rejected.push((key, task, failure));
    }

    #[inline]
    fn append(&mut self, index: u32, task: T) {
        let group = self.back.group(index);
        // SAFETY: we hold the claim, and this is the one reference.
        let producer = unsafe { group.producer() };
        if producer.pending == 0 {
            let state = group.word.load();
            let quiet = state.is_quiet().then_some(state);
            if quiet.is_some() && !producer.tail.is_detached() {
                // SAFETY: quiet under the claim: the consumer side is ours.
                End::rewind(&mut producer.tail, unsafe { &mut group.consumer().head });
            }
            self.scratch.touched.push(Touched { group: NonNull::from(group), quiet });
        }
        producer.pending += 1;
        if producer.tail.push(self.pool, task) {
            // SAFETY: a group without a segment is quiet, so under the claim the consumer side is ours too.
            unsafe { group.consumer().head = producer.tail.start() };
            if !std::mem::replace(&mut producer.listed, true) {
                self.back.attached.push_back(index);
            }
        }
    }
}

/// What publishing a touched group came to.
#[derive(Debug)]
pub(crate) struct Grown {
    /// The word after the publish, as far as the claim holder knows.
    pub(crate) count: u64,
    pub(crate) added: u32,
    pub(crate) meaning: Published,
}

impl<K, T> Touched<K, T> {
    pub(crate) fn group<'e>(&self) -> &'e Group<K, T> {
        // SAFETY: blocks live as long as the engine.
        unsafe { &*self.group.as_ptr() }
    }

    /// Claim holder: makes the tasks of this chunk countable.
    pub(crate) fn publish(&self) -> Grown {
        let group = self.group();
        // SAFETY: we hold the claim.
        let added = std::mem::take(unsafe { &mut group.producer().pending });
        match self.quiet {
            Some(state) => {
                group.word.activate(state, added);
                Grown { count: u64::from(added), added, meaning: Published::Token }
            }
            None => {
                let (before, meaning) = group.word.publish(added);
                Grown { count: u64::from(before.count()) + u64::from(added), added, meaning }
            }
        }
    }
}
