//! What happens to a task whose attempts are used up, and to its group.

use std::{
    fmt,
    sync::{
        Arc,
        // Plain, also for the models: a figure for the watch.
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{outcome::Failure, sync::mutant};

/// A task that failed for good, shown to the policy of [`OnExhausted::with`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Exhausted<'a, K, T> {
    /// The key of its group.
    pub key: &'a K,
    /// The task itself. Take out of it what a dead letter needs; it is dropped afterwards.
    pub task: &'a mut T,
    /// How often it was tried.
    pub attempts: u32,
    /// The last failure.
    pub failure: &'a Failure,
}

/// What to do with the group of a task that failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The task is over; the group goes on with the next one.
    Skip,
    /// The task is over; the group runs no further task. What waits in it is given back by
    /// [`Engine::close`](crate::Engine::close).
    HaltGroup,
    /// The task is over; no task of any group is started any more.
    HaltEngine,
    /// The task keeps its place and the policy is asked again after this time: the dead letter could not be written.
    Hold(Duration),
}

/// The policy for tasks whose attempts are used up.
pub struct OnExhausted<K, T> {
    policy: Arc<Policy<K, T>>,
    /// Dead letters that were written.
    letters: AtomicU64,
}

/// What to do, and whether a dead letter was written.
type Policy<K, T> = dyn Fn(Exhausted<'_, K, T>) -> (Verdict, bool) + Send + Sync;

impl<K, T> OnExhausted<K, T> {
    /// The group goes on with the next task. The default.
    pub fn skip() -> Self {
        Self::with(|_| Verdict::Skip)
    }

    /// The group stops; other groups go on.
    pub fn halt_group() -> Self {
        Self::with(|_| Verdict::HaltGroup)
    }

    /// The engine stops.
    pub fn halt_engine() -> Self {
        Self::with(|_| Verdict::HaltEngine)
    }

    /// A policy of your own. It runs on the worker, with the group in its hand. A panic in it counts as
    /// [`Verdict::Skip`].
    pub fn with(policy: impl Fn(Exhausted<'_, K, T>) -> Verdict + Send + Sync + 'static) -> Self {
        Self::of(Arc::new(move |failed: Exhausted<'_, K, T>| (policy(failed), false)))
    }

    fn of(policy: Arc<Policy<K, T>>) -> Self {
        Self { policy, letters: AtomicU64::new(0) }
    }

    /// Gives the failed task to `sink` and goes on. When the sink fails, the task keeps its place and is offered
    /// again every `hold`.
    ///
    /// ```
    /// use std::{sync::{Arc, Mutex}, time::Duration};
    /// use bgrp::{Engine, OnExhausted};
    /// let letters = Arc::new(Mutex::new(Vec::new()));
    /// let sink = letters.clone();
    /// let engine = Engine::<u32, String>::builder()
    ///     .on_exhausted(OnExhausted::dead_letter(Duration::from_secs(1), move |failed: bgrp::Exhausted<u32, String>| {
    ///         sink.lock().unwrap().push((*failed.key, failed.task.clone()));
    ///         Ok::<(), std::io::Error>(())
    ///     }))
    ///     .task_handler(|_, task| if task.is_empty() { Err("nothing to say") } else { Ok(()) })
    ///     .build()?;
    /// engine.submit(7, String::new())?;
    /// engine.close(Duration::from_secs(10));
    /// assert_eq!(letters.lock().unwrap().as_slice(), [(7, String::new())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dead_letter<E>(
        hold: Duration,
        sink: impl Fn(Exhausted<'_, K, T>) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        Self::of(Arc::new(move |failed: Exhausted<'_, K, T>| match sink(failed) {
            Ok(()) => (Verdict::Skip, true),
            Err(_) if mutant("bad-write-skips") => (Verdict::Skip, false),
            Err(_) => (Verdict::Hold(hold), false),
        }))
    }

    /// Dead letters that were written so far.
    pub(crate) fn letters(&self) -> u64 {
        self.letters.load(Ordering::Relaxed)
    }

    pub(crate) fn verdict(&self, failed: Exhausted<'_, K, T>) -> Verdict {
        let policy = std::panic::AssertUnwindSafe(|| (self.policy)(failed));
        let (verdict, written) = std::panic::catch_unwind(policy).unwrap_or_else(|payload| {
            crate::outcome::drop_quietly(payload);
            (Verdict::Skip, false)
        });
        if written {
            self.letters.fetch_add(1, Ordering::Relaxed);
        }
        verdict
    }
}

impl<K, T> Clone for OnExhausted<K, T> {
    fn clone(&self) -> Self {
        // The figures are those of one engine.
        Self::of(self.policy.clone())
    }
}

impl<K, T> fmt::Debug for OnExhausted<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnExhausted")
    }
}
