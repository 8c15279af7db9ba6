//! Giving back what idle groups hold: their segment after a while, and the whole group when there are too many.
//!
//! Both sweeps run under the claim, a few groups for each group that was touched or made, so their cost is spread
//! evenly and no sweep ever stalls a shard. A group is taken only when its word is quiet: no task, no flag, no token.
//! Since only the claim holder wakes a quiet group, nothing can race with it, and a key has one live queue at any
//! time (recipe R4): the map entry and the block go together, under the claim.
//!
//! A pinned group (a live handle, or one that is gone but whose records still lie in the ring) is never reclaimed. Keys and states leave through the scratch, to be dropped after
//! the claim was released.

use super::{
    back::Back,
    demux::{Scratch, WARM_SEGMENTS},
};
use crate::{
    group::ring::{End, Pool},
    sync::mutant,
};

/// Groups looked at for each group made while there are too many, and in each chunk that makes none.
const SWEEP: u32 = 4;
/// Groups that pay for a sweep in one chunk, at most: handles may have made any number of them since the last one.
const PAY: u64 = 1_024;

impl<K, T, S> Back<K, T, S> {
    /// Takes the segments of the groups that have had one the longest, while too many have one. `looks` bounds the
    /// work; a few more than segments were attached since the last call keeps up.
    pub(crate) fn cool(&mut self, looks: u32, pool: &mut Pool<T>) {
        for _ in 0..looks {
            if self.attached.len() <= WARM_SEGMENTS {
                return;
            }
            let Some(index) = self.attached.pop_front() else { return };
            let group = self.group(index);
            // SAFETY: we hold the claim.
            let producer = unsafe { group.producer() };
            if producer.pending > 0 || !group.word.load().is_quiet() {
                self.attached.push_back(index);
                continue;
            }
            // SAFETY: quiet under the claim: the consumer side is ours too.
            End::detach(&mut producer.tail, unsafe { &mut group.consumer().head }, pool);
            producer.listed = false;
        }
    }

    /// Reclaims idle groups while there are more than `limit`: a few looks for each group that was made since the last
    /// sweep, by records or by handles. A few also when none was made: after a burst of keys only those that stay in use
    /// may remain.
    pub(crate) fn reclaim(
        &mut self,
        limit: u32,
        pool: &mut Pool<T>,
        scratch: &mut Scratch<K, T, S>,
    ) {
        let made = (self.made - self.swept).min(PAY);
        self.swept += made;
        let mut looks = (made as u32).max(1) * SWEEP;
        while self.live > limit && looks > 0 {
            looks -= 1;
            self.hand = if self.hand + 1 >= self.slab.used() { 0 } else { self.hand + 1 };
            self.reclaim_one(self.hand, pool, scratch);
        }
    }

    fn reclaim_one(
        &mut self,
        index: u32,
        pool: &mut Pool<T>,
        scratch: &mut Scratch<K, T, S>,
    ) -> bool {
        let group = self.group(index);
        // SAFETY: we hold the claim.
        let producer = unsafe { group.producer() };
        if !producer.live
            || (producer.pins > 0 && !mutant("reclaim-pinned"))
            || producer.pending > 0
            || !group.word.load().is_quiet()
        {
            return false;
        }
        let key = self.dissolve(index, pool, scratch);
        scratch.garbage_keys.push(key);
        true
    }

    /// Takes a quiet group apart; its block is free afterwards. Close also dissolves groups that are halted.
    pub(crate) fn dissolve(
        &mut self,
        index: u32,
        pool: &mut Pool<T>,
        scratch: &mut Scratch<K, T, S>,
    ) -> K {
        let block = self.slab.at(index);
        let group = self.group(index);
        // SAFETY: the claim holder owns both sides of a group without tasks; close owns everything.
        let (producer, consumer) = unsafe { (group.producer(), group.consumer()) };
        End::detach(&mut producer.tail, &mut consumer.head, pool);
        consumer.trouble = None;
        let removed = self.map.remove(producer.hash, index);
        debug_assert!(removed, "a live group is in the map");
        producer.live = false;
        // SAFETY: as `consumer`.
        if std::mem::take(unsafe { group.opened() }) {
            // SAFETY: opened says that the state is initialised; it is taken once.
            scratch.garbage_states.push(unsafe { (*block.as_ref().state()).assume_init_read() });
        }
        self.slab.remove(index);
        self.live -= 1;
        // SAFETY: live until a moment ago, taken once.
        unsafe { group.take_key() }
    }
}
