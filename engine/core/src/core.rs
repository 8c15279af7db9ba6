//! The engine behind its face: what the workers of one engine share.

use std::{ptr::NonNull, sync::Arc, time::Duration};

use crossbeam_utils::CachePadded;

use crate::{
    exact::Weigher,
    flow::{
        adaptive::InFlight, admission::Admission, exhausted::OnExhausted, group_rates::GroupRates,
        rate::Rate, retry::Retry, room::Room, share::Shares,
    },
    front::Front,
    group::{block::Group, segment::SharedPool},
    handler::Work,
    ingress::barrier::Barrier,
    lease::back::Leases,
    lifecycle::{held::Held, status::Status},
    ready::link::{Chain, Unit},
    shard::back::{Back, Told},
    sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, fence, mutant},
    time::timers::Timers,
    topology::{Plan, memory::Home},
    wait::graph::Waits,
    watch::{
        WatchSettings,
        hot_keys::{Sketches, SketchesOfWorker},
        lanes::LaneBook,
        stats::Counters,
    },
};

/// The builder's settings, checked.
pub(crate) struct Settings<K, T> {
    pub(crate) batch: u32,
    pub(crate) flush: Duration,
    pub(crate) budget: Duration,
    pub(crate) chunk: u32,
    /// How long a worker looks for work before it parks, in ns; 0 where workers share processors.
    pub(crate) spin: u64,
    /// How long a worker stands before its row is robbed, in ns (worker/steal.rs).
    pub(crate) patience: u64,
    /// Tasks that may be in groups, all together.
    pub(crate) room: u64,
    pub(crate) group_capacity: u32,
    /// Submitters put tasks into groups themselves (exact/mod.rs).
    pub(crate) exact: bool,
    pub(crate) weigher: Option<Weigher<K, T>>,
    /// What all tasks inside may weigh together.
    pub(crate) bytes: u64,
    /// Groups that may exist before idle ones are reclaimed.
    pub(crate) idle_groups: u64,
    pub(crate) lane: usize,
    pub(crate) retry: Retry,
    pub(crate) on_exhausted: OnExhausted<K, T>,
    /// Limits at the start; they change live (flow/admission.rs, flow/group_rates.rs).
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) rate: Option<Rate>,
    pub(crate) group_rate: Option<Rate>,
    pub(crate) shares: Shares<K>,
    pub(crate) watch: WatchSettings<K>,
}

impl<K, T> Settings<K, T> {
    /// At or below this a full group is open again.
    pub(crate) fn low_mark(&self) -> u32 {
        self.group_capacity / 2
    }
}

/// The back of a shard behind its lock: the claim.
type Claim<K, T, S> = CachePadded<Mutex<Back<K, T, S>>>;

/// See the module text.
pub(crate) struct Core<K, T, W: Work<K, T>> {
    pub(crate) front: Arc<Front<K, T>>,
    pub(crate) backs: Box<[Claim<K, T, W::State>]>,
    pub(crate) work: W,
    pub(crate) settings: Settings<K, T>,
    pub(crate) plan: Plan,
    pub(crate) timers: Timers<K, T>,
    pub(crate) admission: Admission<K, T>,
    pub(crate) group_rates: GroupRates,
    pub(crate) segments: Arc<SharedPool<T>>,
    pub(crate) held: Held<K, T>,
    pub(crate) starved: Starved,
    /// What is inside, where capacities are exact.
    pub(crate) room: Room,
    /// Tickets of submitters that had to wait.
    pub(crate) arrivals: AtomicU64,
    pub(crate) leases: Leases,
    /// Groups that exist, all shards together, as of each shard's last look.
    groups: AtomicU64,
    /// Groups ever made, and bytes of maps and blocks, likewise.
    made: AtomicU64,
    bytes: AtomicU64,
    /// Lanes of all shards, for who counts what was accepted.
    pub(crate) lanes: LaneBook<K, T>,
    /// Of each worker: who comes often, and who fails often (watch/hot_keys.rs).
    pub(crate) sketches: Box<[SketchesOfWorker<K, T>]>,
    /// What each worker has in hand (lifecycle/close.rs).
    pub(crate) hands: Box<[CachePadded<Hand<K, T>>]>,
    /// Somebody waits for the end of all work.
    pub(crate) watch: DrainWatch,
    /// Nobody will close the engine: the last worker that finds nothing to do stops it.
    pub(crate) orphaned: AtomicBool,
    notes: Mutex<Vec<String>>,
    /// Who waits for what (wait/graph.rs).
    pub(crate) waits: Waits<K, T>,
}

/// Shards that nobody looks at because the engine holds all the tasks it may.
#[derive(Debug)]
pub(crate) struct Starved {
    units: Mutex<Chain>,
    any: AtomicBool,
}

impl Starved {
    pub(crate) fn new() -> Self {
        Self { units: Mutex::new(Chain::default()), any: AtomicBool::new(false) }
    }

    /// The shard waits for room.
    pub(crate) fn add(&self, unit: Unit) {
        let mut units = self.units.lock();
        units.push(unit);
        self.any.store(true, Ordering::Relaxed);
        drop(units);
        if !mutant("starve-no-fence") {
            // ORDERING: SeqCst fence between the announcement and the caller's second look at the backlog; pairs with
            // the fence of a worker that settled tasks and then looks for starved shards before it parks.
            fence(Ordering::SeqCst);
        }
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Chain {
        let mut units = self.units.lock();
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *units)
    }
}

/// The group that a worker runs now.
#[derive(Debug)]
pub(crate) struct Hand<K, T> {
    pub(crate) group: crate::sync::AtomicPtr<Group<K, T>>,
    /// The worker thread has left its loop.
    pub(crate) gone: AtomicBool,
    /// The tasks for which its dispatch was admitted; 0 where it did not have to be.
    pub(crate) permits: AtomicU32,
    /// For the watch: since when, in ns, and how many tasks, with the attempt of the first of them above (watch/running.rs).
    pub(crate) since: std::sync::atomic::AtomicU64,
    pub(crate) load: std::sync::atomic::AtomicU64,
}

impl<K, T> Hand<K, T> {
    pub(crate) fn new() -> Self {
        Self {
            group: crate::sync::AtomicPtr::new(std::ptr::null_mut()),
            gone: AtomicBool::new(false),
            permits: AtomicU32::new(0),
            since: std::sync::atomic::AtomicU64::new(0),
            load: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Notes the group, then asks whether it still may run. `false`: the engine is halted, nothing is in hand.
    pub(crate) fn take(
        &self,
        group: NonNull<Group<K, T>>,
        barrier: Barrier,
        status: &Status,
    ) -> bool {
        // ORDERING: store, light barrier, load of the status; close stores the status, pays the heavy barrier, and
        // loads the hand. Release: who finds this group here also sees all that was done to the one before.
        let order = if mutant("hand-take-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.group.store(group.as_ptr(), order);
        barrier.light();
        if status.stops() {
            self.lay_down();
            return false;
        }
        true
    }

    /// What close finds in the hand.
    pub(crate) fn holds(&self) -> Option<NonNull<Group<K, T>>> {
        // ORDERING: SeqCst: its Acquire pairs with the Release of `take` and `lay_down`; it comes after the status was
        // stored and the heavy barrier was paid.
        NonNull::new(self.group.load(Ordering::SeqCst))
    }

    /// The worker thread has left its loop: it touches nothing any more.
    pub(crate) fn is_gone(&self) -> bool {
        // ORDERING: SeqCst: its Acquire pairs with the Release of the store at the end of worker/pool.rs.
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn lay_down(&self) {
        // ORDERING: Release: who finds the hand empty (close) sees all that was done to the group.
        let order = if mutant("hand-lay-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.group.store(std::ptr::null_mut(), order);
    }
}

/// Wakes who waits for the end of all work.
///
/// The lock is a leaf: nothing is asked and no other lock is taken under it, so a worker may notify with a claim in
/// hand. A notification between the question and the wait is seen by its number.
#[derive(Debug)]
pub(crate) struct DrainWatch {
    waiting: AtomicU64,
    /// The number of notifications that found somebody waiting.
    notified: Mutex<u64>,
    changed: crate::sync::Condvar,
}

impl DrainWatch {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicU64::new(0),
            notified: Mutex::new(0),
            changed: crate::sync::Condvar::new(),
        }
    }

    /// A worker found nothing to do, halted a group, or is gone.
    pub(crate) fn notify(&self) {
        if !mutant("drain-no-fence-notify") {
            // ORDERING: SeqCst fence between what was settled and the look for waiters; pairs with `wait_until`.
            fence(Ordering::SeqCst);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            if !mutant("drain-no-number") {
                *self.notified.lock() += 1;
            }
            self.changed.notify_all();
        }
    }

    /// Waits until `done` says so, at most until `deadline`. `done` is asked again after each notification.
    pub(crate) fn wait_until(
        &self,
        deadline: Option<std::time::Instant>,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if !mutant("drain-no-fence-wait") {
            // ORDERING: SeqCst fence between the announcement and the first question; pairs with `notify`.
            fence(Ordering::SeqCst);
        }
        let left = || deadline.map(|end| end.saturating_duration_since(crate::sync::instant()));
        let is_over = || left().is_some_and(|left| left.is_zero());
        let ended = loop {
            let seen = *self.notified.lock();
            let held = mutant("drain-asks-under-lock").then(|| self.notified.lock());
            if done() {
                break true;
            }
            drop(held);
            if is_over() {
                break false;
            }
            let mut notified = self.notified.lock();
            while *notified == seen && !is_over() {
                notified = crate::sync::wait(&self.changed, notified, left());
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        ended
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    pub(crate) fn new(
        front: Arc<Front<K, T>>,
        work: W,
        settings: Settings<K, T>,
        plan: Plan,
    ) -> Self {
        let workers = front.ready.posts.len();
        let (homes, note) = Home::of_nodes(&plan);
        let home_of = |shard| homes[plan.workers[front.home(shard)].node].clone();
        let backs = (0..front.doors.len())
            .map(|shard| CachePadded::new(Mutex::new(Back::new(home_of(shard)))))
            .collect();
        let hands = (0..workers).map(|_| CachePadded::new(Hand::new())).collect();
        let now = front.ready.clock.now();
        let admission = Admission::new(settings.batch, settings.in_flight, settings.rate);
        let group_rates = GroupRates::new(front.doors.len(), settings.group_rate);
        let room = Room::new(settings.room, settings.bytes);
        let weighed = settings.weigher.is_some();
        Self {
            front,
            backs,
            work,
            admission,
            group_rates,
            settings,
            plan,
            timers: Timers::new(now),
            segments: SharedPool::of_nodes(homes, weighed),
            held: Held::new(),
            starved: Starved::new(),
            room,
            arrivals: AtomicU64::new(0),
            leases: Leases::new(),
            groups: AtomicU64::new(0),
            made: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            lanes: LaneBook::new(),
            sketches: (0..workers).map(|_| CachePadded::new(Mutex::new(Sketches::new()))).collect(),
            hands,
            watch: DrainWatch::new(),
            orphaned: AtomicBool::new(false),
            notes: Mutex::new(note.into_iter().collect()),
            waits: Waits::new(),
        }
    }

    /// Something that the owner of the engine may want to know.
    pub(crate) fn note(&self, text: String) {
        self.notes.lock().push(text);
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.plan.notes.clone();
        notes.extend(self.notes.lock().iter().cloned());
        notes
    }

    /// Brings the count of all groups up to date with this shard. Returns how many groups the shard may keep: all that it
    /// has, or its even share while there are too many in all.
    pub(crate) fn census(&self, back: &mut Back<K, T, W::State>) -> u32 {
        if back.live != back.counted || back.made != back.told.made {
            self.count(back);
        }
        if self.groups.load(Ordering::Relaxed) > self.settings.idle_groups {
            u32::try_from(self.settings.idle_groups / self.backs.len() as u64).unwrap_or(u32::MAX)
        } else {
            back.live
        }
    }

    /// The shard has made or lost groups since it was counted last.
    #[cold]
    fn count(&self, back: &mut Back<K, T, W::State>) {
        let told = Told { made: back.made, bytes: back.heap_bytes() as u64 };
        let change = i64::from(back.live) - i64::from(back.counted);
        self.groups.fetch_add(change as u64, Ordering::Relaxed);
        self.made.fetch_add(told.made - back.told.made, Ordering::Relaxed);
        self.bytes.fetch_add(told.bytes.wrapping_sub(back.told.bytes), Ordering::Relaxed);
        back.counted = back.live;
        back.told = told;
    }

    /// Groups that exist, groups ever made, and the bytes of maps and blocks, as of each shard's last look.
    pub(crate) fn group_figures(&self) -> (u64, u64, u64) {
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        (read(&self.groups), read(&self.made), read(&self.bytes))
    }

    /// Tasks that ended. Read it before [`Core::accepted`] where the two are compared.
    pub(crate) fn settled(&self) -> u64 {
        let posts = self.front.ready.posts.iter();
        let workers: u64 = posts.map(|post| post.counters.settled()).sum();
        workers + self.leases.late.settled() + self.held.settled()
    }

    /// The sum of one counter of all workers, and of close.
    pub(crate) fn total(&self, of: fn(&Counters) -> &AtomicU64) -> u64 {
        let posts = self.front.ready.posts.iter();
        let counters = posts.map(|post| &post.counters).chain([&self.leases.late]);
        // ORDERING: Acquire, as in `Counters::settled`: what is accepted is read later, so no backlog is below zero.
        counters.map(|counters| of(counters).load(Ordering::Acquire)).sum()
    }

    /// Tasks that a submit accepted.
    pub(crate) fn accepted(&self) -> u64 {
        let rings: u64 = self.front.doors.iter().map(|door| door.ring.tail().0).sum();
        rings + self.lanes.records() + self.entered()
    }

    /// Tasks that submitters have put into groups themselves.
    pub(crate) fn entered(&self) -> u64 {
        // Relaxed: noted before a task can end, and so before its end is counted.
        self.front.doors.iter().map(|door| door.entered.load(Ordering::Relaxed)).sum()
    }

    /// Tasks that wait in halted groups.
    pub(crate) fn held_tasks(&self) -> u64 {
        // ORDERING: SeqCst, see `Core::is_drained`.
        self.held.tasks.load(Ordering::SeqCst)
    }

    /// Every accepted task ended or waits in a halted group, at one moment between the two looks.
    pub(crate) fn is_drained(&self) -> bool {
        // ORDERING: SeqCst: read after `settled` and before `accepted`. Settled and accepted only grow, and what is held never
        // runs ahead (lifecycle/held.rs, I3): where the sums are equal, they were so when `held` was read.
        let ended = self.settled() + self.held.tasks.load(Ordering::SeqCst);
        ended == self.accepted()
    }

    /// Tasks that are in groups which run, about. Those of halted groups do not count: they may not hold up others,
    /// and each halted group is bounded by its own capacity.
    pub(crate) fn in_groups(&self) -> u64 {
        let settled = self.settled();
        let taken: u64 = self
            .front
            .ready
            .posts
            .iter()
            .map(|post| post.counters.taken.load(Ordering::Relaxed))
            .sum();
        let taken = taken + self.held.taken.load(Ordering::Relaxed);
        taken.saturating_sub(settled + self.held.tasks.load(Ordering::Relaxed))
    }

    /// Shards starve and there is room for them.
    pub(crate) fn can_feed(&self) -> bool {
        let limit = self.settings.room;
        // Once submits are refused, what was accepted is bounded already, and all of it must come through.
        self.starved.any() && (self.front.status.refuses() || self.in_groups() <= limit - limit / 8)
    }

    /// Shards that starved are looked at again, if there is room.
    pub(crate) fn feed_starved(&self) -> bool {
        if !self.can_feed() {
            return false;
        }
        let mut units = self.starved.take();
        let any = units.len() > 0;
        self.front.ready.spill(&mut units);
        any
    }

    /// The group was FULL and holds few tasks now.
    #[cold]
    pub(crate) fn relieve(&self, group: NonNull<Group<K, T>>) {
        if self.settings.exact {
            return self.tell_line(group, false);
        }
        // SAFETY: blocks live as long as the engine, and a block stays in its shard.
        let gate = &self.door_of(unsafe { group.as_ref() }).gate;
        gate.relieve(&self.front.filter, group, self.settings.low_mark());
    }
}

// SAFETY: blocks are touched under the claim or by the token holder; everything else is atomic or locked. Keys are read
// by both at the same time, hence `K: Sync`.
unsafe impl<K: Send + Sync, T: Send, W: Work<K, T>> Sync for Core<K, T, W> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, T: Send, W: Work<K, T>> Send for Core<K, T, W> {}
