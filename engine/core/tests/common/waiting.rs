//! Futures that are polled by hand, and count how often they were woken.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Counts wakes.
#[derive(Default)]
pub(crate) struct Bell(pub(crate) AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A submit that waits.
pub(crate) struct Waiting<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
}

impl<F: Future> Waiting<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), bell: Arc::default() }
    }

    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(self.bell.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.bell.0.load(SeqCst)
    }
}
