//! How the engine calls user code: one trait inside, two shapes outside (a task at a time, or a batch).

use std::marker::PhantomData;

use crate::{
    batch::{Batch, Slots},
    group::{ring::End, segment::Pool},
    lifecycle::status::Status,
    outcome::{IntoOutcomes, Outcome, Trouble, wrong_count},
    task::Task,
    time::clock::Clock,
    wait::turns::Endings,
};

/// What the engine runs. Implemented by [`EachTask`] and [`EachBatch`].
pub(crate) trait Work<K, T>: Send + Sync + 'static {
    /// The state of one group.
    type State: Send + 'static;
    /// Opens the state of a group at its first dispatch.
    fn open(&self, key: &K) -> Self::State;
    /// The handler has all tasks of a dispatch at once: they end together.
    const BATCHED: bool = true;
    /// Runs up to `turn.planned` tasks. A panic leaves `turn` telling where it happened.
    fn run(&self, state: &mut Self::State, turn: &mut Turn<'_, K, T>);
}

/// Where a turn stands, for the case that user code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In engine code.
    Between,
    /// The handler has the task at the head.
    Task,
    /// The task before the head is being dropped.
    Drop,
    /// The handler has the whole batch.
    Batch,
}

/// One dispatch of a group: what the handler may do, and what came of it.
pub(crate) struct Turn<'a, K, T> {
    pub(crate) key: &'a K,
    pub(crate) head: &'a mut End<T>,
    pub(crate) pool: &'a mut Pool<T>,
    pub(crate) trouble: Option<&'a Trouble>,
    /// Tasks of this dispatch, at most.
    pub(crate) planned: u32,
    pub(crate) budget: Budget<'a>,
    pub(crate) status: &'a Status,
    pub(crate) phase: Phase,
    /// Tasks done, dropped and passed by the head.
    pub(crate) done: u32,
    /// The task at the head failed.
    pub(crate) failed: Option<Outcome>,
    /// The outcomes of a batch of `planned`, if not all are done.
    pub(crate) outcomes: &'a mut Vec<Outcome>,
    /// The batch handler has returned (or panicked): `outcomes` speaks of `planned` tasks at the head.
    pub(crate) batched: bool,
    /// Tickets whose tasks are over.
    pub(crate) endings: &'a mut Endings,
}

/// The time that one dispatch may take before the group goes to the tail. Checked after 4, 8, 16 and then every 16
/// tasks, so that a dispatch of few tasks reads no clock.
pub(crate) struct Budget<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) nanos: u64,
    pub(crate) started: Option<u64>,
}

impl Budget<'_> {
    #[inline]
    fn is_over(&mut self, done: u32) -> bool {
        (done.is_multiple_of(16) || done == 4 || done == 8) && self.check()
    }

    #[cold]
    fn check(&mut self) -> bool {
        let now = self.clock.now();
        match self.started {
            Some(started) => now.saturating_sub(started) > self.nanos,
            None => {
                self.started = Some(now);
                false
            }
        }
    }
}

/// The types that a handler is about, without owning any.
type Types<K, T, X> = PhantomData<fn(&K, &mut T) -> X>;

/// A handler that is called for one task at a time.
pub(crate) struct EachTask<K, T, S, O, F> {
    open: O,
    handler: F,
    types: Types<K, T, S>,
}

/// A handler that is called for a whole batch.
pub(crate) struct EachBatch<K, T, S, O, F, R> {
    open: O,
    handler: F,
    types: Types<K, T, (S, R)>,
}

impl<K, T, S, O, F> EachTask<K, T, S, O, F> {
    pub(crate) fn new(open: O, handler: F) -> Self {
        Self { open, handler, types: PhantomData }
    }
}

impl<K, T, S, O, F, R> EachBatch<K, T, S, O, F, R> {
    pub(crate) fn new(open: O, handler: F) -> Self {
        Self { open, handler, types: PhantomData }
    }
}

impl<K, T, S, O, F, R> Work<K, T> for EachTask<K, T, S, O, F>
where
    K: 'static,
    T: 'static,
    S: Send + 'static,
    O: Fn(&K) -> S + Send + Sync + 'static,
    F: Fn(&mut S, &mut Task<'_, K, T>) -> R + Send + Sync + 'static,
    R: Into<Outcome>,
{
    type State = S;
    const BATCHED: bool = false;

    fn open(&self, key: &K) -> S {
        (self.open)(key)
    }

    #[inline]
    fn run(&self, state: &mut S, turn: &mut Turn<'_, K, T>) {
        let mut attempt =
            1 + turn.trouble.and_then(|trouble| trouble.marks.first()).map_or(0, |m| m.attempts);
        let mut left = turn.planned;
        while left > 0 {
            let (tasks, n) = turn.head.run(turn.pool, left);
            left -= n;
            for i in 0..n as usize {
                turn.phase = Phase::Task;
                // SAFETY: the run's slots hold tasks that this token holder owns; each is visited once.
                let slot = unsafe { tasks.add(i) };
                // SAFETY: as above; nothing else refers to the slot during the call.
                let mut task = Task { key: turn.key, value: unsafe { &mut *slot }, attempt };
                let outcome = (self.handler)(state, &mut task).into();
                if !matches!(outcome, Outcome::Done) {
                    turn.phase = Phase::Between;
                    turn.failed = Some(outcome);
                    return;
                }
                attempt = 1;
                turn.phase = Phase::Drop;
                turn.head.pass(1);
                turn.done += 1;
                // SAFETY: the head has passed the slot: it counts as empty from here on, and is dropped once.
                unsafe { slot.drop_in_place() };
                turn.phase = Phase::Between;
                if turn.budget.is_over(turn.done) || turn.status.stops() {
                    return;
                }
            }
        }
    }
}

impl<K, T, S, O, F, R> Work<K, T> for EachBatch<K, T, S, O, F, R>
where
    K: 'static,
    T: 'static,
    S: Send + 'static,
    O: Fn(&K) -> S + Send + Sync + 'static,
    F: Fn(&mut S, &mut Batch<'_, K, T>) -> R + Send + Sync + 'static,
    R: IntoOutcomes + 'static,
{
    type State = S;

    fn open(&self, key: &K) -> S {
        (self.open)(key)
    }

    fn run(&self, state: &mut S, turn: &mut Turn<'_, K, T>) {
        turn.phase = Phase::Batch;
        // SAFETY: `planned` tasks are counted behind the head, and this token holder owns them during the call.
        let mut batch = unsafe { Batch::new(turn.key, *turn.head, turn.planned, turn.trouble) };
        let answer = (self.handler)(state, &mut batch);
        let n = turn.planned as usize;
        answer.write(n, turn.outcomes);
        // The answer may be of the user's own making, and slots are passed by what it says.
        if !turn.outcomes.is_empty() && turn.outcomes.len() != n {
            let failure = wrong_count(turn.outcomes.len(), n);
            turn.outcomes.clear();
            turn.outcomes.resize(n, Outcome::Fail(failure));
        }
        turn.phase = Phase::Between;
        turn.batched = true;
    }
}

impl<K, T> Turn<'_, K, T> {
    /// The slots of the `n` tasks at the head.
    pub(crate) fn slots(&self, n: u32) -> Slots<T> {
        Slots { at: *self.head, left: n }
    }

    /// Moves the head over `n` slots that are empty now.
    pub(crate) fn pass(&mut self, mut n: u32) {
        while n > 0 {
            let (_, run) = self.head.run(self.pool, n);
            self.head.pass(run);
            n -= run;
        }
    }
}
