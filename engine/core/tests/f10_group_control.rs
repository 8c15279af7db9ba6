//! Row F10: one group is paused, resumed, relieved of what waits in it, drained, and closed; the others do not notice.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Engine, GroupError, HaltReason, InFlight, Rate, Retry, Sim, SubmitReason, Workers};
use common::{Count, LONG, Latch, Log, MS, until, watch};

const HOUR: Duration = Duration::from_secs(3_600);

type Ran = Log<(u32, u32)>;

/// Submits tasks from `n` on until the group is full. Returns the number of the first that was refused.
fn fill(engine: &Engine<u32, u32>, key: u32, mut n: u32) -> u32 {
    loop {
        match engine.try_submit(key, n).map_err(|error| error.reason) {
            Ok(()) => n += 1,
            Err(SubmitReason::GroupFull) => return n,
            // The workers have not come round yet.
            Err(SubmitReason::EngineFull) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

fn sim(
    set: impl FnOnce(bgrp::Builder<u32, u32>) -> bgrp::Builder<u32, u32>,
) -> (Sim<u32, u32>, Ran) {
    let ran = Log::new();
    let log = ran.clone();
    let builder = set(Engine::<u32, u32>::builder().workers(Workers::fixed(2)));
    let sim = builder
        .task_handler(move |_, task| {
            log.push((*task.key(), **task));
            // Tasks of a thousand and more never succeed.
            if **task < 1_000 { Ok(()) } else { Err("wanted") }
        })
        .build_sim(7)
        .expect("valid settings");
    (sim, ran)
}

#[test]
fn a_paused_group_starts_nothing_while_others_go_on_and_resumes_in_order() {
    let (mut sim, ran) = sim(|builder| builder);
    let group = sim.group(1);
    group.pause();
    for n in 0..10 {
        sim.submit(1, n).expect("room");
        sim.submit(2, n).expect("room");
    }
    sim.run();
    assert!(ran.take().into_iter().eq((0..10).map(|n| (2, n))));
    assert_eq!((sim.stats().held, sim.stats().backlog()), (10, 10));
    let halted = sim.engine().halted_groups();
    assert_eq!(halted.len(), 1);
    assert_eq!((halted[0].key, halted[0].tasks, &halted[0].why), (1, 10, &HaltReason::Paused));
    sim.submit(1, 10).expect("a paused group takes tasks");
    assert!(group.resume());
    assert!(!group.resume(), "it does not stand any more");
    sim.run();
    assert!(ran.take().into_iter().eq((0..=10).map(|n| (1, n))));
    assert_eq!((sim.stats().held, sim.stats().backlog()), (0, 0));
    assert!(sim.engine().halted_groups().is_empty());
}

#[test]
fn a_pause_reaches_the_group_wherever_its_token_is() {
    type Set = fn(bgrp::Builder<u32, u32>) -> bgrp::Builder<u32, u32>;
    let places: [(&str, Set, u32); 5] = [
        ("ready", |builder| builder, 5),
        ("lingering", |builder| builder.flush_interval(HOUR).batch_size(9), 5),
        ("in back-off", |builder| builder.retry(Retry::fixed(60 * MS)), 1_000),
        ("waiting for its rate", |builder| builder.group_rate(Rate::per_second(1).burst(1)), 5),
        ("waiting for the rate of all", |builder| builder.rate(Rate::per_second(1).burst(1)), 5),
    ];
    for (place, set, task) in places {
        let (mut sim, ran) = sim(set);
        for n in 0..8 {
            sim.submit(1, task + n).expect("room");
        }
        if place == "ready" {
            // The records have become a group on the ready list, and nothing ran.
            assert!(sim.step(0) || sim.step(1));
        } else {
            sim.run();
        }
        let before = ran.take().len();
        sim.engine().pause_group(1);
        for _ in 0..5 {
            sim.advance(HOUR);
            sim.run();
        }
        assert_eq!(ran.take(), [], "{place}");
        assert_eq!(sim.engine().limits().in_flight, 0, "{place}: a paused group holds a permit");
        let halted = sim.engine().halted_groups();
        assert!(halted.len() == 1 && !halted[0].running, "{place}: {halted:?}");
        let left = sim.stats().backlog() as usize;
        assert_eq!(halted[0].tasks, left, "{place}");
        // Others have the permits and the rate for themselves.
        sim.submit(2, 1).expect("room");
        sim.advance(HOUR);
        sim.run();
        sim.advance(HOUR);
        sim.run();
        assert_eq!(ran.take(), [(2, 1)], "{place}");
        assert!(sim.engine().resume_group(&1), "{place}");
        for _ in 0..20 {
            sim.run();
            sim.advance(HOUR);
        }
        let after = ran.take();
        if task < 1_000 {
            let first = task + before as u32;
            assert!(after.into_iter().eq((first..task + 8).map(|n| (1, n))), "{place}");
        } else {
            assert!(after.len() > 5 && after.iter().all(|(_, n)| *n == task), "{place}: retried");
        }
    }
}

#[test]
fn a_group_paused_while_it_waits_for_a_permit_gives_its_turn_to_the_next() {
    let (latch, running) = (Latch::new(), Count::new());
    let (gate, begun) = (latch.clone(), running.clone());
    let ran = Log::new();
    let log = ran.clone();
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .in_flight(InFlight::batches(1))
            .task_handler(move |_, task| {
                begun.add(1);
                if *task.key() == 0 {
                    gate.wait();
                }
                log.push(*task.key());
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("permit", &engine);
    engine.submit(0, 0).expect("open");
    running.wait_for(1);
    for key in [1, 2] {
        engine.submit(key, 0).expect("open");
        until(|| engine.limits().waiting == u64::from(key));
    }
    engine.pause_group(1);
    latch.open();
    running.wait_for(2);
    assert!(engine.drain_group(&2, LONG));
    until(|| engine.limits().in_flight == 0 && engine.limits().waiting == 0);
    assert_eq!(ran.take(), [0, 2]);
    assert!(engine.resume_group(&1));
    assert!(engine.wait_drain(LONG));
    assert_eq!(ran.take(), [1]);
}

#[test]
fn a_pause_within_a_time_waits_for_the_task_that_runs_and_only_for_that() {
    let (latch, running) = (Latch::new(), Count::new());
    let (gate, begun) = (latch.clone(), running.clone());
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .task_handler(move |_, _| {
                begun.add(1);
                gate.wait();
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("pause within", &engine);
    let group = engine.group(1);
    for n in 0..20 {
        group.submit(n).expect("open");
    }
    running.wait_for(1);
    assert!(!group.pause_within(MS), "a task is running");
    assert!(engine.halted_groups()[0].running);
    latch.open();
    assert!(group.pause_within(LONG));
    assert!(!engine.halted_groups()[0].running);
    assert_eq!(running.get(), 1, "the dispatch ended after the task at hand, not after its batch");
    assert!(engine.wait_drain(LONG), "what is held is not waited for");
    assert_eq!(engine.stats().held, 19);
    let report = engine.close(LONG);
    assert_eq!((report.done, report.left_tasks(), report.running), (1, 19, 0));
    assert!(report.left[0].tasks.iter().copied().eq(1..20), "a close gives back what is paused");
}

#[test]
fn cancel_gives_back_everything_that_was_submitted_and_not_started() {
    // In the ingress, not looked at yet.
    let (mut sim, ran) = sim(|builder| builder);
    for n in 0..5 {
        sim.submit(1, n).expect("room");
        sim.submit(2, n).expect("room");
    }
    assert_eq!(sim.engine().cancel_pending(&1), Err(GroupError::Busy), "nobody steps it meanwhile");
    sim.engine().pause_group(1);
    sim.run();
    assert_eq!(sim.engine().cancel_pending(&1), Ok(vec![0, 1, 2, 3, 4]));
    assert_eq!(sim.engine().cancel_pending(&1), Ok(vec![]));
    assert_eq!(sim.engine().cancel_pending(&99), Ok(vec![]), "no such group");
    sim.submit(1, 5).expect("it is paused, not closed");
    sim.run();
    assert!(ran.take().into_iter().eq((0..5).map(|n| (2, n))));
    // It goes on as it was: paused. Discard also lets it go on.
    assert_eq!(sim.group(1).discard(), Ok(vec![5]));
    sim.submit(1, 6).expect("room");
    sim.run();
    assert_eq!(ran.take(), [(1, 6)]);
    let stats = sim.stats();
    assert_eq!((stats.accepted, stats.done, stats.cancelled, stats.held), (12, 6, 6, 0));
    assert_eq!(stats.backlog(), 0);
}

#[test]
fn cancel_does_not_touch_the_task_that_runs_and_takes_what_is_behind_it() {
    for batched in [false, true] {
        let (latch, running) = (Latch::new(), Count::new());
        let (gate, begun) = (latch.clone(), running.clone());
        let builder = Engine::<u32, u32>::builder().workers(Workers::fixed(2)).batch_size(4);
        let configured = if batched {
            builder.handler(move |_, batch| {
                begun.add(batch.len() as u64);
                gate.wait();
            })
        } else {
            builder.task_handler(move |_, _| {
                begun.add(1);
                gate.wait();
            })
        };
        let engine = Arc::new(configured.build().expect("valid settings"));
        let _watch = watch("cancel", &engine);
        engine.pause_group(1);
        for n in 0..10 {
            engine.submit(1, n).expect("open");
        }
        engine.resume_group(&1);
        running.wait_for(1);
        let canceller = {
            let engine = engine.clone();
            std::thread::spawn(move || engine.cancel_pending(&1))
        };
        // It waits for the task at hand: the ask is in.
        until(|| canceller.is_finished() || engine.stats().accepted == 10);
        latch.open();
        let cancelled = canceller.join().expect("no panic").expect("not halted");
        // A task may have been started before the ask was in.
        let ran = running.get();
        assert!(cancelled.into_iter().eq(ran as u32..10), "in order, behind what ran");
        engine.submit(1, 99).expect("open");
        let report = engine.close(LONG);
        assert_eq!((report.done, report.left_tasks()), (ran + 1, 0));
    }
}

#[test]
fn cancel_takes_a_task_out_of_an_hour_of_back_off_and_its_attempts_are_forgotten() {
    let attempts = Log::new();
    let log = attempts.clone();
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .retry(Retry::fixed(HOUR).attempts(3))
            .task_handler(move |_, task| {
                log.push((**task, task.attempt()));
                if **task == 0 { Err("wanted") } else { Ok(()) }
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("cancel in back-off", &engine);
    for n in 0..3 {
        engine.submit(1, n).expect("open");
    }
    until(|| engine.stats().retries == 1);
    assert_eq!(engine.cancel_pending(&1), Ok(vec![0, 1, 2]));
    engine.submit(1, 3).expect("open");
    assert!(engine.drain_group(&1, LONG));
    assert_eq!(attempts.take(), [(0, 1), (3, 1)]);
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed, report.left_tasks()), (1, 0, 0));
}

#[test]
fn cancel_takes_a_group_out_of_the_queue_for_permits() {
    let (latch, running) = (Latch::new(), Count::new());
    let (gate, begun) = (latch.clone(), running.clone());
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .in_flight(1)
            .task_handler(move |_, _| {
                begun.add(1);
                gate.wait();
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("cancel in the queue", &engine);
    engine.submit(0, 0).expect("open");
    running.wait_for(1);
    for key in 1..=3 {
        engine.submit(key, key).expect("open");
        until(|| engine.limits().waiting == u64::from(key));
    }
    assert_eq!(engine.cancel_pending(&2), Ok(vec![2]));
    assert_eq!(engine.limits().waiting, 2);
    latch.open();
    assert_eq!(engine.close(LONG).done, 3);
}

#[test]
fn a_handler_that_asks_for_its_own_group_is_told_so_and_not_left_waiting() {
    let engine = Arc::new_cyclic(|weak: &std::sync::Weak<Engine<u32, u32>>| {
        let weak = weak.clone();
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(1))
            .task_handler(move |_, task| {
                let engine = weak.upgrade().expect("the test holds it");
                assert_eq!(engine.cancel_pending(task.key()), Err(GroupError::Busy));
                assert!(!engine.drain_group(task.key(), LONG));
                assert!(engine.close_group(2, LONG).is_complete(), "an idle one is free");
                assert_eq!(engine.discard_group(&3), Ok(vec![7]));
                engine.pause_group(*task.key());
            })
            .build()
            .expect("valid settings")
    });
    let _watch = watch("own group", &engine);
    engine.pause_group(3);
    engine.submit(3, 7).expect("open");
    for n in 0..4 {
        engine.submit(1, n).expect("open");
    }
    assert!(engine.wait_drain(LONG));
    assert_eq!(engine.stats().done, 1, "the first task paused its group");
    assert_eq!(engine.cancel_pending(&1), Ok(vec![1, 2, 3]));
    assert_eq!(engine.submit(2, 1).map_err(|e| e.reason), Err(SubmitReason::GroupClosed));
}

#[test]
fn a_paused_group_that_is_full_behaves_as_a_full_one_and_holds_up_nobody_else() {
    let ran = Count::new();
    let count = ran.clone();
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .group_capacity(4)
            .capacity(64)
            .task_handler(move |_, _| count.add(1))
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("full and paused", &engine);
    engine.pause_group(1);
    let accepted = fill(&engine, 1, 0);
    assert_eq!(
        engine.submit_timeout(1, 0, MS).map_err(|e| e.reason),
        Err(SubmitReason::TimedOut(MS))
    );
    let waiting = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.submit(1, 7))
    };
    for n in 0..1_000 {
        engine.submit(2 + n % 50, n).expect("others have room");
    }
    assert!(engine.wait_drain(LONG));
    assert_eq!(ran.get(), 1_000);
    assert!(!waiting.is_finished());
    engine.resume_group(&1);
    assert_eq!(waiting.join().expect("no panic"), Ok(()));
    assert_eq!(engine.close(LONG).done, 1_000 + u64::from(accepted) + 1);
}

#[test]
fn room_that_a_cancel_makes_is_given_to_who_waits_for_it() {
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(1))
            .group_capacity(2)
            .capacity(64)
            .task_handler(|_, _| ())
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("room by cancel", &engine);
    engine.pause_group(1);
    fill(&engine, 1, 0);
    let waiting = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.submit(1, 77))
    };
    let mut back = Vec::new();
    // Whether it waits already or comes later, it finds room.
    while !waiting.is_finished() {
        back.extend(engine.cancel_pending(&1).expect("not halted"));
        std::thread::yield_now();
    }
    waiting.join().expect("no panic").expect("there was room");
    back.extend(engine.cancel_pending(&1).expect("not halted"));
    assert_eq!(back.last(), Some(&77));
    assert_eq!(engine.stats().cancelled, back.len() as u64);
}

#[test]
fn drain_ends_linger_and_waits_for_this_group_only() {
    let (latch, running) = (Latch::new(), Count::new());
    let (gate, begun) = (latch.clone(), running.clone());
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .flush_interval(HOUR)
            .batch_size(100)
            .task_handler(move |_, task| {
                if *task.key() == 0 {
                    begun.add(1);
                    gate.wait();
                }
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("drain", &engine);
    for n in 0..250 {
        engine.submit(0, n).expect("open");
    }
    running.wait_for(1);
    for n in 0..30 {
        engine.submit(1, n).expect("open");
    }
    assert!(engine.drain_group(&1, LONG), "half a batch does not wait for its time");
    assert_eq!(engine.stats().done, 30);
    assert!(engine.drain_group(&77, LONG), "nothing is in a group that does not exist");
    assert!(!engine.drain_group(&0, MS), "a task is running");
    let group = engine.group(0);
    latch.open();
    assert!(group.drain(LONG));
    assert_eq!(engine.stats().done, 280);
    group.pause();
    group.submit(1).expect("open");
    assert!(!group.drain(LONG), "a group that stands does not get empty by itself");
}

#[test]
fn a_closed_group_runs_what_it_has_refuses_more_and_can_be_opened_again() {
    let ran = Log::new();
    let log = ran.clone();
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .idle_groups(1)
            .task_handler(move |_, task| log.push((*task.key(), **task)))
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("closed group", &engine);
    for n in 0..100 {
        engine.submit(1, n).expect("open");
    }
    let report = engine.close_group(1, LONG);
    assert!(report.is_complete());
    assert!(ran.take().into_iter().eq((0..100).map(|n| (1, n))));
    let closed = Err(SubmitReason::GroupClosed);
    let handle = engine.group(1);
    assert_eq!(engine.submit(1, 7).map_err(|e| e.reason), closed);
    assert_eq!(engine.try_submit(1, 7).map_err(|e| e.reason), closed);
    assert_eq!(engine.submit_timeout(1, 7, LONG).map_err(|e| e.reason), closed);
    assert_eq!(handle.submit(7).map_err(|e| e.reason), closed);
    let mut many = vec![(2, 0), (1, 7), (2, 1)];
    assert_eq!(engine.submit_many(&mut many).map_err(|e| e.reason), closed);
    assert!(many.contains(&(1, 7)));
    // It stays closed however many groups come and go.
    for key in 10..2_000 {
        engine.submit(key, 0).expect("open");
    }
    assert!(engine.wait_drain(LONG));
    assert_eq!(engine.submit(1, 7).map_err(|e| e.reason), closed);
    assert_eq!(engine.halted_groups()[0].why, HaltReason::Closed);
    ran.take();
    assert!(handle.resume());
    engine.submit(1, 8).expect("open again");
    assert!(engine.drain_group(&1, LONG));
    assert_eq!(ran.take(), [(1, 8)]);
}

#[test]
fn closing_a_group_wakes_who_waits_for_room_in_it_and_gives_back_the_rest() {
    let (latch, running) = (Latch::new(), Count::new());
    let (gate, begun) = (latch.clone(), running.clone());
    let late = Arc::new(AtomicBool::new(false));
    let starts_late = Arc::new(AtomicU64::new(0));
    let (over, starts) = (late.clone(), starts_late.clone());
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .group_capacity(8)
            .capacity(64)
            .task_handler(move |_, _| {
                starts.fetch_add(u64::from(over.load(SeqCst)), SeqCst);
                begun.add(1);
                gate.wait();
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("close and submitters", &engine);
    engine.submit(1, 0).expect("open");
    running.wait_for(1);
    let n = fill(&engine, 1, 1);
    let waiting = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.submit(1, 77).map_err(|e| e.reason))
    };
    let first = engine.close_group(1, 5 * MS);
    late.store(true, SeqCst);
    assert!(first.running && first.left.is_empty());
    assert_eq!(waiting.join().expect("no panic"), Err(SubmitReason::GroupClosed));
    latch.open();
    let second = engine.close_group(1, LONG);
    assert!(!second.running);
    assert!(second.left.into_iter().eq(1..n), "in order");
    assert_eq!(starts_late.load(SeqCst), 0, "a task started after the return");
    assert_eq!(running.get(), 1);
}

#[test]
fn a_thousand_cancels_with_five_running_leave_nothing_in_flight_and_the_intake_goes_on() {
    // parallel-consumer #547: after cancels the count in flight stayed up, and no more was taken in.
    let done = Count::new();
    let count = done.clone();
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(5))
            .in_flight(5)
            .task_handler(move |_, _| {
                std::thread::yield_now();
                count.add(1);
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("cancels", &engine);
    let mut back = 0;
    for round in 0..1_000u32 {
        for key in 0..5 {
            for n in 0..4 {
                engine.submit(key, 4 * round + n).expect("open");
            }
        }
        for key in 0..5 {
            let tasks = engine.cancel_pending(&key).expect("not halted");
            assert!(tasks.is_sorted(), "in order");
            back += tasks.len() as u64;
        }
    }
    assert!(engine.wait_drain(LONG));
    assert_eq!(done.get() + back, 20_000);
    until(|| engine.limits().in_flight == 0);
    assert_eq!((engine.limits().waiting, engine.stats().backlog()), (0, 0));
    engine.submit(1, 1).expect("the intake goes on");
    assert!(engine.drain_group(&1, LONG));
    assert_eq!(done.get() + back, 20_001);
}
