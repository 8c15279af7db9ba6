//! The shared tail of the ready list: a list that cannot fail and keeps the order in which units came.
//!
//! A worker's deque holds at most [`DEQUE_LIMIT`] units. What is over, and *every* unit that becomes ready while this
//! list is not empty, goes to its end. That gives the fairness bound of row E6: a unit that waits here is passed
//! only by units that were ready before it.
//!
//! A mutex around two pointers: it is taken once for a whole chain of units, for a handful of instructions, with no
//! user code under it.

use super::link::{Chain, Unit};
use crate::sync::{AtomicUsize, Mutex, Ordering, sized};

/// Units in one worker's deque, at most. `crossbeam-deque` keeps its first buffer of 64 up to here, and allocates
/// beyond.
pub(crate) const DEQUE_LIMIT: usize = sized(64, 2);

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Overflow {
    list: Mutex<Chain>,
    len: AtomicUsize,
}

impl Overflow {
    pub(crate) fn new() -> Self {
        Self { list: Mutex::new(Chain::default()), len: AtomicUsize::new(0) }
    }

    pub(crate) fn push(&self, unit: Unit) {
        let mut list = self.list.lock();
        list.push(unit);
        self.len.store(list.len(), Ordering::Relaxed);
    }

    pub(crate) fn append(&self, chain: &mut Chain) {
        if chain.len() > 0 {
            let mut list = self.list.lock();
            list.append(chain);
            self.len.store(list.len(), Ordering::Relaxed);
        }
    }

    /// Up to `most` units from the front, each handed to `take`.
    pub(crate) fn take(&self, most: usize, mut take: impl FnMut(Unit)) {
        if self.is_empty() {
            return;
        }
        let mut list = self.list.lock();
        for _ in 0..most {
            match list.pop() {
                Some(unit) => take(unit),
                None => break,
            }
        }
        self.len.store(list.len(), Ordering::Relaxed);
    }

    /// Relaxed look; who must not miss a push fences first (worker/idle.rs).
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::ready::{
        inbox::Inbox,
        link::{Kind, Link},
    };

    #[test]
    fn units_leave_inbox_and_overflow_in_the_order_in_which_they_came() {
        let links: Vec<Link> = (0..6).map(|_| Link::new()).collect();
        let inbox = Inbox::new();
        let overflow = Overflow::new();
        for link in &links {
            inbox.push(Unit::group(NonNull::from(link)));
        }
        overflow.append(&mut inbox.take());
        assert!(inbox.is_empty());
        let mut seen = Vec::new();
        overflow.take(2, |unit| seen.push(unit.open()));
        assert_eq!(overflow.len(), 4);
        overflow.take(9, |unit| seen.push(unit.open()));
        let wanted: Vec<Kind> = links.iter().map(|link| Kind::Group(NonNull::from(link))).collect();
        assert_eq!(seen, wanted);
    }
}
