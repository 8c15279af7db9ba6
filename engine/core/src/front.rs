//! What a submitter touches: hash, one shard's ring and flag, and nothing of any group.
//!
//! Cost of a submit: the hash, one read-modify-write on the shard's tail, one cell written, three loads of lines that
//! seldom change (filter, head, flag). The number of keys does not matter.

use std::{
    hash::Hash,
    ptr::NonNull,
    sync::{
        Arc,
        OnceLock,
        // Plain, also for the models: a time for the watch.
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ahash::RandomState;
use crossbeam_utils::CachePadded;

use crate::{
    core::Hand,
    error::{SubmitError, SubmitReason},
    exact::Link as ExactLink,
    flow::{
        filter::Filter,
        gate::{Bar, Gate, Held},
        line::Lines,
    },
    group::block::Group,
    ingress::{
        barrier::Barrier,
        ring::{Address, Refused, Ring},
    },
    lifecycle::status::Status,
    ready::{
        Ready,
        link::{Link, Unit},
    },
    shard::{fenced::Fenced, flag::Flag},
    wait::{
        seat::{self, Seat, Seated},
        tickets::Tickets,
    },
};

/// The part of a shard that submitters touch. Begins with its link: it can be ready.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Door<K, T> {
    link: Link,
    pub(crate) index: u32,
    /// The worker to whose inbox the shard goes when it becomes ready.
    home: u32,
    pub(crate) flag: Flag,
    /// How producers with lanes look at the flag.
    pub(crate) fenced: Fenced,
    pub(crate) ring: Ring<K, T>,
    pub(crate) gate: Gate<K, T>,
    /// When the shard became ready last, in ns; for the watch.
    pub(crate) rung_at: AtomicU64,
    pub(crate) tickets: Tickets<K, T>,
    /// Who waits for a place in which full group, where capacities are exact.
    pub(crate) lines: Lines<K, T>,
    /// Tasks that submitters have put into groups themselves; written under the claim.
    pub(crate) entered: AtomicU64,
}

impl<K, T> Door<K, T> {
    /// The unit of this shard. The caller holds the duty to look at it.
    pub(crate) fn unit(&self) -> Unit {
        Unit::shard(NonNull::from(self).cast())
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Front<K, T> {
    pub(crate) doors: Box<[CachePadded<Door<K, T>>]>,
    pub(crate) ready: Ready,
    pub(crate) status: Status,
    pub(crate) filter: Filter,
    pub(crate) barrier: Barrier,
    hasher: RandomState,
    /// Shards, less one.
    mask: u32,
    /// Set where capacities are exact (exact/submit.rs).
    pub(crate) exact: OnceLock<ExactLink<K, T>>,
    manners: Manners,
}

/// What submitters are told at full doors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manners {
    /// Capacities are exact: everybody takes the slower path.
    pub(crate) exact: bool,
    /// They wait also where a group is full and halted.
    pub(crate) wait_at_halted: bool,
}

/// The home of a shard among so many workers.
pub(crate) fn home(shard: usize, workers: usize) -> usize {
    shard % workers
}

/// Where a task is to go.
#[derive(Debug)]
pub(crate) struct Target<K> {
    pub(crate) shard: usize,
    pub(crate) hash: u32,
    pub(crate) address: Address<K>,
}

/// How long a submitter is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    None,
    Until(Instant, Duration),
    Forever,
}

impl<K, T> Front<K, T> {
    /// A shard for each of `rings`; their number is a power of two.
    pub(crate) fn new(
        rings: Vec<Ring<K, T>>,
        workers: usize,
        ready: Ready,
        hasher: RandomState,
        manners: Manners,
    ) -> Arc<Self> {
        let shards = rings.len();
        let doors = rings
            .into_iter()
            .enumerate()
            .map(|(index, ring)| {
                CachePadded::new(Door {
                    link: Link::new(),
                    index: index as u32,
                    home: home(index, workers) as u32,
                    flag: Flag::new(),
                    fenced: Fenced::new(),
                    ring,
                    gate: Gate::new(),
                    rung_at: AtomicU64::new(0),
                    tickets: Tickets::new(),
                    lines: Lines::new(),
                    entered: AtomicU64::new(0),
                })
            })
            .collect();
        Arc::new(Self {
            doors,
            ready,
            status: Status::new(),
            filter: Filter::new(manners.exact),
            barrier: Barrier::detect(),
            hasher,
            mask: shards as u32 - 1,
            exact: OnceLock::new(),
            manners,
        })
    }

    /// This thread works for this engine, as the worker with this hand, until the guard goes. The hand lives longer.
    pub(crate) fn adopt_thread(&self, hand: &Hand<K, T>) -> Seated {
        seat::sit(Seat { front: self.address(), hand: std::ptr::from_ref(hand).cast() })
    }

    /// This thread closes the engine, and runs policies of the user's meanwhile: as a worker without a group.
    pub(crate) fn adopt_closing_thread(&self) -> Seated {
        seat::sit(Seat { front: self.address(), hand: std::ptr::null() })
    }

    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The groups that this thread runs for this engine.
    pub(crate) fn own_groups(&self) -> Vec<NonNull<Group<K, T>>> {
        let own = seat::hands(self.address()).into_iter();
        // SAFETY: the seat was taken by `adopt_thread` of this front, so it is a hand of this type, which lives, or null.
        own.filter_map(|hand| unsafe { hand.cast::<Hand<K, T>>().as_ref() }?.holds()).collect()
    }

    /// The door of a shard that [`Front::hash`] or [`Front::shard_of`] named.
    #[inline(always)]
    pub(crate) fn door(&self, shard: usize) -> &Door<K, T> {
        debug_assert!(shard < self.doors.len());
        // SAFETY: those two make shards of as many bits as there are doors, so the index is in bounds.
        unsafe { self.doors.get_unchecked(shard) }
    }

    /// Who finds a group full and halted is ready to wait there.
    pub(crate) fn waits_at_halted(&self) -> bool {
        self.manners.wait_at_halted
    }

    /// The worker to whose inbox this shard goes.
    pub(crate) fn home(&self, shard: usize) -> usize {
        self.doors[shard].home as usize
    }

    /// The shard of a group with these hash bits.
    #[inline(always)]
    pub(crate) fn shard_of(&self, hash: u32) -> usize {
        (hash & self.mask) as usize
    }

    pub(crate) fn is_own_worker(&self) -> bool {
        seat::is_taken(self.address())
    }

    /// The shard with the duty to look goes to its home worker.
    #[cold]
    fn announce(&self, door: &Door<K, T>) {
        door.rung_at.store(self.ready.clock.now(), Ordering::Relaxed);
        self.ready.send(door.home as usize, door.unit());
    }

    /// After records were published to `door`.
    #[inline(always)]
    pub(crate) fn published(&self, door: &Door<K, T>) {
        self.barrier.light();
        if door.flag.ring() {
            self.announce(door);
        }
    }

    /// After a record was pushed to a lane of `door`.
    #[inline(always)]
    pub(crate) fn pushed(&self, door: &Door<K, T>) {
        door.fenced.after_push(self.barrier);
        if door.flag.ring() {
            self.announce(door);
        }
    }

    pub(crate) fn refused(&self, refused: Refused) -> SubmitReason {
        match refused {
            Refused::Closed => SubmitReason::Closed,
            Refused::Full => SubmitReason::EngineFull,
        }
    }
}

impl<K: Hash + Eq, T> Front<K, T> {
    #[inline]
    pub(crate) fn hash(&self, key: &K) -> (usize, u32) {
        // Of the 64 bits the engine uses 32: the lowest say the shard, the shard's map begins at the highest.
        let hash = self.hasher.hash_one(key) as u32;
        (self.shard_of(hash), hash)
    }

    /// One reservation, one cell, one look at the flag: the whole of a submit while there is room. `false`, with
    /// key and task left where they are: take the slow way.
    #[inline(always)]
    fn send_at_once(
        &self,
        shard: usize,
        hash: u32,
        record: impl FnOnce() -> (Address<K>, T),
    ) -> bool {
        let door = self.door(shard);
        if self.filter.may_be_full(hash) {
            return false;
        }
        let Ok((position, _)) = door.ring.reserve(1) else { return false };
        let (address, task) = record();
        // SAFETY: just reserved, and filled once; `record` only moves values.
        unsafe { door.ring.fill(position, address, task) };
        self.published(door);
        true
    }

    /// The submit of everybody, to a group by its key.
    #[inline(always)]
    pub(crate) fn submit(
        &self,
        key: K,
        task: T,
        patience: Patience,
    ) -> Result<(), SubmitError<K, T>> {
        let (shard, hash) = self.hash(&key);
        let mut record = Some((key, task));
        let sent = self.send_at_once(shard, hash, || {
            let (key, task) = record.take().expect("asked once");
            (Address::Key(hash, key), task)
        });
        match record {
            Some((key, task)) if !sent => self.submit_slowly(shard, hash, key, task, patience),
            _ => Ok(()),
        }
    }

    #[cold]
    fn submit_slowly(
        &self,
        shard: usize,
        hash: u32,
        key: K,
        task: T,
        patience: Patience,
    ) -> Result<(), SubmitError<K, T>> {
        let address = Address::Key(hash, key);
        self.send(Target { shard, hash, address }, None, task, patience).map_err(
            |(address, task, reason)| match address {
                Address::Key(_, key) => SubmitError { key, task, reason },
                Address::Group(_) => unreachable!("submitted by key"),
            },
        )
    }

    /// The submit of a handle, to the group with this index. The task comes back where it has to take the slow way.
    #[inline(always)]
    pub(crate) fn submit_to(&self, hash: u32, index: u32, task: T) -> Result<(), T> {
        let mut record = Some(task);
        let sent = self.send_at_once(self.shard_of(hash), hash, || {
            (Address::Group(index), record.take().expect("asked once"))
        });
        match record {
            Some(task) if !sent => Err(task),
            _ => Ok(()),
        }
    }

    /// What [`Front::send_at_once`] could not do: tries once more, then waits as long as `patience` says, or tells why not.
    /// `block` is the group's block where the caller has a handle.
    #[cold]
    pub(crate) fn send(
        &self,
        target: Target<K>,
        block: Option<NonNull<Group<K, T>>>,
        task: T,
        patience: Patience,
    ) -> Result<(), (Address<K>, T, SubmitReason)> {
        if let Some(exact) = self.exact() {
            return self.send_exactly(exact, target, block, task, patience, None);
        }
        let Target { shard, hash, address } = target;
        let door = &self.doors[shard];
        if self.filter.may_be_full(hash) {
            return self.send_slowly(door, hash, address, block, task, patience);
        }
        match door.ring.push(address, task) {
            Ok(()) => {
                self.published(door);
                Ok(())
            }
            Err((address, task, Refused::Closed)) => Err((address, task, SubmitReason::Closed)),
            Err((address, task, Refused::Full)) => match patience {
                Patience::None => Err((address, task, SubmitReason::EngineFull)),
                _ => self.send_slowly(door, hash, address, block, task, patience),
            },
        }
    }

    #[cold]
    fn send_slowly(
        &self,
        door: &Door<K, T>,
        hash: u32,
        mut address: Address<K>,
        block: Option<NonNull<Group<K, T>>>,
        mut task: T,
        patience: Patience,
    ) -> Result<(), (Address<K>, T, SubmitReason)> {
        let mut gate = door.gate.enter();
        loop {
            if self.status.refuses() {
                return Err((address, task, SubmitReason::Closed));
            }
            let why = match self.bar(&gate, hash, &address, block) {
                Err(reason) => return Err((address, task, reason)),
                Ok(Some(full)) => full,
                Ok(None) => match door.ring.push(address, task) {
                    Ok(()) => {
                        drop(gate);
                        self.published(door);
                        return Ok(());
                    }
                    Err((back, again, refused)) => {
                        (address, task) = (back, again);
                        match self.refused(refused) {
                            SubmitReason::Closed => {
                                return Err((address, task, SubmitReason::Closed));
                            }
                            full => full,
                        }
                    }
                },
            };
            if let Err(reason) = self.wait_at(&mut gate, patience, why) {
                let reason = self.name_own(reason, why, &address, block);
                return Err((address, task, reason));
            }
        }
    }

    /// Why does the group take nothing now? `Err`: waiting would not help.
    pub(crate) fn bar(
        &self,
        gate: &Held<'_, K, T>,
        hash: u32,
        address: &Address<K>,
        block: Option<NonNull<Group<K, T>>>,
    ) -> Result<Option<SubmitReason>, SubmitReason> {
        let bar = match (address, block) {
            (Address::Key(_, key), _) => gate.bar_of_key(hash, key),
            (Address::Group(_), Some(block)) => gate.bar_of_block(hash, block),
            (Address::Group(_), None) => None,
        };
        match bar {
            None => Ok(None),
            Some(Bar::Full) => Ok(Some(SubmitReason::GroupFull)),
            Some(Bar::Halted) if self.waits_at_halted() => Ok(Some(SubmitReason::GroupHalted)),
            Some(Bar::Halted) => Err(SubmitReason::GroupHalted),
            Some(Bar::Closed) => Err(SubmitReason::GroupClosed),
        }
    }

    /// Waits at the gate for a change, or says why not.
    pub(crate) fn wait_at(
        &self,
        gate: &mut Held<'_, K, T>,
        patience: Patience,
        why: SubmitReason,
    ) -> Result<(), SubmitReason> {
        if matches!(patience, Patience::None) {
            return Err(why);
        }
        if self.is_own_worker() {
            return Err(SubmitReason::OwnWorker);
        }
        match patience {
            Patience::Until(end, asked) => {
                let left = end.saturating_duration_since(crate::sync::instant());
                if left.is_zero() {
                    return Err(SubmitReason::TimedOut(asked));
                }
                gate.sleep(Some(left));
            }
            _ => gate.sleep(None),
        }
        Ok(())
    }
}
