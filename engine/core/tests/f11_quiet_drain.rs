//! Row F11, recipe R34 at full size: a drain with one task running, ten queued, three in back-off and half a batch lingering ends
//! or lists them all, costs no processor time while it waits, and nothing starts after it has returned.
#![cfg(target_os = "linux")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Engine, Retry, Workers};
use common::{Count, LONG, Latch, MS, cpu_time, in_own_process, watch};

#[test]
fn a_drain_waits_without_processor_time_and_nothing_starts_behind_it() {
    let name = "a_drain_waits_without_processor_time_and_nothing_starts_behind_it";
    if in_own_process(name, |_| ()) {
        return;
    }
    let (latch, running, failed) = (Latch::new(), Count::new(), Count::new());
    let (gate, begun, tried) = (latch.clone(), running.clone(), failed.clone());
    let returned = Arc::new(AtomicBool::new(false));
    let late = Arc::new(AtomicU64::new(0));
    let (over, lates) = (returned.clone(), late.clone());
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .batch_size(4)
            .flush_interval(Duration::from_secs(3_000))
            .retry(Retry::fixed(400 * MS).attempts(2))
            .task_handler(move |_, task| {
                lates.fetch_add(u64::from(over.load(SeqCst)), SeqCst);
                match *task.key() {
                    0 => {
                        begun.add(1);
                        gate.wait();
                    }
                    1..=3 if **task == 0 && task.attempt() == 1 => {
                        tried.add(1);
                        return Err("back-off");
                    }
                    _ => {}
                }
                Ok(())
            })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("R34", &engine);
    // One running, ten behind it.
    let mut tasks: Vec<(u32, u32)> = (0..11).map(|n| (0, n)).collect();
    // Three groups whose first task goes into back-off, with three behind it.
    tasks.extend((0..12).map(|n| (1 + n % 3, n / 3)));
    // Half a batch.
    tasks.extend([(9, 0), (9, 1)]);
    engine.submit_many(&mut tasks).expect("open");
    running.wait_for(1);
    failed.wait_for(3);
    let before = cpu_time();
    let first = engine.close(Duration::from_secs(2));
    let spent = cpu_time() - before;
    returned.store(true, SeqCst);
    // In ticks of 10 ms: two seconds of waiting cost a handful of wakes.
    assert!(spent <= 50 * MS, "{spent:?} of processor time in two seconds of waiting");
    assert_eq!((first.done, first.running, first.left_tasks()), (14, 1, 0), "{first:?}");
    latch.open();
    let second = engine.close(LONG);
    assert_eq!((second.done, second.running), (15, 0));
    assert_eq!(second.left.len(), 1);
    assert!(second.left[0].key == 0 && second.left[0].tasks.iter().copied().eq(1..11), "in order");
    assert_eq!(late.load(SeqCst), 0, "a handler started after the return");
    assert_eq!(second.done + second.left_tasks() as u64, 25);
}
