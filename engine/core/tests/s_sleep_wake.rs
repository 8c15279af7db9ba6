//! Sleep and wake: work that comes while workers go to sleep is found; engines end whenever they are told to.
//!
//! Every test that could hang has a watchdog. The protocols themselves are checked by the loom models; here real threads
//! look for what the models leave out.

mod common;

use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use bgrp::{Engine, Retry, Workers};
use common::{Count, LONG, Latch, MS, Rng, lock, scale, spin, watch, watchdog};

#[test]
fn a_task_that_comes_as_its_group_is_given_up_is_run() {
    // netty #8230: a task that was offered just as the executor let go of the queue waited for the next one.
    for workers in [1, 2, 4] {
        let done = Count::new();
        let count = done.clone();
        let engine = Engine::<u32, ()>::builder()
            .workers(Workers::fixed(workers))
            .task_handler(move |_, _| count.add(1))
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("give up", &engine);
        let handle = engine.group(1);
        let mut lane = engine.producer();
        let mut rng = Rng(workers as u64);
        for round in 1..=scale(6_000, 60_000) {
            // The one before has just ended: its worker gives the group up, lets the shard rest, or goes to sleep.
            spin(rng.below(300));
            match round % 3 {
                0 => engine.submit(1, ()).expect("open"),
                1 => handle.submit(()).expect("open"),
                _ => lane.submit(1, ()).expect("open"),
            }
            done.wait_for(round);
        }
    }
}

#[test]
fn a_task_behind_another_of_its_group_is_run_though_nothing_follows() {
    let ran = Count::new();
    let count = ran.clone();
    let engine = Engine::<u64, ()>::builder()
        .workers(Workers::fixed(2))
        .task_handler(move |_, _| count.add(1))
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("second task", &engine);
    let mut rng = Rng(9);
    for round in 1..=scale(6_000, 60_000) {
        let key = rng.below(3);
        engine.submit(key, ()).expect("open");
        spin(rng.below(2_000));
        engine.submit(key, ()).expect("open");
        ran.wait_for(2 * round);
    }
}

#[test]
fn all_workers_come_when_there_is_work_for_all() {
    // As many groups as workers, and every task waits for all others: if one unit stays with a worker that has a task
    // in hand while another worker sleeps, this hangs.
    for workers in [2usize, 3, 4, 8] {
        let barrier = Arc::new(Barrier::new(workers + 1));
        let meet = barrier.clone();
        let engine = Engine::<u64, ()>::builder()
            .workers(Workers::fixed(workers))
            .task_handler(move |_, _| {
                meet.wait();
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("all come", &engine);
        let mut rng = Rng(workers as u64);
        let mut many = Vec::new();
        for round in 0..scale(3_000, 8_000) {
            let base = rng.below(1_000) * 100;
            for i in 0..workers as u64 {
                match round % 3 {
                    0 => engine.submit(base + i, ()).expect("open"),
                    1 => {
                        engine.submit(base + i, ()).expect("open");
                        spin(rng.below(500));
                    }
                    _ => many.push((base + i, ())),
                }
            }
            engine.submit_many(&mut many).expect("open");
            barrier.wait();
            spin(rng.below(3_000));
        }
        assert!(engine.close(LONG).is_complete());
    }
}

#[test]
fn sleeping_workers_wake_for_every_source() {
    // rayon PR #992: for each source of work, something comes exactly between announcing sleep and parking. Sources
    // here: ring by key and by handle, lane, many at once, back-off, linger, a task's own submit, room in the engine.
    let ran = Count::new();
    let count = ran.clone();
    let inner: Arc<std::sync::OnceLock<std::sync::Weak<Engine<u64, u32>>>> = Arc::default();
    let engine_inside = inner.clone();
    let engine = Engine::<u64, u32>::builder()
        .workers(Workers::fixed(3))
        .batch_size(4)
        .flush_interval(MS)
        .capacity(128)
        .retry(Retry::fixed(MS).attempts(2))
        .task_handler(move |_, task| {
            match **task {
                1 if task.attempt() == 1 => return Err("again"),
                2 => {
                    let engine = engine_inside.get().and_then(|engine| engine.upgrade());
                    engine.expect("alive").try_submit(task.key() + 1, 0).expect("room");
                }
                _ => {}
            }
            count.add(1);
            Ok(())
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    assert!(inner.set(Arc::downgrade(&engine)).is_ok());
    let _watch = watch("sources", &engine);
    let handle = engine.group(3);
    let mut lane = engine.producer();
    let (mut rng, mut wanted) = (Rng(1), 0);
    for round in 0..scale(1_200, 6_000) {
        let what = (round % 3) as u32;
        wanted += if what == 2 { 2 } else { 1 };
        match rng.below(5) {
            0 => engine.submit(rng.below(50), what).expect("open"),
            1 => handle.submit(what).expect("open"),
            2 => lane.submit(rng.below(50), what).expect("open"),
            3 => engine.submit_many(&mut vec![(rng.below(50), what)]).expect("open"),
            _ => {
                // More than the engine holds: the submitter waits for room, the workers for records.
                let mut many: Vec<_> = (0..400).map(|n| (n % 7, 0)).collect();
                wanted += 400;
                engine.submit_many(&mut many).expect("open");
                engine.submit(1, what).expect("open");
            }
        }
        ran.wait_for(wanted);
        spin(rng.below(2_000));
    }
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn engines_start_and_end_at_any_moment() {
    // ponyc PR #5037: shutdown at each step of parking. Every close joins its threads.
    let stage = Arc::new(std::sync::Mutex::new(String::new()));
    let told = stage.clone();
    let _watch = watchdog("start and end", move || lock(&told).clone());
    let mut rng = Rng(77);
    for round in 0..scale(400, 4_000) {
        let workers = 1 + round as usize % 8;
        let tasks = rng.below(40);
        *lock(&stage) = format!("round {round}, {workers} workers, {tasks} tasks");
        let ran = Count::new();
        let count = ran.clone();
        let engine = Engine::<u64, u64>::builder()
            .workers(Workers::fixed(workers))
            .flush_interval(if round % 5 == 0 { MS } else { Duration::ZERO })
            .task_handler(move |_, _| count.add(1))
            .build()
            .expect("valid settings");
        for n in 0..tasks {
            engine.submit(n % 7, n).expect("open");
            if n == tasks / 2 {
                spin(rng.below(20_000));
            }
        }
        spin(rng.below(40_000));
        match round % 3 {
            0 => {
                let report = engine.close(LONG);
                assert!(report.is_complete());
            }
            1 => drop(engine),
            _ => {
                engine.halt();
                let report = engine.close(LONG);
                assert_eq!(report.running, 0);
                assert_eq!(report.done + report.left_tasks() as u64, tasks);
                continue;
            }
        }
        assert_eq!(ran.get(), tasks, "round {round}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_idle_engine_uses_no_processor_to_speak_of() {
    // The other tests of this binary use the processor: this one runs in a process of its own.
    if common::in_own_process("an_idle_engine_uses_no_processor_to_speak_of", |_| ()) {
        return;
    }
    let latch = Latch::new();
    let gate = latch.clone();
    let engine = Engine::<u64, ()>::builder()
        .workers(Workers::fixed(8))
        .retry(Retry::fixed(Duration::from_secs(3_600)))
        .flush_interval(Duration::from_secs(3_000))
        .batch_size(2)
        .task_handler(move |_, task| {
            gate.wait();
            if *task.key() == 1 { Err("in back-off for an hour") } else { Ok(()) }
        })
        .build()
        .expect("valid settings");
    let lane = engine.producer();
    for key in 0..100 {
        engine.submit(key, ()).expect("open");
        engine.submit(key, ()).expect("open");
        // A third one lingers.
        engine.submit(key, ()).expect("open");
    }
    latch.open();
    let idle = Instant::now();
    while engine.stats().sleeping_workers < 8 {
        thread::yield_now();
        assert!(idle.elapsed() < LONG, "workers do not sleep: {:?}", engine.stats());
    }
    let before = common::cpu_time();
    thread::sleep(Duration::from_secs(1));
    let used = common::cpu_time() - before;
    println!("an idle engine with 8 workers, a back-off and 100 lingers used {used:?} in 1 s");
    assert!(used < Duration::from_millis(200), "{used:?}");
    assert_eq!(engine.stats().sleeping_workers, 8);
    drop(lane);
    engine.halt();
    engine.close(LONG);
}

#[test]
fn many_workers_on_few_processors_keep_the_order() {
    // Row E10: 64 workers here, whatever the machine; and one.
    for workers in [1, 64] {
        let order = common::Order::new(200, 2);
        let watched = order.clone();
        let engine = Engine::<usize, (usize, u64)>::builder()
            .workers(Workers::fixed(workers))
            .batch_size(5)
            .task_handler(move |_, task| {
                let (source, number) = **task;
                watched.task(*task.key(), source, number, || spin(number % 500));
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let _watch = watch("many workers", &engine);
        let each = scale(20_000, 200_000);
        thread::scope(|scope| {
            for source in 0..2 {
                let engine = &engine;
                scope.spawn(move || {
                    for n in 0..each {
                        let task = (source, n / 200 + 1);
                        engine.submit((n % 200) as usize, task).expect("open");
                    }
                });
            }
        });
        assert!(engine.close(LONG).is_complete());
        order.assert_clean(2 * each);
    }
}
