//! An engine with its submitters and its end, with knobs. What a knob leaves open the seed decides.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use bgrp::{
    CloseReport, Engine, Failure, OnExhausted, Outcome, Retry, Workers, topology::Snapshot,
};
use shuttle::{rand::Rng, thread};

use super::{
    exact,
    leases::Out,
    oracle::{Item, Key, Oracle, Way},
};

/// How the engine comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Closed when all submitters are done.
    Close,
    /// Closed while they submit.
    CloseMeanwhile,
    /// The same, with a deadline that may pass; then closed again.
    Deadline,
    /// Halted while they submit, then closed.
    Halt,
    /// Dropped by whoever is the last owner.
    Drop,
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knobs {
    pub(crate) end: End,
    pub(crate) submitters: usize,
    pub(crate) each: usize,
    pub(crate) keys: Key,
    pub(crate) idle_groups: usize,
    pub(crate) group_capacity: usize,
    pub(crate) failures: bool,
    pub(crate) linger: bool,
    pub(crate) halts_groups: bool,
    pub(crate) no_lanes: bool,
    /// Batches are leased to threads that end them (shuttle/leases.rs).
    pub(crate) leases: bool,
    /// Somebody pauses, resumes and relieves groups meanwhile.
    pub(crate) calls: bool,
    /// Groups hold exactly so many tasks, or fewer (the seed decides). 0: capacities are not exact.
    pub(crate) exact: usize,
    /// Tasks are weighed, and weigh together no more than that, which is 3 at least.
    pub(crate) bytes: Option<usize>,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            end: End::Close,
            submitters: 3,
            each: 4,
            keys: 2,
            idle_groups: 100,
            group_capacity: 100,
            failures: false,
            linger: false,
            halts_groups: false,
            no_lanes: false,
            leases: false,
            calls: false,
            exact: 0,
            bytes: None,
        }
    }
}

/// What the handler does with a task at this attempt; the same for the same schedule.
pub(crate) fn answer(oracle: &Oracle, knobs: Knobs, key: Key, id: usize, attempt: u32) -> Outcome {
    oracle.starts(key, id);
    // Others may run here, and only here.
    thread::yield_now();
    let draw = if knobs.failures { shuttle::rand::thread_rng().gen_range(0..8) } else { 9 };
    // The attempts are used up at the second.
    let last = attempt == 2;
    oracle.stops(key, id, draw >= 3 || last);
    match draw {
        0 => resume_unwind(Box::new("wanted")),
        1 => Outcome::Retry(Failure::new("wanted")),
        2 => Outcome::RetryAfter(Duration::from_millis(3), Failure::new("wanted")),
        3 => Outcome::Fail(Failure::new("wanted")),
        _ => Outcome::Done,
    }
}

fn engine(knobs: Knobs, oracle: &Oracle, out: &Arc<Out>) -> Engine<Key, Item> {
    let mut rng = shuttle::rand::thread_rng();
    let watched = oracle.clone();
    let states = oracle.clone();
    let builder = Engine::<Key, Item>::builder()
        .machine(Snapshot::one_node(rng.gen_range(1..=2)))
        .workers(Workers::fixed(rng.gen_range(1..=3)))
        .pin(false)
        .capacity(64)
        .batch_size(rng.gen_range(1..=3))
        .idle_groups(knobs.idle_groups)
        .group_capacity(knobs.group_capacity)
        .flush_interval(Duration::from_millis(if knobs.linger { rng.gen_range(0..3) } else { 0 }))
        .retry(Retry::fixed(Duration::from_millis(rng.gen_range(0..2))).attempts(2))
        .on_exhausted(if knobs.halts_groups {
            OnExhausted::halt_group()
        } else {
            OnExhausted::skip()
        })
        .state(move |key| (*key, states.clone()));
    let builder = if knobs.exact > 0 {
        let group = rng.gen_range(1..=knobs.exact);
        oracle.bound(group, knobs.bytes.unwrap_or(usize::MAX));
        builder.exact_group_capacity(group)
    } else {
        builder
    };
    let builder = match knobs.bytes {
        Some(bytes) => builder.weigh(|_, item: &Item| item.weight()).capacity_bytes(bytes),
        None => builder,
    };
    // A batch whose tasks fail one by one, or that panics, runs some again behind others: that is tested elsewhere.
    let batched = !knobs.failures && rng.gen_range(0..3) == 0;
    let configured = if knobs.leases {
        let out = out.clone();
        // See above: with failures, one task a batch.
        let builder = if knobs.failures { builder.batch_size(1) } else { builder };
        let builder = if rng.gen_range(0..2) == 0 { builder.in_flight(1) } else { builder };
        builder.lease_handler(move |lease| out.push(lease))
    } else if batched {
        builder.handler(move |_, batch| {
            let key = *batch.key();
            batch.iter().map(|task| answer(&watched, knobs, key, task.id, 1)).collect::<Vec<_>>()
        })
    } else {
        builder.task_handler(move |state, task| {
            if state.0 != *task.key() {
                state.1.fault(format!("the state of group {} in group {}", state.0, task.key()));
            }
            answer(&watched, knobs, *task.key(), task.id, task.attempt())
        })
    };
    configured.build().expect("valid settings")
}

fn submit(engine: &Engine<Key, Item>, knobs: Knobs, oracle: &Oracle, source: usize) {
    let mut rng = shuttle::rand::thread_rng();
    let mut lane = None;
    // Which of its lanes: there is no order between two of them.
    let mut lanes = 100 * source;
    let mut handle = None;
    for n in 0..knobs.each {
        let id = source * knobs.each + n;
        let key = rng.gen_range(0..knobs.keys);
        let way = match rng.gen_range(0..if knobs.no_lanes { 5 } else { 7 }) {
            0..2 => Way::Key,
            2..4 => Way::Handle,
            4 => Way::Many,
            _ if knobs.exact > 0 => Way::Future,
            _ => Way::Lane,
        };
        // Who tries may be refused for want of room; who waits is refused by the end only.
        let patient = rng.gen_range(0..4) > 0;
        let item = oracle.item(id);
        oracle.begins(id, way, lanes, key);
        let accepted = match way {
            Way::Key if patient => engine.submit(key, item).is_ok(),
            Way::Key => engine.try_submit(key, item).is_ok(),
            Way::Handle => {
                // Kept for a while, so that it may grow stale, or taken anew.
                if rng.gen_range(0..2) == 0 {
                    handle = None;
                }
                let (own, handle) = &*handle.get_or_insert_with(|| (key, engine.group(key)));
                if *own != key {
                    // Not this one's key: by key then.
                    engine.submit(key, item).is_ok()
                } else if patient {
                    handle.submit(item).is_ok()
                } else {
                    handle.try_submit(item).is_ok()
                }
            }
            Way::Many => {
                let mut many = vec![(key, item)];
                let sent = engine.submit_many(&mut many);
                assert_eq!(sent.is_ok(), many.is_empty());
                sent.is_ok()
            }
            Way::Future => exact::poll(engine.submit_async(key, item)),
            Way::Lane => {
                let lane = lane.get_or_insert_with(|| engine.producer());
                if patient {
                    lane.submit(key, item).is_ok()
                } else {
                    lane.try_submit(key, item).is_ok()
                }
            }
        };
        oracle.returned(id, accepted);
        if rng.gen_range(0..6) == 0 {
            lane = None;
            lanes += 1;
        }
    }
}

/// Calls about single groups; in the end all of them go on.
fn call(engine: &Engine<Key, Item>, knobs: Knobs, oracle: &Oracle) {
    let mut rng = shuttle::rand::thread_rng();
    for _ in 0..5 {
        let key = rng.gen_range(0..knobs.keys);
        match rng.gen_range(0..6) {
            0 | 1 => engine.pause_group(key),
            2 => {
                let within = Duration::from_micros(rng.gen_range(0..300));
                engine.group(key).pause_within(within);
            }
            3 => _ = engine.resume_group(&key),
            4 => {
                oracle.empties(key, true);
                oracle.cancelled(&engine.cancel_pending(&key).unwrap_or_default());
                oracle.empties(key, false);
            }
            _ => _ = engine.drain_group(&key, Duration::from_micros(rng.gen_range(0..300))),
        }
        thread::yield_now();
    }
    for key in 0..knobs.keys {
        engine.resume_group(&key);
    }
}

/// One execution. See the module text.
pub(crate) fn world(knobs: Knobs) {
    let oracle = Oracle::new(knobs.submitters * knobs.each);
    let out = Out::new();
    let enders = if knobs.leases { out.start(knobs, &oracle) } else { Vec::new() };
    let engine = Arc::new(engine(knobs, &oracle, &out));
    let submitters: Vec<_> = (0..knobs.submitters)
        .map(|source| {
            let (engine, oracle) = (engine.clone(), oracle.clone());
            thread::spawn(move || submit(&engine, knobs, &oracle, source))
        })
        .collect();
    let caller = knobs.calls.then(|| {
        let (engine, oracle) = (engine.clone(), oracle.clone());
        thread::spawn(move || call(&engine, knobs, &oracle))
    });
    let submitters: Vec<_> = submitters.into_iter().chain(caller).collect();
    let join = |submitters: Vec<thread::JoinHandle<()>>| {
        submitters.into_iter().for_each(|submitter| submitter.join().expect("no panic"));
    };
    let reports: Vec<CloseReport<Key, Item>> = match knobs.end {
        End::Close => {
            join(submitters);
            vec![engine.close(Duration::MAX)]
        }
        End::CloseMeanwhile => {
            let report = engine.close(Duration::MAX);
            join(submitters);
            vec![report]
        }
        End::Deadline => {
            let mut rng = shuttle::rand::thread_rng();
            let reports = vec![
                engine.close(Duration::from_micros(rng.gen_range(0..2_000))),
                engine.close(Duration::MAX),
            ];
            join(submitters);
            reports
        }
        End::Halt => {
            engine.halt();
            // Who waits hears it from the halt alone, or from the close that follows.
            let at_once = knobs.exact > 0 && shuttle::rand::thread_rng().gen_range(0..2) == 0;
            let submitters = if at_once {
                join(submitters);
                Vec::new()
            } else {
                submitters
            };
            let report = engine.close(Duration::MAX);
            join(submitters);
            vec![report]
        }
        End::Drop => {
            drop(engine);
            join(submitters);
            out.close();
            join(enders);
            oracle.check();
            return;
        }
    };
    let last = reports.last().expect("one at least");
    assert_eq!((last.running, last.leased), (0, 0));
    assert_eq!(engine.limits().in_flight, 0);
    let left: usize = reports.iter().map(CloseReport::left_tasks).sum();
    let cancelled = engine.stats().cancelled;
    assert_eq!(last.done + last.failed + cancelled + left as u64, oracle.accepted());
    assert_eq!(engine.stats().accepted, oracle.accepted());
    let complete = matches!(knobs.end, End::Close | End::CloseMeanwhile) && !knobs.halts_groups;
    assert!(!complete || left == 0, "everything accepted is run: {left} left");
    reports.iter().for_each(|report| oracle.given_back(report));
    drop((reports, engine));
    out.close();
    join(enders);
    oracle.check();
}
