//! The lanes of an engine, for who counts what was accepted: the claims are not needed for it.

use std::sync::Arc;

use crate::{ingress::lane::Lane, sync::Mutex};

/// A lane, and what came through those that are gone. Its lock is a leaf; a worker takes it when a lane is spent, and never else.
#[derive(Debug)]
pub(crate) struct LaneBook<K, T>(Mutex<Book<K, T>>);

#[derive(Debug)]
struct Book<K, T> {
    lanes: Vec<Arc<Lane<K, T>>>,
    retired: u64,
    /// Lanes that shards have let go of since the last sweep.
    spent: usize,
}

/// So many spent lanes may stay in memory, or an eighth of all.
const FEW: usize = 16;

impl<K, T> LaneBook<K, T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Book { lanes: Vec::new(), retired: 0, spent: 0 }))
    }

    pub(crate) fn add(&self, lane: Arc<Lane<K, T>>) {
        self.0.lock().lanes.push(lane);
    }

    /// A shard has let go of so many lanes.
    #[cold]
    pub(crate) fn spent(&self, lanes: usize) {
        let mut book = self.0.lock();
        book.spent += lanes;
        if book.spent > FEW.max(book.lanes.len() / 8) {
            book.spent = 0;
            book.sweep();
        }
    }

    /// Records that came in through lanes, since the engine began.
    pub(crate) fn records(&self) -> u64 {
        let book = self.0.lock();
        book.retired + book.lanes.iter().map(|lane| lane.tail()).sum::<u64>()
    }
}

impl<K, T> Book<K, T> {
    /// Lets go of lanes whose producer is gone and whose records were taken: their tail stands still.
    fn sweep(&mut self) {
        let retired = &mut self.retired;
        self.lanes.retain(|lane| {
            let spent = lane.is_spent();
            if spent {
                *retired += lane.tail();
            }
            !spent
        });
    }
}
