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
//! A group that goes idle keeps its segment for a while (shard/warm.rs).
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
        block::{Block, Group},
        ring::End,
        segment::Pool,
        state::{Published, State},
    },
    ingress::records::Records,
    outcome::{Failure, FailureKind},
    sync::prefetch,
};

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
/// Records of one chunk, at most: a group counts those that it got in 16 bits.
const MOST: u32 = u16::MAX as u32;

/// What was seen of the records just ahead: mark, whether by group, and the group that it probably is (the first entry
/// of the map with these hash bits; the key is compared when the record's turn comes).
struct Ahead([Option<(u32, bool, u32)>; BLOCK_AHEAD as usize]);

impl Ahead {
    fn new() -> Self {
        Self([None; BLOCK_AHEAD as usize])
    }

    #[inline]
    fn look<K, T, S>(&mut self, records: &impl Records<K, T>, back: &Back<K, T, S>, position: u64) {
        self.0[(position % BLOCK_AHEAD) as usize] =
            records.peek(position).map(|(mark, by_group)| {
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
    if size_of::<Block<K, T, S>>() > 64 {
        prefetch(block.cast::<u8>().wrapping_add(64));
    }
}

/// One worker's hand in a shard.
pub(crate) struct Demux<'a, K, T, S> {
    pub(crate) door: &'a Door<K, T>,
    pub(crate) back: &'a mut Back<K, T, S>,
    pub(crate) pool: &'a mut Pool<T>,
    pub(crate) scratch: &'a mut Scratch<K, T, S>,
    /// In ns: from now on the groups that become busy wait.
    pub(crate) now: u64,
}

impl<K: Hash + Eq, T, S> Demux<'_, K, T, S> {
    /// Takes at most `most` records from the ring and from each lane, [`MOST`] in all. Returns how many.
    pub(crate) fn chunk(&mut self, most: u32) -> u32 {
        let door = self.door;
        let start = self.back.head;
        self.back.head = self.drain(&door.ring, start, start + u64::from(most.min(MOST)));
        let mut taken = (self.back.head - start) as u32;
        if taken > 0 {
            door.ring.give_back(self.back.head);
        }
        let mut room = false;
        if !self.back.lanes.is_empty() {
            let laned = self.drain_lanes(most, MOST - taken, &mut room);
            self.back.mode.looked(laned, &door.fenced);
            taken += laned;
        }
        if taken > 0 {
            let head = self.back.head;
            door.gate.notify(|| room || (head > start && door.ring.has_room(head)));
        }
        taken
    }

    /// Lanes take turns to be the first, so that none starves when the chunk ends early. `room`: one of them has room for a
    /// producer that waits.
    fn drain_lanes(&mut self, most: u32, mut left: u32, room: &mut bool) -> u32 {
        let lanes = std::mem::take(&mut self.back.lanes);
        let before = left;
        let first = self.back.first_lane % lanes.len();
        let mut seen = 0;
        for lane in lanes[first..].iter().chain(&lanes[..first]) {
            if left == 0 {
                break;
            }
            let start = lane.head();
            let tail = lane.tail();
            let end = tail.min(start + u64::from(most.min(left)));
            let head = self.drain(&lane.up_to(end), start, end);
            if head > start {
                lane.give_back(head);
                *room |= lane.has_room(head, tail);
            }
            left -= (head - start) as u32;
            seen += 1;
        }
        self.back.first_lane = first + if seen == lanes.len() { 1 } else { seen };
        self.back.lanes = lanes;
        self.back.remove_spent_lanes();
        before - left
    }

    /// Moves the records from `head` to `end`, or to the first that is not published. Returns where it stopped.
    fn drain(&mut self, records: &impl Records<K, T>, mut head: u64, end: u64) -> u64 {
        loop {
            // A panic in `Eq` leaves `head` at the record whose key it was.
            let run = catch_unwind(AssertUnwindSafe(|| self.run(records, &mut head, end)));
            let Err(payload) = run else { return head };
            // SAFETY: `run` saw the record and took nothing of it; it is passed by the head now.
            let (key, task) = unsafe { (records.take_key(head), records.take_task(head)) };
            head += 1;
            self.reject(key, task, payload);
        }
    }

    fn run(&mut self, records: &impl Records<K, T>, head: &mut u64, end: u64) {
        if self.back.map.heap_bytes() > NEAR_MAP {
            self.run_far(records, head, end);
        } else {
            self.run_near(records, head, end);
        }
    }

    /// Few groups: they stay in the caches by themselves, and a look ahead only costs.
    fn run_near(&mut self, records: &impl Records<K, T>, head: &mut u64, end: u64) {
        while *head < end {
            let Some((mark, by_group)) = records.peek(*head) else { return };
            self.sort(records, head, mark, by_group, NO_GROUP);
        }
    }

    /// Many groups: map and control blocks are fetched ahead, so that their cache misses overlap.
    fn run_far(&mut self, records: &impl Records<K, T>, head: &mut u64, end: u64) {
        let mut ahead = Ahead::new();
        for position in *head..(*head + MAP_AHEAD).min(end) {
            // The look-ahead reads cells that may not be published: `peek` says so.
            if let Some((hash, false)) = records.peek(position) {
                self.back.map.prefetch(hash);
            }
        }
        for position in *head..(*head + BLOCK_AHEAD).min(end) {
            ahead.look(records, self.back, position);
        }
        while *head < end {
            if let Some((hash, false)) = records.peek(*head + MAP_AHEAD) {
                self.back.map.prefetch(hash);
            }
            let seen = ahead.take(*head);
            if *head + BLOCK_AHEAD < end {
                ahead.look(records, self.back, *head + BLOCK_AHEAD);
            }
            let (mark, by_group, candidate) = match seen {
                Some(seen) => seen,
                // It was not published when we looked ahead.
                None => match records.peek(*head) {
                    Some((mark, by_group)) => (mark, by_group, NO_GROUP),
                    None => return,
                },
            };
            self.sort(records, head, mark, by_group, candidate);
        }
    }

    /// Moves the published record at the head to its group. `candidate` is the group that it probably belongs to.
    #[inline(always)]
    fn sort(
        &mut self,
        records: &impl Records<K, T>,
        head: &mut u64,
        mark: u32,
        by_group: bool,
        candidate: u32,
    ) {
        let position = *head;
        let index = if by_group {
            mark
        } else {
            // SAFETY: published by key and not taken.
            let key = unsafe { records.key(position) };
            // SAFETY: the map holds live groups only, and we hold the claim.
            let known = candidate != NO_GROUP && unsafe { self.back.group(candidate).key() } == key;
            match if known { Some(candidate) } else { self.back.find(mark, key) } {
                Some(index) => {
                    if std::mem::needs_drop::<K>() {
                        // SAFETY: as above; the head passes it below.
                        self.scratch.garbage_keys.push(unsafe { records.take_key(position) });
                    }
                    index
                }
                // SAFETY: as above.
                None => self.back.make(mark, unsafe { records.take_key(position) }),
            }
        };
        *head = position + 1;
        // SAFETY: published; the head has passed it, so it is taken once.
        let task = unsafe { records.take_task(position) };
        self.append(index, task);
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
        if *producer.pending == 0 {
            let state = group.word.load();
            let quiet = state.is_quiet().then_some(state);
            if quiet.is_some() {
                // SAFETY: quiet under the claim: the consumer side is ours.
                let mut head = unsafe { group.head_end() };
                if producer.tail.is_detached() {
                    *producer.tail = self.back.segment_for(index, producer.flags, self.pool);
                    head = *producer.tail;
                } else {
                    End::rewind(producer.tail, &mut head);
                }
                head.set_stamp(self.now);
                // SAFETY: as above.
                unsafe { group.set_head(head) };
            }
            self.scratch.touched.push(Touched { group: NonNull::from(group), quiet });
        }
        *producer.pending += 1;
        producer.tail.push(self.pool, task);
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

    /// It was idle when it was touched.
    #[inline(always)]
    pub(crate) fn was_quiet(&self) -> bool {
        self.quiet.is_some()
    }

    /// Claim holder: makes the tasks of this chunk countable.
    pub(crate) fn publish(&self) -> Grown {
        let group = self.group();
        // SAFETY: we hold the claim.
        let added = u32::from(std::mem::take(unsafe { group.producer().pending }));
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
