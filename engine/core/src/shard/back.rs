//! The back of a shard: what the claim holder owns. The claim is the lock around it.
//!
//! The shard's unit sees to it that one worker at a time comes here, so the lock is free in the usual case; whoever
//! takes a handle, adds a lane or reads statistics takes the same lock for a moment. No task runs under it, and of
//! user code only `Eq` of keys.

use std::{
    collections::{HashMap, VecDeque},
    ptr::NonNull,
    sync::Arc,
};

use ahash::RandomState;

use super::{fenced::Mode, map::Map, warm::Warm};
use crate::{
    exact::Desk,
    group::block::{Block, Flags, Group, Slab},
    ingress::lane::Lane,
    topology::memory::Home,
};

/// What a shard has told the watch of its groups.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) made: u64,
    pub(crate) bytes: u64,
}

/// See the module text.
pub(crate) struct Back<K, T, S> {
    pub(crate) map: Map,
    pub(crate) slab: Slab<K, T, S>,
    /// The next position of the shard's ring.
    pub(crate) head: u64,
    pub(crate) lanes: Vec<Arc<Lane<K, T>>>,
    /// The lane to begin with.
    pub(crate) first_lane: usize,
    /// How producers with lanes look at the flag.
    pub(crate) mode: Mode,
    /// Looks in a row that found nothing, where there are lanes.
    pub(crate) empty_looks: u32,
    /// Groups with a segment.
    pub(crate) warm: Warm,
    /// Where the sweep for idle groups goes on.
    pub(crate) hand: u32,
    /// Handles by the index of their group.
    pins: HashMap<u32, u32, RandomState>,
    /// Pins of handles that are gone, each with the position of the ring from which on no record of its handle comes.
    pub(crate) unpins: VecDeque<(u64, u32)>,
    /// Parts of splits whose handles are gone.
    pub(crate) orphans: Vec<u32>,
    /// Groups that exist.
    pub(crate) live: u32,
    /// What this shard has contributed to the count of all groups (`Core::census`).
    pub(crate) counted: u32,
    /// Likewise, for the watch.
    pub(crate) told: Told,
    /// When a look left records behind, in ns; 0: the last one left none.
    pub(crate) left_at: u64,
    /// Lanes that were let go of and not reported yet.
    pub(crate) gone_lanes: Vec<Arc<Lane<K, T>>>,
    /// What submitters need who put their tasks into groups themselves (exact/enter.rs), once there was one.
    pub(crate) desk: Option<Box<Desk<K, T, S>>>,
    /// Groups ever made.
    pub(crate) made: u64,
    /// As many of them have paid for a sweep (shard/reclaim.rs).
    pub(crate) swept: u64,
}

impl<K, T, S> Back<K, T, S> {
    /// The back of a shard whose groups lie on `home`.
    pub(crate) fn new(home: Home) -> Self {
        Self {
            map: Map::new(),
            slab: Slab::new(home),
            head: 0,
            lanes: Vec::new(),
            first_lane: 0,
            mode: Mode::new(),
            empty_looks: 0,
            warm: Warm::new(),
            hand: 0,
            pins: HashMap::default(),
            unpins: VecDeque::new(),
            orphans: Vec::new(),
            live: 0,
            counted: 0,
            told: Told::default(),
            left_at: 0,
            gone_lanes: Vec::new(),
            desk: None,
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
            group.set_key(hash, key);
            group.producer().flags.set(Flags::LIVE);
        }
        self.map.insert(hash, index);
        self.live += 1;
        self.made += 1;
        index
    }

    /// Makes a group that nobody finds by its key (split.rs).
    pub(crate) fn make_part(&mut self, hash: u32, key: K) -> u32 {
        let index = self.slab.add();
        let group = self.group(index);
        // SAFETY: we hold the claim and the block is free.
        unsafe {
            group.set_key(hash, key);
            group.producer().flags.set(Flags::LIVE);
            group.producer().flags.set(Flags::PART);
        }
        self.live += 1;
        self.made += 1;
        index
    }

    /// One handle more.
    pub(crate) fn pin(&mut self, index: u32) {
        *self.pins.entry(index).or_insert(0) += 1;
        // SAFETY: we hold the claim.
        unsafe { self.group(index).producer() }.flags.set(Flags::PINNED);
    }

    /// One handle less.
    pub(crate) fn unpin(&mut self, index: u32) {
        let Some(pins) = self.pins.get_mut(&index) else {
            debug_assert!(false, "group {index} is not pinned");
            return;
        };
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&index);
            // SAFETY: we hold the claim.
            let flags = unsafe { self.group(index).producer() }.flags;
            flags.clear(Flags::PINNED);
            if flags.has(Flags::PART) {
                self.orphans.push(index);
            }
        }
    }

    /// Bytes of map, blocks and pins.
    pub(crate) fn heap_bytes(&self) -> usize {
        let pins = self.pins.capacity() * size_of::<(u32, u32)>();
        self.map.heap_bytes() + self.slab.heap_bytes() + pins
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

    /// Lanes whose producer is gone and whose records were taken.
    pub(crate) fn remove_spent_lanes(&mut self) {
        let gone_lanes = &mut self.gone_lanes;
        self.lanes.retain(|lane| {
            let spent = lane.is_spent();
            if spent {
                gone_lanes.push(lane.clone());
            }
            !spent
        });
    }

    /// A lane has a record.
    pub(crate) fn any_lane(&self) -> bool {
        self.lanes.iter().any(|lane| lane.tail() != lane.head())
    }
}
