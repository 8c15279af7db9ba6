//! Memory for groups to come, made while nobody waits for the shard.
//!
//! Memory that was never touched is cleared by the system when it first is: a page of 2 MB took 4.7 ms on the machine of
//! perf/RESULTS.md. Under the claim all groups of the shard stand still for that time; made by a worker that holds no claim, it
//! holds up one worker, whose work others take. So a shard that grows has a chunk of blocks and a few segments of its map put by, and whoever
//! looked at the shard fills up what it used, after its turns. What is used up before somebody came is made under the claim.
//!
//! Cost: two comparisons a look; where a shard grows, its lock once more for each 256 groups and each segment of the map.

use super::{back::Back, table::SpareSegment};
use crate::{
    core::Core,
    group::block::{Chunk, Slab},
    handler::Work,
    topology::memory::Home,
};

/// What a shard would like to have put by.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Where the blocks of a chunk should lie.
    chunk: Option<Home>,
    segments: usize,
}

/// It, made.
pub(crate) struct Spare<K, T, S> {
    chunk: Option<Chunk<K, T, S>>,
    segments: Vec<SpareSegment>,
}

impl Wanted {
    #[cold]
    pub(crate) fn make<K, T, S>(self) -> Spare<K, T, S> {
        Spare {
            chunk: self.chunk.as_ref().map(Slab::chunk),
            segments: (0..self.segments).map(|_| SpareSegment::new()).collect(),
        }
    }
}

impl<K, T, S> Back<K, T, S> {
    /// What to [`make`](Wanted::make) when the claim is given up.
    #[inline]
    pub(crate) fn wants_spare(&self) -> Option<Wanted> {
        let (chunk, segments) = (self.slab.wants_spare(), self.map.wants_spare());
        (chunk.is_some() || segments > 0).then(|| Wanted { chunk: chunk.cloned(), segments })
    }

    /// Keeps what [`Back::wants_spare`] of this shard asked for.
    pub(crate) fn put_by(&mut self, spare: Spare<K, T, S>) {
        spare.chunk.into_iter().for_each(|chunk| self.slab.put_by(chunk));
        spare.segments.into_iter().for_each(|segment| self.map.put_by(segment));
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    /// Makes what a shard [wanted](Back::wants_spare), without its claim, and puts it by there.
    pub(crate) fn put_by(&self, shard: usize, wanted: Option<Wanted>) {
        if let Some(wanted) = wanted {
            let spare = wanted.make();
            self.backs[shard].lock().put_by(spare);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::group::block::Block;

    fn hash(key: u32) -> u32 {
        key.wrapping_mul(0x9E37_79B9)
    }

    /// Who makes groups finds blocks and segments put by: what a shard holds grows only where spares are made.
    #[test]
    fn a_shard_that_grows_asks_for_nothing_under_the_claim() {
        let mut back = Back::<u32, u32, [u64; 2]>::new(Home::anywhere());
        let mut looks_that_grew = 0;
        let mut key = 0;
        for look in 0..400 {
            let before = back.slab.heap_bytes() / size_of::<Block<u32, u32, [u64; 2]>>();
            for _ in 0..200 {
                back.make(hash(key), key);
                key += 1;
            }
            let after = back.slab.heap_bytes() / size_of::<Block<u32, u32, [u64; 2]>>();
            // The list of chunks grows by a few pointers, less than a chunk of 256 blocks.
            if after - before >= 256 {
                looks_that_grew += 1;
                assert!(look < 2, "look {look} made a chunk under the claim");
            }
            if let Some(wanted) = back.wants_spare() {
                let spare = wanted.make();
                back.put_by(spare);
            }
        }
        assert_eq!(looks_that_grew, 2, "a shard whose first chunk is not used up has none put by");
        for key in 0..key {
            let index = back.find(hash(key), &key).expect("made above");
            // SAFETY: nobody else has this back, and the group is not used after.
            unsafe { back.group(index).take_key() };
        }
    }
}
