//! A worker's inbox: anyone pushes a unit, one taker at a time takes all.
//!
//! A Treiber stack on which nothing is ever popped singly: the taker swaps the whole stack out, so there is no ABA
//! and nothing to allocate. The stack is turned around when it is taken, so units leave in the order of the pushes.
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | push (CAS head) | Release | take | models::inbox, mutant `inbox-push-relaxed` |
//! | take (swap head) | Acquire | push | models::inbox, mutant `inbox-take-relaxed` |
//!
//! Cost: one RMW a push, one RMW for all that is taken. Lock-free.

use std::ptr;

use super::link::{Chain, Unit};
use crate::sync::{AtomicPtr, Ordering, mutant};

/// See the module text.
#[derive(Debug)]
pub(crate) struct Inbox(AtomicPtr<()>);

impl Inbox {
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn push(&self, unit: Unit) {
        let raw = unit.into_raw();
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the unit is ours until the compare-and-swap succeeds.
            unsafe { Unit::set_next(raw, head) };
            // ORDERING: Release publishes the link, and all that the pusher did to the unit, to the taker's
            // Acquire swap. Pushes before it are carried along by the release sequence of the RMWs.
            let order =
                if mutant("inbox-push-relaxed") { Ordering::Relaxed } else { Ordering::Release };
            match self.0.compare_exchange_weak(head, raw, order, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// All units, oldest first.
    pub(crate) fn take(&self) -> Chain {
        let mut chain = Chain::default();
        if self.is_empty() {
            return chain;
        }
        // ORDERING: Acquire pairs with the Release of every push since the last take.
        let order =
            if mutant("inbox-take-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        let mut raw = self.0.swap(ptr::null_mut(), order);
        while !raw.is_null() {
            // SAFETY: the swap made the whole list ours.
            let next = unsafe { Unit::next_of(raw) };
            // SAFETY: as above.
            unsafe { chain.push_front(raw) };
            raw = next;
        }
        chain
    }

    /// Relaxed look; who must not miss a push fences first (worker/idle.rs).
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }
}
