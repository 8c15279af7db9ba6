//! Leases in futures: the future owns the lease, and its output says what became of the tasks.
//!
//! The lease and the answer meet in a slot, in whichever order they come: usually the future drops the lease at its end and then
//! answers; where it gave the lease away before it ended, the answer waits. Who comes second gives the group back.
//!
//! | slot | the lease ends | the future answers | the future is dropped |
//! |---|---|---|---|
//! | `Nobody` | `Lease` | `Answer` | `Answer`: abandoned |
//! | `Lease` | - | given back, `Over` | given back, `Over` |
//! | `Answer` | given back, `Over` | - | - |

use std::{
    fmt,
    future::Future,
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{Grip, Lease, abandoned, outcomes_of};
use crate::{
    builder::{Builder, Configured},
    outcome::{Failure, FailureKind, IntoOutcomes, Outcome, drop_quietly},
    sync::Mutex,
};

/// Where a lease and the answer of its future meet. See the module text.
pub(super) struct Slot<K, T> {
    tasks: usize,
    meeting: Mutex<Meeting<K, T>>,
}

enum Meeting<K, T> {
    Nobody,
    Lease(Grip<K, T>),
    Answer(Vec<Outcome>),
    Over,
}

impl<K, T> Slot<K, T> {
    fn of<S>(lease: &mut Lease<K, T, S>) -> Arc<Self> {
        let slot = Arc::new(Self { tasks: lease.len(), meeting: Mutex::new(Meeting::Nobody) });
        lease.slot = Some(slot.clone());
        slot
    }

    /// The lease was dropped and not completed.
    pub(super) fn lease_ends(&self, grip: Grip<K, T>) {
        let mut meeting = self.meeting.lock();
        match std::mem::replace(&mut *meeting, Meeting::Over) {
            Meeting::Nobody => *meeting = Meeting::Lease(grip),
            Meeting::Answer(outcomes) => {
                drop(meeting);
                grip.give_back(outcomes);
            }
            // There is one lease.
            Meeting::Lease(_) | Meeting::Over => {}
        }
    }

    fn answer(&self, outcomes: Vec<Outcome>) {
        let mut meeting = self.meeting.lock();
        match std::mem::replace(&mut *meeting, Meeting::Over) {
            Meeting::Nobody => *meeting = Meeting::Answer(outcomes),
            Meeting::Lease(grip) => {
                drop(meeting);
                grip.give_back(outcomes);
            }
            // There is one answer.
            Meeting::Answer(_) | Meeting::Over => {}
        }
    }

    fn all(&self, outcome: Outcome) {
        self.answer(vec![outcome; self.tasks]);
    }
}

/// One attempt at a batch, as a future for any runtime: see [`Builder::async_handler`]. When it is dropped before its end, or
/// panics, the attempt has failed.
#[must_use = "the batch is in flight until this future has run to its end or is dropped"]
pub struct Attempt<F, K, T> {
    /// Pinned with the attempt. `None` when it is over.
    future: Option<F>,
    slot: Arc<Slot<K, T>>,
}

impl<F, K, T> Attempt<F, K, T> {
    fn future(self: Pin<&mut Self>) -> Pin<&mut Option<F>> {
        // SAFETY: the future is pinned with the attempt: it is dropped in place and never moved out.
        unsafe { self.map_unchecked_mut(|attempt| &mut attempt.future) }
    }

    /// Drops the future, and with it the lease if it is still there. A panic of that drop ends here.
    fn end(mut self: Pin<&mut Self>) {
        let dropped = catch_unwind(AssertUnwindSafe(|| self.as_mut().future().set(None)));
        drop_quietly(dropped);
    }
}

impl<F, K, T> Future for Attempt<F, K, T>
where
    F: Future<Output: IntoOutcomes>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let tasks = self.slot.tasks;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let Some(future) = self.as_mut().future().as_pin_mut() else {
                return Poll::Ready(None);
            };
            // Written here: what an answer is made of is the user's.
            future.poll(context).map(|answer| Some(outcomes_of(answer, tasks)))
        }));
        let outcomes = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            // Polled again after its end.
            Ok(Poll::Ready(None)) => return Poll::Ready(()),
            Ok(Poll::Ready(Some(outcomes))) => outcomes,
            Err(payload) => {
                let failure = Failure::from_panic(payload, FailureKind::Panicked);
                vec![Outcome::Retry(failure); tasks]
            }
        };
        self.as_mut().end();
        self.slot.answer(outcomes);
        Poll::Ready(())
    }
}

impl<F, K, T> Drop for Attempt<F, K, T> {
    fn drop(&mut self) {
        if self.future.is_some() {
            // SAFETY: it was pinned if it was ever polled, and is not moved any more.
            unsafe { Pin::new_unchecked(&mut *self) }.end();
            self.slot.all(Outcome::Retry(abandoned()));
        }
    }
}

impl<F, K, T> fmt::Debug for Attempt<F, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("tasks", &self.slot.tasks).finish_non_exhaustive()
    }
}

/// Calls the handler, and makes an attempt of its future. `None`: it panicked, and the batch has failed.
fn attempt<F, H, K, T, S>(handler: &H, mut lease: Lease<K, T, S>) -> Option<Attempt<F, K, T>>
where
    H: Fn(Lease<K, T, S>) -> F,
{
    let slot = Slot::of(&mut lease);
    match catch_unwind(AssertUnwindSafe(|| handler(lease))) {
        Ok(future) => Some(Attempt { future: Some(future), slot }),
        Err(payload) => {
            slot.all(Outcome::Retry(Failure::from_panic(payload, FailureKind::Panicked)));
            None
        }
    }
}

impl<K, T, S> Builder<K, T, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    S: Send + 'static,
{
    /// The handler gets each batch as a [`Lease`] and returns a future, which `spawn` gives to a runtime: any. The output of the future says what
    /// became of the tasks, as the answer of a batch handler does. Worker threads only make futures and settle what came of them: two
    /// workers are enough for a hundred thousand groups in flight.
    ///
    /// Tasks and state are used in place and by reference: the future owns the lease, and may keep references into it over any `await`.
    /// `?` works: an error is retried by the policy. Limits hold as for every handler: bound what is in flight by
    /// [`in_flight`](Self::in_flight), or every group that has tasks will be.
    ///
    /// A future that panics has failed its batch, with the panic's message. One that is **dropped** before its end (cancelled, its
    /// runtime shut down) has failed it with [`FailureKind::Abandoned`]; the policy may run the batch again, so let a downstream call
    /// be repeatable, or answer [`Outcome::Fail`] where it is not. Close the engine before its runtime: after that, futures have nowhere to run.
    ///
    /// A time limit is the runtime's: with tokio, `OnTokio::timeout` (feature `tokio`); elsewhere, race the work against
    /// a timer inside the future. The engine itself takes no lease back by force: the future may be using the tasks.
    ///
    /// ```
    /// # use std::{sync::mpsc, thread, time::Duration};
    /// # use bgrp::{Engine, Lease};
    /// # mod some_runtime {
    /// #     // Runs each future on a thread of its own.
    /// #     pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    /// #         std::thread::spawn(|| {
    /// #             let mut future = std::pin::pin!(future);
    /// #             let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #             while future.as_mut().poll(&mut context).is_pending() {}
    /// #         });
    /// #     }
    /// # }
    /// # async fn post(_: &str, title: &str) -> Result<(), String> {
    /// #     if title.is_empty() { Err("no title".to_owned()) } else { Ok(()) }
    /// # }
    /// let engine = Engine::<String, String>::builder()
    ///     .in_flight(20)
    ///     .async_handler(
    ///         |future| some_runtime::spawn(future),
    ///         |lease| async move {
    ///             for title in lease.iter() {
    ///                 post(lease.key(), title).await?;
    ///             }
    ///             Ok::<_, String>(())
    ///         },
    ///     )
    ///     .build()?;
    /// engine.submit("merchant_1001".to_owned(), "paid".to_owned())?;
    /// assert_eq!(engine.close(Duration::from_secs(10)).done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn async_handler<H, F, P>(self, spawn: P, handler: H) -> Configured<K, T>
    where
        H: Fn(Lease<K, T, S>) -> F + Send + Sync + 'static,
        F: Future<Output: IntoOutcomes> + Send + 'static,
        P: Fn(Attempt<F, K, T>) + Send + Sync + 'static,
    {
        self.lease_handler(move |lease| {
            if let Some(attempt) = attempt(&handler, lease) {
                // Where this panics the attempt is dropped, and its batch has failed.
                spawn(attempt);
            }
        })
    }
}
