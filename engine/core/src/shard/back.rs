//! The back of a shard: what the claim holder owns. The claim is the lock around it.
//!
//! The shard's unit sees to it that one worker at a time comes here, so the lock is free in the usual case; whoever
//! takes a handle, adds a lane or reads statistics takes the same lock for a moment. No task runs under it, and of
//! user code only `Eq` of keys.

use std::{collections::VecDeque, ptr::NonNull, sync::Arc};

use super::map::Map;
use crate::{
    group::block::{Block, Group, Slab},
    ingress::lane::Lane,
};

/// See the module text.
pub(crate) struct Back<K, T, S> {
    pub(crate) map: Map,
    pub(crate) slab: Slab<K, T, S>,
    /// The next position of the shard's ring.
    pub(crate) head: u64,
    pub(crate) lanes: Vec<Arc<Lane<K, T>>>,
    /// Records of lanes that are gone.
    pub(crate) retired: u64,
    /// Looks in a row that found nothing while there are lanes.
    pub(crate) empty_looks: u32,
    /// Groups with a segment, oldest first (see demux.rs).
    pub(crate) attached: VecDeque<u32>,
    /// Where the sweep for idle groups goes on.
    pub(crate) hand: u32,
    /// Pins of handles that are gone, each with the position of the ring from which on no record of its handle comes.
    pub(crate) unpins: VecDeque<(u64, u32)>,
    /// Groups that exist.
    pub(crate) live: u32,
    /// What this shard has contributed to the count of all groups (`Core::census`).
    pub(crate) counted: u32,
    /// Groups ever made.
    pub(crate) made: u64,
    /// As many of them have paid for a sweep (shard/reclaim.rs).
    pub(crate) swept: u64,
}

impl<K, T, S> Back<K, T, S> {
    pub(crate) fn new(shard: u32) -> Self {
        Self {
            map: Map::new(),
            slab: Slab::new(shard),
            head: 0,
            lanes: Vec::new(),
            retired: 0,
            empty_looks: 0,
            attached: VecDeque::new(),
            hand: 0,
            unpins: VecDeque::new(),
            live: 0,
            counted: 0,
            made: 0,
            swept: 0,
        }
    }

    /// The group at `index`. The reference must not outlive the engine; blocks never move.
    #[inline]
    pub(crate) fn group<'e>(&self, index: u32) -> &'e Group<K, T> {
        let block: NonNull<Block<K, T, S>> = self.slab.at(index);
        // SAFETY: blocks are alive until the engine goes, and every caller works inside the engine's life.
        unsafe { &(*block.as_ptr()).group }
    }

    /// The group with this key, if it exists.
    #[inline]
    pub(crate) fn find(&self, hash: u32, key: &K) -> Option<u32>
    where
        K: Eq,
    {
        self.map.get(hash, |index| {
            // SAFETY: the map holds live groups only, and we are the claim holder.
            unsafe { self.group(index).key() == key }
        })
    }

    /// Makes a group that does not exist.
    pub(crate) fn make(&mut self, hash: u32, key: K) -> u32 {
        let index = self.slab.add();
        let group = self.group(index);
        // SAFETY: we hold the claim and the block is free.
        unsafe {
            group.set_key(key);
            let producer = group.producer();
            producer.live = true;
            producer.hash = hash;
        }
        self.map.insert(hash, index);
        self.live += 1;
        self.made += 1;
        index
    }

    /// One handle less.
    pub(crate) fn unpin(&mut self, index: u32) {
        // SAFETY: we hold the claim.
        let pins = unsafe { &mut self.group(index).producer().pins };
        // A count that has reached its end says nothing any more: then the group stays.
        if *pins < u16::MAX {
            *pins -= 1;
        }
    }

    /// Handles that were dropped let go of their groups once their last record was taken.
    #[inline]
    pub(crate) fn unpin_passed(&mut self) {
        while let Some((from, index)) = self.unpins.front().copied()
            && from <= self.head
        {
            self.unpins.pop_front();
            self.unpin(index);
        }
    }

    /// Records that came in, through the lanes of this shard.
    pub(crate) fn lane_records(&self) -> u64 {
        self.retired + self.lanes.iter().map(|lane| lane.tail()).sum::<u64>()
    }

    /// A lane has a record.
    pub(crate) fn any_lane(&self) -> bool {
        self.lanes.iter().any(|lane| lane.tail() != lane.head())
    }
}
