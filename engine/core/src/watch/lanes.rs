//! The lanes of an engine, for who counts what was accepted: the claims are not needed for it.

use std::{collections::HashMap, sync::Arc};

use ahash::RandomState;

use crate::{ingress::lane::Lane, sync::Mutex};

/// Lanes, and what came through those that are gone. Its lock is a leaf; a worker takes it when a lane is spent, and never else.
#[derive(Debug)]
pub(crate) struct LaneBook<K, T>(Mutex<Book<K, T>>);

#[derive(Debug)]
struct Book<K, T> {
    /// By their addresses.
    lanes: HashMap<usize, Arc<Lane<K, T>>, RandomState>,
    retired: u64,
}

fn address<K, T>(lane: &Arc<Lane<K, T>>) -> usize {
    Arc::as_ptr(lane).addr()
}

impl<K, T> LaneBook<K, T> {
    pub(crate) fn new() -> Self {
        let hasher = RandomState::with_seeds(1, 2, 3, 4);
        Self(Mutex::new(Book { lanes: HashMap::with_hasher(hasher), retired: 0 }))
    }

    pub(crate) fn add(&self, lane: Arc<Lane<K, T>>) {
        self.0.lock().lanes.insert(address(&lane), lane);
    }

    /// A shard has let go of these lanes: their producers are gone, their records were taken, and their tails stand still.
    #[cold]
    pub(crate) fn retire(&self, spent: Vec<Arc<Lane<K, T>>>) {
        let mut book = self.0.lock();
        for lane in &spent {
            if book.lanes.remove(&address(lane)).is_some() {
                book.retired += lane.tail();
            }
        }
        // The lanes go when nobody holds the lock.
        drop(book);
        drop(spent);
    }

    /// Records that came in through lanes, since the engine began.
    pub(crate) fn records(&self) -> u64 {
        let book = self.0.lock();
        book.retired + book.lanes.values().map(|lane| lane.tail()).sum::<u64>()
    }
}
