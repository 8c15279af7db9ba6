//! How the engine calls user code: one trait inside, two shapes outside (a task at a time, or a batch).

use std::{marker::PhantomData, sync::Arc, time::Duration};

use crate::{
    batch::{Batch, Slots},
    group::{ring::End, segment::Pool, state::Word},
    lease::Lease,
    lifecycle::status::Status,
    outcome::{IntoOutcomes, Outcome, Trouble, wrong_count},
    task::Task,
    time::clock::Clock,
    wait::turns::Endings,
};

/// What the engine runs. Implemented by [`EachTask`] and [`EachBatch`].
pub(crate) trait Work<K, T>: Send + Sync + 'static {
    /// Batches are lent, not run: `lend` is called, and `run` is not.
    const LEASES: bool = false;
    /// The state of one group.
    type State: Send + 'static;
    /// Opens the state of a group at its first dispatch.
    fn open(&self, key: &K) -> Self::State;
    /// The handler has all tasks of a dispatch at once: they end together.
    const BATCHED: bool = true;
    /// Runs up to `turn.planned` tasks. A panic leaves `turn` telling where it happened.
    fn run(&self, state: &mut Self::State, turn: &mut Turn<'_, K, T>);
    /// Takes the lease of a batch.
    fn lend(&self, lease: Lease<K, T, Self::State>) {
        drop(lease);
    }
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
    pub(crate) word: &'a Word,
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
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) most: &'a Duration,
    pub(crate) started: Option<u64>,
}

impl<'a> Budget<'a> {
    /// A dispatch that has not begun.
    #[inline(always)]
    pub(crate) fn new(clock: &'a Arc<dyn Clock>, most: &'a Duration) -> Self {
        Self { clock, most, started: None }
    }

    /// Tasks until the next check, when so many are done.
    #[inline(always)]
    fn until_check(done: u32) -> u32 {
        match done {
            0..4 => 4 - done,
            4..8 => 8 - done,
            _ => 16 - done % 16,
        }
    }

    #[inline]
    fn is_over(&mut self) -> bool {
        let (over, started) = check(self.clock, self.most, self.started);
        self.started = started;
        over
    }
}

/// Whether the time is over, and when it began. By value, so that a turn need not lie in memory for it.
#[cold]
#[inline(never)]
fn check(clock: &Arc<dyn Clock>, most: &Duration, started: Option<u64>) -> (bool, Option<u64>) {
    let now = clock.now();
    match started {
        Some(begin) => (u128::from(now.saturating_sub(begin)) > most.as_nanos(), started),
        None => (false, Some(now)),
    }
}

/// Tasks that the handler has finished: the head passes them when this goes, also on the way of a panic.
struct Passed<'a, T> {
    head: &'a mut End<T>,
    done: &'a mut u32,
    n: u32,
}

impl<T> Drop for Passed<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.head.pass(self.n);
        *self.done += self.n;
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
        // Without a drop of tasks there is nothing to tell apart, and the phase stands still.
        let drops = std::mem::needs_drop::<T>();
        turn.phase = Phase::Task;
        while turn.done < turn.planned {
            let most = (turn.planned - turn.done).min(Budget::until_check(turn.done));
            let (tasks, n) = turn.head.run(turn.pool, most);
            let mut passed = Passed { head: turn.head, done: &mut turn.done, n: 0 };
            while passed.n < n {
                // SAFETY: the run's slots hold tasks that this token holder owns; each is visited once.
                let slot = unsafe { tasks.add(passed.n as usize) };
                // SAFETY: as above; nothing else refers to the slot during the call.
                let mut task = Task { key: turn.key, value: unsafe { &mut *slot }, attempt };
                match (self.handler)(state, &mut task).into() {
                    Outcome::Done => {}
                    failed => {
                        turn.failed = Some(failed);
                        return;
                    }
                }
                attempt = 1;
                passed.n += 1;
                if drops {
                    turn.phase = Phase::Drop;
                    // SAFETY: the head counts as past the slot, so the task is ours alone, and is dropped once.
                    unsafe { slot.drop_in_place() };
                    turn.phase = Phase::Task;
                }
                if turn.status.interrupts() && is_interrupted(turn.status, turn.word) {
                    return;
                }
            }
            drop(passed);
            if turn.done == turn.planned {
                return;
            }
            let is_due = Budget::until_check(turn.done - 1) == 1;
            if is_due && turn.budget.is_over() {
                return;
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
        turn.outcomes.clear();
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

/// A dispatch of the group with this word is to end after the task at hand.
#[cold]
fn is_interrupted(status: &Status, word: &Word) -> bool {
    status.stops() || word.load().is_called()
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
