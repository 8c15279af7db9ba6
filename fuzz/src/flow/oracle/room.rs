//! Exact capacities: a submit is taken if and only if there is a place in its group and room for its weight.
//!
//! Tasks that a lease brought back done leave when a worker settles it: until then either answer is right.

use bgrp::SubmitReason;

use super::{Oracle, Script};

impl Oracle {
    /// What all tasks inside weigh, and what those on their way out do.
    fn weights(&self) -> (usize, usize) {
        let groups = self.groups.values();
        groups.fold((0, 0), |(inside, leaving), group| {
            let queue: usize = group.queue.iter().map(|task| task.script.weight()).sum();
            (inside + queue, leaving + group.leaving.1)
        })
    }

    /// What all tasks inside weigh.
    pub(in super::super) fn weight(&self) -> usize {
        self.weights().0
    }

    /// The task is to be taken, or refused for this reason, by groups of this capacity, in an engine that takes so many bytes.
    pub(in super::super) fn check_room(
        &self,
        key: u8,
        script: &Script,
        refused: Option<&SubmitReason>,
        capacity: usize,
        bytes: Option<usize>,
    ) {
        let (tasks, ended) =
            self.groups.get(&key).map_or((0, 0), |group| (group.queue.len(), group.leaving.0));
        let (weight, (inside, leaving)) = (script.weight(), self.weights());
        let most = bytes.unwrap_or(usize::MAX);
        let ok = match refused {
            None => tasks < capacity && inside + weight <= most,
            Some(SubmitReason::GroupFull | SubmitReason::GroupHalted) => tasks + ended >= capacity,
            Some(SubmitReason::TooLarge { .. }) => weight > most,
            Some(SubmitReason::BytesFull { .. }) => {
                weight <= most && inside + leaving + weight > most
            }
            Some(reason) => matches!(reason, SubmitReason::Closed | SubmitReason::GroupClosed),
        };
        assert!(
            ok,
            "{refused:?} to a task of {weight} with {tasks} + {ended} tasks in group {key} and {inside} + {leaving} bytes in all"
        );
    }
}
