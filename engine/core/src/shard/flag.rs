//! The flag of a shard: does somebody have the duty to look at it?
//!
//! | flag | the shard's unit is | who may change it |
//! |---|---|---|
//! | `IDLE` | nowhere; the ring is empty, or a producer that is under way will see IDLE | a producer, by compare-and-swap |
//! | `READY` | in an inbox, a deque, the overflow list, the list of starved shards, or a worker's hand | who holds the unit |
//!
//! The race: a producer publishes a record and looks at the flag; the claim holder finds nothing, stores IDLE, and
//! looks at the ring once more. One of them must see the other.
//!
//! 1. The producer's reservation (SeqCst RMW on the tail) comes before its load of the flag (SeqCst); the claim
//!    holder's store of IDLE (SeqCst) comes before its load of the tail (SeqCst). In their total order either the
//!    claim holder sees the reservation, or the producer sees IDLE. On x86 the producer pays nothing for it.
//! 2. When the claim holder sees a reservation that is not published, it may be that the producer looks at the
//!    flag before IDLE got there. Then the claim holder pays the heavy barrier (ingress/barrier.rs) and looks
//!    again: either the record is published by now, or the producer's load of the flag is still to come.
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | `rest` (store IDLE) | SeqCst | `ring` (load) | models::ring `idle`, mutant `flag-rest-relaxed` |
//! | look at the tail after `rest` | SeqCst | reserve | models::ring `idle`, mutant `flag-no-second-look` |
//! | heavy barrier for unpublished | fence | light barrier of the producer | models::ring `idle_gap`, mutants `barrier-light-missing`, `barrier-heavy-missing` |
//! | `ring`: IDLE to READY | SeqCst CAS | other producers: one of them gets the unit | models::ring `idle`, mutant `flag-ring-no-cas` |

use crate::ingress::{barrier::Barrier, ring::Ring};
use crate::sync::{AtomicU32, Ordering, mutant, seqcst_for_loom};

const IDLE: u32 = 0;
const READY: u32 = 1;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Flag(AtomicU32);

impl Flag {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// Producer, after a publish and a light barrier. `true`: the caller now holds the shard's unit and must put it
    /// on the ready list.
    #[inline(always)]
    pub(crate) fn ring(&self) -> bool {
        // ORDERING: SeqCst: the load of both races in the module text.
        self.0.load(Ordering::SeqCst) == IDLE && self.ring_slow()
    }

    #[cold]
    fn ring_slow(&self) -> bool {
        if mutant("flag-ring-no-cas") {
            self.0.store(READY, Ordering::SeqCst);
            return true;
        }
        // ORDERING: SeqCst, as the load; Acquire takes the shard over from the claim holder that let it rest.
        self.0.compare_exchange(IDLE, READY, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Claim holder that found the ring empty at `head`: gives the duty up. `true`: the shard rests, the unit is
    /// gone. `false`: there is more, the caller still (or again) holds the unit. `lanes` pays for
    /// the order (`Mode::pay`) and looks whether one of them has a record.
    pub(crate) fn rest<K, T>(
        &self,
        ring: &Ring<K, T>,
        head: u64,
        barrier: Barrier,
        lanes: Option<&mut dyn FnMut() -> bool>,
    ) -> bool {
        if mutant("flag-rest-relaxed") {
            self.0.store(IDLE, Ordering::Relaxed);
        } else {
            // ORDERING: SeqCst: the store of race 1; Release hands the shard to the next claim holder.
            self.0.store(IDLE, Ordering::SeqCst);
            seqcst_for_loom();
        }
        if mutant("flag-no-second-look") {
            return true;
        }
        if ring.tail().0 != head {
            // A record came, or is about to: its producer is a handful of instructions away.
            for _ in 0..gap_spins(barrier) {
                if ring.is_published(head) {
                    return !self.ring();
                }
                crate::sync::spin_hint();
            }
            barrier.heavy();
            if ring.is_published(head) {
                return !self.ring();
            }
        }
        if lanes.is_some_and(|look| look()) {
            return !self.ring();
        }
        true
    }
}

/// How often a claim holder looks at a gap before it pays the heavy barrier.
#[cfg(not(loom))]
const fn gap_spins(_: Barrier) -> u32 {
    32
}

/// Under loom either never, or, where there is no barrier, until the record is published.
#[cfg(loom)]
fn gap_spins(barrier: Barrier) -> u32 {
    if barrier == Barrier::Absent { u32::MAX } else { 0 }
}
