//! `submit_many`: one reservation per shard instead of one per task.
//!
//! Tasks are taken in windows of 256. In each window they are sorted by shard with a stable counting sort, so the order per
//! key stays, and then one shard at a time is reserved, written and published: holding ranges in several shards
//! would deadlock two producers. Nothing is allocated.

use std::{hash::Hash, ptr};

use crate::{
    error::{SubmitManyError, SubmitReason},
    front::{Front, Patience, Target},
    ingress::ring::{Address, Refused},
};

const WINDOW: usize = 256;
const MAX_SHARDS: usize = 512;
const _: () = assert!(WINDOW == 1 << u8::BITS);

/// A vector that is moved out task by task, in any order inside a window. Dropping it closes the gaps, so the vector
/// holds exactly what was not moved, in order.
struct Source<'a, K, T> {
    items: &'a mut Vec<(K, T)>,
    all: usize,
    start: usize,
    len: usize,
    moved: [bool; WINDOW],
}

impl<'a, K, T> Source<'a, K, T> {
    fn new(items: &'a mut Vec<(K, T)>) -> Self {
        let all = items.len();
        // SAFETY: zero is always a valid length; the source owns the items until its drop restores them.
        unsafe { items.set_len(0) };
        Self { items, all, start: 0, len: 0, moved: [false; WINDOW] }
    }

    /// The next window; the one before must be moved out.
    fn next_window(&mut self) -> usize {
        self.start += self.len;
        self.len = (self.all - self.start).min(WINDOW);
        self.moved = [false; WINDOW];
        self.len
    }

    #[inline(always)]
    fn at(&mut self, i: usize) -> *mut (K, T) {
        debug_assert!(i < self.len && !self.moved[i]);
        // SAFETY: inside the vector's items.
        unsafe { self.items.as_mut_ptr().add(self.start + i) }
    }

    #[inline(always)]
    fn key(&mut self, i: usize) -> &K {
        // SAFETY: initialised and not moved.
        unsafe { &(*self.at(i)).0 }
    }

    #[inline(always)]
    fn take(&mut self, i: usize) -> (K, T) {
        let at = self.at(i);
        self.moved[i] = true;
        // SAFETY: initialised, and read once: it counts as moved.
        unsafe { at.read() }
    }

    fn put(&mut self, i: usize, item: (K, T)) {
        self.moved[i] = false;
        let at = self.at(i);
        // SAFETY: the slot was moved out, so nothing is overwritten that would need a drop.
        unsafe { at.write(item) };
    }
}

impl<K, T> Drop for Source<'_, K, T> {
    fn drop(&mut self) {
        let base = self.items.as_mut_ptr();
        let mut kept = 0;
        for i in 0..self.len {
            if !self.moved[i] {
                // SAFETY: both slots are inside the vector; the target is empty or the same.
                unsafe { ptr::copy(base.add(self.start + i), base.add(kept), 1) };
                kept += 1;
            }
        }
        let rest_at = self.start + self.len;
        let rest = self.all - rest_at;
        // SAFETY: the items behind the window are initialised and move up behind those that were kept.
        unsafe {
            ptr::copy(base.add(rest_at), base.add(kept), rest);
            self.items.set_len(kept + rest);
        }
    }
}

impl<K: Hash + Eq, T> Front<K, T> {
    pub(crate) fn submit_many(
        &self,
        items: &mut Vec<(K, T)>,
        patience: Patience,
    ) -> Result<(), SubmitManyError> {
        let before = items.len();
        let mut source = Source::new(items);
        let mut outcome = Ok(());
        while outcome.is_ok() && source.next_window() > 0 {
            outcome = if self.doors.len() <= MAX_SHARDS {
                self.send_window(&mut source, patience)
            } else {
                (0..source.len).try_for_each(|i| self.send_one(&mut source, i, patience))
            };
        }
        drop(source);
        outcome.map_err(|reason| SubmitManyError { accepted: before - items.len(), reason })
    }

    fn send_one(
        &self,
        source: &mut Source<'_, K, T>,
        i: usize,
        patience: Patience,
    ) -> Result<(), SubmitReason> {
        // The hash is user code: it runs before the item is moved.
        let (shard, hash) = self.hash(source.key(i));
        let (key, task) = source.take(i);
        let target = Target { shard, hash, address: Address::Key(hash, key) };
        match self.send(target, None, task, patience) {
            Ok(()) => Ok(()),
            Err((Address::Key(_, key), task, reason)) => {
                source.put(i, (key, task));
                Err(reason)
            }
            Err((Address::Group(_), ..)) => unreachable!("sent by key"),
        }
    }

    /// The items of a window, by shard, in order within each.
    fn send_window(
        &self,
        source: &mut Source<'_, K, T>,
        patience: Patience,
    ) -> Result<(), SubmitReason> {
        let shards = self.doors.len();
        // For each shard, first how many items it gets, then where the next of them goes in `order`.
        let mut ends = [0u16; MAX_SHARDS];
        let mut hashes = [0u32; WINDOW];
        for (i, place) in hashes[..source.len].iter_mut().enumerate() {
            let (shard, hash) = self.hash(source.key(i));
            *place = hash;
            ends[shard] += 1;
        }
        let mut sum = 0;
        for end in &mut ends[..shards] {
            sum += std::mem::replace(end, sum);
        }
        // A window has 256 items, so an index is a byte, and neither array needs a test of bounds.
        let mut order = [0u8; WINDOW];
        for (i, hash) in hashes[..source.len].iter().enumerate() {
            let end = &mut ends[self.shard_of(*hash) % MAX_SHARDS];
            order[usize::from(*end) % WINDOW] = i as u8;
            *end += 1;
        }
        let mut from = 0;
        for (shard, end) in ends[..shards].iter().enumerate() {
            let to = usize::from(*end);
            if to > from {
                self.send_run(source, shard, &hashes, &order[from..to], patience)?;
                from = to;
            }
        }
        Ok(())
    }

    /// Sends the items `order`, all of one shard.
    fn send_run(
        &self,
        source: &mut Source<'_, K, T>,
        shard: usize,
        hashes: &[u32; WINDOW],
        mut order: &[u8],
        patience: Patience,
    ) -> Result<(), SubmitReason> {
        let door = &self.doors[shard];
        let may_be_full = |i: &u8| self.filter.may_be_full(hashes[usize::from(*i)]);
        if self.filter.any() && order.iter().any(may_be_full) {
            return order.iter().try_for_each(|i| self.send_one(source, usize::from(*i), patience));
        }
        while !order.is_empty() {
            match door.ring.reserve(order.len() as u32) {
                Ok((position, n)) => {
                    let (now, later) = order.split_at(n as usize);
                    for (position, i) in (position..).zip(now) {
                        let i = usize::from(*i);
                        let (key, task) = source.take(i);
                        // SAFETY: reserved above, each position filled once, at once.
                        unsafe { door.ring.fill(position, Address::Key(hashes[i], key), task) };
                    }
                    order = later;
                    // Also before a wait for room: nobody may sleep on records that nobody looks at.
                    self.published(door);
                }
                Err(Refused::Closed) => return Err(SubmitReason::Closed),
                // One task goes the patient way, and waits there; then the run goes on.
                Err(Refused::Full) => {
                    self.send_one(source, usize::from(order[0]), patience)?;
                    order = &order[1..];
                }
            }
        }
        Ok(())
    }
}
