//! A small run through every part of the engine, checked: for tools that make programs slow (`.ci/sanitize`).
//!
//! ```text
//! cargo run -p bgrp-engine --example small_run [tasks]
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bgrp::{Engine, Outcome, Retry, Workers};

const KEYS: u64 = 37;
const LONG: Duration = Duration::from_secs(300);

/// Tasks of each source are numbered per key; the state of a group knows which is next.
type Item = (usize, u64, Box<u64>);

fn run(tasks: u64, linger: Duration) {
    let failed_once = Arc::new(AtomicU64::new(0));
    let retries = failed_once.clone();
    let engine = Engine::<String, Item>::builder()
        .workers(Workers::fixed(3))
        .capacity(1 << 9)
        .group_capacity(20)
        .idle_groups(10)
        .batch_size(4)
        .flush_interval(linger)
        .retry(Retry::fixed(Duration::from_millis(1)).attempts(2))
        .state(|_: &String| [0u64; 4])
        .task_handler(move |last: &mut [u64; 4], task| {
            let (source, number, boxed) = (&task.0, task.1, &task.2);
            assert_eq!(number, **boxed);
            if number % 97 == 3 && task.attempt() == 1 {
                retries.fetch_add(1, Ordering::Relaxed);
                return Outcome::from(Err("once more"));
            }
            // A reclaimed group begins anew: then only the direction can be told.
            assert!(last[*source] < number, "source {source}: {number} after {}", last[*source]);
            last[*source] = number;
            Outcome::Done
        })
        .build()
        .expect("valid settings");
    thread::scope(|scope| {
        for source in 0..4usize {
            let engine = &engine;
            scope.spawn(move || {
                let mut lane = engine.producer();
                for n in 1..=tasks {
                    let key = (n % KEYS).to_string();
                    let item = (source, n, Box::new(n));
                    match source {
                        0 => engine.submit(key, item).expect("open"),
                        1 => engine.group(key).submit(item).expect("open"),
                        2 => engine.submit_many(&mut vec![(key, item)]).expect("open"),
                        _ => lane.submit(key, item).expect("open"),
                    }
                }
            });
        }
    });
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed, report.left.len()), (4 * tasks, 0, 0));
    assert_eq!(report.retries, failed_once.load(Ordering::Relaxed));
}

/// Tasks that are given back, by a halt in the middle.
fn halted(tasks: u64) {
    let engine = Engine::<u64, Box<u64>>::builder()
        .workers(Workers::fixed(2))
        .task_handler(|_, task| assert!(***task > 0))
        .build()
        .expect("valid settings");
    let mut accepted = 0;
    for n in 1..=tasks {
        if n == tasks / 2 {
            engine.halt();
        }
        accepted += u64::from(engine.submit(n % KEYS, Box::new(n)).is_ok());
    }
    let report = engine.close(LONG);
    assert_eq!(report.done + report.left_tasks() as u64, accepted);
}

fn main() {
    let tasks = std::env::args().nth(1).map_or(1_000, |text| text.parse().expect("a number"));
    run(tasks, Duration::ZERO);
    run(tasks / 4, Duration::from_millis(2));
    halted(tasks);
    println!("{tasks} tasks by every way in: each once, in order");
}
