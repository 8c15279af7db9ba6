//! The run token: the right to run a group.
//!
//! A group is busy if and only if exactly one token for it exists. Who holds it owns the consumer side of the group's
//! ring and the group's state. Serial order, retry, linger, halt and shutdown are moves of this one value: it cannot
//! be cloned, it can only be turned into a [`Unit`] at rest and back, and dropping it puts the group back on the
//! ready list, so that a panic on the way strands nobody (recipe R2).

use std::ptr::NonNull;

use super::block::Group;
use crate::ready::{Ready, link::Unit};

/// See the module text.
#[derive(Debug)]
pub(crate) struct RunToken<'a, K, T> {
    group: NonNull<Group<K, T>>,
    ready: &'a Ready,
}

impl<'a, K, T> RunToken<'a, K, T> {
    /// # Safety
    /// The caller has just made the group busy, or opened the unit that stood for its token.
    pub(crate) unsafe fn new(group: NonNull<Group<K, T>>, ready: &'a Ready) -> Self {
        Self { group, ready }
    }

    pub(crate) fn group(&self) -> &Group<K, T> {
        // SAFETY: blocks live as long as the engine, which outlives its workers.
        unsafe { self.group.as_ref() }
    }

    pub(crate) fn as_ptr(&self) -> NonNull<Group<K, T>> {
        self.group
    }

    /// The token comes to rest; put the unit into exactly one list.
    pub(crate) fn rest(self) -> Unit {
        let group = self.group;
        std::mem::forget(self);
        Unit::group(group.cast())
    }

    /// The group became idle, or its token went into its word: nothing is left to hold.
    pub(crate) fn gone(self) {
        std::mem::forget(self);
    }
}

impl<K, T> Drop for RunToken<'_, K, T> {
    fn drop(&mut self) {
        self.ready.put_back(Unit::group(self.group.cast()));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        group::block::Slab,
        ready::link::Kind,
        time::clock::{Clock, VirtualClock},
        topology::memory::Home,
    };

    fn ready() -> Ready {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new());
        let deque: crate::ready::deque::Deque<Unit> = crate::ready::deque::Deque::new_fifo();
        Ready::new(vec![deque.stealer()], clock)
    }

    #[test]
    fn netty_15927_a_token_that_is_dropped_on_the_way_puts_its_group_back() {
        // A failure between taking a group and putting it back left it marked as scheduled, and nobody ran it again.
        let ready = ready();
        let mut slab: Slab<u32, u32, ()> = Slab::new(Home::anywhere());
        let index = slab.add();
        // SAFETY: the slab outlives the test's use of the block.
        let group = NonNull::from(unsafe { &slab.at(index).as_ref().group });
        for _ in 0..3 {
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: nobody else holds a token of this group.
                let _token = unsafe { RunToken::new(group, &ready) };
                std::panic::resume_unwind(Box::new("on the way"));
            }));
            assert!(failed.is_err());
            let mut back = Vec::new();
            ready.overflow.take(9, |unit| back.push(unit.open()));
            assert_eq!(back, [Kind::Group(group.cast())], "once, and nowhere else");
        }
    }

    #[test]
    fn a_token_that_rests_or_is_gone_leaves_nothing_behind() {
        let ready = ready();
        let mut slab: Slab<u32, u32, ()> = Slab::new(Home::anywhere());
        let index = slab.add();
        // SAFETY: the slab outlives the test's use of the block.
        let group = NonNull::from(unsafe { &slab.at(index).as_ref().group });
        // SAFETY: nobody else holds a token of this group.
        let unit = unsafe { RunToken::new(group, &ready) }.rest();
        assert_eq!(unit.open(), Kind::Group(group.cast()));
        // SAFETY: as above: the unit stood for the token, and `open` consumed it.
        unsafe { RunToken::new(group, &ready) }.gone();
        assert!(!ready.has_units());
    }
}
