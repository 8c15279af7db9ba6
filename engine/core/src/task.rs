//! One task, as a handler sees it.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

/// A task in the hands of a handler. Derefs to the submitted value, which stays in place in the group's ring: no
/// copy, no allocation. When the handler answers [`Outcome::Done`](crate::Outcome::Done) the value is dropped;
/// when it is to be retried, the handler sees the same value again, as it left it.
pub struct Task<'a, K, T> {
    pub(crate) key: &'a K,
    pub(crate) value: &'a mut T,
    pub(crate) attempt: u32,
}

impl<K, T> Task<'_, K, T> {
    /// The key of the task's group.
    pub fn key(&self) -> &K {
        self.key
    }

    /// Which attempt this is: 1 for the first.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl<K, T> Deref for Task<'_, K, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<K, T> DerefMut for Task<'_, K, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

impl<K: fmt::Debug, T: fmt::Debug> fmt::Debug for Task<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("key", self.key)
            .field("value", self.value)
            .field("attempt", &self.attempt)
            .finish()
    }
}
