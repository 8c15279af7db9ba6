//! Leases in the futures of a tokio runtime.

use std::{future::Future, hash::Hash, time::Duration};

use tokio::runtime::Handle;

use super::Lease;
use crate::{
    builder::{Builder, Configured},
    outcome::{Failure, FailureKind, IntoOutcomes, Outcome},
};

/// On which tokio runtime the futures of an engine run, and how long each may take. A `Handle` is one without a time limit.
#[derive(Clone, Debug)]
#[must_use]
pub struct OnTokio {
    handle: Handle,
    timeout: Option<Duration>,
}

impl OnTokio {
    /// Futures run on this runtime.
    pub fn new(handle: Handle) -> Self {
        Self { handle, timeout: None }
    }

    /// A future that is not at its end after this time is dropped, at the `await` where it stands: its tasks have failed, with
    /// [`FailureKind::TimedOut`], and the [`Retry`](crate::Retry) policy says what follows. Its permit is free at once. The clock starts when the runtime
    /// first polls the future.
    ///
    /// A future that blocks its thread is at no `await`, and is dropped only when it comes to one: until then the tasks are its own, and
    /// nobody may run them a second time. The runtime must have its time driver (`enable_time`).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl From<Handle> for OnTokio {
    fn from(handle: Handle) -> Self {
        Self::new(handle)
    }
}

impl From<&Handle> for OnTokio {
    fn from(handle: &Handle) -> Self {
        Self::new(handle.clone())
    }
}

/// The answer of a future that had to be in time.
enum InTime<R> {
    Yes(R),
    Late(Duration),
}

impl<R: IntoOutcomes> IntoOutcomes for InTime<R> {
    fn write(self, n: usize, out: &mut Vec<Outcome>) {
        match self {
            Self::Yes(answer) => answer.write(n, out),
            Self::Late(limit) => {
                let why = format!("no end after {limit:?}: the future was dropped");
                let failure = Failure::with_kind(why, FailureKind::TimedOut);
                Outcome::Retry(failure).write(n, out);
            }
        }
    }
}

async fn in_time<F: Future>(limit: Option<Duration>, future: F) -> InTime<F::Output> {
    match limit {
        None => InTime::Yes(future.await),
        Some(limit) => match tokio::time::timeout(limit, future).await {
            Ok(answer) => InTime::Yes(answer),
            Err(_) => InTime::Late(limit),
        },
    }
}

/// A thread that runs a runtime must not wait for what only that runtime can bring to its end.
pub(crate) fn must_not_block() -> bool {
    Handle::try_current().is_ok()
}

impl<K, T, S> Builder<K, T, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    S: Send + 'static,
{
    /// As [`async_handler`](Self::async_handler), with the futures on a tokio runtime. Needs the feature `tokio`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use bgrp::{Engine, OnTokio, Retry};
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    /// let engine = Engine::<String, u64>::builder()
    ///     .in_flight(1_000)
    ///     .retry(Retry::exponential(Duration::from_millis(50), Duration::from_secs(5)).attempts(5))
    ///     .tokio_handler(
    ///         OnTokio::new(runtime.handle().clone()).timeout(Duration::from_secs(30)),
    ///         |lease| async move {
    ///             tokio::time::sleep(Duration::from_millis(5)).await;
    ///             println!("{}: {:?}", lease.key(), lease.iter().collect::<Vec<_>>());
    ///         },
    ///     )
    ///     .build()?;
    /// engine.submit("merchant_1001".to_owned(), 7)?;
    /// // Blocks: inside async code, on a thread for that (`spawn_blocking`).
    /// assert_eq!(engine.close(Duration::from_secs(10)).done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tokio_handler<H, F>(self, runtime: impl Into<OnTokio>, handler: H) -> Configured<K, T>
    where
        H: Fn(Lease<K, T, S>) -> F + Send + Sync + 'static,
        F: Future<Output: IntoOutcomes> + Send + 'static,
    {
        let OnTokio { handle, timeout } = runtime.into();
        self.async_handler(
            move |attempt| drop(handle.spawn(attempt)),
            move |lease| in_time(timeout, handler(lease)),
        )
    }
}
