//! What becomes of the tasks of a dispatch that did not simply end: retries keep their place and their order at the
//! head of the group, used-up attempts go to the policy, the rest is dropped.
//!
//! Only dispatches with a failure, and those of batch handlers, come here; a dispatch of a task handler in which
//! everything is done has settled itself on the way.

use std::{any::Any, hash::Hash, time::Duration};

use super::{Random, Worker};
use crate::{
    core::Settings,
    flow::exhausted::{Exhausted, Verdict},
    group::ring::End,
    handler::{Phase, Turn, Work},
    outcome::{Failure, FailureKind, Mark, Outcome, Trouble, drop_quietly},
    sync::mutant,
    wait::{
        cell::{Ended, Tracked},
        turns::tell,
    },
};

/// What the group does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Next {
    #[default]
    Go,
    Wait(Duration),
    HaltGroup,
    HaltEngine,
}

impl Next {
    /// A halt outweighs a wait, the longer wait the shorter one.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::HaltEngine, _) | (_, Self::HaltEngine) => Self::HaltEngine,
            (Self::HaltGroup, _) | (_, Self::HaltGroup) => Self::HaltGroup,
            (Self::Wait(a), Self::Wait(b)) => Self::Wait(a.max(b)),
            (Self::Wait(a), Self::Go) | (Self::Go, Self::Wait(a)) => Self::Wait(a),
            (Self::Go, Self::Go) => Self::Go,
        }
    }
}

/// The sum of a dispatch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settled {
    /// Tasks that left the head of the group.
    pub(crate) removed: u32,
    /// Those of them that ended as done; the others failed for good.
    pub(crate) done: u32,
    /// Tasks that will be tried again.
    pub(crate) retries: u32,
    pub(crate) next: Next,
    /// Why the group halts, if it does.
    pub(crate) halted: Option<Box<Failure>>,
    /// The downstream throttled a task and wants no other one for so many milliseconds; 0: it did not.
    pub(crate) throttled: u32,
}

impl Settled {
    /// Attempts that failed, for good or not.
    #[inline(always)]
    pub(crate) fn failures(&self) -> u32 {
        self.removed - self.done + self.retries
    }

    fn halt(&mut self, failure: Failure) {
        self.next = self.next.and(Next::HaltGroup);
        self.halted = Some(Box::new(failure));
    }
}

/// The fate of one task.
enum Fate {
    Done,
    Failed(Next, Failure),
    /// Failed, and the group halts for it.
    Halts(Failure),
    Stays(Mark, Duration),
    /// As it was, for so long.
    Throttled(Mark, Duration),
    /// As it was.
    NotRun(Mark),
}

/// The least pause of a throttled downstream: a tick of the timer.
const PAUSE: Duration = Duration::from_millis(1);

/// Settles what the handler left in `turn`; returns the marks of the tasks that stay at the head. `panicked`: with what, and
/// whether the state of the group is open.
#[inline(never)]
pub(crate) fn settle<K, T>(
    settings: &Settings<K, T>,
    turn: &mut Turn<'_, K, T>,
    panicked: Option<(Box<dyn Any + Send>, bool)>,
    trouble: Option<Box<Trouble>>,
    random: &mut Random,
    settled: &mut Settled,
) -> Option<Box<Trouble>> {
    let dropped_badly =
        panicked.is_some_and(|(payload, is_open)| note_panic(turn, payload, is_open));
    settled.removed += turn.done;
    settled.done += turn.done - u32::from(dropped_badly);
    // Unboxed: a dispatch without a failure comes by here too and must not allocate.
    let mut trouble = trouble.map_or_else(Trouble::default, |boxed| *boxed);
    // The tasks that a task handler has finished were at the head, with their marks.
    let passed = (turn.done as usize).min(trouble.marks.len());
    // The handler's panic left it there: the last of them failed in its own drop.
    let last_bad = (turn.phase == Phase::Drop).then(|| (turn.done as usize).saturating_sub(1));
    for (i, mark) in trouble.marks.drain(..passed).enumerate() {
        let ok = last_bad != Some(i);
        note_end(turn, mark.ticket, || ended(ok, mark.attempts + 1));
    }
    if let Some(outcome) = turn.failed.take() {
        let mut outcomes = std::iter::once(outcome);
        settle_run(settings, turn, 1, &mut trouble, &mut outcomes, random, settled);
    } else if turn.batched {
        let n = turn.planned;
        let mut outcomes = std::mem::take(turn.outcomes);
        if outcomes.is_empty() && trouble.marks.is_empty() && !std::mem::needs_drop::<T>() {
            turn.pass(n);
            settled.removed += n;
            settled.done += n;
        } else if outcomes.is_empty() {
            let mut done = std::iter::repeat_n(Outcome::Done, n as usize);
            settle_run(settings, turn, n, &mut trouble, &mut done, random, settled);
        } else {
            let mut all = outcomes.drain(..);
            settle_run(settings, turn, n, &mut trouble, &mut all, random, settled);
        }
        *turn.outcomes = outcomes;
    }
    (!trouble.marks.is_empty()).then(|| Box::new(trouble))
}

/// What the panic of user code means. `true`: the last task that counts as done failed in its own drop.
#[cold]
fn note_panic<K, T>(
    turn: &mut Turn<'_, K, T>,
    payload: Box<dyn Any + Send>,
    is_open: bool,
) -> bool {
    let kind = match turn.phase {
        Phase::Batch if !is_open => FailureKind::StatePanicked,
        _ => FailureKind::Panicked,
    };
    let failure = Failure::from_panic(payload, kind);
    match turn.phase {
        Phase::Drop => return true,
        Phase::Batch if is_open => {
            turn.outcomes.clear();
            turn.outcomes.resize(turn.planned as usize, Outcome::Retry(failure));
            turn.batched = true;
        }
        Phase::Batch | Phase::Task | Phase::Between => turn.failed = Some(Outcome::Retry(failure)),
    }
    false
}

/// Settles the `n` tasks at the head, one outcome each.
fn settle_run<K, T>(
    settings: &Settings<K, T>,
    turn: &mut Turn<'_, K, T>,
    n: u32,
    trouble: &mut Trouble,
    outcomes: &mut dyn Iterator<Item = Outcome>,
    random: &mut Random,
    settled: &mut Settled,
) {
    // Indices of the tasks that stay, with their marks. Empty unless something failed: then nothing is allocated.
    let mut stay: Vec<(usize, Mark)> = Vec::new();
    for (i, (slot, outcome)) in turn.slots(n).zip(outcomes).enumerate() {
        let attempts = 1 + trouble.marks.get(i).map_or(0, |mark| mark.attempts);
        // SAFETY: the slot holds a task that we own; see the branches for who drops it.
        let task = unsafe { &mut *slot };
        let ticket = trouble.marks.get_mut(i).and_then(|mark| mark.ticket.take());
        match judge(settings, turn.key, task, attempts, outcome, random) {
            Fate::Done => {
                // SAFETY: the slot is dropped once: the head passes it below, or a task that stays is moved over it.
                let ok = unsafe { drop_slot(slot) };
                settled.removed += 1;
                settled.done += u32::from(ok);
                note_end(turn, ticket, || ended(ok, attempts));
            }
            Fate::Failed(next, failure) => {
                // SAFETY: as above.
                unsafe { drop_slot(slot) };
                settled.removed += 1;
                settled.next = settled.next.and(next);
                note_end(turn, ticket, || Ended::Failed { failure, attempts });
            }
            Fate::Halts(failure) => {
                // SAFETY: as above.
                unsafe { drop_slot(slot) };
                settled.removed += 1;
                note_end(turn, ticket, || Ended::Failed { failure: failure.clone(), attempts });
                settled.halt(failure);
            }
            Fate::Stays(mut mark, wait) => {
                mark.ticket = ticket;
                settled.retries += u32::from(mark.exhausted.is_none());
                settled.next = settled.next.and(Next::Wait(wait));
                stay.push((i, mark));
            }
            Fate::Throttled(mut mark, pause) => {
                mark.ticket = ticket.filter(|_| !mutant("throttled-drops-ticket"));
                settled.next = settled.next.and(Next::Wait(pause));
                let ms = pause.as_nanos().div_ceil(1_000_000).min(u128::from(u32::MAX)) as u32;
                settled.throttled = settled.throttled.max(ms);
                stay.push((i, mark));
            }
            Fate::NotRun(mut mark) => {
                mark.ticket = ticket;
                stay.push((i, mark));
            }
        }
    }
    let kept = stay.len();
    if kept > 0 {
        close_gaps(turn, n, &stay);
    }
    turn.pass(n - kept as u32);
    let covered = (n as usize).min(trouble.marks.len());
    trouble.marks.splice(..covered, stay.into_iter().map(|(_, mark)| mark));
}

/// Moves the tasks that stay to the end of the run of `n`, in order, so that the head can pass the empty slots.
fn close_gaps<K, T>(turn: &Turn<'_, K, T>, n: u32, stay: &[(usize, Mark)]) {
    if turn.pool.is_weighed() {
        turn.head.move_weights(n, stay.iter().map(|(from, _)| *from));
    }
    let slots: Vec<*mut T> = turn.slots(n).collect();
    for (to, (from, _)) in (0..n as usize).rev().zip(stay.iter().rev()) {
        if *from != to && !mutant("retry-gap-stays") {
            // SAFETY: both are slots of the run; `to` is empty: what was there was dropped or has moved on.
            unsafe { std::ptr::copy_nonoverlapping(slots[*from], slots[to], 1) };
        }
    }
}

/// Drops a task in place; a panic in its drop ends here. `true`: there was none.
///
/// # Safety
/// The slot holds a task of the caller's, and counts as empty from here on.
unsafe fn drop_slot<T>(slot: *mut T) -> bool {
    // SAFETY: the caller's promise.
    let drop = std::panic::AssertUnwindSafe(|| unsafe { slot.drop_in_place() });
    std::panic::catch_unwind(drop).map_err(drop_quietly).is_ok()
}

fn judge<K, T>(
    settings: &Settings<K, T>,
    key: &K,
    task: &mut T,
    attempts: u32,
    outcome: Outcome,
    random: &mut Random,
) -> Fate {
    let (failure, wait) = match outcome {
        Outcome::Done => return Fate::Done,
        Outcome::Retry(failure) => {
            let wait = settings.retry.wait(attempts, &failure, None, random.next());
            (failure, wait)
        }
        Outcome::RetryAfter(after, failure) => {
            let wait = settings.retry.wait(attempts, &failure, Some(after), random.next());
            (failure, wait)
        }
        Outcome::Fail(failure) => (failure, None),
        Outcome::Throttled(pause) => {
            let unused = u32::from(!mutant("throttled-counts"));
            let mark = Mark { attempts: attempts - unused, ..Mark::default() };
            return Fate::Throttled(mark, pause.max(PAUSE));
        }
        Outcome::NotRun => {
            return Fate::NotRun(Mark { attempts: attempts - 1, ..Mark::default() });
        }
    };
    match wait {
        Some(wait) => {
            let attempts = attempts - u32::from(mutant("retry-not-counted"));
            Fate::Stays(Mark { attempts, ..Mark::default() }, wait)
        }
        None => exhaust(settings, key, task, attempts, failure),
    }
}

fn exhaust<K, T>(
    settings: &Settings<K, T>,
    key: &K,
    task: &mut T,
    attempts: u32,
    failure: Failure,
) -> Fate {
    match settings.on_exhausted.verdict(Exhausted { key, task, attempts, failure: &failure }) {
        Verdict::Skip => Fate::Failed(Next::Go, failure),
        Verdict::HaltGroup => Fate::Halts(failure),
        Verdict::HaltEngine => Fate::Failed(Next::HaltEngine, failure),
        Verdict::Hold(wait) => {
            Fate::Stays(Mark { attempts, exhausted: Some(failure), ticket: None }, wait)
        }
    }
}

/// How a task ended that its handler has done: badly, if its drop was not `ok`.
fn ended(ok: bool, attempts: u32) -> Ended {
    if ok {
        return Ended::Done;
    }
    let failure = Failure::with_kind("the drop of the task panicked", FailureKind::Panicked);
    Ended::Failed { failure, attempts }
}

/// Whoever waits for the task hears of it when the dispatch is settled.
#[inline]
fn note_end<K, T>(turn: &mut Turn<'_, K, T>, ticket: Option<Tracked>, how: impl FnOnce() -> Ended) {
    if let Some(tracked) = ticket {
        turn.endings.push((tracked, how()));
    }
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Asks the policy again about tasks at the head that it held. Returns how many tasks the handler may be offered:
    /// none while the head is held, and never one that is held further behind.
    pub(crate) fn resolve_held(
        &mut self,
        key: &K,
        head: &mut End<T>,
        most: u32,
        settled: &mut Settled,
    ) -> u32 {
        // Out of the segment while the head moves.
        let Some(mut trouble) = head.trouble().take() else { return most };
        let mut blocked = false;
        while let Some(mark) = trouble.marks.first_mut()
            && let Some(failure) = mark.exhausted.take()
        {
            let (slot, _) = head.run(&mut self.pool, 1);
            // SAFETY: the head holds a task that we own.
            let task = unsafe { &mut *slot };
            let (attempts, ticket) = (mark.attempts, mark.ticket.take());
            match exhaust(&self.core().settings, key, task, attempts, failure) {
                Fate::Stays(still, wait) => {
                    *mark = still;
                    mark.ticket = ticket;
                    settled.next = Next::Wait(wait);
                    blocked = true;
                    break;
                }
                Fate::Failed(next, failure) => {
                    settled.next = settled.next.and(next);
                    let end = |tracked| (tracked, Ended::Failed { failure, attempts });
                    self.endings.extend(ticket.map(end));
                }
                Fate::Halts(failure) => {
                    let end =
                        |tracked| (tracked, Ended::Failed { failure: failure.clone(), attempts });
                    self.endings.extend(ticket.map(end));
                    settled.halt(failure);
                }
                Fate::Done | Fate::Throttled(..) | Fate::NotRun(..) => {}
            }
            head.pass(1);
            // SAFETY: the head has passed it; dropped once.
            unsafe { drop_slot(slot) };
            settled.removed += 1;
            trouble.marks.remove(0);
            if settled.next != Next::Go || settled.removed == most {
                break;
            }
        }
        // Now and not at the end of the turn: the handler that comes next may ask for them.
        tell(&mut self.endings);
        let held = trouble.marks.iter().position(|mark| mark.exhausted.is_some());
        if !trouble.marks.is_empty() {
            *head.trouble() = Some(trouble);
        }
        if blocked || settled.next != Next::Go {
            return 0;
        }
        let most = most - settled.removed;
        held.filter(|_| !mutant("held-is-run")).map_or(most, |at| most.min(at as u32))
    }
}
