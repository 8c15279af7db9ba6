//! What a handler answers for a task, and what the engine remembers of tasks that failed.

use std::{any::Any, borrow::Cow, fmt, time::Duration};

use crate::{lease::Leased, wait::cell::Tracked};

/// Why a task failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    reason: Cow<'static, str>,
    kind: FailureKind,
}

/// Who says that a task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The handler reported it.
    Reported,
    /// The handler, or the drop of the task, panicked.
    Panicked,
    /// The function that opens the state of the group panicked.
    StatePanicked,
    /// A batch handler answered with another number of outcomes than it had tasks.
    WrongCount,
    /// A [`Lease`](crate::Lease) was dropped and not completed, or the future that owned it was.
    Abandoned,
    /// A future was not at its end in time, and was dropped.
    TimedOut,
}

impl Failure {
    /// A failure that the handler reports, with its reason in words.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), kind: FailureKind::Reported }
    }

    /// The reason in words: what the handler reported, or the panic message.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Who says so.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    pub(crate) fn with_kind(reason: impl Into<Cow<'static, str>>, kind: FailureKind) -> Self {
        Self { reason: reason.into(), kind }
    }

    /// A failure with the message of a caught panic. Forgets a payload whose own drop panics.
    pub(crate) fn from_panic(payload: Box<dyn Any + Send>, kind: FailureKind) -> Self {
        let reason = if let Some(text) = payload.downcast_ref::<&'static str>() {
            Cow::Borrowed(*text)
        } else if let Some(text) = payload.downcast_ref::<String>() {
            Cow::Owned(text.clone())
        } else {
            Cow::Borrowed("panic with a payload that is not text")
        };
        drop_quietly(payload);
        Self { reason, kind }
    }
}

/// Drops a value of the user's; a panic in its drop ends there.
pub(crate) fn drop_quietly<V>(value: V) {
    fn dropped<V>(value: V) -> Result<(), Box<dyn Any + Send>> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(value)))
    }
    // The payload of a panicking drop is dropped too; where that panics as well, the payload of that is leaked.
    if let Err(again) = dropped(value).or_else(dropped) {
        std::mem::forget(again);
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FailureKind::Reported
            | FailureKind::WrongCount
            | FailureKind::Abandoned
            | FailureKind::TimedOut => f.write_str(&self.reason),
            FailureKind::Panicked => write!(f, "panic: {}", self.reason),
            FailureKind::StatePanicked => {
                write!(f, "panic while opening the group's state: {}", self.reason)
            }
        }
    }
}

impl std::error::Error for Failure {}

/// What became of one task.
///
/// A handler may return anything that is `Into<Outcome>`: `()` for done, a `Result<(), E>` whose error is displayed
/// and retried by the engine's policy, or an outcome.
///
/// ```
/// use bgrp::{Failure, Outcome};
/// assert_eq!(Outcome::from(()), Outcome::Done);
/// assert_eq!(Outcome::from(Err::<(), _>("no route")), Outcome::Retry(Failure::new("no route")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Finished. The task is dropped.
    Done,
    /// Failed; run it again as the engine's [`Retry`](crate::Retry) policy says. The task keeps the head of its
    /// group meanwhile.
    Retry(Failure),
    /// Failed; run it again after this time, if the policy allows another attempt.
    RetryAfter(Duration, Failure),
    /// Failed for good: no retry, whatever the policy.
    Fail(Failure),
    /// The downstream has had enough: no task of any group is started before this time is over (at least 1 ms). The task keeps
    /// the head of its group, and the attempt does not count. With [`InFlight::adaptive`](crate::InFlight::adaptive) the limit goes down.
    Throttled(Duration),
    /// It was not begun: it keeps its place, the attempt does not count, and nothing is waited for. For what stood in a batch
    /// behind a task that failed, or was with a process that died. A group of which nothing is ever begun goes round and round.
    NotRun,
}

impl From<()> for Outcome {
    #[inline(always)]
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl<E: fmt::Display> From<Result<(), E>> for Outcome {
    #[inline]
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => Self::Retry(Failure::new(error.to_string())),
        }
    }
}

/// What a batch handler may return: see the implementations.
pub trait IntoOutcomes {
    /// Writes one outcome per task of a batch of `n` into `out`, or leaves `out` empty when all are done. Any other
    /// number of outcomes fails the whole batch.
    fn write(self, n: usize, out: &mut Vec<Outcome>);
}

/// Every task is done.
impl IntoOutcomes for () {
    #[inline(always)]
    fn write(self, _: usize, _: &mut Vec<Outcome>) {}
}

/// The same outcome for every task.
impl IntoOutcomes for Outcome {
    fn write(self, n: usize, out: &mut Vec<Outcome>) {
        if self != Self::Done {
            out.resize(n, self);
        }
    }
}

/// `Ok`: every task is done. `Err`: every task failed for this reason and is retried by the policy.
impl<E: fmt::Display> IntoOutcomes for Result<(), E> {
    fn write(self, n: usize, out: &mut Vec<Outcome>) {
        Outcome::from(self).write(n, out);
    }
}

/// One outcome per task, in the order of the batch. Another length fails the whole batch.
impl IntoOutcomes for Vec<Outcome> {
    fn write(self, n: usize, out: &mut Vec<Outcome>) {
        if self.len() == n {
            *out = self;
        } else {
            out.resize(n, Outcome::Fail(wrong_count(self.len(), n)));
        }
    }
}

/// A batch of `n` tasks was answered with `given` outcomes.
pub(crate) fn wrong_count(given: usize, n: usize) -> Failure {
    let reason = format!(
        "the handler answered with {given} outcomes for a batch of {n} tasks; answer one for each"
    );
    Failure::with_kind(reason, FailureKind::WrongCount)
}

/// What the engine remembers of one task at the head of a group that failed, or that has a ticket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark {
    /// Attempts so far.
    pub(crate) attempts: u32,
    /// Set when the attempts are used up and the policy's answer was to ask again later.
    pub(crate) exhausted: Option<Failure>,
    /// Somebody may wait for its end.
    pub(crate) ticket: Option<Tracked>,
}

/// Marks of the first tasks of a group, index by index. Exists only while one of them has failed or has a ticket, and while a
/// lease is out.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) marks: Vec<Mark>,
    /// What a lease came back with, on its way to the worker that settles it.
    pub(crate) lease: Option<Leased>,
}

/// Of the marks: a lease is not copied.
impl Clone for Trouble {
    fn clone(&self) -> Self {
        Self { marks: self.marks.clone(), lease: None }
    }
}
