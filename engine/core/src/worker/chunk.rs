//! How many records a look at a shard takes: as many as its worker deals with in [`TIME`] or so, sorting and running.
//!
//! Tiny tasks are cheaper in large chunks, since the groups of a chunk that get several tasks are dispatched once. Where they get one
//! each, a large chunk only outgrows the caches. And whoever comes after waits for the chunk, so longer tasks come in smaller ones. A worker that takes a full chunk at each of two looks in a row knows
//! how long one takes; the clock is read at each look anyway.
//!
//! Figures in docs/design/engine.md.

use crate::sync::sized;

/// Up to so many times as many as at first. Fixed in models, which know no time.
const RANGE: u32 = sized(4, 1) as u32;

/// A chunk that takes longer, in ns, is followed by one of half the size; one that takes less than half of it, by one twice as large.
const TIME: u64 = 48_000;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Chunk {
    size: u32,
    first: u32,
    /// When the last look began, if that one took a full chunk and the worker has not been idle since.
    full_since: Option<u64>,
    /// Its groups got two tasks or more on average.
    dense: bool,
    /// When this one began.
    now: u64,
}

impl Chunk {
    /// The first look takes so many.
    pub(crate) fn new(first: u32) -> Self {
        Self { size: first, first, full_since: None, dense: false, now: 0 }
    }

    /// A look begins; returns how many records it may take.
    #[inline]
    pub(crate) fn begin(&mut self, now: u64) -> u32 {
        if let Some(since) = self.full_since.take() {
            let took = now.saturating_sub(since);
            if took > TIME || !self.dense {
                self.size = (self.size / 2).max(self.first);
            } else if took < TIME / 2 {
                self.size = (self.size * 2).min(self.first * RANGE);
            }
        }
        self.now = now;
        self.size
    }

    /// It took so many, of so many groups.
    #[inline]
    pub(crate) fn took(&mut self, records: u32, groups: usize) {
        self.full_since = (records == self.size).then_some(self.now);
        self.dense = records as usize >= 2 * groups;
    }

    /// The worker found nothing to do.
    pub(crate) fn pause(&mut self) {
        self.full_since = None;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Looks in a row at a ring that is always full; returns the size in the end.
    fn run(chunk: &mut Chunk, looks: u64, ns_each: u64) -> u32 {
        let mut now = chunk.now;
        for _ in 0..looks {
            let size = chunk.begin(now);
            chunk.took(size, size as usize / 2);
            now += u64::from(size) * ns_each;
        }
        chunk.size
    }

    #[test]
    fn tiny_tasks_come_in_large_chunks() {
        let mut chunk = Chunk::new(256);
        assert_eq!(run(&mut chunk, 10, 20), 1_024);
        assert_eq!(run(&mut chunk, 10, 1_000), 256);
        assert_eq!(run(&mut chunk, 10, 60), 512, "between half the time and all of it");
        assert_eq!(run(&mut chunk, 10, 1_000_000), 256);
    }

    #[test]
    fn chunks_of_groups_with_one_task_stay_small() {
        let mut chunk = Chunk::new(256);
        assert_eq!(run(&mut chunk, 10, 20), 1_024);
        for now in (0..10_000).step_by(1_000) {
            let size = chunk.begin(now);
            chunk.took(size, size as usize);
        }
        assert_eq!(chunk.size, 256);
    }

    #[test]
    fn what_is_no_full_chunk_changes_nothing() {
        let mut chunk = Chunk::new(256);
        for now in 0..100 {
            let size = chunk.begin(now);
            chunk.took(size - 1, 1);
        }
        chunk.begin(100);
        chunk.took(256, 1);
        chunk.pause();
        assert_eq!(chunk.begin(1_000_000_000), 256, "an idle hour is no long task");
    }
}
