//! Contract row F9: one logical group spread over several, in order per sub-key, joined at the end.

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc, Barrier, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::channel,
    },
    time::Duration,
};

use bgrp::{Engine, Failure, OnExhausted, Outcome, Retry, SplitError, SubmitReason, Workers};
use common::{LONG, MS, Order, Rng, lock, quiet, scale, watch};

#[test]
fn tasks_of_one_sub_key_run_in_order_whoever_submits_them() {
    const SUB_KEYS: usize = 20;
    let order = Order::new(SUB_KEYS, 1);
    let seen = order.clone();
    let engine = Engine::<&str, (usize, u64)>::builder()
        .workers(Workers::fixed(3))
        .batch_size(7)
        .task_handler(move |_, task| {
            assert_eq!(*task.key(), "hot");
            let (sub_key, number) = **task;
            seen.task(sub_key, 0, number, std::thread::yield_now);
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("tasks_of_one_sub_key", &engine);
    for parts in [1, 3, 16] {
        let split = engine.split("hot", parts).unwrap();
        let before = order.seen.load(SeqCst);
        let each = scale(100, 2_000);
        // A baton for each sub-key: whoever has it submits the next number, so the order is across threads.
        let batons: Vec<Mutex<u64>> =
            (0..SUB_KEYS).map(|_| Mutex::new(before / SUB_KEYS as u64)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (split, batons) = (&split, &batons);
                scope.spawn(move || {
                    let mut rng = Rng(thread);
                    for _ in 0..each * SUB_KEYS as u64 {
                        let sub_key = rng.below(SUB_KEYS as u64) as usize;
                        let mut number = lock(&batons[sub_key]);
                        if *number < before / SUB_KEYS as u64 + each {
                            *number += 1;
                            split.submit_to(sub_key, (sub_key, *number)).unwrap();
                        }
                    }
                });
            }
        });
        for (sub_key, number) in batons.iter().enumerate() {
            let mut number = lock(number);
            while *number < before / SUB_KEYS as u64 + each {
                *number += 1;
                split.submit_to(sub_key, (sub_key, *number)).unwrap();
            }
        }
        let figures = split.join(LONG).unwrap();
        assert_eq!(
            (figures.done, figures.ended()),
            (each * SUB_KEYS as u64, each * SUB_KEYS as u64)
        );
        assert_eq!(order.seen.load(SeqCst) - before, figures.done, "joined means ended");
    }
    let report = engine.close(LONG);
    assert!(report.is_complete());
    order.assert_clean(report.done);
}

#[test]
fn independent_tasks_of_one_key_run_at_the_same_time() {
    // Each task waits for one other of the same key: in one group the first would wait for ever.
    let pair = Arc::new(Barrier::new(2));
    let meets = pair.clone();
    let engine = Engine::<u64, ()>::builder()
        .workers(Workers::fixed(2))
        .task_handler(move |_, _| {
            meets.wait();
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("independent_tasks", &engine);
    let split = engine.split(7, 2).unwrap();
    assert_eq!(split.parts(), 2);
    for _ in 0..20 {
        split.submit_any(()).unwrap();
        split.try_submit_any(()).unwrap();
        assert!(split.join(LONG).is_ok());
    }
    assert_eq!(engine.close(LONG).done, 40);
}

#[test]
fn figures_say_how_the_tasks_of_the_split_ended_and_count_no_others() {
    quiet();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .batch_size(4)
        .retry(Retry::fixed(Duration::ZERO).attempts(3))
        .handler(|_, batch| {
            let attempts: Vec<u32> = (0..batch.len()).map(|i| batch.attempt(i)).collect();
            let answer = |(task, attempt): (&u64, u32)| match task % 5 {
                0 => Outcome::Fail(Failure::new("no")),
                1 if attempt < 3 => Outcome::Retry(Failure::new("again")),
                _ => Outcome::Done,
            };
            batch.iter().zip(attempts).map(answer).collect::<Vec<_>>()
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("figures", &engine);
    let (one, other) = (engine.split(1, 3).unwrap(), engine.split(1, 2).unwrap());
    for n in 0..1_000 {
        one.submit_to(n % 11, n).unwrap();
        engine.submit(1, n).unwrap();
        if n % 2 == 0 {
            other.submit_any(n).unwrap();
        }
    }
    let figures = one.join(LONG).unwrap();
    assert_eq!((figures.done, figures.failed), (800, 200));
    assert_eq!(other.join(LONG).unwrap().ended(), 500);
    assert_eq!(one.figures(), figures);
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (2_000, 500));
}

#[test]
fn a_split_begins_when_all_that_was_there_has_ended() {
    let log: Arc<Mutex<Vec<(bool, u64)>>> = Arc::default();
    let seen = log.clone();
    let engine = Engine::<u64, (bool, u64)>::builder()
        .workers(Workers::fixed(3))
        .batch_size(2)
        .retry(Retry::fixed(MS).attempts(2))
        .task_handler(move |_, task| {
            let (split, number) = **task;
            if !split && number.is_multiple_of(7) && task.attempt() == 1 {
                // In back-off it still has not ended.
                return Err("not yet");
            }
            std::thread::yield_now();
            lock(&seen).push((split, number));
            Ok(())
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("a_split_begins", &engine);
    for round in 0..scale(20, 100) {
        let before = round % 30;
        for n in 0..before {
            engine.submit(1, (false, n)).unwrap();
        }
        let split = engine.split_timeout(1, 4, LONG).unwrap();
        (0..20).for_each(|n| split.submit_any((true, n)).unwrap());
        assert!(split.join(LONG).is_ok());
        drop(split);
        let mut log = lock(&log);
        assert_eq!(log.len() as u64, before + 20);
        let first = log.iter().position(|(split, _)| *split).unwrap() as u64;
        assert_eq!(first, before, "round {round}: {log:?}");
        log.clear();
    }
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn a_group_that_is_never_idle_is_not_split_and_the_error_says_why() {
    quiet();
    let hold = Arc::new(Mutex::new(()));
    let held = lock(&hold);
    let holds = hold.clone();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .on_exhausted(OnExhausted::halt_group())
        .task_handler(move |_, task| match **task {
            0 => {
                drop(lock(&holds));
                Ok(())
            }
            _ => Err("halts the group"),
        })
        .build()
        .unwrap();
    engine.submit(1, 0).unwrap();
    assert_eq!(engine.split_timeout(1, 4, 5 * MS).unwrap_err(), SplitError::TimedOut(5 * MS));
    assert_eq!(engine.split(1, 0).unwrap_err(), SplitError::Parts(0));
    assert_eq!(
        engine.split(1, 1_025).unwrap_err().to_string(),
        "a split has between 1 and 1024 parts, not 1025"
    );
    engine.submit(2, 1).unwrap();
    engine.submit(2, 1).unwrap();
    // It halts while, or before, we wait for it.
    assert_eq!(engine.split(2, 4).unwrap_err(), SplitError::Halted);
    assert!(engine.split(3, 4).is_ok(), "a key that has no group yet");
    drop(held);
    assert_eq!(engine.close(LONG).left_tasks(), 1);
}

#[test]
fn nobody_finds_a_part_by_its_key_and_each_has_its_own_state() {
    let opened = Arc::new(AtomicU64::new(0));
    let opens = opened.clone();
    let runs: Arc<Mutex<HashMap<u64, Vec<u64>>>> = Arc::default();
    let log = runs.clone();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .state(move |_| opens.fetch_add(1, SeqCst))
        .task_handler(move |state, task| lock(&log).entry(*state).or_default().push(**task))
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("nobody_finds_a_part", &engine);
    let split = engine.split(5, 3).unwrap();
    for n in 0..30 {
        engine.submit(5, 1_000 + n).unwrap();
        split.submit_to(n % 3, n).unwrap();
        engine.group(5).submit(2_000 + n).unwrap();
    }
    split.join(LONG).unwrap();
    assert!(engine.wait_drain(LONG));
    let runs = lock(&runs);
    // The group of the key has run all tasks of the key and none of the split.
    let of_key = runs.values().find(|tasks| tasks[0] >= 1_000).unwrap();
    assert!(of_key.len() == 60 && of_key.iter().all(|task| *task >= 1_000));
    assert!(runs.len() as u64 == opened.load(SeqCst) && runs.len() <= 4);
}

#[test]
fn the_groups_of_a_split_go_with_it_once_its_tasks_have_run() {
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .task_handler(|_, _| std::thread::yield_now())
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("the_groups_of_a_split_go", &engine);
    let done = AtomicU64::new(0);
    for round in 0..scale(50, 500) {
        let split = engine.split(round % 3, 8).unwrap();
        let tasks = round % 40;
        (0..tasks).for_each(|n| split.submit_to(n, n).unwrap());
        done.fetch_add(tasks, SeqCst);
        // Dropped before, while or after they run: all run.
        if round % 2 == 0 {
            split.join(LONG).unwrap();
        }
    }
    assert!(engine.wait_drain(LONG));
    assert_eq!(engine.stats().done, done.load(SeqCst));
    // A shard gives its parts back when it is looked at.
    while engine.stats().groups > 0 {
        drop(engine.split(9, 64).unwrap());
        std::thread::yield_now();
    }
    assert!(engine.close(LONG).is_complete());
}

#[test]
fn close_gives_back_what_is_left_with_the_key_and_in_order_per_part() {
    let hold = Arc::new(Mutex::new(()));
    let held = lock(&hold);
    let (holds, started) = (hold.clone(), Arc::new(AtomicBool::new(false)));
    let starts = started.clone();
    let engine = Engine::<&str, (u64, u64)>::builder()
        .workers(Workers::fixed(1))
        .task_handler(move |_, _| {
            starts.store(true, SeqCst);
            drop(lock(&holds));
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("close_gives_back", &engine);
    let split = engine.split("hot", 4).unwrap();
    engine.submit("other", (99, 0)).unwrap();
    while !started.load(SeqCst) {
        std::thread::yield_now();
    }
    for n in 0..40 {
        split.submit_to(n % 8, (n % 8, n)).unwrap();
    }
    let error = split.join(MS).unwrap_err();
    assert_eq!((error.open, error.own_worker), (40, false));
    engine.halt();
    drop(held);
    let report = engine.close(LONG);
    assert_eq!(report.left_tasks(), 40);
    let mut last = HashMap::new();
    for left in &report.left {
        assert_eq!(left.key, "hot");
        for (sub_key, number) in &left.tasks {
            assert!(last.insert(*sub_key, *number).is_none_or(|before| before < *number));
        }
    }
    let figures = split.join(LONG).unwrap();
    assert_eq!((figures.given_back, figures.done), (40, 0));
    assert_eq!(split.submit_any((0, 0)).unwrap_err().reason, SubmitReason::Closed);
    assert_eq!(
        split.join(Duration::ZERO).unwrap().ended(),
        40,
        "a task that was refused does not count"
    );
}

#[test]
fn a_handler_may_use_a_split_but_not_wait_for_it() {
    type Hot = Mutex<Option<bgrp::Split<u64, u64>>>;
    static HOT: OnceLock<Hot> = OnceLock::new();
    let (report, heard) = channel();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .task_handler(move |_, task| {
            if **task == 0 {
                let hot = lock(HOT.get().unwrap());
                let split = hot.as_ref().unwrap();
                split.submit_any(1).unwrap();
                report.send(split.join(LONG)).unwrap();
            }
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    let _watch = watch("a_handler_may_use_a_split", &engine);
    HOT.set(Mutex::new(Some(engine.split(7, 2).unwrap()))).ok().unwrap();
    engine.submit(1, 0).unwrap();
    // The task may have ended before the handler asked.
    if let Err(error) = heard.recv().unwrap() {
        assert!(error.own_worker && error.open == 1, "{error}");
    }
    let split = lock(HOT.get().unwrap()).take().unwrap();
    assert_eq!(split.join(LONG).unwrap().done, 1);
    drop(split);
    assert!(engine.close(LONG).is_complete());
}
