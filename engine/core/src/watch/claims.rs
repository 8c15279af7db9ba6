//! For the bench-harness, with feature `measure` only: how long claims of shards are held, and a map that rehashes at once to
//! compare with.
//!
//! Times are processor time of the claim holder: a holder that loses its CPU is the scheduler's doing, not the map's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Buckets: `SUB` for each power of two.
const SUB: u64 = 8;
const BUCKETS: usize = 64 * SUB as usize;

static HELD: [AtomicU64; BUCKETS] = [const { AtomicU64::new(0) }; BUCKETS];
static LONGEST: AtomicU64 = AtomicU64::new(0);
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Maps move all their entries in the operation that makes them grow or shrink, instead of a few in each.
pub fn rehash_at_once(at_once: bool) {
    AT_ONCE.store(at_once, Relaxed);
}

pub(crate) fn rehashes_at_once() -> bool {
    AT_ONCE.load(Relaxed)
}

/// Claims of all engines of the process since the last call: (ns at most, how many), shortest first, and the longest in ns.
pub fn take_claims() -> (Vec<(u64, u64)>, u64) {
    let counts = HELD.iter().enumerate().map(|(i, n)| (upper(i as u64), n.swap(0, Relaxed)));
    (counts.filter(|(_, n)| *n > 0).collect(), LONGEST.swap(0, Relaxed))
}

fn bucket(ns: u64) -> u64 {
    if ns < SUB {
        return ns;
    }
    let log = u64::from(ns.ilog2());
    (log - 2) * SUB + ((ns >> (log - 3)) & (SUB - 1))
}

fn upper(bucket: u64) -> u64 {
    if bucket < SUB {
        return bucket;
    }
    let log = bucket / SUB + 2;
    if log > 62 { u64::MAX } else { ((SUB + bucket % SUB + 1) << (log - 3)) - 1 }
}

/// A claim that is being held.
#[derive(Debug)]
pub(crate) struct Holding(u64);

impl Holding {
    pub(crate) fn start() -> Self {
        Self(processor_time())
    }

    pub(crate) fn end(self) {
        let ns = processor_time().saturating_sub(self.0);
        HELD[bucket(ns) as usize].fetch_add(1, Relaxed);
        LONGEST.fetch_max(ns, Relaxed);
    }
}

#[cfg(target_os = "linux")]
fn processor_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writes of one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(not(target_os = "linux"))]
fn processor_time() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_the_bucket_that_bounds_it() {
        for ns in (0..5_000).chain((3..60).flat_map(|log| [(1 << log) - 1, 1 << log, 3 << log])) {
            let i = bucket(ns);
            assert!(ns <= upper(i) && (i == 0 || ns > upper(i - 1)), "{ns} in {i}");
        }
    }
}
