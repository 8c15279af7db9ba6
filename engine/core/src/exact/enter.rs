//! Under the claim: a task goes into its group, or is told why not.

use std::{
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    task::Waker,
};

use super::{Desk, Exact, Record, Refused};
use crate::{
    core::Core,
    error::SubmitReason,
    flow::line::{Found, Seat, Wakes},
    front::Door,
    group::{block::Group, segment::Pool},
    handler::Work,
    ingress::ring::Address,
    outcome::drop_quietly,
    ready::link::Unit,
    shard::{
        back::Back,
        demux::{Demux, Scratch},
        map::MOVES_PER_OP,
    },
    sync::{Ordering, mutant},
    wait::cell::Tracked,
    watch::hot_keys::{GAP, Id, Sampler},
    worker::Random,
};

/// What is to be done when the claim is released.
struct Later<K, S> {
    unit: Option<Unit>,
    /// The task went to a group that stands.
    held: bool,
    keys: Vec<K>,
    states: Vec<S>,
    /// The key of a task whose group has one.
    spare: Option<K>,
}

impl<K, T, W> Exact<K, T> for Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn weigh(
        &self,
        address: &Address<K>,
        block: Option<NonNull<Group<K, T>>>,
        task: &T,
    ) -> Result<u32, SubmitReason> {
        let Some(weigher) = &self.settings.weigher else { return Ok(0) };
        let key = match (address, &block) {
            (Address::Key(_, key), _) => key,
            // SAFETY: the caller's handle pins the group, so its key stays where it is.
            (Address::Group(_), Some(block)) => unsafe { block.as_ref().key() },
            (Address::Group(_), None) => return Ok(0),
        };
        let weighed = catch_unwind(AssertUnwindSafe(|| weigher(key, task)));
        let bytes = weighed.map_err(|payload| {
            drop_quietly(payload);
            SubmitReason::WeigherPanicked
        })?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.room.can_never(bytes).map_or(Ok(bytes), Err)
    }

    fn enter(
        &self,
        record: &mut Option<Record<K, T>>,
        seat: &mut Seat<K, T>,
        mut waker: Option<Waker>,
    ) -> Result<(), Refused> {
        let mut wakes = Wakes::default();
        let entered = self.try_enter(record, seat, &mut waker, &mut wakes);
        if let Err(Refused::Never(_)) = entered {
            self.stand_up(seat, &mut wakes);
        }
        wakes.spent.extend(waker);
        wakes.wake();
        entered
    }

    fn leave(&self, seat: &mut Seat<K, T>) {
        let mut wakes = Wakes::default();
        self.stand_up(seat, &mut wakes);
        wakes.wake();
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    /// So many tasks, with these weights together, have left: their words are settled. Without any lock. Nothing where
    /// capacities are not exact.
    pub(crate) fn give_room_back(&self, tasks: u32, bytes: u64) {
        let mut wakes = Wakes::default();
        self.give_room_back_later(tasks, bytes, &mut wakes);
        wakes.wake();
    }

    /// As [`Core::give_room_back`], under locks.
    pub(crate) fn give_room_back_later(&self, tasks: u32, bytes: u64, wakes: &mut Wakes) {
        if self.settings.exact {
            self.room.give_back(u64::from(tasks), bytes, self.held_tasks(), wakes);
        }
    }

    /// The group was FULL and holds few tasks now, or (`all`) it takes none for another reason now.
    pub(crate) fn tell_line(&self, group: NonNull<Group<K, T>>, all: bool) {
        let mut wakes = Wakes::default();
        // SAFETY: blocks live as long as the engine.
        let lines = &self.door_of(unsafe { group.as_ref() }).lines;
        if all {
            lines.tell(group, &mut wakes);
        } else {
            lines.relieve(group, &mut wakes);
        }
        wakes.wake();
    }

    /// Submits are refused from now on. Without any lock.
    pub(crate) fn tell_all_lines(&self) {
        let mut wakes = Wakes::default();
        for (door, back) in self.front.doors.iter().zip(&self.backs) {
            // Who looked at the status before it changed stands in the line by now.
            if !mutant("lines-told-unclaimed") {
                drop(back.lock());
            }
            door.lines.tell_all(&mut wakes);
        }
        self.room.tell_all(&mut wakes);
        wakes.wake();
    }

    /// Stands in no line any more, without having got in.
    fn stand_up(&self, seat: &mut Seat<K, T>, wakes: &mut Wakes) {
        self.leave_group_line(seat, 0, wakes);
        if seat.in_room() {
            self.room.leave(seat.ticket, self.held_tasks(), wakes);
            seat.stands_nowhere();
        }
    }

    /// `more`: tasks that are about to be counted in the group.
    fn leave_group_line(&self, seat: &mut Seat<K, T>, more: u32, wakes: &mut Wakes) {
        let Some(group) = seat.in_group() else { return };
        // SAFETY: blocks live as long as the engine.
        let block = unsafe { group.as_ref() };
        let room = || block.word.load().count() + more < self.settings.group_capacity;
        self.door_of(block).lines.leave(group, seat.ticket, room, wakes);
        seat.stands_nowhere();
    }
}

impl<K, T, W> Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn try_enter(
        &self,
        slot: &mut Option<Record<K, T>>,
        seat: &mut Seat<K, T>,
        waker: &mut Option<Waker>,
        wakes: &mut Wakes,
    ) -> Result<(), Refused> {
        let record = slot.as_ref().expect("a task that is not inside");
        let bytes = u64::from(record.bytes);
        let shard = self.front.shard_of(record.hash);
        let door = &*self.front.doors[shard];
        if waker.is_some() && seat.is_new() {
            // Relaxed: any order will do for those who come at the same time.
            seat.ticket = self.arrivals.fetch_add(1, Ordering::Relaxed);
        }
        let early = mutant("exact-status-early") && !self.front.status.refuses();
        let mut back = self.backs[shard].lock();
        if !early && self.front.status.refuses() {
            return Err(Refused::Never(SubmitReason::Closed));
        }
        let found = match &record.address {
            Address::Group(index) => Some(*index),
            Address::Key(hash, key) => {
                match catch_unwind(AssertUnwindSafe(|| back.find(*hash, key))) {
                    Ok(found) => found,
                    Err(payload) => {
                        drop(back);
                        drop_quietly(payload);
                        return Err(Refused::Never(SubmitReason::KeyPanicked));
                    }
                }
            }
        };
        if let Some(index) = found {
            self.find_place(door, back.group(index), record.hash, seat, waker, wakes)?;
        }
        let held = self.held_tasks();
        let mut taken = self.room.take(bytes, held, seat, &mut None, wakes);
        if taken.is_err() && waker.is_some() {
            // One line at a time (I3): the engine's, from now on.
            self.leave_group_line(seat, 0, wakes);
            taken = self.room.take(bytes, held, seat, waker, wakes);
        }
        taken.map_err(Refused::NoRoom)?;
        self.leave_group_line(seat, 1, wakes);
        let record = slot.take().expect("as above");
        let later = self.put(shard, &mut back, found, record);
        let wanted = back.wants_spare();
        drop(back);
        self.follow_put(door, later, wakes);
        self.put_by(shard, wanted);
        Ok(())
    }

    /// Claim holder: is there a place in the group? If not, it stands in the group's line from now on, given a waker.
    fn find_place(
        &self,
        door: &Door<K, T>,
        group: &Group<K, T>,
        hash: u32,
        seat: &mut Seat<K, T>,
        waker: &mut Option<Waker>,
        wakes: &mut Wakes,
    ) -> Result<(), Refused> {
        let name = NonNull::from(group);
        if self.front.filter.is_marked(hash) && door.gate.is_shut(hash, name) {
            return Err(Refused::Never(SubmitReason::GroupClosed));
        }
        let capacity = self.settings.group_capacity + u32::from(mutant("exact-one-more"));
        let state = group.word.load();
        if !state.is_full() && state.count() < capacity {
            return Ok(());
        }
        if seat.in_room() && waker.is_some() {
            // One line at a time: the group's comes first. If there is a place after all, it was for who stands there.
            let found = door.lines.look(group, capacity, seat, &mut None, wakes);
            if found == Found::Place {
                return Ok(());
            }
            self.stand_up(seat, wakes);
        }
        match door.lines.look(group, capacity, seat, waker, wakes) {
            Found::Place => Ok(()),
            Found::Halted if !self.front.waits_at_halted() => {
                Err(Refused::Never(SubmitReason::GroupHalted))
            }
            Found::Halted => Err(Refused::NoRoom(SubmitReason::GroupHalted)),
            Found::Full => Err(Refused::NoRoom(SubmitReason::GroupFull)),
        }
    }

    /// Claim holder, with a place in the group and room in the engine: the task goes in.
    fn put(
        &self,
        shard: usize,
        back: &mut Back<K, T, W::State>,
        found: Option<u32>,
        record: Record<K, T>,
    ) -> Later<K, W::State> {
        let door = &*self.front.doors[shard];
        let Record { address, task, bytes, cell, .. } = record;
        let (index, spare) = match (address, found) {
            (Address::Key(hash, key), None) => (back.make(hash, key), None),
            (Address::Key(_, key), Some(index)) => (index, Some(key)),
            (Address::Group(index), _) => (index, None),
        };
        let mut desk = back.desk.take().unwrap_or_else(|| Box::new(self.new_desk(shard)));
        let Desk { pool, scratch, sampler, random } = &mut *desk;
        let group = back.group(index);
        let now = self.front.ready.clock.now();
        Demux { door, back, pool, scratch, now }.append(index, group, task);
        if pool.is_weighed() {
            // SAFETY: we hold the claim.
            unsafe { group.producer() }.tail.set_last_weight(pool, bytes);
        }
        if let Some(cell) = cell {
            let name = NonNull::from(group);
            cell.found(name);
            // SAFETY: as above.
            let spot = unsafe { group.producer() }.tail.last();
            door.tickets.place(name, &group.word, spot, Tracked::new(cell));
        }
        // The word may say TRACKED since it was touched.
        let touched = scratch.touched.pop().expect("it was appended").seen_again();
        // Before it can end: what has ended was accepted.
        door.entered.store(door.entered.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if sampler.draws(1, random) > 0 {
            self.sample_entered(shard, group, now);
        }
        let mut held = false;
        let unit = self.publish_one(door, touched, now, &mut held);
        self.tend(back, pool, scratch, 1);
        let keys = std::mem::take(&mut scratch.garbage_keys);
        let states = std::mem::take(&mut scratch.garbage_states);
        back.desk = Some(desk);
        Later { unit, held, keys, states, spare }
    }

    fn new_desk(&self, shard: usize) -> Desk<K, T, W::State> {
        let node = self.plan.workers[self.front.home(shard)].node;
        Desk {
            pool: Pool::on(self.segments.clone(), node),
            scratch: Scratch::new(),
            sampler: Sampler::new(),
            random: Random::new((shard as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        }
    }

    /// Without the claim.
    fn follow_put(&self, door: &Door<K, T>, later: Later<K, W::State>, wakes: &mut Wakes) {
        let Later { unit, held, keys, states, spare } = later;
        if let Some(unit) = unit {
            self.front.ready.send(self.front.home(door.index as usize), unit);
        }
        if held {
            // Others may have the room that it does not take.
            self.give_room_back_later(0, 0, wakes);
            self.watch.notify();
        }
        keys.into_iter().for_each(drop_quietly);
        states.into_iter().for_each(drop_quietly);
        spare.into_iter().for_each(drop_quietly);
    }

    /// Claim holder: this task is a sample for the sketch of hot keys, of the shard's home worker.
    fn sample_entered(&self, shard: usize, group: &Group<K, T>, now: u64) {
        if let Some(mut sketches) = self.sketches[self.front.home(shard)].try_lock() {
            sketches.load.draw(GAP, now);
            sketches.load.add(Id::of(group), GAP);
        }
    }

    /// Claim holder, after records came into the groups of the shard: what idle groups hold is given back, a little at a time.
    #[inline(always)]
    pub(crate) fn tend(
        &self,
        back: &mut Back<K, T, W::State>,
        pool: &mut Pool<T>,
        scratch: &mut Scratch<K, T, W::State>,
        taken: u32,
    ) {
        back.unpin_passed();
        if !back.orphans.is_empty() {
            back.reclaim_orphans(pool, scratch);
        }
        // A resize that is under way goes on also when no group is made or reclaimed: two tables cost two look-ups.
        // By as many slots as records came.
        (0..=taken / MOVES_PER_OP as u32).any(|_| !back.map.migrate());
        // More looks than groups can have been put off in this chunk: the list of late ones shrinks.
        back.cool(2 * taken as usize + 8, pool);
        let limit = self.census(back);
        if back.live > limit {
            back.reclaim(limit, pool, scratch);
            self.census(back);
        } else {
            back.swept = back.made;
        }
    }
}
