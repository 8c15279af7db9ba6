//! What the oracle says of submits: which must be refused, and which may be.

use bgrp::SubmitReason;

use super::{Entry, Group, Model};

impl Model {
    /// A submit was accepted.
    pub(in crate::ready_list) fn accept(&mut self, key: u8, source: u16, id: u32) {
        let overdone = self.is_overfull(key) && source == 0;
        self.require(!overdone, || format!("group {key} is over its capacity and took task {id}"));
        self.require(!self.refuses && !self.halted, || format!("task {id} came in after the end"));
        self.figures.accepted += 1;
        self.at_rest = false;
        let now = self.now;
        let group = self.groups.entry(key).or_default();
        if group.waiting() == 0 {
            // What comes before a lease is settled counts as waiting since its batch left: earlier, never later.
            let unsettled = group.lent || group.back_at.is_some();
            group.busy_since = if unsettled { group.lent_at } else { now };
        }
        group.queues.entry(source).or_default().push_back(Entry { id, seen: None });
    }

    /// At rest the group held more than its capacity, and it was not opened since.
    fn is_overfull(&self, key: u8) -> bool {
        let waiting = self.groups.get(&key).map_or(0, Group::waiting);
        self.at_rest && waiting > self.setup.group_capacity
    }

    /// A submit from inside a handler was refused: tasks that the same turn has finished may still count.
    pub(in crate::ready_list) fn refuse_inside(&mut self, key: u8, reason: SubmitReason) {
        if !matches!(reason, SubmitReason::GroupFull | SubmitReason::GroupHalted) {
            self.refuse(key, reason);
        }
    }

    /// A submit was refused.
    pub(in crate::ready_list) fn refuse(&mut self, key: u8, reason: SubmitReason) {
        let waiting = self.groups.get(&key).map_or(0, Group::waiting);
        let low = self.setup.group_capacity / 2;
        // Tasks of a lease that came back count until a worker has settled it.
        let unsettled = self.groups.get(&key).is_some_and(|group| group.back_at.is_some());
        let ok = match reason {
            SubmitReason::Closed => self.refuses || self.halted,
            SubmitReason::GroupFull | SubmitReason::GroupHalted => {
                (waiting > low || unsettled) && !self.refuses && !self.halted
            }
            SubmitReason::EngineFull => !self.at_rest && !self.refuses && !self.halted,
            _ => false,
        };
        self.require(ok, || format!("{reason:?} to key {key} with {waiting} tasks"));
    }

    /// One of several submits at once was refused.
    pub(in crate::ready_list) fn refuse_one_of(&mut self, keys: &[u8], reason: SubmitReason) {
        let low = self.setup.group_capacity / 2;
        let waiting = |key: &u8| self.groups.get(key).map_or(0, Group::waiting);
        let unsettled = |key| self.groups.get(key).is_some_and(|group| group.back_at.is_some());
        let full = keys.iter().any(|key| waiting(key) > low || unsettled(key));
        let ok = match reason {
            SubmitReason::Closed => self.refuses || self.halted,
            SubmitReason::GroupFull | SubmitReason::GroupHalted => {
                full && !self.refuses && !self.halted
            }
            // Its own tasks may have filled the ingress.
            SubmitReason::EngineFull => !self.refuses && !self.halted,
            _ => false,
        };
        self.require(ok, || format!("{reason:?} to one of the keys {keys:?}"));
    }

    /// Lanes know no group capacity.
    pub(in crate::ready_list) fn refuse_lane(&mut self, key: u8, reason: SubmitReason) {
        self.require(reason != SubmitReason::GroupFull, || "a full group on a lane".to_owned());
        self.refuse(key, reason);
    }
}
