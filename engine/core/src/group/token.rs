//! The run token: the right to run a group.
//!
//! A group is busy if and only if exactly one token for it exists. Who holds it owns the consumer side of the group's
//! ring and the group's state. Serial order, retry, linger, halt and shutdown are moves of this one value: it cannot
//! be cloned, it can only be turned into a [`Unit`] at rest and back, and dropping it puts the group back on the
//! ready list, so that a panic on the way strands nobody (recipe R2).

use std::ptr::NonNull;

use super::block::Group;
use crate::ready::{Ready, link::Unit};

/// See the module text.
#[derive(Debug)]
pub(crate) struct RunToken<'a, K, T> {
    group: NonNull<Group<K, T>>,
    ready: &'a Ready,
}

impl<'a, K, T> RunToken<'a, K, T> {
    /// # Safety
    /// The caller has just made the group busy, or opened the unit that stood for its token.
    pub(crate) unsafe fn new(group: NonNull<Group<K, T>>, ready: &'a Ready) -> Self {
        Self { group, ready }
    }

    pub(crate) fn group(&self) -> &Group<K, T> {
        // SAFETY: blocks live as long as the engine, which outlives its workers.
        unsafe { self.group.as_ref() }
    }

    pub(crate) fn as_ptr(&self) -> NonNull<Group<K, T>> {
        self.group
    }

    /// The token comes to rest; put the unit into exactly one list.
    pub(crate) fn rest(self) -> Unit {
        let group = self.group;
        std::mem::forget(self);
        Unit::group(group.cast())
    }

    /// The group became idle, or its token went into its word: nothing is left to hold.
    pub(crate) fn gone(self) {
        std::mem::forget(self);
    }
}

impl<K, T> Drop for RunToken<'_, K, T> {
    fn drop(&mut self) {
        self.ready.put_back(Unit::group(self.group.cast()));
    }
}
