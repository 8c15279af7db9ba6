//! Row F1: a full group or a full engine makes its own submitters wait, and nobody else.

mod common;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::channel,
    },
    thread,
};

use bgrp::{Engine, SubmitReason, Workers};
use common::{Count, LONG, Latch, Log, MS, Rng, scale, watch};

/// Key 0 waits at the latch; others run.
fn blocked(group: usize, capacity: usize) -> (Arc<Engine<u32, u64>>, Arc<Latch>, Arc<Count>) {
    let (latch, others) = (Latch::new(), Count::new());
    let (gate, count) = (latch.clone(), others.clone());
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(2))
        .group_capacity(group)
        .capacity(capacity)
        .task_handler(move |_, task| match task.key() {
            0 => gate.wait(),
            _ => count.add(1),
        })
        .build()
        .expect("valid settings");
    (Arc::new(engine), latch, others)
}

/// Fills group 0 until it says that it is full. Returns what it took.
fn fill(engine: &Engine<u32, u64>) -> u64 {
    let mut taken = 0;
    let mut full = 0;
    // The engine learns that a group is full when it takes the tasks out of the ingress: not at once.
    while full < 3 {
        match engine.try_submit(0, taken) {
            Ok(()) => {
                taken += 1;
                full = 0;
            }
            Err(error) if error.reason == SubmitReason::GroupFull => full += 1,
            Err(error) => {
                assert_eq!(error.reason, SubmitReason::EngineFull);
                thread::yield_now();
            }
        }
    }
    taken
}

#[test]
fn a_full_group_hands_back_within_its_slack_and_others_go_on() {
    for group in [1usize, 10, 1_000] {
        let (engine, latch, others) = blocked(group, 1 << 16);
        let _watch = watch("full group", &engine);
        let taken = fill(&engine);
        assert!(taken > group as u64, "full means more than the capacity waits");
        assert!(
            taken <= group as u64 + 4_096 + 1,
            "slack: what the ingress of a shard holds, {taken}"
        );
        let handle = engine.group(0);
        let reason = handle.submit_timeout(1, MS).expect_err("full").reason;
        assert_eq!(reason, SubmitReason::TimedOut(MS));
        assert_eq!(handle.try_submit(1).expect_err("full").reason, SubmitReason::GroupFull);
        let mut many = vec![(0, 1), (0, 2)];
        let error = engine.try_submit_many(&mut many).expect_err("full");
        assert_eq!((error.reason, error.accepted, many.len()), (SubmitReason::GroupFull, 0, 2));
        // Ten thousand other keys, among them some with the same bit in the filter, by all ways.
        for key in 1..=10_000 {
            // The ring that they share with the full group may be full for a moment, and is emptied all the same.
            engine.submit(key, 0).expect("others have room");
        }
        others.wait_for(10_000);
        latch.open();
        engine.submit(0, 0).expect("room comes");
        assert_eq!(engine.close(LONG).done, taken + 10_001);
    }
}

#[test]
fn a_group_that_was_full_opens_again_and_again() {
    let (engine, latch, _) = blocked(8, 1 << 16);
    let _watch = watch("again", &engine);
    latch.open();
    let mut waited = 0u64;
    for n in 0..scale(20_000, 200_000) {
        if let Err(error) = engine.try_submit(0, n) {
            waited += 1;
            engine.submit(error.key, error.task).expect("open");
        }
    }
    println!("the group was full {waited} times");
    assert_eq!(engine.close(LONG).done, scale(20_000, 200_000));
}

#[test]
fn blocked_submitters_wake_when_there_is_room() {
    let (engine, latch, _) = blocked(4, 1 << 12);
    let _watch = watch("wake by room", &engine);
    fill(&engine);
    let passed = Count::new();
    thread::scope(|scope| {
        for way in 0..6 {
            let (engine, passed) = (&engine, &passed);
            scope.spawn(move || {
                match way {
                    0 | 1 => engine.submit(0, 1).expect("open"),
                    2 => engine.group(0).submit(1).expect("open"),
                    3 => engine.submit_many(&mut vec![(0, 1); 10]).expect("open"),
                    4 => engine.submit_timeout(0, 1, LONG).expect("room comes"),
                    _ => engine.group(0).submit_timeout(1, LONG).expect("room comes"),
                }
                passed.add(1);
            });
        }
        while engine.stats().accepted < 5 {
            thread::yield_now();
        }
        assert_eq!(passed.get(), 0, "full: nobody passes");
        latch.open();
        passed.wait_for(6);
    });
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn blocked_submitters_wake_when_the_engine_closes_and_keep_their_tasks() {
    for round in 0..scale(30, 200) {
        let (engine, latch, _) = blocked(4, 1 << 12);
        let _watch = watch("wake by close", &engine);
        let taken = fill(&engine);
        let refused = AtomicU64::new(0);
        thread::scope(|scope| {
            for way in 0..5 {
                let (engine, refused) = (&engine, &refused);
                scope.spawn(move || {
                    let reason = match way {
                        0 => engine.submit(0, 77).map_err(|e| (e.task, e.reason)),
                        1 => engine.group(0).submit(77).map_err(|e| (e.task, e.reason)),
                        2 => engine.submit_timeout(0, 77, LONG).map_err(|e| (e.task, e.reason)),
                        _ => {
                            let mut many = vec![(0, 77); 3];
                            let result = engine.submit_many(&mut many);
                            result.map_err(|e| (many[0].1 * (many.len() == 3) as u64, e.reason))
                        }
                    };
                    assert_eq!(reason, Err((77, SubmitReason::Closed)));
                    refused.fetch_add(1, SeqCst);
                });
            }
            if round % 2 == 0 {
                thread::yield_now();
            }
            let report = engine.close(MS);
            assert_eq!(report.running, 1);
            latch.open();
        });
        assert_eq!(refused.load(SeqCst), 5);
        let report = engine.close(LONG);
        assert_eq!(report.done + report.left_tasks() as u64, taken);
    }
}

#[test]
fn a_handler_is_never_made_to_wait_for_its_own_engine() {
    let engine: Arc<OnceLock<Engine<u32, u64>>> = Arc::default();
    let inner = engine.clone();
    let (sender, results) = channel();
    let sender = std::sync::Mutex::new(sender);
    let built = Engine::builder()
        .workers(Workers::fixed(1))
        .group_capacity(4)
        .capacity(1 << 10)
        .task_handler(move |_, task: &mut bgrp::Task<'_, u32, u64>| {
            if **task == 0 {
                return;
            }
            let engine = inner.get().expect("set before the first submit");
            let fill = |key: u32| {
                loop {
                    if let Err(error) = engine.submit(key, 0) {
                        return (error.task, error.reason);
                    }
                }
            };
            let mut lane = engine.producer();
            let by_lane = loop {
                if let Err(error) = lane.submit(5, 0) {
                    break (error.task, error.reason);
                }
            };
            let own = fill(*task.key());
            let handle = engine.group(*task.key());
            let by_handle = handle.submit(0).map_err(|e| e.reason);
            let timed = engine.submit_timeout(*task.key(), 0, LONG).map_err(|e| e.reason);
            let many = engine.submit_many(&mut vec![(*task.key(), 0)]).map_err(|e| e.reason);
            let drained = engine.wait_drain(LONG);
            let sent = (own, by_lane, by_handle, timed, many, drained);
            common::lock(&sender).send(sent).expect("the test listens");
        })
        .build()
        .expect("valid settings");
    assert!(engine.set(built).is_ok());
    let engine = engine.get().expect("just set");
    engine.submit(1, 1).expect("open");
    let own = SubmitReason::OwnWorker;
    let (by_key, by_lane, by_handle, timed, many, drained) =
        results.recv_timeout(LONG).expect("an error at once, no wait");
    assert_eq!((by_key, by_lane), ((0, own), (0, own)));
    assert_eq!((by_handle, timed, many), (Err(own), Err(own), Err(own)));
    assert!(!drained, "its own task has not ended");
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_full_engine_makes_submitters_wait_and_loses_nothing() {
    let log = Log::new();
    let seen = log.clone();
    let engine = Engine::<u32, (u32, u64)>::builder()
        .workers(Workers::fixed(2))
        .capacity(64)
        .task_handler(move |_, task| {
            common::spin(200);
            seen.push(**task);
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("full engine", &engine);
    let each = scale(5_000, 50_000);
    thread::scope(|scope| {
        for t in 0..3u32 {
            let engine = &engine;
            scope.spawn(move || {
                let mut rng = Rng(u64::from(t));
                let mut lane = engine.producer();
                for n in 0..each {
                    let key = rng.below(9) as u32;
                    match t {
                        0 => lane.submit(key, (t * 100 + key, n)).expect("open"),
                        _ => engine.submit(key, (t * 100 + key, n)).expect("open"),
                    }
                }
            });
        }
    });
    assert_eq!(engine.close(LONG).done, 3 * each);
    for (source, numbers) in common::by_key(log.take()) {
        assert!(numbers.is_sorted(), "source {source}");
    }
}

#[test]
fn halted_groups_never_make_the_engine_full_for_others() {
    let engine = Engine::<u32, u64>::builder()
        .workers(Workers::fixed(2))
        .capacity(256)
        .group_capacity(1_000)
        .on_exhausted(bgrp::OnExhausted::halt_group())
        .task_handler(|_, task| if *task.key() == 0 { Err("down") } else { Ok(()) })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("halted", &engine);
    for n in 0..1_000 {
        engine.submit(0, n).expect("what waits in a halted group takes no room from others");
    }
    for n in 0..5_000 {
        engine.submit(1 + n as u32 % 50, n).expect("open");
    }
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed, report.left_tasks()), (5_000, 1, 999));
}
