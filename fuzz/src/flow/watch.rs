//! What can be seen of an engine in which no worker finds anything to do.

use std::{collections::BTreeMap, time::Duration};

use bgrp::{By, HaltReason, Why};

use super::{
    oracle::{Group, Oracle, Out},
    setup::lock,
    stage::{KEYS, Stage},
};

/// A nanosecond more or less.
const NEAR: u64 = 1_000;

impl Stage {
    /// Reports, permits and figures are those of the oracle.
    pub(super) fn check_rest(&mut self) {
        let oracle = lock(&self.oracle);
        let engine = self.sim.engine();
        let mut with_work: BTreeMap<u8, &Group> = oracle
            .groups
            .iter()
            .filter_map(|(key, group)| (!group.queue.is_empty()).then_some((*key, group)))
            .collect();
        for seen in engine.top_groups(By::Backlog, usize::from(KEYS)) {
            let group = with_work.remove(&seen.key);
            let group = group.unwrap_or_else(|| panic!("{seen:?} has no work, or comes twice"));
            assert_eq!(seen.backlog, group.queue.len() as u64, "{seen:?}");
            let why = seen.why.as_ref().expect("it has work");
            if let Err(wrong) = self.is_true(&oracle, group, why) {
                let limits = engine.limits();
                panic!("key {} is reported as {why:?}: {wrong}; {limits:?}", seen.key);
            }
        }
        assert!(with_work.is_empty(), "not reported: {:?}", with_work.keys());
        for halted in engine.halted_groups() {
            let group = &oracle.groups[&halted.key];
            let right = match halted.why {
                HaltReason::Closed => group.closed,
                HaltReason::Exhausted(_) => group.halted,
                _ => group.paused,
            };
            assert!(
                right && halted.tasks == group.queue.len(),
                "{:?} of {}",
                halted.why,
                halted.key
            );
        }
        let (limits, out) = (engine.limits(), lock(&self.shelf));
        let batches = out.len() as u32;
        let tasks: usize = out.iter().map(bgrp::Lease::len).sum();
        if self.counts_tasks() {
            let counted = limits.in_flight as usize;
            assert!(counted >= tasks && (counted > 0) == (tasks > 0), "{limits:?}, {tasks} tasks");
        } else {
            assert_eq!(limits.in_flight, batches, "permits in use, batches that are out");
        }
        let stats = self.sim.stats();
        assert_eq!(u64::from(batches), stats.leased);
        if self.setup.bytes.is_some() {
            assert_eq!(stats.bytes, oracle.weight() as u64, "bytes inside");
        }
        let figures = (stats.accepted, stats.done, stats.failed, stats.cancelled);
        let ours = (oracle.accepted, oracle.done, oracle.failed, oracle.cancelled);
        assert_eq!(figures, ours, "accepted, done, failed, cancelled");
        assert_eq!((stats.retries, stats.dead_lettered), (oracle.retries, oracle.letters));
    }

    fn counts_tasks(&self) -> bool {
        self.limit.is_some_and(|limit| limit.to_string().ends_with("tasks"))
    }

    /// What the engine says keeps the group does keep it.
    fn is_true(&self, oracle: &Oracle, group: &Group, why: &Why) -> Result<(), String> {
        let now = oracle.now;
        let until = |left: &Duration, at: u64| {
            let exact = at > now && (left.as_nanos() as u64).abs_diff(at - now) <= NEAR;
            exact.then_some(()).ok_or(format!("until {at}, it is {now}"))
        };
        let only = |ok: bool, what: &str| ok.then_some(()).ok_or(what.to_owned());
        if (group.out == Out::Leased) != matches!(why, Why::Leased { .. }) {
            return Err(format!("its batch is {:?}", group.out));
        }
        let limits = self.sim.engine().limits();
        match why {
            Why::Leased { .. } => Ok(()),
            Why::Closed => only(group.closed, "it is not closed"),
            Why::Halted => only(group.halted && !group.closed, "it is not halted"),
            Why::Paused => only(group.paused && !group.halted && !group.closed, "it is not paused"),
            Why::BackOff { left } => until(left, group.rests_until),
            Why::Throttled { left } => until(left, oracle.paused_until),
            Why::Linger { left } => {
                let waits = self.setup.lingers && !self.refuses;
                let few = group.queue.len() < self.setup.batch;
                only(waits && few && *left <= Duration::from_millis(20), "it need not linger")
            }
            Why::GroupRate { left } => {
                only(oracle.group_rate.is_some() && !left.is_zero(), "no rate keeps it")
            }
            Why::EngineRate { left } => {
                only(oracle.rate.is_some() && !left.is_zero(), "no rate keeps it")
            }
            Why::Permit { in_flight, limit } => {
                let right = limits.limit == Some(*limit) && limits.in_flight == *in_flight;
                only(right && in_flight >= limit, "permits are free")
            }
            _ => Err("nothing keeps it".to_owned()),
        }
    }
}
