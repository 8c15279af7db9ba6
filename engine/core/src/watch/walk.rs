//! A walk over all groups that have work, for who wants to know what they wait for.
//!
//! | what is read | whose it is | why that is sound |
//! |---|---|---|
//! | word, place, stamp | anybody's: atomics of the block and of a segment | a late look finds an old value, or one of another group; the head is looked at twice |
//! | key, flags, ingress | the claim holder's | the walk holds the claim |
//! | trouble (attempts) of a group in back-off | the token holder's | its token lies in the timer, whose lock is held |
//! | what a worker has in hand | the worker's: atomics | compared before and after |
//!
//! Each shard's claim is taken for at most [`STRETCH`] blocks at a time, one shard after the other, and nothing is held in
//! between: a walk over a million groups delays no look by more than some ten microseconds.

use std::{collections::HashMap, hash::Hash, ptr::NonNull, time::Duration};

use super::{
    Watched, histogram::Histograms, hot_keys::Sketches, running::Running, stats::Stats, stuck::Why,
};
use crate::{
    core::Core,
    front::Door,
    group::block::{Flags, Group, Place},
    handler::Work,
    ingress::records::Records,
    shard::back::Back,
    sync::{Ordering, mutant, sized},
};

/// Blocks that are looked at under one claim.
const STRETCH: u32 = sized(512, 2) as u32;

/// What is to be seen of a group, or of the ingress of a shard.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    /// The block, as an address; 0 for an ingress.
    pub(crate) group: usize,
    pub(crate) backlog: u64,
    /// Since when it has not got on, in ns on the engine's clock. `None`: it cannot be seen just now.
    pub(crate) since: Option<u64>,
    /// The attempt of the head that runs, or is next.
    pub(crate) attempt: Option<u32>,
    pub(crate) why: Why,
}

/// What a walk sees of the whole engine.
struct View<K, T> {
    running: HashMap<NonNull<Group<K, T>>, Running<K, T>>,
    ready: u64,
    starved: bool,
    now: u64,
}

fn ago(now: u64, since: u64) -> Duration {
    Duration::from_nanos(now.saturating_sub(since))
}

impl<K, T, W> Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn view(&self) -> View<K, T> {
        let hands = self.hands.iter().enumerate();
        View {
            running: hands
                .filter_map(|(worker, hand)| hand.glance(worker))
                .map(|running| (running.group, running))
                .collect(),
            ready: self.front.ready.units() as u64,
            starved: self.starved.any() && self.in_groups() >= self.settings.room,
            now: self.front.ready.clock.now(),
        }
    }

    /// Claim holder: what is to be seen of a live group, if it has work.
    fn sight(&self, view: &View<K, T>, group: &Group<K, T>) -> Option<Sight> {
        let word = group.word.load();
        if word.count() == 0 {
            // A paused group may have none, and is not idle.
            return None;
        }
        let mut sight = Sight {
            group: NonNull::from(group).addr().get(),
            backlog: u64::from(word.count()),
            // SAFETY: we hold the claim, and the core that is walked over owns the pool of segments.
            since: unsafe { group.glance_stamp() },
            attempt: None,
            why: Why::Ready { behind: view.ready },
        };
        if let Some(running) = view.running.get(&NonNull::from(group)) {
            sight.since = Some(running.since);
            sight.attempt = Some(running.attempt.max(1));
            let time = ago(view.now, running.since);
            sight.why = Why::Running { worker: running.worker, tasks: running.tasks, time };
        } else if word.is_halted() {
            // The place is set a moment later than the word: halted, until it says what else.
            sight.why = match group.place() {
                Place::Paused if mutant("why-paused-halted") => Why::Halted,
                Place::Paused => Why::Paused,
                Place::Closed => Why::Closed,
                _ => Why::Halted,
            };
        } else if word.lingers() {
            let waited = sight.since.map_or(Duration::ZERO, |since| ago(view.now, since));
            sight.why = Why::Linger { left: self.settings.flush.saturating_sub(waited) };
        } else {
            match group.place() {
                Place::Ready | Place::Returned => {}
                Place::Lease => {
                    let time = sight.since.map_or(Duration::ZERO, |since| ago(view.now, since));
                    sight.why = Why::Leased { time };
                }
                // On its way to the ready list, since the word does not say HALTED any more.
                Place::Paused | Place::Halted | Place::Closed => {}
                // What exactly they wait for, `explain` finds out.
                Place::BackOff => sight.why = Why::BackOff { left: Duration::ZERO },
                Place::GroupRate => sight.why = Why::GroupRate { left: Duration::ZERO },
                Place::Admission => sight.why = Why::Permit { in_flight: 0, limit: 0 },
            }
        }
        Some(sight)
    }

    /// Claim holder: the tasks that nobody has taken in yet, with the key of the first.
    fn visit_ingress(
        &self,
        view: &View<K, T>,
        door: &Door<K, T>,
        back: &Back<K, T, W::State>,
        visit: &mut dyn FnMut(&K, Sight),
    ) {
        let of_lanes: u64 = back.lanes.iter().map(|lane| lane.tail() - lane.head()).sum();
        let first_of_lane = || {
            back.lanes.iter().find(|lane| lane.tail() != lane.head()).map(|lane| {
                let head = lane.head();
                // SAFETY: below the tail and not taken, and we hold the claim; the lane lives as long as `back`.
                unsafe { &*std::ptr::from_ref(lane.up_to(lane.tail()).key(head)) }
            })
        };
        let first = match door.ring.peek(back.head) {
            // SAFETY: published by key and not taken, and we hold the claim.
            Some((_, false)) => Some(unsafe { door.ring.key(back.head) }),
            // SAFETY: a record that names a group pins it: it is live.
            Some((index, true)) => Some(unsafe { back.group(index).key() }),
            None => first_of_lane(),
        };
        let Some(key) = first else { return };
        let rung_at = door.rung_at.load(std::sync::atomic::Ordering::Relaxed);
        let sight = Sight {
            group: 0,
            backlog: door.ring.tail().0.saturating_sub(back.head) + of_lanes,
            since: Some(if back.left_at > 0 { back.left_at } else { rung_at }),
            attempt: None,
            why: Why::Ingress { starved: view.starved },
        };
        visit(key, sight);
    }
}

impl<K, T, W> Watched<K, T> for Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn read_stats(&self) -> Stats {
        Core::read_stats(self)
    }

    fn histograms(&self) -> Histograms {
        let mut histograms = Histograms::default();
        self.front.ready.posts.iter().for_each(|post| post.times.read_into(&mut histograms));
        histograms
    }

    fn walk(&self, visit: &mut dyn FnMut(&K, Sight)) {
        for (door, claim) in self.front.doors.iter().zip(&self.backs) {
            let mut from = 0;
            loop {
                let back = claim.lock();
                let view = self.view();
                let end = back.slab.used().min(from + STRETCH);
                for index in from..end {
                    let group = back.group(index);
                    // SAFETY: we hold the claim.
                    if unsafe { group.producer() }.flags.has(Flags::LIVE)
                        && let Some(sight) = self.sight(&view, group)
                    {
                        // SAFETY: live, and we hold the claim.
                        visit(unsafe { group.key() }, sight);
                    }
                }
                from = end;
                if from == back.slab.used() {
                    self.visit_ingress(&view, door, &back, visit);
                    break;
                }
            }
        }
    }

    fn sketches(&self) -> Vec<Sketches<K, T>> {
        let now = self.now();
        let mut all: Vec<_> =
            self.sketches.iter().map(|sketches| sketches.lock().clone()).collect();
        for sketches in &mut all {
            sketches.load.decay(now);
            sketches.failures.decay(now);
        }
        all
    }

    fn show(
        &self,
        group: NonNull<Group<K, T>>,
        hash: u32,
        visit: &mut dyn FnMut(&K, Option<Sight>),
    ) {
        let _claim = self.backs[self.front.shard_of(hash)].lock();
        // SAFETY: blocks live as long as the engine and stay in their shard, whose claim we hold.
        let group = unsafe { group.as_ref() };
        // SAFETY: we hold the claim.
        if group.hash() == hash && unsafe { group.producer() }.flags.has(Flags::LIVE) {
            let sight = self.sight(&self.view(), group);
            // SAFETY: live, and we hold the claim.
            visit(unsafe { group.key() }, sight);
        }
    }

    fn now(&self) -> u64 {
        self.front.ready.clock.now()
    }

    fn explain(&self, sights: &mut [&mut Sight]) {
        let now = self.now();
        let mut timed = HashMap::new();
        for sight in sights.iter_mut() {
            match sight.why {
                Why::BackOff { .. } | Why::GroupRate { .. } => {
                    timed.insert(sight.group, sight);
                }
                Why::Permit { .. } => {
                    if let Some(why) = self.admission.why(sight.group, now) {
                        sight.why = why;
                    } else {
                        sight.why = Why::Ready { behind: self.front.ready.units() as u64 };
                    }
                }
                _ => {}
            }
        }
        if timed.is_empty() {
            return;
        }
        self.timers.look(|group, attempts, deadline| {
            if let Some(sight) = timed.remove(&group.addr().get()) {
                let left = Duration::from_nanos(deadline.saturating_sub(now));
                sight.attempt = Some(attempts + 1);
                match &mut sight.why {
                    Why::BackOff { left: until } | Why::GroupRate { left: until } => *until = left,
                    _ => {}
                }
            }
            !timed.is_empty()
        });
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    fn read_stats(&self) -> Stats {
        let posts = || self.front.ready.posts.iter().map(|post| &post.counters);
        let mut stats = Stats::default();
        for counters in posts().chain([&self.leases.late]) {
            counters.read_into(&mut stats);
        }
        stats.taken += self.held.taken.load(Ordering::Relaxed);
        stats.taken += self.entered();
        stats.bytes = if self.settings.exact { self.room.inside().1 } else { 0 };
        stats.failed += self.held.rejected();
        stats.cancelled = self.held.cancelled();
        stats.leased = self.leases_out();
        stats.held = self.held_tasks();
        stats.dead_lettered = self.settings.on_exhausted.letters();
        for (worker, hand) in self.hands.iter().enumerate() {
            if let Some(running) = hand.glance(worker) {
                stats.running += 1;
                stats.running_tasks += u64::from(running.tasks);
            }
        }
        let limits = self.admission.stats();
        stats.waiting = limits.waiting;
        stats.throttled = limits.throttled;
        stats.bulk.waiting = self.admission.waiting_bulk();
        stats.sleeping_workers = self.front.ready.idle.sleepers() as u64;
        (stats.groups, stats.groups_made, stats.group_bytes) = self.group_figures();
        // Last: what has ended was accepted.
        stats.accepted = self.accepted();
        stats
    }
}
