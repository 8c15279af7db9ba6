//! The waits of an engine, under one lock that nothing but waits and halts take.
//!
//! A wait of a handler is good as long as its worker still is in the same dispatch: a future may be polled once in a
//! handler and then be forgotten there. So each notes the number of the worker's dispatches, and counts only while that
//! stands ([`Core::is_current`](crate::core::Core)).

use std::{panic::Location, ptr::NonNull, sync::Arc};

use super::cell::Cell;
use crate::{
    group::block::Group,
    sync::{Mutex, MutexGuard},
};

/// Who waits.
pub(crate) enum From<K, T> {
    /// A handler on this worker, whose thread runs these groups (more than one only where handlers are nested).
    Handler {
        worker: usize,
        dispatch: u64,
        groups: Vec<NonNull<Group<K, T>>>,
    },
    Thread(String),
    Future,
}

/// One wait.
pub(crate) struct Waiting<K, T> {
    pub(crate) id: u64,
    pub(crate) from: From<K, T>,
    pub(crate) cell: Arc<Cell>,
    pub(crate) at: &'static Location<'static>,
}

/// The waits of one engine, oldest first.
pub(crate) struct Graph<K, T> {
    next: u64,
    pub(crate) waits: Vec<Waiting<K, T>>,
}

// SAFETY: blocks live as long as the engine; who follows a pointer says why its group is live.
unsafe impl<K: Send + Sync, T: Send> Send for Graph<K, T> {}

/// The graph and how keys are written.
pub(crate) struct Waits<K, T> {
    graph: Mutex<Graph<K, T>>,
    name: std::sync::OnceLock<fn(&K) -> String>,
}

impl<K, T> Waits<K, T> {
    pub(crate) fn new() -> Self {
        Self {
            graph: Mutex::new(Graph { next: 0, waits: Vec::new() }),
            name: std::sync::OnceLock::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Graph<K, T>> {
        self.graph.lock()
    }

    /// So keys are written from now on, if nobody said how before.
    pub(crate) fn name_keys(&self, name: fn(&K) -> String) {
        self.name.get_or_init(|| name);
    }

    /// The text of a key; keys may not be printable at all.
    pub(crate) fn text(&self, key: &K, hash: u32) -> String {
        let named = self.name.get().and_then(|name| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| name(key)))
                .map_err(crate::outcome::drop_quietly)
                .ok()
        });
        named.unwrap_or_else(|| format!("#{hash:08x}"))
    }
}

impl<K, T> Graph<K, T> {
    pub(crate) fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.waits.retain(|waiting| waiting.id != id);
    }
}

impl<K, T> Waiting<K, T> {
    /// The groups that are held up by this wait.
    pub(crate) fn groups(&self) -> &[NonNull<Group<K, T>>] {
        match &self.from {
            From::Handler { groups, .. } => groups,
            _ => &[],
        }
    }
}
