//! Which groups of a shard keep a segment while they are idle: those that got one last, [`WARM`] at most.
//!
//! ```text
//!  ring  | 17 | 4 | 90 | 31 | ...     a group that needs a segment takes the place of the one that has been here longest,
//!               ^ next                and takes over its segment if that group is idle
//!  late  90, 12, ...                  groups that were busy when their place was taken: they give their segment back when
//!                                     they are found idle, a few looks of the worker later
//! ```
//!
//! So a segment goes from group to group in the caches of the worker, and no pool is asked, when many groups get few tasks.
//! Cost: a handful of instructions for a group that gets a segment, and a look or two at late ones.

use std::collections::VecDeque;

use crate::sync::sized;

/// Groups of a shard that may keep their segment while they are idle.
pub(crate) const WARM: usize = sized(256, 1);

/// See the module text. A group is here at most once (`Flags::LISTED`).
#[derive(Debug)]
pub(crate) struct Warm {
    ring: Vec<u32>,
    next: usize,
    late: VecDeque<u32>,
}

impl Warm {
    pub(crate) fn new() -> Self {
        Self { ring: Vec::new(), next: 0, late: VecDeque::new() }
    }

    /// `index` gets a segment now. Returns the group whose place it took.
    #[inline]
    pub(crate) fn admit(&mut self, index: u32) -> Option<u32> {
        let at = self.next;
        self.next = if at + 1 == WARM { 0 } else { at + 1 };
        match self.ring.get_mut(at) {
            Some(place) => Some(std::mem::replace(place, index)),
            None => {
                self.ring.push(index);
                None
            }
        }
    }

    /// The group lost its place while it was busy: somebody looks at it again later.
    pub(crate) fn put_off(&mut self, index: u32) {
        self.late.push_back(index);
    }

    /// The late group that has waited longest.
    #[inline]
    pub(crate) fn next_late(&mut self) -> Option<u32> {
        self.late.pop_front()
    }

    /// Late groups.
    #[inline]
    pub(crate) fn late(&self) -> usize {
        self.late.len()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_newcomer_takes_the_place_of_the_oldest() {
        let mut warm = Warm::new();
        for index in 0..3 * WARM as u32 {
            assert_eq!(warm.admit(index), index.checked_sub(WARM as u32));
        }
    }
}
