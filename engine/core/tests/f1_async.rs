//! Row F1: `submit_async` waits for room without a thread, loses no wake, and is given up by dropping it.

mod common;

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use bgrp::{Engine, SubmitReason, Workers};
use common::{Count, LONG, Latch, Log, Tally, scale, until, waiting::Bell, watch};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls on this thread until it is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// An engine whose handler waits at a latch, and its group 1 full. How many tasks that took.
fn full_group() -> (Arc<Engine<u32, u32>>, Arc<Latch>, u32) {
    let (latch, running) = (Latch::new(), Count::new());
    let (gate, begun) = (latch.clone(), running.clone());
    let engine = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .capacity(64)
        .group_capacity(4)
        .task_handler(move |_, task| {
            if *task.key() == 1 {
                begun.add(1);
                gate.wait();
            }
        })
        .build()
        .expect("valid settings");
    let mut n = 0;
    loop {
        match engine.try_submit(1, n).map_err(|error| error.reason) {
            Ok(()) => n += 1,
            Err(SubmitReason::GroupFull) => {
                running.wait_for(1);
                return (Arc::new(engine), latch, n);
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[test]
fn with_room_it_is_ready_at_once_and_without_it_waits_and_is_woken() {
    let (engine, latch, n) = full_group();
    let _watch = watch("async", &engine);
    assert_eq!(block_on(engine.submit_async(2, 7)), Ok(()));
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut context = Context::from_waker(&waker);
    let mut by_key = pin!(engine.submit_async(1, 100));
    let handle = engine.group(1);
    let mut by_handle = pin!(handle.submit_async(101));
    assert!(by_key.as_mut().poll(&mut context).is_pending());
    assert!(by_handle.as_mut().poll(&mut context).is_pending());
    for n in 0..200 {
        engine.submit(3 + n % 7, n).expect("others have room");
    }
    latch.open();
    until(|| bell.0.load(SeqCst) >= 2);
    assert_eq!(block_on(by_key), Ok(()));
    assert_eq!(block_on(by_handle), Ok(()));
    assert_eq!(engine.close(LONG).done, u64::from(n) + 1 + 200 + 2);
}

#[test]
fn a_future_that_is_dropped_has_submitted_nothing_and_one_that_is_given_up_gives_the_task_back() {
    let tally = Tally::new(3);
    let latch = Latch::new();
    let (gate, running) = (latch.clone(), Count::new());
    let begun = running.clone();
    let engine = Arc::new(
        Engine::<u32, Option<common::Counted>>::builder()
            .workers(Workers::fixed(2))
            .capacity(64)
            .group_capacity(1)
            .task_handler(move |_, task| {
                begun.add(1);
                gate.wait();
                task.iter().for_each(common::Counted::run);
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("dropped", &engine);
    while engine.try_submit(1, None).map_err(|error| error.reason) != Err(SubmitReason::GroupFull) {
        std::thread::yield_now();
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut dropped = Box::pin(engine.submit_async(1, Some(tally.task(0))));
    let mut given_up = engine.submit_async(1, Some(tally.task(1)));
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    assert!(pin!(&mut given_up).poll(&mut context).is_pending());
    drop(dropped);
    assert_eq!(tally.drops[0].load(SeqCst), 1);
    let (key, task) = given_up.into_inner().expect("not submitted");
    assert_eq!((key, task.as_ref().map(|task| task.id)), (1, Some(1)));
    // One that was never polled.
    drop(engine.submit_async(1, Some(tally.task(2))));
    latch.open();
    assert!(engine.close(LONG).is_complete());
    drop(task);
    assert_eq!(tally.total_runs(), 0);
    tally.all_dropped_once();
}

#[test]
fn close_wakes_every_future_and_gives_the_tasks_back() {
    let (engine, latch, n) = full_group();
    let _watch = watch("closed", &engine);
    let waiting = Count::new();
    let threads: Vec<_> = (0..20u32)
        .map(|i| {
            let (engine, waiting) = (engine.clone(), waiting.clone());
            std::thread::spawn(move || {
                let mut future = engine.submit_async(1, 1_000 + i);
                let _ = pin!(&mut future).poll(&mut Context::from_waker(Waker::noop()));
                waiting.add(1);
                block_on(future).map_err(|error| (error.key, error.task, error.reason))
            })
        })
        .collect();
    waiting.wait_for(20);
    let closer = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.close(LONG))
    };
    for (i, thread) in (0..).zip(threads) {
        let sent = thread.join().expect("no panic");
        assert_eq!(sent, Err((1, 1_000 + i, SubmitReason::Closed)));
    }
    latch.open();
    assert_eq!(closer.join().expect("no panic").done, u64::from(n));
    assert_eq!(
        block_on(engine.submit_async(5, 5)).map_err(|error| error.reason),
        Err(SubmitReason::Closed)
    );
}

#[test]
fn closing_a_group_wakes_the_futures_that_wait_for_it() {
    let (engine, latch, _) = full_group();
    let _watch = watch("closed group", &engine);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut future = pin!(engine.submit_async(1, 7));
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(engine.close_group(1, common::MS).running);
    assert_eq!(bell.0.load(SeqCst), 1);
    assert_eq!(block_on(future).map_err(|error| error.reason), Err(SubmitReason::GroupClosed));
    latch.open();
}

#[test]
fn no_wake_is_lost_when_many_wait_for_little_room() {
    let ran = Log::new();
    let log = ran.clone();
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .capacity(64)
            .group_capacity(2)
            .task_handler(move |_, task| log.push((*task.key(), **task)))
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("little room", &engine);
    let each = scale(2_000, 20_000) as u32;
    let threads: Vec<_> = (0..4u32)
        .map(|key| {
            let engine = engine.clone();
            std::thread::spawn(move || {
                let handle = engine.group(key);
                for n in 0..each {
                    if n % 2 == 0 {
                        block_on(engine.submit_async(key, n)).expect("open");
                    } else {
                        block_on(handle.submit_async(n)).expect("open");
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(engine.close(LONG).done, u64::from(4 * each));
    for (key, tasks) in common::by_key(ran.take()) {
        assert!(tasks.into_iter().eq(0..each), "group {key}: in order, each once");
    }
}
