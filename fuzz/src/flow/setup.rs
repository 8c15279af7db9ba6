//! The settings of one run, and the engine that they make.

use std::{
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bgrp::{
    Batch, Class, Engine, Exhausted, InFlight, Lease, OnExhausted, Retry, Sim, Verdict, Workers,
};

use super::oracle::{HOLD, Oracle, Reply, Rules, Script};
use crate::bytes::Bytes;

pub(super) type Shared = Arc<Mutex<Oracle>>;
/// The leases that are out.
pub(super) type Shelf = Arc<Mutex<Vec<Lease<u8, Script>>>>;

/// The panic of a handler that its script asks for; its message is not printed.
pub(super) struct Wanted;

/// A check that fails while the oracle is asked leaves it poisoned, which `Stage` sees.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the stage must know of the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) batch: usize,
    pub(super) lingers: bool,
    pub(super) limit: Option<InFlight>,
    pub(super) group_capacity: usize,
    /// No group holds one task more.
    pub(super) exact: bool,
    /// What all tasks inside may weigh.
    pub(super) bytes: Option<usize>,
}

/// Reads the settings and builds the engine.
pub(super) fn build(
    bytes: &mut Bytes<'_>,
    oracle: &Shared,
    shelf: &Shelf,
) -> (Sim<u8, Script>, Setup) {
    let (settings, more, extra) = (bytes.u8(), bytes.u8(), bytes.u8());
    let rules = Rules {
        attempts: 1 + u32::from(settings >> 2 & 3),
        delay: Duration::from_millis([0, 1, 30, 1_000][usize::from(settings >> 6)]),
        halts: [0, 0, 3, 1][usize::from(settings >> 4 & 3)],
        sink: extra & 2 != 0,
        leases: extra & 1 != 0,
        waits: extra & 64 != 0,
    };
    // Leases are counted from the first on, so that permits can be compared with them.
    let limits = [rules.leases.then(|| InFlight::batches(64))]
        .into_iter()
        .chain([1, 3].map(|n| Some(InFlight::batches(n))))
        .chain([Some(InFlight::adaptive(1, 4))]);
    let setup = Setup {
        batch: [1, 2, 7, 64][usize::from(settings & 3)],
        lingers: more & 16 != 0,
        limit: limits.collect::<Vec<_>>()[usize::from(extra >> 4 & 3)],
        group_capacity: [1 << 16, 2, 1 << 16, 9][usize::from(extra >> 2 & 3)],
        exact: more & 96 != 0,
        bytes: (more & 64 != 0).then_some(100),
    };
    {
        let mut oracle = lock(oracle);
        (oracle.most, oracle.rules) = (setup.batch, rules);
    }
    let mut builder = Engine::<u8, Script>::builder()
        .workers(Workers::fixed(1 + usize::from(more & 3)))
        .batch_size(setup.batch)
        .idle_groups(if extra & 128 != 0 { 2 } else { 1_000 })
        .retry(Retry::fixed(rules.delay).attempts(rules.attempts))
        .on_exhausted(policy(rules, oracle.clone()));
    builder = match setup.exact {
        true => builder.exact_group_capacity(setup.group_capacity),
        false => builder.group_capacity(setup.group_capacity),
    };
    if let Some(bytes) = setup.bytes {
        builder = builder.weigh(|_, script| script.weight()).capacity_bytes(bytes);
    }
    if let Some(limit) = setup.limit {
        builder = builder.in_flight(limit);
    }
    if more & 4 != 0 {
        builder = builder.weight(|key| 1 + u32::from(key & 3));
    }
    if more & 8 != 0 {
        let class = |key: &u8| if key & 4 != 0 { Class::Bulk } else { Class::Interactive };
        builder = builder.class(class);
    }
    if setup.lingers {
        builder = builder.flush_interval(Duration::from_millis(20));
    }
    let (oracle, shelf) = (oracle.clone(), shelf.clone());
    let configured = if rules.leases {
        builder.lease_handler(move |lease: Lease<u8, Script>| {
            let (key, batch) = (*lease.key(), tasks(lease.iter(), |i| lease.attempt(i)));
            let mut oracle = lock(&oracle);
            oracle.begin(key, &batch);
            // With the lease in its hand.
            if batch[0].0.waits && rules.waits {
                oracle.answer(key, batch.len(), Reply::Lost);
                drop(oracle);
                resume_unwind(Box::new(Wanted));
            }
            lock(&shelf).push(lease);
        })
    } else {
        builder.handler(move |(), batch: &mut Batch<'_, u8, Script>| {
            let (key, tasks) = (*batch.key(), tasks(batch.iter(), |i| batch.attempt(i)));
            let mut oracle = lock(&oracle);
            oracle.begin(key, &tasks);
            for (script, _) in tasks.iter().filter(|(script, _)| script.waits && rules.waits) {
                oracle.wait_inside(key, script);
            }
            let outcomes = oracle.answer(key, tasks.len(), Reply::Scripts);
            drop(oracle);
            outcomes.unwrap_or_else(|| resume_unwind(Box::new(Wanted)))
        })
    };
    let sim = configured.build_sim(u64::from(more)).expect("valid settings");
    (sim, setup)
}

fn tasks<'a>(
    scripts: impl Iterator<Item = &'a Script>,
    attempt: impl Fn(usize) -> u32,
) -> Vec<(Script, u32)> {
    scripts.enumerate().map(|(i, script)| (*script, attempt(i))).collect()
}

/// What follows used-up attempts: a sink that fails now and then, or groups that halt.
fn policy(rules: Rules, oracle: Shared) -> OnExhausted<u8, Script> {
    let ask = move |failed: &Exhausted<'_, u8, Script>| {
        let mut oracle = lock(&oracle);
        let over = oracle.exhausted(*failed.key, failed.task, failed.attempts);
        (over, oracle.groups[failed.key].halted)
    };
    if rules.sink {
        return OnExhausted::dead_letter(HOLD, move |failed| match ask(&failed) {
            (true, _) => Ok(()),
            (false, _) => Err("the disk is full"),
        });
    }
    OnExhausted::with(move |failed| match ask(&failed) {
        (_, true) => Verdict::HaltGroup,
        (_, false) => Verdict::Skip,
    })
}
