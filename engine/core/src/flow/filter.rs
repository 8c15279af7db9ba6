//! The filter that every submitter reads: may the group of this hash be full, or closed?
//!
//! Read-only in the usual case, so it costs one load of a line that all submitters share. Where groups have an exact
//! capacity ([`Builder::exact_group_capacity`](crate::Builder::exact_group_capacity)) or tasks are weighed, it sends
//! everybody to the slower path, and those modes cost the fast path nothing.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

/// One bit for each of 4,096 classes of hashes, set while a group of the class is full, and how many bits are set: as long as
/// there is none, a submitter looks at nothing else.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Classes that are marked, and one more where all are.
    any: AtomicU32,
    bits: Box<[AtomicU64]>,
    counts: Mutex<Vec<u32>>,
    all: bool,
}

const CLASSES: usize = if cfg!(loom) { 64 } else { 4_096 };

impl Filter {
    /// `all`: every submitter takes the slower path, see above.
    pub(crate) fn new(all: bool) -> Self {
        Self {
            any: AtomicU32::new(u32::from(all)),
            bits: (0..CLASSES / 64).map(|_| AtomicU64::new(0)).collect(),
            counts: Mutex::new(vec![0; CLASSES]),
            all,
        }
    }

    /// `false`: no group with this hash is full, as far as this thread has heard (the slack covers the rest).
    #[inline(always)]
    pub(crate) fn may_be_full(&self, hash: u32) -> bool {
        self.any() && self.has(hash)
    }

    /// Any group is full, as far as this thread has heard.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn has(&self, hash: u32) -> bool {
        self.all || self.is_marked(hash)
    }

    /// A group of this class is full or closed, as far as this thread has heard.
    pub(crate) fn is_marked(&self, hash: u32) -> bool {
        let class = hash as usize % CLASSES;
        self.bits[class / 64].load(Ordering::Relaxed) & (1 << (class % 64)) != 0
    }

    pub(super) fn set(&self, hash: u32) {
        let class = hash as usize % CLASSES;
        let mut counts = self.counts.lock();
        counts[class] += 1;
        if counts[class] == 1 {
            self.any.fetch_add(1, Ordering::Relaxed);
        }
        self.bits[class / 64].fetch_or(1 << (class % 64), Ordering::Relaxed);
    }

    pub(super) fn clear(&self, hash: u32) {
        let class = hash as usize % CLASSES;
        let mut counts = self.counts.lock();
        counts[class] -= 1;
        if counts[class] == 0 {
            self.bits[class / 64].fetch_and(!(1 << (class % 64)), Ordering::Relaxed);
            self.any.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_class_stays_marked_until_its_last_full_group_is_relieved() {
        let filter = Filter::new(false);
        filter.set(5);
        filter.set(5 + CLASSES as u32);
        filter.clear(5);
        assert!(filter.may_be_full(5));
        assert!(!filter.may_be_full(6));
        filter.clear(5);
        assert!(!filter.may_be_full(5));
    }

    #[test]
    fn where_all_submitters_are_slow_marks_are_still_told_apart() {
        let filter = Filter::new(true);
        assert!(filter.may_be_full(5) && !filter.is_marked(5));
        filter.set(5);
        assert!(filter.is_marked(5) && !filter.is_marked(6));
        filter.clear(5);
        assert!(filter.may_be_full(5) && !filter.is_marked(5));
    }
}
