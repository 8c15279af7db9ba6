//! Row F11: close runs what was accepted, or gives it back; nothing starts after its return.

mod common;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::channel,
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, OnExhausted, Retry, SubmitReason, Workers};
use common::{Count, LONG, Latch, MS, Rng, scale, watch};

#[test]
fn drain_with_running_queued_backed_off_and_lingering_tasks_ends_them_all_or_lists_them() {
    // ractor #353, parallel-consumer #559: drain returned while tasks were queued, in back-off, or half a batch.
    for deadline in [MS, LONG] {
        let (latch, running) = (Latch::new(), Count::new());
        let (gate, begun) = (latch.clone(), running.clone());
        let after = Arc::new(AtomicBool::new(false));
        let (late, closed) = (Arc::new(AtomicU64::new(0)), after.clone());
        let lates = late.clone();
        let engine = Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .batch_size(8)
            .flush_interval(Duration::from_secs(3_000))
            .retry(Retry::fixed(30 * MS).attempts(2))
            .handler(move |_, batch| {
                lates.fetch_add(u64::from(closed.load(SeqCst)), SeqCst);
                begun.add(1);
                match *batch.key() {
                    0 => {
                        gate.wait();
                        Ok(())
                    }
                    1..=3 if batch.attempt(0) == 1 => Err("back-off"),
                    _ => Ok(()),
                }
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("drain", &engine);
        let mut all: Vec<_> = (0..18).map(|n| (0, n)).collect();
        all.extend((0..24).map(|n| (1 + n % 3, n)));
        engine.submit_many(&mut all).expect("open");
        running.wait_for(4);
        // Half a batch each: they linger.
        let mut half: Vec<_> = (0..40).map(|n| (10 + n % 10, n)).collect();
        engine.submit_many(&mut half).expect("open");
        if deadline == LONG {
            latch.open();
        }
        let first = engine.close(deadline);
        after.store(true, SeqCst);
        latch.open();
        let second = engine.close(LONG);
        let left = (first.left_tasks() + second.left_tasks()) as u64;
        assert_eq!(second.done + second.failed + left, 18 + 24 + 40, "{first:?} {second:?}");
        assert_eq!(late.load(SeqCst), 0, "a handler started after the return");
        if deadline == LONG {
            assert!(first.is_complete() && left == 0);
        } else {
            assert_eq!(first.running, 1);
            assert_eq!(second.left_tasks(), 10, "the rest of the group that was running");
            assert!(second.left[0].tasks.iter().copied().eq(8..18), "in order");
        }
    }
}

#[test]
fn after_close_every_way_in_is_shut_and_a_second_close_is_empty() {
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .task_handler(|_, _| ())
        .build()
        .expect("valid settings");
    let (handle, mut lane) = (engine.group(1), engine.producer());
    engine.submit(1, 1).expect("open");
    assert_eq!(engine.close(LONG).done, 1);
    let closed = SubmitReason::Closed;
    assert_eq!(engine.submit(1, 7).map_err(|e| (e.key, e.task, e.reason)), Err((1, 7, closed)));
    assert_eq!(engine.try_submit(1, 7).map_err(|e| e.reason), Err(closed));
    assert_eq!(engine.submit_timeout(1, 7, LONG).map_err(|e| e.reason), Err(closed));
    assert_eq!(handle.submit(7).map_err(|e| (e.task, e.reason)), Err((7, closed)));
    assert_eq!(lane.submit(1, 7).map_err(|e| (e.key, e.task, e.reason)), Err((1, 7, closed)));
    let mut many = vec![(1, 7), (2, 8)];
    assert_eq!(engine.submit_many(&mut many).map_err(|e| e.reason), Err(closed));
    assert_eq!(many, [(1, 7), (2, 8)]);
    let late = engine.group(99);
    assert_eq!(late.submit(7).map_err(|e| e.reason), Err(closed));
    let mut lane = engine.producer();
    assert_eq!(lane.submit(1, 7).map_err(|e| e.reason), Err(closed));
    let again = engine.close(LONG);
    assert!(again.is_complete());
    assert_eq!(again.done, 1);
    assert!(engine.wait_drain(Duration::ZERO), "nothing is left");
}

#[test]
fn close_while_producers_submit_accounts_for_every_accepted_task() {
    for round in 0..scale(60, 600) {
        let engine = Engine::<u32, u64>::builder()
            .workers(Workers::fixed(1 + round as usize % 4))
            .capacity(1 << (7 + round % 6))
            .group_capacity(1 << (3 + round % 5))
            .retry(Retry::fixed(Duration::ZERO).attempts(2))
            .on_exhausted(if round % 2 == 0 {
                OnExhausted::skip()
            } else {
                OnExhausted::halt_group()
            })
            .task_handler(|_, task| if **task % 100 == 7 { Err("no") } else { Ok(()) })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("close under load", &engine);
        let accepted = AtomicU64::new(0);
        let deadline = if round % 3 == 0 { Duration::ZERO } else { LONG };
        let reports = thread::scope(|scope| {
            for way in 0..4u64 {
                let (engine, accepted) = (&engine, &accepted);
                scope.spawn(move || {
                    let mut rng = Rng(round * 4 + way);
                    let handle = engine.group(way as u32);
                    let mut lane = engine.producer();
                    for n in 0.. {
                        let key = rng.below(20) as u32;
                        let (count, closed) = match way {
                            0 => (1, engine.submit(key, n).err().map(|e| e.reason)),
                            1 => (1, handle.submit(n).err().map(|e| e.reason)),
                            2 => (1, lane.submit(key, n).err().map(|e| e.reason)),
                            _ => {
                                let mut many: Vec<_> = (0..9).map(|n| (n, u64::from(n))).collect();
                                let closed = engine.submit_many(&mut many).err().map(|e| e.reason);
                                let count = 9 - many.len() as u64;
                                accepted.fetch_add(count, SeqCst);
                                (0, closed)
                            }
                        };
                        match closed {
                            None => accepted.fetch_add(count, SeqCst),
                            // The policy halts groups, and nobody waits at a full one of them.
                            Some(SubmitReason::GroupHalted) => 0,
                            Some(reason) => {
                                assert_eq!(reason, SubmitReason::Closed);
                                return;
                            }
                        };
                    }
                });
            }
            for _ in 0..round % 50 {
                thread::yield_now();
            }
            // Two close at the same time: together they have everything once.
            let other = scope.spawn(|| engine.close(deadline));
            let mine = engine.close(deadline);
            [mine, other.join().expect("close")]
        });
        let last = engine.close(LONG);
        let left: usize = reports.iter().chain([&last]).map(|report| report.left_tasks()).sum();
        let accepted = accepted.load(SeqCst);
        assert_eq!(last.done + last.failed + left as u64, accepted, "round {round}");
        assert_eq!(engine.stats().accepted, accepted);
    }
}

#[test]
fn close_from_inside_a_handler_refuses_and_returns_at_once() {
    let engine: Arc<OnceLock<Engine<u32, u32>>> = Arc::default();
    let inner = engine.clone();
    let (sender, reports) = channel();
    let sender = std::sync::Mutex::new(sender);
    let built = Engine::builder()
        .workers(Workers::fixed(1))
        .task_handler(move |_, task: &mut bgrp::Task<'_, u32, u32>| {
            if **task == 5 {
                let engine = inner.get().expect("set before the first submit");
                let report = engine.close(LONG);
                let refused = engine.submit(1, 1).is_err();
                common::lock(&sender).send((report.running, refused)).expect("the test listens");
            }
        })
        .build()
        .expect("valid settings");
    assert!(engine.set(built).is_ok());
    let engine = engine.get().expect("just set");
    let mut accepted = 0;
    for n in 0..10 {
        // After task 5 the engine may refuse.
        accepted += u64::from(engine.submit(1, n).is_ok());
    }
    assert_eq!(reports.recv_timeout(LONG), Ok((1, true)));
    let report = engine.close(LONG);
    assert_eq!(report.done, accepted, "what was accepted before is run");
    assert!(report.is_complete());
}

#[test]
fn wait_drain_waits_for_all_and_refuses_nobody() {
    let latch = Latch::new();
    let gate = latch.clone();
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .retry(Retry::fixed(MS).attempts(3))
        .task_handler(move |_, task| {
            gate.wait();
            if task.attempt() < 3 { Err("again") } else { Ok(()) }
        })
        .build()
        .expect("valid settings");
    assert!(engine.wait_drain(Duration::ZERO), "nothing was accepted");
    for n in 0..20 {
        engine.submit(n % 5, n).expect("open");
    }
    assert!(!engine.wait_drain(MS), "all wait at the latch");
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| engine.wait_drain(LONG))).collect();
        latch.open();
        assert!(waiters.into_iter().all(|waiter| waiter.join().expect("waits")));
    });
    assert_eq!(engine.stats().done, 20);
    engine.submit(1, 1).expect("still open");
    assert!(engine.wait_drain(LONG));
    engine.halt();
    assert!(engine.is_halted());
    assert_eq!(engine.submit(1, 1).map_err(|e| e.reason), Err(SubmitReason::Closed));
    assert_eq!(engine.close(LONG).done, 21);
}

#[test]
fn a_halt_gives_everything_back_in_order() {
    for workers in 1..=4 {
        let latch = Latch::new();
        let gate = latch.clone();
        let engine = Engine::<u32, u32>::builder()
            .workers(Workers::fixed(workers))
            .batch_size(4)
            .task_handler(move |_, _| gate.wait())
            .build()
            .expect("valid settings");
        let mut lane = engine.producer();
        for n in 0..900 {
            if n % 9 < 3 {
                lane.submit(n % 9, n).expect("open");
            } else {
                engine.submit(n % 9, n).expect("open");
            }
        }
        engine.halt();
        latch.open();
        let report = engine.close(LONG);
        assert_eq!(report.done + report.left_tasks() as u64, 900);
        assert!(report.done <= workers as u64, "what was in hand, and no more: {}", report.done);
        for left in &report.left {
            let first = left.tasks[0];
            assert!(left.tasks.iter().copied().eq((first..900).step_by(9)), "{left:?}");
            assert_eq!(first % 9, left.key);
        }
    }
}

#[test]
fn halted_groups_do_not_hold_up_a_drain_and_come_back() {
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .on_exhausted(OnExhausted::halt_group())
        .task_handler(|_, task| if **task == 3 && *task.key() < 2 { Err("no") } else { Ok(()) })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("halted drain", &engine);
    for n in 0..scale(2_000, 20_000) as u32 {
        for key in 0..4 {
            engine.submit(key, n).expect("open");
        }
        if n % 100 == 50 {
            assert!(engine.wait_drain(LONG));
        }
    }
    let each = scale(2_000, 20_000);
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (2 * each + 6, 2));
    assert_eq!(report.left_tasks() as u64, 2 * (each - 4));
    assert!(report.left.iter().all(|left| left.tasks.iter().copied().eq(4..each as u32)));
}

#[test]
fn halting_the_engine_from_the_policy_keeps_the_rest() {
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(1))
        .on_exhausted(OnExhausted::halt_engine())
        .task_handler(|_, task| if **task == 3 { Err("no") } else { Ok(()) })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("halt engine", &engine);
    let mut many: Vec<_> = (0..10).map(|n| (1, n)).collect();
    engine.submit_many(&mut many).expect("open");
    assert!(!engine.wait_drain(LONG), "a halted engine does not drain");
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (3, 1));
    assert_eq!(report.left[0].tasks, [4, 5, 6, 7, 8, 9]);
}
