//! One entry of the wheel for each group that lingers, however often it begins to.
//!
//! A batch that fills up early ends its linger without a look at the wheel. Its entry stays there, and serves the next linger of the group:
//! that begins later, so it ends later, and the entry goes back into the wheel when it fires before its time. (With an entry for each
//! linger, every batch that filled up early left 32 bytes behind for a flush interval.)
//!
//! A worker sets LINGER in the word first and tells here afterwards. In between the batch may fill up, run, and its rest linger anew, and
//! the worker that does all that may be here first. So the later linger counts, in the order of the word, whoever comes last: otherwise
//! the entry would end a linger that is over already, and nothing the one that stands.
//!
//! | the entry fires at | of the group is known | then |
//! |---|---|---|
//! | `fires` | `deadline` is later | it goes back, for `deadline` |
//! | `fires` | `deadline` is now | the linger with `sequence` ends, if it has not ended otherwise |
//! | another time, or nothing is known | | nothing: there is a later entry |
//!
//! Cost: a look-up in a table of 32 bytes for each group in the wheel, under its lock.

use std::{
    collections::{HashMap, hash_map::Entry},
    ptr::NonNull,
};

use ahash::RandomState;

use crate::{
    group::{block::Group, state::is_later},
    sync::mutant,
};

/// The last linger of a group that has an entry in the wheel.
#[derive(Debug)]
struct Last {
    sequence: u32,
    deadline: u64,
    /// When the entry fires, in ns.
    fires: u64,
}

/// What follows from an entry that fired.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fired {
    /// The linger with this sequence is over.
    Ends(u32),
    /// It goes back into the wheel, for this time in ns.
    Again(u64),
    Nothing,
}

/// See the module text. Everything under the lock of the wheel.
pub(super) struct Lingers<K, T>(HashMap<NonNull<Group<K, T>>, Last, RandomState>);

// SAFETY: the pointers are names; nothing is read through them.
unsafe impl<K: Send, T: Send> Send for Lingers<K, T> {}

impl<K, T> Lingers<K, T> {
    pub(super) fn new() -> Self {
        Self(HashMap::default())
    }

    /// A linger began. `true`: it needs an entry in the wheel, for its deadline in ns.
    pub(super) fn begin(
        &mut self,
        group: NonNull<Group<K, T>>,
        sequence: u32,
        deadline: u64,
    ) -> bool {
        match self.0.entry(group) {
            Entry::Vacant(place) => {
                place.insert(Last { sequence, deadline, fires: deadline });
                true
            }
            Entry::Occupied(mut place) => {
                let last = place.get_mut();
                if is_later(last.sequence, sequence) && !mutant("linger-told-late") {
                    return false;
                }
                let earlier = deadline < last.fires;
                let fires = if earlier { deadline } else { last.fires };
                *last = Last { sequence, deadline, fires };
                earlier
            }
        }
    }

    /// An entry fired that was put in for the time `at`.
    pub(super) fn fire(&mut self, group: NonNull<Group<K, T>>, at: u64) -> Fired {
        let Entry::Occupied(mut place) = self.0.entry(group) else { return Fired::Nothing };
        let last = place.get_mut();
        if last.fires != at {
            return Fired::Nothing;
        }
        if last.deadline > at && !mutant("linger-ends-first") {
            last.fires = last.deadline;
            return Fired::Again(last.deadline);
        }
        Fired::Ends(self.end(group).expect("it was found"))
    }

    /// Forgets the group; returns the sequence of its last linger.
    pub(super) fn end(&mut self, group: NonNull<Group<K, T>>) -> Option<u32> {
        let last = self.0.remove(&group)?;
        if self.0.is_empty() && self.0.capacity() > 1_024 {
            // As large as a tide was: not kept for ever.
            self.0 = HashMap::default();
        }
        Some(last.sequence)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::group::state::SEQUENCES;

    const GROUP: NonNull<Group<u32, u32>> = NonNull::dangling();

    #[test]
    fn one_entry_serves_all_lingers_of_a_group() {
        let mut lingers = Lingers::new();
        assert!(lingers.begin(GROUP, 0, 1_000));
        for sequence in 1..100 {
            assert!(!lingers.begin(GROUP, sequence, 1_000 + u64::from(sequence)));
        }
        assert_eq!(lingers.fire(GROUP, 1_000), Fired::Again(1_099));
        assert!(!lingers.begin(GROUP, 100, 1_100));
        assert_eq!(lingers.fire(GROUP, 1_099), Fired::Again(1_100));
        assert_eq!(lingers.fire(GROUP, 1_100), Fired::Ends(100));
        assert_eq!(lingers.fire(GROUP, 1_100), Fired::Nothing);
        assert!(lingers.begin(GROUP, 101, 2_000), "the next one has an entry of its own again");
    }

    #[test]
    fn an_earlier_deadline_is_kept_and_the_later_entry_does_nothing() {
        let mut lingers = Lingers::new();
        assert!(lingers.begin(GROUP, 0, 1_000));
        assert!(lingers.begin(GROUP, 1, 500));
        assert_eq!(lingers.fire(GROUP, 500), Fired::Ends(1));
        assert!(lingers.begin(GROUP, 2, 1_500));
        assert_eq!(lingers.fire(GROUP, 1_000), Fired::Nothing);
        assert_eq!(lingers.fire(GROUP, 1_500), Fired::Ends(2));
    }

    /// The second linger was told before the first one.
    #[test]
    fn the_later_linger_counts_whoever_comes_last() {
        for first in [7, SEQUENCES - 1] {
            let (mut lingers, second) = (Lingers::new(), (first + 1) % SEQUENCES);
            assert!(lingers.begin(GROUP, second, 1_001));
            assert!(!lingers.begin(GROUP, first, 1_000));
            assert_eq!(lingers.fire(GROUP, 1_001), Fired::Ends(second));
        }
    }
}
