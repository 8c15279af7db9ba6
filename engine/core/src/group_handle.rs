//! A handle to one group.

use std::{fmt, hash::Hash, ptr::NonNull, sync::Arc, time::Duration};

use crate::{
    engine::{Shared, until},
    error::GroupSubmitError,
    front::{Patience, Target},
    group::block::Group,
    ingress::ring::Address,
};

/// A handle to one group, from [`Engine::group`](crate::Engine::group). Tasks submitted through it and by key are in
/// one order. Sharing it between threads is fine.
///
/// ```
/// use std::time::Duration;
/// use bgrp::Engine;
/// let engine = Engine::<String, u32>::builder().task_handler(|_, _| ()).build()?;
/// let merchant = engine.group("merchant_1001".to_owned());
/// merchant.submit(1)?;
/// merchant.submit(2)?;
/// assert_eq!(engine.close(Duration::from_secs(10)).done, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GroupHandle<K, T> {
    pub(crate) shared: Arc<Shared<K, T>>,
    pub(crate) hash: u32,
    pub(crate) index: u32,
}

impl<K, T> GroupHandle<K, T> {
    pub(crate) fn new(shared: Arc<Shared<K, T>>, hash: u32, index: u32) -> Self {
        Self { shared, hash, index }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<K, T>> {
        &self.shared
    }

    /// Hash bits and index of the group.
    pub(crate) fn place(&self) -> (u32, u32) {
        (self.hash, self.index)
    }
}

impl<K: Hash + Eq, T> GroupHandle<K, T> {
    /// As [`Engine::submit`](crate::Engine::submit).
    ///
    /// # Errors
    /// Gives the task back with the reason.
    #[inline]
    pub fn submit(&self, task: T) -> Result<(), GroupSubmitError<T>> {
        self.send(task, Patience::Forever)
    }

    /// As [`Engine::try_submit`](crate::Engine::try_submit).
    ///
    /// # Errors
    /// Gives the task back with the reason.
    #[inline]
    pub fn try_submit(&self, task: T) -> Result<(), GroupSubmitError<T>> {
        self.send(task, Patience::None)
    }

    /// As [`Engine::submit_timeout`](crate::Engine::submit_timeout).
    ///
    /// # Errors
    /// Gives the task back with the reason.
    pub fn submit_timeout(&self, task: T, timeout: Duration) -> Result<(), GroupSubmitError<T>> {
        self.send(task, until(timeout))
    }

    #[inline]
    fn send(&self, task: T, patience: Patience) -> Result<(), GroupSubmitError<T>> {
        let front = &self.shared.front;
        match front.submit_to(self.hash, self.index, task) {
            Ok(()) => Ok(()),
            Err(task) => self.send_slowly(task, patience),
        }
    }

    /// Takes the claim for a moment.
    pub(crate) fn block(&self) -> NonNull<Group<K, T>> {
        self.shared.control.block(self.hash, self.index)
    }

    #[cold]
    fn send_slowly(&self, task: T, patience: Patience) -> Result<(), GroupSubmitError<T>> {
        // Before any lock of the slow way is taken: it asks under the claim.
        let block = self.block();
        let front = &self.shared.front;
        let address = Address::Group(self.index);
        let target = Target { shard: front.shard_of(self.hash), hash: self.hash, address };
        front
            .send(target, Some(block), task, patience)
            .map_err(|(_, task, reason)| GroupSubmitError { task, reason })
    }
}

impl<K, T> Drop for GroupHandle<K, T> {
    fn drop(&mut self) {
        self.shared.control.unpin(self.hash, self.index);
    }
}

impl<K, T> fmt::Debug for GroupHandle<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHandle").field("index", &self.index).finish_non_exhaustive()
    }
}
