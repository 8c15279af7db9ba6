//! Tasks leave: what their places and their weights took of the engine's room is given back, once their group's word says that
//! they are gone.

use std::hash::Hash;

use crate::{
    group::{block::Group, segment::Pool},
    handler::Work,
    sync::mutant,
    worker::Worker,
};

/// What the tasks weigh that are offered to a dispatch. Some of them go, wherever they stand, the others stay at the head: the
/// difference is what those weigh that go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weighed {
    tasks: u32,
    bytes: u64,
}

impl Weighed {
    /// Token holder: the first `tasks` of the group.
    pub(crate) fn first<K, T>(group: &Group<K, T>, pool: &Pool<T>, tasks: u32) -> Self {
        if !pool.is_weighed() {
            return Self { tasks, bytes: 0 };
        }
        // SAFETY: the caller holds the token.
        Self { tasks, bytes: unsafe { group.head_end() }.weight_of(pool, tasks) }
    }

    /// Token holder, with a lease that has come back: its tasks.
    pub(crate) fn of_lease<K, T>(group: &Group<K, T>, pool: &Pool<T>) -> Self {
        if !pool.is_weighed() {
            return Self::default();
        }
        // SAFETY: the caller holds the token.
        let mut head = unsafe { group.head_end() };
        let lease = head.trouble().as_ref().and_then(|record| record.lease.as_ref());
        let tasks = lease.map_or(0, |lease| lease.tasks);
        Self::first(group, pool, tasks)
    }

    /// Token holder: `removed` of them are gone. What they weigh.
    pub(crate) fn freed<K, T>(self, group: &Group<K, T>, pool: &Pool<T>, removed: u32) -> u64 {
        debug_assert!(!pool.is_weighed() || removed <= self.tasks, "only what was offered goes");
        if mutant("weight-all-goes") {
            return self.bytes;
        }
        let left = Self::first(group, pool, self.tasks.saturating_sub(removed));
        debug_assert!(left.bytes <= self.bytes, "weights stay with their tasks");
        self.bytes.saturating_sub(left.bytes)
    }
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Before a dispatch of up to `most` tasks.
    pub(crate) fn weigh(&mut self, group: &Group<K, T>, most: u32) {
        self.weighed = Weighed::first(group, &self.pool, most);
    }

    /// After a dispatch, with the token in hand and the head put back: `removed` tasks are about to be settled.
    pub(crate) fn owe_room(&mut self, group: &Group<K, T>, removed: u32) {
        if self.core().settings.exact {
            self.owed = (removed, self.weighed.freed(group, &self.pool, removed));
        }
    }

    /// They are.
    pub(crate) fn pay_room(&mut self) {
        if let (tasks @ 1.., bytes) = std::mem::take(&mut self.owed) {
            self.core().give_room_back(tasks, bytes);
        }
    }
}
