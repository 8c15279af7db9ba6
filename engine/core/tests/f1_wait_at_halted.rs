//! Row F1: who submits to a group that is full and halted is told at once, or waits until somebody decides, as the engine's owner
//! wants it.

mod common;

use std::{sync::Arc, thread, time::Instant};

use bgrp::{Engine, OnExhausted, SubmitReason, Workers};
use common::{Count, LONG, MS, until, watch};

/// Group 7 is full, and halted by its first task. How many tasks wait in it.
fn halted(exact: bool, wait: bool) -> (Arc<Engine<u32, u32>>, usize) {
    let mut builder = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .capacity(64)
        .on_exhausted(OnExhausted::halt_group())
        .wait_at_halted_groups(wait);
    builder = if exact { builder.exact_group_capacity(4) } else { builder.group_capacity(4) };
    let engine = builder
        .task_handler(|_, task| if **task == 13 { Err("unlucky") } else { Ok(()) })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    engine.submit(7, 13).expect("open");
    until(|| engine.halted_groups().len() == 1 && engine.stats().failed == 1);
    let mut taken = 0;
    loop {
        match engine.try_submit(7, 0).map_err(|error| error.reason) {
            Ok(()) => taken += 1,
            Err(SubmitReason::GroupHalted) => return (engine, taken),
            Err(_) => thread::yield_now(),
        }
    }
}

#[test]
fn by_default_it_is_told_at_once() {
    for exact in [false, true] {
        let (engine, taken) = halted(exact, false);
        let _watch = watch("told", &engine);
        let halted = Err(SubmitReason::GroupHalted);
        assert_eq!(engine.submit(7, 1).map_err(|e| e.reason), halted);
        assert_eq!(engine.submit_timeout(7, 1, LONG).map_err(|e| e.reason), halted);
        assert_eq!(engine.submit_tracked(7, 1).map(drop).map_err(|e| e.reason), halted);
        assert_eq!(engine.close(LONG).left_tasks(), taken);
    }
}

#[test]
fn by_choice_it_waits_until_the_group_is_resumed_or_discarded_or_the_time_is_up() {
    for exact in [false, true] {
        for resume in [true, false] {
            let (engine, taken) = halted(exact, true);
            let _watch = watch("waits", &engine);
            let began = Instant::now();
            let error = engine.submit_timeout(7, 1, 30 * MS).expect_err("nobody decides");
            assert_eq!(error.reason, SubmitReason::TimedOut(30 * MS));
            assert!(began.elapsed() >= 30 * MS);
            // What does not wait says why.
            assert_eq!(
                engine.try_submit(7, 1).map_err(|e| e.reason),
                Err(SubmitReason::GroupHalted)
            );
            let sent = Count::new();
            thread::scope(|scope| {
                for way in 0..4 {
                    let (engine, sent) = (&engine, &sent);
                    scope.spawn(move || {
                        match way {
                            0 => engine.submit(7, 1).expect("resumed"),
                            1 => engine.group(7).submit(1).expect("resumed"),
                            2 => engine.submit_timeout(7, 1, LONG).expect("resumed"),
                            _ => drop(engine.submit_tracked(7, 1).expect("resumed")),
                        }
                        sent.add(1);
                    });
                }
                // Others have room meanwhile.
                (0..200).for_each(|n| engine.submit(100 + n % 20, 100 + n).expect("open"));
                assert_eq!(sent.get(), 0, "nobody gets in before somebody decides");
                if resume {
                    assert!(engine.resume_group(&7));
                } else {
                    assert_eq!(engine.discard_group(&7).map(|tasks| tasks.len()), Ok(taken));
                }
                sent.wait_for(4);
            });
            let report = engine.close(LONG);
            assert!(report.is_complete());
            let ran = if resume { taken as u64 } else { 0 };
            assert_eq!((report.done, report.failed), (ran + 200 + 4, 1));
        }
    }
}

#[test]
fn close_wakes_who_waits_there() {
    for exact in [false, true] {
        let (engine, _) = halted(exact, true);
        let _watch = watch("close", &engine);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| engine.submit(7, 1).map_err(|e| (e.task, e.reason)));
            engine.close(MS);
            assert_eq!(waiting.join().expect("no panic"), Err((1, SubmitReason::Closed)));
        });
    }
}
