//! A handle to one group.

use std::{fmt, hash::Hash, ptr::NonNull, sync::Arc, time::Duration};

use crate::{
    engine::{Control, until},
    error::GroupSubmitError,
    front::{Front, Patience},
    group::block::Group,
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
    front: Arc<Front<K, T>>,
    /// Keeps the blocks alive, and unpins.
    control: Arc<dyn Control<K, T>>,
    shard: usize,
    hash: u32,
    index: u32,
    block: NonNull<Group<K, T>>,
}

// SAFETY: the handle is an index; the block is only compared, never read, through it.
unsafe impl<K: Send + Sync, T: Send> Send for GroupHandle<K, T> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, T: Send> Sync for GroupHandle<K, T> {}

impl<K, T> GroupHandle<K, T> {
    pub(crate) fn new(
        front: Arc<Front<K, T>>,
        control: Arc<dyn Control<K, T>>,
        shard: usize,
        hash: u32,
        index: u32,
        block: NonNull<Group<K, T>>,
    ) -> Self {
        Self { front, control, shard, hash, index, block }
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
        let place = (self.shard, self.hash, self.index);
        self.front
            .submit_to(place, self.block, task, patience)
            .map_err(|(task, reason)| GroupSubmitError { task, reason })
    }
}

impl<K, T> Drop for GroupHandle<K, T> {
    fn drop(&mut self) {
        self.control.unpin(self.shard, self.index);
    }
}

impl<K, T> fmt::Debug for GroupHandle<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHandle")
            .field("shard", &self.shard)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
