//! The engine of one run, what drives it, and the operations that concern all of it.

use std::time::Duration;

use bgrp::{Count, GroupHandle, InFlight, Rate, Sim, SubmitReason};

use super::{
    oracle::{Limit, Script},
    setup::{self, Setup, Shared, Shelf, lock},
};
use crate::bytes::Bytes;

/// Keys are below this.
pub(super) const KEYS: u8 = 16;

/// See the module text.
pub(super) struct Stage {
    pub(super) sim: Sim<u8, Script>,
    pub(super) oracle: Shared,
    pub(super) shelf: Shelf,
    pub(super) setup: Setup,
    handles: [Option<GroupHandle<u8, Script>>; KEYS as usize],
    pub(super) limit: Option<InFlight>,
    /// Its upper bound.
    most: u32,
    /// What was in flight at the last check.
    in_flight: u32,
    pub(super) refuses: bool,
    /// Nothing was done since no worker found anything.
    pub(super) at_rest: bool,
}

impl Stage {
    pub(super) fn new(bytes: &mut Bytes<'_>) -> Self {
        let (oracle, shelf) = (Shared::default(), Shelf::default());
        let (sim, setup) = setup::build(bytes, &oracle, &shelf);
        let handles = [const { None }; KEYS as usize];
        Self {
            sim,
            oracle,
            shelf,
            setup,
            handles,
            limit: setup.limit,
            most: 64,
            in_flight: 0,
            refuses: false,
            at_rest: false,
        }
    }

    /// A handle of the group.
    pub(super) fn handle(&mut self, key: u8) -> &GroupHandle<u8, Script> {
        self.handles[usize::from(key)].get_or_insert_with(|| self.sim.group(key))
    }

    pub(super) fn drop_handle(&mut self, key: u8) {
        self.handles[usize::from(key)] = None;
    }

    /// The low bits of `way` are the key, the others say how.
    pub(super) fn submit(&mut self, way: u8, script: Script) {
        self.at_rest = false;
        let key = way % KEYS;
        let (by_handle, tracked, polled) = (way & 16 != 0, way & 32 != 0, way & 64 != 0);
        let refused = if by_handle {
            let handle = self.handle(key);
            if tracked {
                handle.try_submit_tracked(script).map(Some).map_err(|error| error.reason)
            } else {
                handle.try_submit(script).map(|()| None).map_err(|error| error.reason)
            }
        } else if tracked {
            let engine = self.sim.engine();
            engine.try_submit_tracked(key, script).map(Some).map_err(|error| error.reason)
        } else {
            self.sim.submit(key, script).map(|()| None).map_err(|error| error.reason)
        };
        let mut oracle = lock(&self.oracle);
        let closed = oracle.groups.get(&key).is_some_and(|group| group.closed);
        let halted = oracle.groups.get(&key).is_some_and(|group| group.stands());
        let small = self.setup.group_capacity < 1 << 16 || self.setup.bytes.is_some();
        if self.setup.exact {
            let reason = refused.as_ref().err();
            let Setup { group_capacity, bytes, .. } = self.setup;
            oracle.check_room(key, &script, reason, group_capacity, bytes);
        }
        match refused {
            Ok(ticket) => {
                assert!(
                    !self.refuses && !closed,
                    "a task of key {key} is accepted after the close"
                );
                oracle.accepted(key, script);
                if let Some(ticket) = ticket {
                    oracle.ticket(script.id, ticket, polled);
                }
            }
            Err(SubmitReason::Closed) => assert!(self.refuses, "the engine is not closed"),
            Err(SubmitReason::GroupClosed) => assert!(closed, "key {key} is not closed"),
            Err(SubmitReason::GroupHalted) => assert!(small && halted, "key {key} is not halted"),
            Err(reason) => assert!(small, "{reason:?} with room for more"),
        }
    }

    pub(super) fn step(&mut self, worker: u8) {
        self.at_rest = false;
        let worker = usize::from(worker) % self.sim.workers();
        self.sim.step(worker);
        self.fail_on_finding();
    }

    /// Whatever can run without the clock moving has run.
    pub(super) fn settle(&mut self) {
        self.sim.run();
        self.fail_on_finding();
        lock(&self.oracle).at_rest();
        self.at_rest = true;
    }

    /// A finding is a panic in the handler, which the engine catches: its lock tells.
    pub(super) fn fail_on_finding(&self) {
        assert!(!self.oracle.is_poisoned(), "a check in a handler failed, see above");
    }

    /// The clock moves by itself only while nothing can run: rates are counted when a dispatch starts.
    pub(super) fn pass(&mut self, ms: u64) {
        self.settle();
        self.sim.advance(Duration::from_millis(ms));
        lock(&self.oracle).now += ms * 1_000_000;
        self.at_rest = ms == 0;
    }

    pub(super) fn limit_in_flight(&mut self, kind: u8, n: u8) {
        let n = u32::from(n & 7) + 1;
        let limit = match kind & 3 {
            0 => None,
            1 => Some(InFlight::batches(n)),
            2 => Some(InFlight::tasks(n)),
            _ => Some(InFlight::adaptive(1, n)),
        };
        // A dispatch that was granted more under the former limit runs as it was granted.
        self.settle();
        self.sim.engine().set_in_flight(limit).expect("valid");
        let batch = self.setup.batch;
        lock(&self.oracle).most = if kind & 3 == 2 { batch.min(n as usize) } else { batch };
        (self.limit, self.most) = (limit, n);
        // In the unit of the new limit.
        self.in_flight = self.sim.engine().limits().in_flight;
        self.at_rest = false;
    }

    pub(super) fn set_rate(&mut self, limit: Option<Limit>) {
        // What was granted under the old rate starts before the new one begins.
        self.settle();
        lock(&self.oracle).set_rate(limit);
        self.sim.engine().set_rate(limit.map(to_rate)).expect("valid");
        self.at_rest = false;
    }

    pub(super) fn set_group_rate(&mut self, limit: Option<Limit>) {
        lock(&self.oracle).set_group_rate(limit);
        self.sim.engine().set_group_rate(limit.map(to_rate)).expect("valid");
        self.at_rest = false;
    }

    pub(super) fn refuse(&mut self) {
        self.sim.refuse();
        self.refuses = true;
        self.at_rest = false;
    }

    /// After each operation.
    pub(super) fn check(&mut self) {
        self.fail_on_finding();
        let limits = self.sim.engine().limits();
        if let Some(limit) = limits.limit {
            assert!(limit <= self.most, "{limits:?}, at most {}", self.most);
            // It may be above a limit that went down, and then only falls.
            assert!(limits.in_flight <= limit.max(self.in_flight), "{limits:?}");
        }
        self.in_flight = limits.in_flight;
        let exactly = self.at_rest || !lock(&self.oracle).rules.leases;
        lock(&self.oracle).check_tickets(exactly);
        if self.at_rest {
            self.check_rest();
        }
    }
}

fn to_rate(limit: Limit) -> Rate {
    let count = if limit.batches { Count::Batches } else { Count::Tasks };
    Rate::per_second(limit.per_second as u32).burst(limit.burst as u32).counting(count)
}

impl Stage {
    /// Somebody asks: waits for a ticket outside of handlers, or drops a handle.
    pub(super) fn ask(&mut self, what: u8, which: u8) {
        match what {
            0..=3 => self.drop_handle(which % KEYS),
            _ => lock(&self.oracle).wait_outside(usize::from(which)),
        }
    }
}
