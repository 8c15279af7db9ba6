//! The handler whose batches leave the worker, and how an engine with one is built.

use std::{hash::Hash, marker::PhantomData};

use super::Lease;
use crate::{
    builder::{Builder, Configured},
    handler::{Turn, Work},
};

/// A handler that is given each batch as a [`Lease`].
pub(crate) struct EachLease<K, T, S, O, F> {
    open: O,
    handler: F,
    types: PhantomData<fn(&K, &mut T, S)>,
}

impl<K, T, S, O, F> EachLease<K, T, S, O, F> {
    pub(crate) fn new(open: O, handler: F) -> Self {
        Self { open, handler, types: PhantomData }
    }
}

impl<K, T, S, O, F> Work<K, T> for EachLease<K, T, S, O, F>
where
    K: 'static,
    T: 'static,
    S: Send + 'static,
    O: Fn(&K) -> S + Send + Sync + 'static,
    F: Fn(Lease<K, T, S>) + Send + Sync + 'static,
{
    const LEASES: bool = true;
    type State = S;

    fn open(&self, key: &K) -> S {
        (self.open)(key)
    }

    fn run(&self, _: &mut S, _: &mut Turn<'_, K, T>) {
        unreachable!("batches are lent, see `Worker::turn`")
    }

    fn lend(&self, lease: Lease<K, T, S>) {
        (self.handler)(lease);
    }
}

impl<K, T, S> Builder<K, T, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    S: Send + 'static,
{
    /// The handler gets each batch as a [`Lease`], which it may send to whatever runs it: another thread, an event loop, a runtime. The worker
    /// is free at once, the group stays in flight until the lease is completed or dropped.
    ///
    /// For futures see [`async_handler`](Self::async_handler).
    ///
    /// ```
    /// use std::{sync::mpsc, thread, time::Duration};
    /// use bgrp::{Engine, Lease};
    ///
    /// let (sender, leases) = mpsc::channel::<Lease<&str, u32>>();
    /// let other = thread::spawn(move || {
    ///     for lease in leases {
    ///         let sum: u32 = lease.iter().sum();
    ///         lease.complete(if sum < 100 { Ok(()) } else { Err("too much") });
    ///     }
    /// });
    /// let engine = Engine::<&str, u32>::builder()
    ///     .lease_handler(move |lease| sender.send(lease).expect("the other thread is there"))
    ///     .build()?;
    /// engine.submit("a", 1)?;
    /// engine.submit("b", 100)?;
    /// let report = engine.close(Duration::from_secs(10));
    /// assert_eq!((report.done, report.failed), (1, 1));
    /// drop(engine);
    /// # other.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease_handler<F>(self, handler: F) -> Configured<K, T>
    where
        F: Fn(Lease<K, T, S>) + Send + Sync + 'static,
    {
        self.with_work(|open| EachLease::new(open, handler))
    }
}
