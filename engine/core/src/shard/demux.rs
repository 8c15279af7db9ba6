//! The claim holder's work: a chunk of records goes from the ingress into the rings of their groups.
//!
//! Under the claim, in this order:
//!
//! 1. Up to a chunk of records of the ring, then of each lane: look the group up (or make it), append the task.
//!    Where there are many groups, the map is looked at 16 records ahead, the control block 8 ahead, so that their cache
//!    misses overlap.
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
    wait::cell::Tracked,
};

/// A group that got tasks in this chunk.
#[derive(Debug)]
pub(crate) struct Touched<K, T> {
    pub(crate) group: NonNull<Group<K, T>>,
    /// The word when the group was touched. If it was quiet then, it still is.
    seen: State,
}

impl<K, T> Clone for Touched<K, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, T> Copy for Touched<K, T> {}

/// Buffers of one worker, reused from chunk to chunk. What is in `rejected` and `garbage` is dropped after the claim
/// was released, since a drop is user code.
#[derive(Debug)]
pub(crate) struct Scratch<K, T, S> {
    pub(crate) touched: Vec<Touched<K, T>>,
    pub(crate) rejected: Vec<(K, T, Failure)>,
    /// Tickets of tasks in `rejected`.
    pub(crate) rejected_tickets: Vec<Tracked>,
    pub(crate) garbage_keys: Vec<K>,
    pub(crate) garbage_states: Vec<S>,
}

impl<K, T, S> Scratch<K, T, S> {
    pub(crate) fn new() -> Self {
        Self {
            touched: Vec::with_capacity(1_024),
            rejected: Vec::new(),
            rejected_tickets: Vec::new(),
            garbage_keys: Vec::new(),
            garbage_states: Vec::new(),
        }
    }
}

// SAFETY: the pointers are to blocks of the engine, valid on every thread; the rest is owned.
unsafe impl<K: Send, T: Send, S: Send> Send for Scratch<K, T, S> {}

/// Records that are looked up together.
const STRETCH: usize = 8;
/// A map of this many bytes stays in the nearest caches by itself.
const NEAR_MAP: usize = 16 << 10;
const NO_GROUP: u32 = u32::MAX;
/// Records of one chunk, at most: a group counts those that it got in 16 bits.
const MOST: u32 = u16::MAX as u32;

/// Records of one stretch: what was seen of each (mark, whether by group), and the group that it probably is (the first entry of
/// the map with these hash bits; the key is compared when the record's turn comes).
#[derive(Clone, Copy)]
struct Stretch {
    seen: [(u32, bool); STRETCH],
    candidates: [u32; STRETCH],
    n: usize,
}

impl Stretch {
    const EMPTY: Self = Self { seen: [(0, false); STRETCH], candidates: [NO_GROUP; STRETCH], n: 0 };

    /// Looks at the records from `from` on, as far as they are published, and asks for their places in the map.
    #[inline(always)]
    fn see<K, T, S>(
        &mut self,
        records: &impl Records<K, T>,
        back: &Back<K, T, S>,
        from: u64,
        end: u64,
    ) {
        let most = end.saturating_sub(from).min(STRETCH as u64) as usize;
        self.n = 0;
        while self.n < most
            && let Some((mark, by_group)) = records.peek(from + self.n as u64)
        {
            if !by_group {
                back.map.prefetch(mark);
            }
            self.seen[self.n] = (mark, by_group);
            self.n += 1;
        }
    }

    /// Looks the groups up, and asks for their blocks.
    #[inline(always)]
    fn look_up<K, T, S>(&mut self, back: &Back<K, T, S>) {
        for (&(mark, by_group), candidate) in self.seen[..self.n].iter().zip(&mut self.candidates) {
            *candidate =
                if by_group { mark } else { back.map.get(mark, |_| true).unwrap_or(NO_GROUP) };
            if *candidate != NO_GROUP {
                prefetch_block(back, *candidate);
            }
        }
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
        let end = start + u64::from(most.min(MOST));
        self.back.head = self.drain(&door.ring.reader(), start, end);
        while self.back.head < end && door.ring.peek_tracked(self.back.head).is_some() {
            self.take_tracked();
            self.back.head = self.drain(&door.ring.reader(), self.back.head, end);
        }
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

    /// Many groups: map and control blocks are fetched ahead, a stretch of records each, so that their cache misses overlap:
    /// while one stretch goes to its groups, the blocks of the next and the places in the map of the one behind are on
    /// their way.
    fn run_far(&mut self, records: &impl Records<K, T>, head: &mut u64, end: u64) {
        let mut stretches = [Stretch::EMPTY; 3];
        let [mut now, mut next, mut then] = stretches.each_mut();
        now.see(records, self.back, *head, end);
        next.see(records, self.back, *head + now.n as u64, end);
        now.look_up(self.back);
        // A stretch that ends at a record which is not published yet is followed by an empty one, or by that record.
        while now.n > 0 {
            next.look_up(self.back);
            let ahead = *head + (now.n + next.n) as u64;
            then.see(records, self.back, ahead, end);
            for (&(mark, by_group), &candidate) in now.seen[..now.n].iter().zip(&now.candidates) {
                self.sort(records, head, mark, by_group, candidate);
            }
            (now, next, then) = (next, then, now);
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
        let (index, group) = if by_group {
            (mark, self.back.group(mark))
        } else {
            // SAFETY: published by key and not taken.
            let key = unsafe { records.key(position) };
            let (index, group) = match self.group_of(mark, key, candidate) {
                Some(known) => known,
                None => {
                    // SAFETY: as above; the head passes it below.
                    let index = self.back.make(mark, unsafe { records.take_key(position) });
                    *head = position + 1;
                    // SAFETY: published; the head has passed it, so it is taken once.
                    let task = unsafe { records.take_task(position) };
                    self.append(index, self.back.group(index), task);
                    return;
                }
            };
            if std::mem::needs_drop::<K>() {
                // SAFETY: as above; the head passes it below.
                self.scratch.garbage_keys.push(unsafe { records.take_key(position) });
            }
            (index, group)
        };
        *head = position + 1;
        // SAFETY: published; the head has passed it, so it is taken once.
        let task = unsafe { records.take_task(position) };
        self.append(index, group, task);
    }

    /// The group with this key, if it exists: the candidate, or what the map says.
    #[inline(always)]
    fn group_of<'e>(&self, hash: u32, key: &K, candidate: u32) -> Option<(u32, &'e Group<K, T>)> {
        let mut found = None;
        let mut is_it = |index| {
            let group = self.back.group(index);
            found = Some((index, group));
            // SAFETY: the map holds live groups only, and we hold the claim.
            unsafe { group.key() == key }
        };
        let known = candidate != NO_GROUP && is_it(candidate);
        if known || self.back.map.get(hash, is_it).is_some() { found } else { None }
    }

    /// Moves the record with a ticket at the head to its group.
    #[cold]
    fn take_tracked(&mut self) {
        let door = self.door;
        let position = self.back.head;
        let Some((mark, by_group)) = door.ring.peek_tracked(position) else { return };
        let tracked = door.tickets.lock().take_note(position);
        debug_assert!(tracked.is_some(), "the note came before the record");
        let records = door.ring.reader();
        let found = if by_group {
            Ok(Some(mark))
        } else {
            // SAFETY: published by key and not taken.
            let key = unsafe { records.key(position) };
            catch_unwind(AssertUnwindSafe(|| self.back.find(mark, key)))
        };
        // SAFETY: as above; the head passes the record below, so each part is taken once.
        let take_key = || unsafe { records.take_key(position) };
        // SAFETY: as above.
        let task = unsafe { records.take_task(position) };
        self.back.head = position + 1;
        let index = match found {
            Ok(Some(index)) => {
                if !by_group {
                    self.scratch.garbage_keys.push(take_key());
                }
                index
            }
            Ok(None) => self.back.make(mark, take_key()),
            Err(payload) => {
                self.scratch.rejected_tickets.extend(tracked);
                return self.reject(take_key(), task, payload);
            }
        };
        let group = self.back.group(index);
        self.append(index, group, task);
        let Some(tracked) = tracked else { return };
        let pointer = NonNull::from(group);
        tracked.cell().found(pointer);
        // SAFETY: we hold the claim.
        let spot = unsafe { group.producer() }.tail.last();
        door.tickets.place(pointer, &group.word, spot, tracked);
        // A quiet group is activated from what was read of its word.
        let touched =
            self.scratch.touched.iter_mut().rev().find(|touched| touched.group == pointer);
        if let Some(touched) = touched
            && touched.seen.is_quiet()
        {
            touched.seen = group.word.load();
        }
    }

    #[cold]
    fn reject(&mut self, key: K, task: T, payload: Box<dyn std::any::Any + Send>) {
        let failure = Failure::from_panic(payload, FailureKind::Panicked);
        self.scratch.rejected.push((key, task, failure));
    }

    #[inline(always)]
    pub(crate) fn append(&mut self, index: u32, group: &Group<K, T>, task: T) {
        // SAFETY: we hold the claim, and this is the one reference.
        let pending = unsafe { group.producer() }.pending;
        if *pending == 0 {
            self.touch(group, index);
        }
        *pending += 1;
        // SAFETY: as above.
        unsafe { group.producer() }.tail.push(self.pool, task);
    }

    /// The first task of this chunk for a group.
    fn touch(&mut self, group: &Group<K, T>, index: u32) {
        let state = group.word.load();
        if state.is_quiet() {
            // SAFETY: we hold the claim, and this is the one reference.
            let producer = unsafe { group.producer() };
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
        self.scratch.touched.push(Touched { group: NonNull::from(group), seen: state });
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

    /// Claim holder: the word may have got flags since it was touched, by who holds the claim.
    pub(crate) fn seen_again(mut self) -> Self {
        if self.seen.is_quiet() {
            self.seen = self.group().word.load();
        }
        self
    }

    /// It was idle when it was touched.
    #[inline(always)]
    pub(crate) fn was_quiet(&self) -> bool {
        self.seen.is_quiet()
    }

    /// Claim holder: makes the tasks of this chunk countable, if the group was quiet: how many. The caller then holds its token.
    #[inline(always)]
    pub(crate) fn activate(&self) -> Option<u32> {
        self.seen.is_quiet().then(|| {
            let group = self.group();
            // SAFETY: we hold the claim.
            let added = u32::from(std::mem::take(unsafe { group.producer().pending }));
            group.word.activate(self.seen, added);
            added
        })
    }

    /// Claim holder: makes the tasks of this chunk countable.
    pub(crate) fn publish(&self) -> Grown {
        if let Some(added) = self.activate() {
            return Grown { count: u64::from(added), added, meaning: Published::Token };
        }
        let group = self.group();
        // SAFETY: we hold the claim.
        let added = u32::from(std::mem::take(unsafe { group.producer().pending }));
        let (before, meaning) = group.word.publish(added);
        Grown { count: u64::from(before.count()) + u64::from(added), added, meaning }
    }
}
