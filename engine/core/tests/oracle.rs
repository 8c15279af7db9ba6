//! Random operations on the deterministic engine, against a plain model: per key a queue of what was accepted.
//!
//! The model does not predict which worker runs what and when. It says what must hold whatever the schedule: order per
//! key and way in, attempts in place, waits kept, nothing lost, nothing twice, everything accounted for at close.

mod common;
#[path = "oracle/model.rs"]
mod model;
#[path = "oracle/plan.rs"]
mod plan;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use bgrp::{
    Engine, Exhausted, Failure, GroupHandle, OnExhausted, Outcome, Producer, Retry, Sim,
    SubmitReason, Verdict, Workers, topology::Snapshot,
};
use common::{MS, Tally, WANTED, lock, mix, quiet};
use model::{Model, RETRY, Task};
use plan::{LANES, Op, Plan, draw, panics, plan};
use proptest::prelude::*;

const HOLD: Duration = Duration::from_millis(5);

fn build(plan: &Plan, model: &Arc<Mutex<Model>>) -> Sim<u8, Task> {
    let (asked, m) = (plan.clone(), model.clone());
    let policy = OnExhausted::with(move |failed: Exhausted<'_, u8, Task>| {
        let id = failed.task.id;
        let mut model = lock(&m);
        let again = model.verdicts.contains_key(&id);
        let verdict = match asked.exhausted {
            1 if !again
                || !mix(id as u64).is_multiple_of(3) && model.now < Duration::from_secs(2) =>
            {
                Verdict::Hold(HOLD)
            }
            2 if mix(asked.seed ^ id as u64).is_multiple_of(4) => Verdict::HaltGroup,
            3 if mix(asked.seed ^ id as u64).is_multiple_of(32) => Verdict::HaltEngine,
            _ => Verdict::Skip,
        };
        model.verdicts.insert(id, verdict);
        model.verdict(*failed.key, id, failed.attempts, verdict);
        verdict
    });
    let builder = Engine::<u8, Task>::builder()
        .machine(Snapshot::one_node(4))
        .workers(Workers::fixed(plan.workers))
        .batch_size(plan.batch)
        .flush_interval(plan.flush as u32 * MS)
        .capacity(plan.capacity)
        .group_capacity(plan.group_capacity)
        .idle_groups(plan.idle)
        .retry(Retry::fixed(RETRY).attempts(plan.attempts))
        .on_exhausted(policy)
        .state(|_| 0u64);
    let (p, m) = (plan.clone(), model.clone());
    let configured = if plan.batched {
        builder.handler(move |runs: &mut u64, batch| {
            *runs += 1;
            let tasks: Vec<_> = (0..batch.len())
                .map(|i| {
                    let task = batch.get(i).expect("inside");
                    task.counted.run();
                    (task.id, task.source, batch.attempt(i))
                })
                .collect();
            let key = *batch.key();
            let mut model = lock(&m);
            model.check(tasks.len() <= p.batch, || format!("batch of {}", tasks.len()));
            model.offer(key, &tasks);
            if tasks.iter().any(|(id, _, attempt)| panics(&p, *id, *attempt)) {
                let all = vec![Outcome::Retry(Failure::new(WANTED)); tasks.len()];
                model.settle(key, p.attempts, &all);
                drop(model);
                panic!("{WANTED}");
            }
            let outcomes: Vec<_> =
                tasks.iter().map(|(id, _, attempt)| draw(&p, *id, *attempt)).collect();
            model.settle(key, p.attempts, &outcomes);
            outcomes
        })
    } else {
        builder.task_handler(move |runs: &mut u64, task| {
            *runs += 1;
            task.counted.run();
            let (key, id, attempt) = (*task.key(), task.id, task.attempt());
            let mut model = lock(&m);
            model.offer(key, &[(id, task.source, attempt)]);
            if panics(&p, id, attempt) {
                model.settle(key, p.attempts, &[Outcome::Retry(Failure::new(WANTED))]);
                drop(model);
                panic!("{WANTED}");
            }
            let outcome = draw(&p, id, attempt);
            model.settle(key, p.attempts, std::slice::from_ref(&outcome));
            outcome
        })
    };
    configured.build_sim(plan.seed).expect("valid settings")
}

struct Ids {
    next: usize,
    tally: Arc<Tally>,
}

impl Ids {
    fn task(&mut self, source: usize) -> Task {
        self.next += 1;
        Task { id: self.next - 1, source, counted: self.tally.task(self.next - 1) }
    }
}

fn run(plan: &Plan) -> Result<(), TestCaseError> {
    quiet();
    let model = Arc::new(Mutex::new(Model::default()));
    let mut sim = build(plan, &model);
    let mut ids = Ids { next: 0, tally: Tally::new(4_096) };
    let mut handles: HashMap<u8, GroupHandle<u8, Task>> = HashMap::new();
    let mut lanes: Vec<Option<(usize, Producer<u8, Task>)>> = (0..LANES).map(|_| None).collect();
    let mut sources = 0;
    let refused = |model: &Model, reason: SubmitReason, backlog: u64| {
        prop_assert!(
            matches!(reason, SubmitReason::GroupFull | SubmitReason::EngineFull)
                || reason == SubmitReason::GroupHalted
                || reason == SubmitReason::Closed && model.engine_halted,
            "{reason:?}"
        );
        prop_assert!(reason == SubmitReason::Closed || backlog > 0, "an empty engine has room");
        prop_assert!(reason != SubmitReason::GroupFull || plan.group_capacity < 1 << 16);
        Ok(())
    };
    for op in &plan.ops {
        let backlog = sim.stats().backlog();
        match op {
            Op::Submit(key) => {
                let task = ids.task(0);
                let id = task.id;
                match sim.submit(*key, task) {
                    Ok(()) => lock(&model).accept(*key, 0, id),
                    Err(error) => {
                        prop_assert_eq!((error.key, error.task.id), (*key, id));
                        refused(&lock(&model), error.reason, backlog)?;
                    }
                }
            }
            Op::Handle(key) => {
                let handle = handles.entry(*key).or_insert_with(|| sim.group(*key));
                let task = ids.task(0);
                let id = task.id;
                match handle.try_submit(task) {
                    Ok(()) => lock(&model).accept(*key, 0, id),
                    Err(error) => {
                        prop_assert_eq!(error.task.id, id);
                        refused(&lock(&model), error.reason, backlog)?;
                    }
                }
            }
            Op::DropHandle(key) => drop(handles.remove(key)),
            Op::Many(keys) => {
                let mut tasks: Vec<_> = keys.iter().map(|key| (*key, ids.task(0))).collect();
                let given: Vec<_> = tasks.iter().map(|(key, task)| (*key, task.id)).collect();
                let result = sim.submit_many(&mut tasks);
                let left: Vec<_> = tasks.iter().map(|(key, task)| (*key, task.id)).collect();
                prop_assert!(left.is_sorted_by_key(|(_, id)| *id), "the rest is in order");
                prop_assert_eq!(result.is_ok(), left.is_empty());
                if let Err(error) = result {
                    prop_assert_eq!(error.accepted, given.len() - left.len());
                    refused(&lock(&model), error.reason, backlog + error.accepted as u64)?;
                }
                for (i, (key, id)) in given.iter().enumerate() {
                    if left.contains(&(*key, *id)) {
                        let later = &given[i..];
                        let overtaken =
                            later.iter().any(|one| one.0 == *key && !left.contains(one));
                        prop_assert!(!overtaken, "a later task of key {} was accepted", key);
                    } else {
                        lock(&model).accept(*key, 0, *id);
                    }
                }
            }
            Op::Lane(lane, key) => {
                let (source, lane) = lanes[*lane as usize].get_or_insert_with(|| {
                    sources += 1;
                    (sources, sim.producer())
                });
                let task = ids.task(*source);
                let id = task.id;
                match lane.try_submit(*key, task) {
                    Ok(()) => lock(&model).accept(*key, *source, id),
                    Err(error) => {
                        prop_assert_eq!((error.key, error.task.id), (*key, id));
                        prop_assert!(error.reason != SubmitReason::GroupFull);
                        refused(&lock(&model), error.reason, backlog)?;
                    }
                }
            }
            Op::DropLane(lane) => drop(lanes[*lane as usize].take()),
            Op::Step(worker) => drop(sim.step(*worker as usize % plan.workers)),
            Op::Run => sim.run(),
            Op::Advance(ms) => {
                sim.advance(u32::from(*ms) * MS);
                lock(&model).now += u32::from(*ms) * MS;
            }
        }
        prop_assert!(lock(&model).wrong.is_empty(), "{:?}", lock(&model).wrong);
    }
    if plan.finish {
        // Four seconds: longer than any chain of waits.
        for _ in 0..4_000 {
            sim.run();
            sim.advance(MS);
            lock(&model).now += MS;
        }
        let model = lock(&model);
        for (key, model) in &model.keys {
            let queued: usize = model.queues.values().map(VecDeque::len).sum();
            let waits = model.head.len() + queued;
            prop_assert!(
                waits == 0 || model.halted || self::halted(&sim, plan),
                "{waits} tasks of key {key} never ran: {model:?}"
            );
        }
    }
    let report = sim.close();
    let model = lock(&model);
    prop_assert!(model.wrong.is_empty(), "{:?}", model.wrong);
    prop_assert_eq!(report.running, 0);
    prop_assert_eq!((report.done, report.failed), (model.done, model.failed));
    prop_assert_eq!(report.retries, model.retries);
    let left = report.left_tasks() as u64;
    prop_assert_eq!(report.done + report.failed + left, model.accepted, "accounted for");
    prop_assert_eq!(sim.stats().accepted, model.accepted);
    for left in &report.left {
        let mut wanted = model.waiting(left.key);
        let head: Vec<_> = left.tasks.iter().take(wanted.len()).map(|task| task.id).collect();
        prop_assert_eq!(&head, &wanted, "what was tried comes back first");
        let queues = &model.keys[&left.key].queues;
        for (source, queue) in queues {
            let back = left.tasks[wanted.len()..].iter().filter(|task| task.source == *source);
            prop_assert!(
                back.map(|task| task.id).eq(queue.iter().copied()),
                "order of what is left"
            );
        }
        wanted.clear();
    }
    let keys: std::collections::HashSet<_> = report.left.iter().map(|left| left.key).collect();
    prop_assert_eq!(keys.len(), report.left.len(), "each key comes back in one piece");
    let tally = ids.tally.clone();
    let runs = tally.total_runs();
    drop((model, report));
    sim.run();
    prop_assert_eq!(tally.total_runs(), runs, "nothing runs after the report");
    let last = ids.task(0);
    prop_assert_eq!(sim.submit(0, last).map_err(|error| error.reason), Err(SubmitReason::Closed));
    drop((handles, lanes, sim));
    for id in 0..ids.next {
        let drops = tally.drops[id].load(std::sync::atomic::Ordering::SeqCst);
        prop_assert_eq!(drops, 1, "drops of task {}", id);
    }
    Ok(())
}

fn halted(sim: &Sim<u8, Task>, plan: &Plan) -> bool {
    // A refused submit says so; nothing else does on a simulated engine.
    let mut ids = Ids { next: 0, tally: Tally::new(1) };
    plan.exhausted == 3
        && matches!(sim.submit(0, ids.task(0)), Err(error) if error.reason == SubmitReason::Closed)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: common::scale(400, 8_000) as u32,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_the_schedule_order_holds_and_nothing_is_lost(plan in plan()) {
        run(&plan)?;
    }
}
