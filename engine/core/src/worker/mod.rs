//! A worker: takes the next unit, looks at a shard or runs a turn of a group.
//!
//! [`Worker::step`] is all the work there is. A worker thread calls it in a loop (pool.rs); the deterministic mode
//! calls it from outside, one worker at a time (sim.rs). Both drive the same code.
//!
//! Where the next unit comes from, in this order: own row, own deque (what is in the inbox goes to its tail before), overflow
//! list, other workers (near first).
//! Every 16 steps a worker looks at the timers, at starved shards, and at other workers (steal.rs).

pub(crate) mod admit;
pub(crate) mod answer;
mod chunk;
mod dispatch;
pub(crate) mod idle;
pub(crate) mod lend;
pub(crate) mod look;
pub(crate) mod pool;
pub(crate) mod settle;
pub(crate) mod steal;
#[cfg(all(test, not(any(loom, shuttle))))]
mod steal_tests;
pub(crate) mod turn;

use std::{hash::Hash, ptr::NonNull, sync::Arc};

use crate::{
    core::{Core, Hand},
    exact::Weighed,
    flow::{
        admission::Admitted,
        share::{BULK_EVERY, Class},
    },
    group::{block::Place, segment::Pool, token::RunToken},
    handler::Work,
    outcome::Outcome,
    ready::{
        Post,
        deque::Deque,
        link::{Chain, Kind, Unit},
        overflow::{DEQUE_LIMIT, Overflow},
        row,
    },
    shard::demux::Scratch,
    sync::{Ordering, mutant, sized},
    wait::turns::Endings,
    watch::{hot_keys::Sampler, pace::Pace},
};

/// Steps between two looks at the timers and at another worker.
const PERIOD: u32 = sized(16, 4) as u32;
/// Units taken from another worker or from the overflow list at a time, at most.
const GRAB: usize = sized(32, 2);

/// Fewer groups than this go to the deque: a row costs a lock, and its units cannot be stolen at once.
const ROW_FROM: usize = 3;

/// See the module text.
pub(crate) struct Worker<K, T, W: Work<K, T>> {
    core: Arc<Core<K, T, W>>,
    /// Its own post and hand, which live as long as the core.
    post: NonNull<Post>,
    hand: NonNull<Hand<K, T>>,
    pub(crate) id: usize,
    deque: Deque<Unit>,
    /// Where it stands in its row.
    place: row::Place,
    pub(crate) pool: Pool<T>,
    pub(crate) scratch: Scratch<K, T, W::State>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) endings: Endings,
    /// What came of a dispatch that did not simply end; before the call of the handler, what was settled until then.
    settled: settle::Settled,
    /// Groups that a look made busy, on their way to the row.
    fresh: Vec<Unit>,
    /// The engine has a flush interval.
    lingers: bool,
    /// Linger entries of one chunk.
    waits: Vec<crate::time::timers::Entry<K, T>>,
    /// Records that this worker may take before it adds up the backlog again.
    allowance: u64,
    steps: u32,
    /// Whom to look at next, and how many steps each had made then.
    victim: usize,
    seen: Box<[u32]>,
    /// Since when each other worker has been seen at the same step, with units in its row.
    sighted: Box<[(u32, u64)]>,
    pub(crate) random: Random,
    /// It was the keeper of the timers and has found no successor yet.
    pub(crate) owes_keeper: bool,
    /// Batches that the group in hand may run in this round, this one included.
    rounds: u32,
    /// The unit that was polled comes from the list of the bulk class.
    runs_bulk: std::cell::Cell<bool>,
    /// The token of a group that goes on with its round.
    again: Option<Unit>,
    pub(crate) pace: Pace,
    chunk: chunk::Chunk,
    pub(crate) sampler: Sampler,
    #[cfg(feature = "metrics")]
    pub(crate) recorder: crate::watch::recorder::Times,
    /// What the group in hand was admitted with (worker/admit.rs).
    admitted: Option<Admitted>,
    /// What the tasks weigh that its dispatch was offered, and what is to be given back for those that are gone (exact/leave.rs).
    pub(crate) weighed: Weighed,
    pub(crate) owed: (u32, u64),
}

// SAFETY: post and hand point into the core, of which the worker owns a share; everything else is owned or shared safely.
unsafe impl<K: Send + Sync, T: Send, W: Work<K, T>> Send for Worker<K, T, W> {}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    pub(crate) fn new(core: Arc<Core<K, T, W>>, id: usize, deque: Deque<Unit>, seed: u64) -> Self {
        let pool = Pool::on(core.segments.clone(), core.plan.workers[id].node);
        let workers = core.hands.len();
        let post = NonNull::from(&*core.front.ready.posts[id]);
        let hand = NonNull::from(&*core.hands[id]);
        let pace = Pace::new(core.settings.watch.timing, core.front.ready.clock.now());
        let chunk = chunk::Chunk::new(core.settings.chunk);
        let lingers = !core.settings.flush.is_zero();
        Self {
            core,
            post,
            hand,
            id,
            deque,
            place: row::Place::default(),
            pool,
            scratch: Scratch::new(),
            outcomes: Vec::new(),
            endings: Vec::new(),
            settled: settle::Settled::default(),
            fresh: Vec::with_capacity(1_024),
            lingers,
            waits: Vec::new(),
            allowance: 0,
            steps: 0,
            victim: id,
            seen: vec![0; workers].into_boxed_slice(),
            sighted: vec![(0, 0); workers].into_boxed_slice(),
            random: Random(seed | 1),
            owes_keeper: false,
            rounds: 1,
            runs_bulk: std::cell::Cell::new(false),
            again: None,
            pace,
            chunk,
            sampler: Sampler::new(),
            weighed: Weighed::default(),
            owed: (0, 0),
            #[cfg(feature = "metrics")]
            recorder: crate::watch::recorder::Times::new(),
            admitted: None,
        }
    }

    /// What the workers share, for as long as the caller likes inside a step: no count is touched.
    #[inline(always)]
    pub(crate) fn core<'e>(&self) -> &'e Core<K, T, W> {
        // SAFETY: the worker owns a share of the core for its whole life and never changes it, and no reference from
        // here is kept in anything that outlives the worker.
        unsafe { &*Arc::as_ptr(&self.core) }
    }

    /// An own share of the core.
    pub(crate) fn share(&self) -> Arc<Core<K, T, W>> {
        self.core.clone()
    }

    #[inline(always)]
    pub(crate) fn post<'e>(&self) -> &'e Post {
        // SAFETY: as `core`: the post never moves and lives as long as the core.
        unsafe { self.post.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn hand<'e>(&self) -> &'e Hand<K, T> {
        // SAFETY: as `post`.
        unsafe { self.hand.as_ref() }
    }

    /// Runs one unit. `false`: there was none.
    pub(crate) fn step(&mut self) -> bool {
        self.poll().map(|unit| self.run(unit)).is_some()
    }

    /// The next unit, from wherever there is one.
    #[inline]
    pub(crate) fn poll(&mut self) -> Option<Unit> {
        self.steps = self.steps.wrapping_add(1);
        self.post().steps.store(self.steps, Ordering::Relaxed);
        if self.steps.is_multiple_of(PERIOD) {
            self.look_around();
        }
        if self.steps.is_multiple_of(BULK_EVERY)
            && let Some(unit) = self.bulk_in_time()
        {
            return Some(unit);
        }
        if let Some(unit) = self.next() {
            return Some(unit);
        }
        self.look_seldom()
    }

    /// Nothing to do is the time to look at what is looked at seldom.
    #[cold]
    fn look_seldom(&mut self) -> Option<Unit> {
        let more = self.fire_timers() | self.core.feed_starved();
        let next = if more { self.next() } else { None };
        let next = next.or_else(|| self.take_bulk(self.core.front.ready.bulk.as_ref()?));
        if next.is_none() {
            self.pace.pause();
            self.chunk.pause();
        }
        next
    }

    #[cold]
    fn bulk_in_time(&mut self) -> Option<Unit> {
        self.take_bulk(self.core.front.ready.bulk.as_ref()?)
    }

    /// The next group of the bulk class, which then runs.
    fn take_bulk(&self, bulk: &Overflow) -> Option<Unit> {
        let mut taken = None;
        bulk.take(1, |unit| taken = Some(unit));
        self.runs_bulk.set(taken.is_some());
        if !bulk.is_empty() {
            // It may take long, and nobody else may be awake for the rest.
            self.core.front.ready.wake_near(self.id);
        }
        taken
    }

    #[inline]
    pub(crate) fn run(&mut self, unit: Unit) {
        match unit.open() {
            Kind::Shard(link) => {
                // SAFETY: the unit was made by a door of this engine, which begins with its link.
                let index = unsafe { link.cast::<crate::front::Door<K, T>>().as_ref() }.index;
                self.look(index as usize);
            }
            Kind::Group(link) => {
                let core = self.core();
                // SAFETY: the unit stood for the token of a group of this engine, and `open` consumed it.
                let token = unsafe { RunToken::new(link.cast(), &core.front.ready) };
                if W::LEASES && token.group().place() == Place::Returned {
                    self.take_back(token);
                } else if core.settings.shares.has_any() {
                    self.turn_by_share(token);
                } else {
                    self.turn(token);
                }
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn turn_by_share(&mut self, token: RunToken<'_, K, T>) {
        let Some(token) = self.by_share(token) else { return };
        // SAFETY: we hold the token of a live group.
        let class = self.core().settings.shares.class(unsafe { token.group().key() });
        let before = self.post().counters.ended();
        self.turn(token);
        while let Some(Kind::Group(link)) = self.again.take().map(Unit::open) {
            // SAFETY: the unit stood for the token of the group that ran just now.
            self.turn(unsafe { RunToken::new(link.cast(), &self.core().front.ready) });
        }
        self.rounds = 1;
        if class == Class::Bulk {
            self.post().counters.add_bulk(before);
        }
    }

    /// Where groups have weights or classes: how many batches the group has in this round. `None`: it is of the bulk class, and waits
    /// until nothing interactive is ready, or its time has come.
    fn by_share<'e>(&mut self, token: RunToken<'e, K, T>) -> Option<RunToken<'e, K, T>> {
        let core = self.core();
        let shares = &core.settings.shares;
        // SAFETY: we hold the token of a live group.
        let key = unsafe { token.group().key() };
        if let Some(bulk) = &core.front.ready.bulk
            && !self.runs_bulk.take()
            && shares.class(key) == Class::Bulk
        {
            bulk.push(token.rest());
            core.front.ready.wake_near(self.id);
            return None;
        }
        self.rounds = shares.weight(key);
        Some(token)
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Unit> {
        let barrier = self.core().front.barrier;
        self.post().row.take(&mut self.place, barrier).or_else(|| self.next_elsewhere())
    }

    /// The row is empty.
    #[inline(never)]
    fn next_elsewhere(&mut self) -> Option<Unit> {
        if !self.post().inbox.is_empty() {
            self.empty_own_inbox();
        }
        self.deque.pop().or_else(|| self.refill()).or_else(|| self.steal()).or_else(|| self.rob())
    }

    /// What came in goes behind what is ready now. Not only once the deque is empty: beside a group that always has tasks
    /// it never is.
    #[cold]
    fn empty_own_inbox(&mut self) {
        let mut chain = self.post().inbox.take();
        self.queue_all(&mut chain);
    }

    /// From the overflow list.
    fn refill(&mut self) -> Option<Unit> {
        let ready = &self.core.front.ready;
        let share = ready.overflow.len() / ready.posts.len() + 1;
        let deque = &self.deque;
        ready.overflow.take(share.min(GRAB), |unit| deque.push(unit));
        let unit = self.deque.pop()?;
        self.wake_for_stolen();
        Some(unit)
    }

    /// Puts a unit behind all that are ready.
    pub(crate) fn queue(&mut self, unit: Unit) {
        let overflow = &self.core.front.ready.overflow;
        if overflow.is_empty() && self.deque.len() < DEQUE_LIMIT {
            self.deque.push(unit);
        } else {
            overflow.push(unit);
        }
        self.wake_for_more();
    }

    /// This worker runs one unit next, and that may take long: whatever else it has must have somebody awake for it.
    pub(crate) fn wake_for_more(&self) {
        let ready = &self.core.front.ready;
        let more = self.place.left() + self.deque.len() > 1 || !ready.overflow.is_empty();
        if more && !mutant("refill-no-wake") {
            ready.wake_near(self.id);
        }
    }

    /// As [`Worker::wake_for_more`], with the unit that runs next already in hand. On their way from one deque to
    /// another units are out of sight for a moment: a worker that looked for the last time just then sleeps.
    pub(crate) fn wake_for_stolen(&self) {
        if !self.deque.is_empty() && !mutant("stolen-no-wake") {
            self.core.front.ready.wake_near(self.id);
        }
    }

    /// The groups of a look (`fresh`): they run now, unless they are too few to be worth a row. `shard`: looked at again,
    /// behind all that are ready.
    pub(crate) fn run_row(&mut self, shard: Option<Unit>) {
        let mut groups = self.fresh.drain(..);
        if groups.len() >= ROW_FROM {
            // SAFETY: the post lives as long as the core, of which the worker owns a share.
            unsafe { self.post.as_ref() }.row.fill(&mut self.place, || groups.next());
        }
        let mut rest = Chain::default();
        groups.for_each(|unit| rest.push(unit));
        if let Some(unit) = shard {
            rest.push(unit);
        }
        self.queue_all(&mut rest);
    }

    /// Puts units behind all that are ready, in order.
    pub(crate) fn queue_all(&mut self, chain: &mut Chain) {
        let overflow = &self.core.front.ready.overflow;
        if overflow.is_empty() {
            let mut room = DEQUE_LIMIT.saturating_sub(self.deque.len());
            while room > 0
                && let Some(unit) = chain.pop()
            {
                self.deque.push(unit);
                room -= 1;
            }
        }
        overflow.append(chain);
        self.wake_for_more();
    }

    /// Every [`PERIOD`] steps.
    #[inline(never)]
    fn look_around(&mut self) {
        self.fire_timers();
        self.core.feed_starved();
        self.balance();
    }

    /// `true`: something became ready.
    fn fire_timers(&mut self) -> bool {
        let core = &self.core;
        if !core.timers.any() || !core.timers.is_due(core.front.ready.clock.now()) {
            return false;
        }
        let mut due = Chain::default();
        if core.timers.fire(core.front.ready.clock.now(), &mut due) {
            let now = core.front.ready.clock.now();
            let alarm = core.admission.pump(now, &mut due);
            core.set_alarm(alarm);
        }
        let any = due.len() > 0;
        if any {
            self.queue_all(&mut due);
        }
        any
    }

    /// The worker goes: what it has becomes visible to others.
    pub(crate) fn hand_over(&mut self) {
        let barrier = self.core.front.barrier;
        let row = &self.post().row;
        let mut all = Chain::default();
        self.fresh.drain(..).for_each(|unit| all.push(unit));
        while let Some(unit) = row.take(&mut self.place, barrier).or_else(|| self.deque.pop()) {
            all.push(unit);
        }
        self.core.front.ready.spill(&mut all);
    }
}

/// xorshift64*: which victim, how much jitter.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}
