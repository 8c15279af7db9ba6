//! Row F6: a group that the policy halted is listed with its reason, resumed or discarded; who submits to a full one is told.

mod common;

use std::sync::Arc;

use bgrp::{Engine, GroupError, HaltReason, OnExhausted, SubmitReason, Workers};
use common::{LONG, Log, until, watch};

fn engine(ran: &Log<(u32, u32)>) -> Arc<Engine<u32, u32>> {
    let log = ran.clone();
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .capacity(64)
        .group_capacity(4)
        .on_exhausted(OnExhausted::halt_group())
        .task_handler(move |_, task| {
            log.push((*task.key(), **task));
            if **task == 13 { Err("unlucky") } else { Ok(()) }
        })
        .build()
        .expect("valid settings");
    Arc::new(engine)
}

#[test]
fn a_halted_group_is_listed_with_its_failure_and_resumes_behind_the_task_that_failed() {
    let ran = Log::new();
    let engine = engine(&ran);
    let _watch = watch("halted", &engine);
    for task in [1, 13, 2, 3] {
        engine.submit(7, task).expect("open");
    }
    engine.submit(8, 1).expect("open");
    assert!(engine.wait_drain(LONG), "what is held is not waited for");
    let halted = engine.halted_groups();
    assert_eq!(halted.len(), 1);
    assert_eq!((halted[0].key, halted[0].tasks, halted[0].running), (7, 2, false));
    match &halted[0].why {
        HaltReason::Exhausted(failure) => assert_eq!(failure.reason(), "unlucky"),
        other => panic!("{other:?}"),
    }
    // While it has room it takes tasks, and holds them.
    engine.submit(7, 4).expect("room");
    assert!(engine.wait_drain(LONG));
    let mut before = ran.take();
    before.sort_unstable();
    assert_eq!(before, [(7, 1), (7, 13), (8, 1)]);
    assert!(engine.resume_group(&7));
    assert!(!engine.resume_group(&7));
    assert!(engine.wait_drain(LONG));
    assert_eq!(ran.take(), [(7, 2), (7, 3), (7, 4)]);
    assert_eq!((engine.stats().held, engine.stats().failed), (0, 1));
    assert!(engine.halted_groups().is_empty());
    // It may halt again.
    engine.submit(7, 13).expect("open");
    engine.submit(7, 5).expect("open");
    until(|| engine.halted_groups().len() == 1);
    let report = engine.close(LONG);
    assert_eq!(report.left_tasks(), 1);
    assert!(engine.halted_groups().is_empty(), "close has given it back");
}

#[test]
fn a_discarded_group_gives_back_what_waits_and_starts_anew() {
    let ran = Log::new();
    let engine = engine(&ran);
    let _watch = watch("discard", &engine);
    for task in [13, 1, 2] {
        engine.submit(7, task).expect("open");
    }
    until(|| engine.halted_groups().iter().any(|group| group.tasks == 2));
    assert_eq!(engine.discard_group(&7), Ok(vec![1, 2]));
    engine.submit(7, 3).expect("open");
    assert!(engine.wait_drain(LONG));
    assert_eq!(ran.take(), [(7, 13), (7, 3)]);
    let stats = engine.stats();
    assert_eq!((stats.done, stats.failed, stats.cancelled, stats.held), (1, 1, 2, 0));
    assert_eq!(engine.discard_group(&99), Ok(vec![]));
    let report = engine.close(LONG);
    assert!(report.is_complete());
    assert_eq!(engine.discard_group(&7), Err(GroupError::Closed));
}

#[test]
fn who_submits_to_a_halted_and_full_group_is_told_at_once_also_who_waited_before() {
    let ran = Log::new();
    let gate = common::Latch::new();
    let wait = gate.clone();
    let log = ran.clone();
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .capacity(64)
            .group_capacity(4)
            .on_exhausted(OnExhausted::halt_group())
            .task_handler(move |_, task| {
                log.push((*task.key(), **task));
                if **task == 13 {
                    wait.wait();
                    return Err("unlucky");
                }
                Ok(())
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("halted and full", &engine);
    engine.submit(7, 13).expect("open");
    until(|| ran.len() == 1);
    let mut accepted = 20;
    loop {
        match engine.try_submit(7, accepted).map_err(|error| error.reason) {
            Ok(()) => accepted += 1,
            Err(SubmitReason::GroupFull) => break,
            Err(_) => std::thread::yield_now(),
        }
    }
    // It waits for room, as in any full group.
    let waiting = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.submit(7, 99).map_err(|error| (error.task, error.reason)))
    };
    gate.open();
    assert_eq!(waiting.join().expect("no panic"), Err((99, SubmitReason::GroupHalted)));
    let halted = Err(SubmitReason::GroupHalted);
    assert_eq!(engine.submit(7, 0).map_err(|error| error.reason), halted);
    assert_eq!(engine.try_submit(7, 0).map_err(|error| error.reason), halted);
    assert_eq!(engine.submit_timeout(7, 0, LONG).map_err(|error| error.reason), halted);
    assert_eq!(engine.group(7).submit(0).map_err(|error| error.reason), halted);
    for n in 0..500 {
        engine.submit(100 + n % 20, 1_000 + n).expect("others have room");
    }
    // A full group that is resumed makes room again.
    ran.take();
    assert!(engine.resume_group(&7));
    engine.submit(7, 1_000).expect("open");
    assert!(engine.wait_drain(LONG));
    let of_group = ran.take().into_iter().filter(|(key, _)| *key == 7).map(|(_, task)| task);
    assert!(of_group.eq((20..accepted).chain([1_000])));
}
