//! Admission: which groups may be dispatched while the whole engine is limited in flight, by a rate, or by a downstream that
//! said "not now". One queue for all three, first in, first out within a class (flow/share.rs).
//!
//! No worker ever waits here: a group that may not run leaves its run token in the queue, and the worker takes the next unit.
//!
//! | a group's token is | when | who moves it on |
//! |---|---|---|
//! | in the worker's hand, admitted | a permit was free, the bucket had enough, nobody waited before it | the worker: `leave` |
//! | in the queue | one of the three was missing | whoever pumps: a dispatch that leaves, an alarm of the timer, a new limit |
//! | on the ready list, with a grant | it was pumped; its permit and its tokens are taken already | the worker that runs it: `enter` finds the grant |
//!
//! Invariants:
//!
//! * **I1** permits in use = grants that wait to be run + dispatches admitted and not left. They are taken and given back
//!   under the lock, and an [`Admitted`] cannot be copied. Test: `f2_permits.rs`, in every build with assertions.
//! * **I2** While the queue is not empty nobody enters past it, so permits are first come, first served.
//! * **I3** While the queue is not empty a dispatch is under way that will leave, or a grant waits to be run, or an alarm is set for
//!   the time at which the first of the queue can go.
//!
//! The lock is a leaf: nothing is called and no other lock taken under it. Without limits an engine pays one relaxed load a
//! dispatch; with them, two short locks a dispatch.

use std::{collections::HashMap, ptr::NonNull, time::Duration};

use ahash::RandomState;

use super::{
    adaptive::{InFlight, Seeker},
    rate::{Bucket, Count, Meter, Rate},
    share::{BULK_EVERY, Class},
};
use crate::{
    group::{block::Group, token::RunToken},
    ready::link::{Chain, Unit},
    sync::{AtomicBool, Mutex, Ordering, mutant},
    watch::stuck::Why,
};

/// The right to one dispatch of up to `tasks` tasks. Given back by [`Admission::leave`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Admitted {
    pub(crate) tasks: u32,
}

/// How a dispatch ended, as far as admission is concerned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Feedback {
    /// The downstream said when to come again, in ns from now.
    pub(crate) throttled: Option<u64>,
}

/// When somebody must pump, in ns: put an alarm into the timer.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alarm(pub(crate) Option<u64>);

/// What came of asking for a dispatch.
#[must_use]
pub(crate) enum Entered<'a, K, T> {
    Starts(RunToken<'a, K, T>, Admitted),
    /// The token is in a queue.
    Waits(Alarm),
}

/// What the limits are now, and what waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStats {
    /// The limit in flight now; `None` without one. Moves by itself when adaptive.
    pub limit: Option<u32>,
    /// Dispatches (or tasks, if those are counted) in flight under it.
    pub in_flight: u32,
    /// Groups that wait for a permit, for the rate, or for a throttled downstream.
    pub waiting: u64,
    /// Dispatches that a downstream throttled.
    pub throttled: u64,
}

/// See the module text.
pub(crate) struct Admission<K, T> {
    active: AtomicBool,
    state: Mutex<State<K, T>>,
}

struct State<K, T> {
    /// Tasks of one dispatch, at most.
    batch: u32,
    /// By class: interactive, bulk.
    queues: [Chain; 2],
    /// Choices between the two so far.
    choices: u32,
    granted: HashMap<NonNull<Group<K, T>>, Admitted, RandomState>,
    limit: Option<Limit>,
    /// Admitted and not left, those with a grant that is not run yet included.
    batches: u32,
    tasks: u32,
    rate: Option<(Meter, Bucket)>,
    paused_until: u64,
    /// The time for which an alarm is set; those before now have rung.
    alarm: u64,
    throttled: u64,
}

struct Limit {
    most: u32,
    count: Count,
    seeker: Option<Seeker>,
}

// SAFETY: units are tokens, and the pointers name blocks that live as long as the engine; see `Unit`.
unsafe impl<K: Send, T: Send> Send for State<K, T> {}

/// Why a dispatch may not start: until a time, or until another one leaves.
struct NotYet(Option<u64>);

impl<K, T> State<K, T> {
    /// Takes what a dispatch of up to `wanted` tasks needs.
    fn admit(&mut self, wanted: u32, now: u64) -> Result<Admitted, NotYet> {
        if now < self.paused_until && !mutant("admission-no-pause") {
            return Err(NotYet(Some(self.paused_until)));
        }
        let mut tasks = wanted.min(self.batch);
        if let Some(limit) = &self.limit {
            let free = limit.most.saturating_sub(self.in_flight(limit.count));
            if free == 0 {
                return Err(NotYet(None));
            }
            if limit.count == Count::Tasks {
                tasks = tasks.min(free);
            }
        }
        if let Some((meter, bucket)) = &mut self.rate {
            tasks = meter.most(tasks);
            let at = meter.ready_at(bucket, tasks);
            if at > now {
                return Err(NotYet(Some(at)));
            }
            meter.take(bucket, tasks, now);
        }
        self.batches += 1;
        self.tasks += tasks;
        Ok(Admitted { tasks })
    }

    fn in_flight(&self, count: Count) -> u32 {
        if count == Count::Tasks { self.tasks } else { self.batches }
    }

    fn waiting(&self) -> usize {
        self.queues.iter().map(Chain::len).sum()
    }

    /// The queue whose first is next: interactive before bulk, but for every [`BULK_EVERY`]th time.
    fn next_queue(&mut self) -> Option<&mut Chain> {
        let [interactive, bulk] = &mut self.queues;
        match (interactive.len() > 0, bulk.len() > 0) {
            (false, false) => None,
            (true, true) if self.choices % BULK_EVERY == BULK_EVERY - 1 => Some(bulk),
            (true, _) => Some(interactive),
            (false, true) => Some(bulk),
        }
    }

    /// Moves what may go from the queues to `out`.
    fn pump(&mut self, now: u64, out: &mut Chain) -> Alarm {
        while let Some(queue) = self.next_queue() {
            let group = queue.first_group().expect("only groups wait here").cast::<Group<K, T>>();
            // SAFETY: its token is in our queue, and blocks live as long as the engine.
            let count = unsafe { group.as_ref() }.word.load().count();
            match self.admit(count.max(1), now) {
                Ok(admitted) => {
                    let before = self.granted.insert(group, admitted);
                    debug_assert!(before.is_none(), "one token, one grant");
                    out.push(self.next_queue().and_then(Chain::pop).expect("just seen"));
                    self.choices = self.choices.wrapping_add(1);
                }
                Err(NotYet(Some(at))) => return self.alarm_at(at, now),
                Err(NotYet(None)) => break,
            }
        }
        Alarm(None)
    }

    fn try_enter<'a>(
        &mut self,
        token: RunToken<'a, K, T>,
        class: Class,
        count: u32,
        now: u64,
    ) -> Entered<'a, K, T> {
        // I2. Whoever waits has an alarm set, or a dispatch under way will pump (I3).
        let mut refused = NotYet(None);
        if self.waiting() == 0 {
            match self.admit(count, now) {
                Ok(admitted) => return Entered::Starts(token, admitted),
                Err(why) => refused = why,
            }
        }
        self.queues[class as usize].push(token.rest());
        Entered::Waits(refused.0.map_or(Alarm(None), |at| self.alarm_at(at, now)))
    }

    fn alarm_at(&mut self, at: u64, now: u64) -> Alarm {
        if self.alarm > now && self.alarm <= at {
            return Alarm(None);
        }
        self.alarm = at;
        Alarm(Some(at))
    }

    /// One dispatch less.
    fn give_back(&mut self, admitted: &Admitted) {
        debug_assert!(
            self.batches >= 1 && self.tasks >= admitted.tasks,
            "permits = running batches"
        );
        self.batches -= 1;
        self.tasks -= admitted.tasks;
    }

    /// As if it had never been admitted.
    fn take_back(&mut self, admitted: &Admitted) {
        self.give_back(admitted);
        if let Some((meter, bucket)) = &mut self.rate {
            meter.put_back(bucket, admitted.tasks);
        }
    }

    /// What the downstream answered.
    fn learn(&mut self, feedback: Feedback, now: u64) {
        let batches = self.batches;
        if let Some(limit) = &mut self.limit
            && let Some(seeker) = &mut limit.seeker
        {
            limit.most = seeker.after(limit.most, batches, feedback.throttled.is_some(), now);
        }
        if let Some(after) = feedback.throttled {
            self.throttled += 1;
            self.paused_until = self.paused_until.max(now.saturating_add(after));
        }
    }
}

impl<K, T> Admission<K, T> {
    /// For dispatches of up to `batch` tasks.
    pub(crate) fn new(batch: u32, in_flight: Option<InFlight>, rate: Option<Rate>) -> Self {
        let state = State {
            batch,
            queues: Default::default(),
            choices: 0,
            granted: HashMap::default(),
            limit: in_flight.map(Limit::new),
            batches: 0,
            tasks: 0,
            rate: rate.map(|rate| (Meter::new(&rate), Bucket::default())),
            paused_until: 0,
            alarm: 0,
            throttled: 0,
        };
        let active = state.limit.is_some() || state.rate.is_some();
        Self { active: AtomicBool::new(active), state: Mutex::new(state) }
    }

    /// Dispatches must enter. Once true it stays so. Relaxed: a dispatch that misses it runs as one that began before the limit.
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// The dispatch of a group with `count` tasks: it may start, or its token waits here from now on.
    pub(crate) fn enter<'a>(
        &self,
        token: RunToken<'a, K, T>,
        class: Class,
        count: u32,
        now: u64,
    ) -> Entered<'a, K, T> {
        let mut state = self.state.lock();
        if let Some(admitted) = state.granted.remove(&token.as_ptr()) {
            if now < state.paused_until && !mutant("grant-runs-paused") {
                // The downstream was throttled since: it is the first again of those who wait.
                state.take_back(&admitted);
                state.queues[class as usize].push_first(token.rest());
                let until = state.paused_until;
                return Entered::Waits(state.alarm_at(until, now));
            }
            return Entered::Starts(token, admitted);
        }
        state.try_enter(token, class, count, now)
    }

    /// One more dispatch of the same group, whose share of this round is not used up: it keeps its permit where the limits allow,
    /// and waits behind all others where they do not. The alarm is to be set either way.
    pub(crate) fn renew<'a>(
        &self,
        token: RunToken<'a, K, T>,
        admitted: Admitted,
        class: Class,
        count: u32,
        now: u64,
        out: &mut Chain,
    ) -> (Entered<'a, K, T>, Alarm) {
        let mut state = self.state.lock();
        state.learn(Feedback::default(), now);
        if !mutant("renew-keeps-both") {
            state.give_back(&admitted);
        }
        let admitted = state.admit(count, now);
        let entered = match admitted {
            Ok(admitted) => Entered::Starts(token, admitted),
            Err(_) => {
                state.queues[class as usize].push(token.rest());
                Entered::Waits(Alarm(None))
            }
        };
        // Also where it goes on: the limit may have risen by more than this one takes.
        let alarm = state.pump(now, out);
        (entered, alarm)
    }

    /// The dispatch is over; who may go now comes into `out`.
    pub(crate) fn leave(
        &self,
        admitted: Option<Admitted>,
        feedback: Feedback,
        now: u64,
        out: &mut Chain,
    ) -> Alarm {
        if feedback.throttled.is_some() {
            self.active.store(true, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        // The seeker counts the one that comes back as in flight.
        state.learn(feedback, now);
        if let Some(admitted) = admitted {
            state.give_back(&admitted);
        }
        if mutant("admission-no-pump") {
            return Alarm(None);
        }
        state.pump(now, out)
    }

    /// An alarm has rung.
    pub(crate) fn pump(&self, now: u64, out: &mut Chain) -> Alarm {
        self.state.lock().pump(now, out)
    }

    /// The group's grant goes back unused: its engine is halted, or it was paused meanwhile.
    pub(crate) fn forgo(&self, group: NonNull<Group<K, T>>, now: u64, out: &mut Chain) -> Alarm {
        let mut state = self.state.lock();
        let Some(admitted) = state.granted.remove(&group) else { return Alarm(None) };
        // Not a word about the downstream: it was not called.
        state.take_back(&admitted);
        state.pump(now, out)
    }

    /// Takes the token of this group out of the queue, by a walk over it: for what is done by hand.
    pub(crate) fn take(&self, group: NonNull<Group<K, T>>) -> Option<Unit> {
        self.state.lock().queues.iter_mut().find_map(|queue| queue.remove(group.cast()))
    }

    /// The engine is halted, and nothing in hand: whoever waits here, or has a grant, does not run. Their tasks lie in their blocks.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.queues = Default::default();
        for admitted in std::mem::take(&mut state.granted).into_values() {
            state.give_back(&admitted);
        }
    }

    /// From now on so much may be in flight; `None`: no limit.
    pub(crate) fn set_in_flight(
        &self,
        asked: Option<InFlight>,
        now: u64,
        out: &mut Chain,
    ) -> Alarm {
        self.active.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.limit = asked.map(Limit::new);
        state.pump(now, out)
    }

    /// From now on this rate holds; `None`: none.
    pub(crate) fn set_rate(&self, rate: Option<Rate>, now: u64, out: &mut Chain) -> Alarm {
        self.active.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        // The old debt is forgotten: a bucket that is full.
        state.rate = rate.map(|rate| (Meter::new(&rate), Bucket::default()));
        state.pump(now, out)
    }

    /// The limit in flight, what is in flight, and the unit of both; `None` without a limit.
    pub(crate) fn pressure(&self) -> Option<(u32, u32, Count)> {
        if !self.is_active() {
            return None;
        }
        let state = self.state.lock();
        state.limit.as_ref().map(|limit| (limit.most, state.in_flight(limit.count), limit.count))
    }

    /// For the watch: what the first of the queue waits for, and all behind it. `None`: the group (by the address of its block)
    /// has been let go.
    pub(crate) fn why(&self, group: usize, now: u64) -> Option<Why> {
        let state = self.state.lock();
        if state.waiting() == 0 || state.granted.keys().any(|granted| granted.addr().get() == group)
        {
            return None;
        }
        let left = |at: u64| Duration::from_nanos(at.saturating_sub(now));
        if now < state.paused_until && !mutant("why-not-throttled") {
            return Some(Why::Throttled { left: left(state.paused_until) });
        }
        Some(match &state.limit {
            Some(limit) if state.in_flight(limit.count) >= limit.most => {
                Why::Permit { in_flight: state.in_flight(limit.count), limit: limit.most }
            }
            _ => Why::EngineRate { left: left(state.alarm) },
        })
    }

    /// Groups of the bulk class in the queue.
    pub(crate) fn waiting_bulk(&self) -> u64 {
        self.state.lock().queues[Class::Bulk as usize].len() as u64
    }

    pub(crate) fn stats(&self) -> LimitStats {
        let state = self.state.lock();
        let count = state.limit.as_ref().map_or(Count::Batches, |limit| limit.count);
        LimitStats {
            limit: state.limit.as_ref().map(|limit| limit.most),
            in_flight: state.in_flight(count),
            waiting: state.waiting() as u64,
            throttled: state.throttled,
        }
    }
}

impl Limit {
    fn new(asked: InFlight) -> Self {
        let seeker = asked.adaptive.then(|| Seeker::new(asked.least, asked.most));
        let most = if asked.adaptive { asked.least } else { asked.most };
        Self { most, count: asked.count, seeker }
    }
}

impl<K, T> std::fmt::Debug for Admission<K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("stats", &self.stats()).finish()
    }
}
