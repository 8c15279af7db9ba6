//! E8: the engine follows its plan, and runs where the plan cannot be followed.

mod machines;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bgrp::topology::{Plan, Snapshot};
use bgrp::{Engine, Workers};
use machines::machine;

/// Runs some groups, watching their order, and gives the notes of the engine and its plan.
fn run_on(machine: Snapshot, workers: Workers) -> (Vec<String>, Plan) {
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let log = wrong.clone();
    let engine = Engine::<u32, u32>::builder()
        .machine(machine)
        .workers(workers)
        .state(|_| 0u32)
        .task_handler(move |next: &mut u32, task| {
            if **task != *next {
                log.lock().unwrap().push((*task.key(), **task, *next));
            }
            *next = **task + 1;
        })
        .build()
        .unwrap();
    for n in 0..50 {
        for key in 0..1_000 {
            engine.submit(key, n).unwrap();
        }
    }
    assert!(engine.wait_drain(Duration::from_secs(60)), "{:?}", engine.stats());
    let report = engine.close(Duration::from_secs(60));
    // Now that each worker has begun, and gone: a note is made where one begins.
    let (notes, plan) = (engine.notes(), engine.plan().clone());
    assert_eq!((report.done, report.left.len()), (50_000, 0));
    assert_eq!(*wrong.lock().unwrap(), []);
    (notes, plan)
}

/// S16: the kernel refuses every pin. The workers run all the same.
#[test]
fn cpus_that_are_not_there_are_notes() {
    let mut far = machine(1, 1, 3, 1);
    for cpu in &mut far.cpus {
        cpu.id += 500_000;
        cpu.core = cpu.id;
    }
    far.mask = far.cpus.iter().map(|cpu| cpu.id).collect();
    let (notes, plan) = run_on(far, Workers::per_core());
    assert!(plan.pinned);
    if cfg!(target_os = "linux") {
        let refused = notes.iter().filter(|note| note.contains("cannot pin to CPU 50000"));
        assert_eq!(refused.count(), 3, "{notes:?}");
    }
}

#[test]
fn a_plan_over_nodes_that_are_not_there() {
    let mut four = machine(4, 1, 2, 1);
    for cpu in &mut four.cpus {
        cpu.node += 700;
    }
    four.nodes.iter_mut().for_each(|node| node.id += 700);
    let (notes, plan) = run_on(four, Workers::per_core());
    assert_eq!(plan.node_ids, [700, 701, 702, 703]);
    assert!(notes.iter().any(|note| note.contains("first touched")), "{notes:?}");
}

#[test]
fn one_worker_on_one_cpu() {
    let (_, plan) = run_on(machine(1, 1, 1, 1), Workers::per_core());
    assert_eq!(plan.workers.len(), 1);
}

#[test]
fn many_workers_in_half_a_cpu() {
    let quota = Snapshot { quota: Some(0.5), ..machine(1, 1, 64, 1) };
    let (_, plan) = run_on(quota, Workers::fixed(16));
    assert!(!plan.pinned && !plan.spin);
}

#[test]
fn an_engine_on_some_of_the_cpus() {
    let engine = Engine::<u32, u32>::builder()
        .machine(machine(2, 1, 4, 1))
        .cpus([6, 5, 5, 99])
        .task_handler(|_, _| ())
        .build()
        .unwrap();
    assert_eq!(machines::cpus(engine.plan()), [5, 6]);
    assert_eq!(engine.plan().node_ids, [1]);
    let none = Engine::<u32, u32>::builder().cpus([]).task_handler(|_, _| ()).build();
    let error = none.unwrap_err().to_string();
    assert!(error.contains("cpus") && error.contains("affinity mask"), "{error}");
}

#[test]
fn every_worker_is_the_home_of_its_share_of_the_groups() {
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(4))
        .task_handler(|_, _| ())
        .build()
        .unwrap();
    let mut count = [0; 4];
    (0..4_000u32).for_each(|key| count[engine.home(&key)] += 1);
    assert!(count.iter().all(|n| (500..2_000).contains(n)), "{count:?}");
    assert_eq!(engine.home(&7), engine.home(&7));
}
