//! Giving back what idle groups hold: their segment after a while, and the whole group when there are too many.
//!
//! Both sweeps run under the claim, a few groups for each group that was touched or made, so their cost is spread
//! evenly and no sweep ever stalls a shard. A group is taken only when its word is quiet: no task, no flag, no token.
//! Since only the claim holder wakes a quiet group, nothing can race with it, and a key has one live queue at any
//! time (recipe R4): the map entry and the block go together, under the claim.
//!
//! A pinned group (a live handle, or one that is gone but whose records still lie in the ring) is never reclaimed. Keys and states leave through the scratch, to be dropped after
//! the claim was released.

use super::{back::Back, demux::Scratch};
use crate::{
    group::{block::Flags, ring::End, segment::Pool},
    sync::mutant,
};

/// Groups looked at for each group made while there are too many, and in each chunk that makes none.
const SWEEP: u32 = 4;
/// Groups that pay for a sweep in one chunk, at most: handles may have made any number of them since the last one.
const PAY: u64 = 1_024;

impl<K, T, S> Back<K, T, S> {
    /// The first place of a segment for a quiet group that has none: the one of the group that has kept its own the longest,
    /// or one of the pool.
    #[inline]
    pub(crate) fn segment_for(
        &mut self,
        index: u32,
        flags: &mut Flags,
        pool: &mut Pool<T>,
    ) -> End<T> {
        if flags.has(Flags::LISTED) {
            // The block was here in an earlier life.
            return End::attached(pool);
        }
        flags.set(Flags::LISTED);
        let Some(oldest) = self.warm.admit(index) else { return End::attached(pool) };
        let group = self.group(oldest);
        // SAFETY: we hold the claim. It is another group: this one was not listed.
        let producer = unsafe { group.producer() };
        if *producer.pending > 0 || !group.word.load().is_quiet() {
            self.warm.put_off(oldest);
            return End::attached(pool);
        }
        producer.flags.clear(Flags::LISTED);
        // SAFETY: quiet under the claim: the consumer side is ours too.
        let mut head = unsafe { group.head_end() };
        let given = End::hand_over(producer.tail, &mut head, pool);
        // SAFETY: as above.
        unsafe { group.set_head(head) };
        given
    }

    /// Takes the segments of groups that were busy when they lost their place, where they are idle now. `looks` bounds the
    /// work; a few more than groups got a segment since the last call keeps up.
    pub(crate) fn cool(&mut self, looks: usize, pool: &mut Pool<T>) {
        for _ in 0..looks.min(self.warm.late()) {
            let Some(index) = self.warm.next_late() else { return };
            let group = self.group(index);
            // SAFETY: we hold the claim.
            let producer = unsafe { group.producer() };
            if *producer.pending > 0 || !group.word.load().is_quiet() {
                self.warm.put_off(index);
                continue;
            }
            // SAFETY: quiet under the claim: the consumer side is ours too.
            let mut head = unsafe { group.head_end() };
            End::detach(producer.tail, &mut head, pool);
            // SAFETY: as above.
            unsafe { group.set_head(head) };
            producer.flags.clear(Flags::LISTED);
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

    /// Reclaims parts of splits whose handles are gone, where they are idle. Nobody could ever find them again.
    #[cold]
    pub(crate) fn reclaim_orphans(&mut self, pool: &mut Pool<T>, scratch: &mut Scratch<K, T, S>) {
        let orphans = std::mem::take(&mut self.orphans);
        for index in orphans {
            // SAFETY: we hold the claim.
            let flags = unsafe { self.group(index).producer() }.flags;
            // The sweep may have been here before.
            let stands = flags.has(Flags::PART) && !flags.has(Flags::PINNED);
            if stands && !self.reclaim_one(index, pool, scratch) {
                self.orphans.push(index);
            }
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
        if !producer.flags.has(Flags::LIVE)
            || (producer.flags.has(Flags::PINNED) && !mutant("reclaim-pinned"))
            || *producer.pending > 0
            || (!group.word.load().is_quiet() && !mutant("reclaim-busy"))
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
        let (producer, mut head) = unsafe { (group.producer(), group.head_end()) };
        End::detach(producer.tail, &mut head, pool);
        // SAFETY: as above.
        unsafe { group.set_head(head) };
        if producer.flags.has(Flags::PART) {
            producer.flags.clear(Flags::PART);
        } else {
            let removed = self.map.remove(group.hash(), index);
            debug_assert!(removed, "a live group is in the map");
        }
        producer.flags.clear(Flags::LIVE);
        // SAFETY: as `head`.
        if group.is_open() {
            group.set_open(false);
            // SAFETY: opened says that the state is initialised; it is taken once.
            scratch.garbage_states.push(unsafe { (*block.as_ref().state()).assume_init_read() });
        }
        self.slab.remove(index);
        self.live -= 1;
        // SAFETY: live until a moment ago, taken once.
        unsafe { group.take_key() }
    }
}
