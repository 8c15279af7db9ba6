//! Row P4, by force: workers are killed from outside at any moment.

mod common;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use bgrp::Retry;
use bgrp_process::{Program, Runner, Server, Task, Value};

const LONG: Duration = Duration::from_secs(120);

#[ctor::ctor(unsafe)]
fn worker() {
    Server::new()
        .task("nap", |_, ms: u64| {
            std::thread::sleep(Duration::from_millis(ms));
            Ok::<_, String>(ms)
        })
        .task("length", |_, text: String| Ok::<_, String>(text.len()))
        .run_if_worker();
}

/// Workers that are killed at most; then the rest is done in peace.
const MOST: u64 = 1_000;

/// Kills a worker of the run now and then, until `stop`; says how many.
fn killer(runner: &Runner, stop: &AtomicBool, mut pause: impl FnMut(u64) -> Duration) -> u64 {
    let mark = format!("BGRP_TOKEN={}-", runner.run_id());
    let (mut kills, mut random) = (0u64, 88_172_645_463_325_252u64);
    while !stop.load(SeqCst) && kills < MOST {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(pause(random));
        let running = runner.running();
        let busy: Vec<_> = running.iter().filter(|worker| worker.has > 0).collect();
        let Some(pid) = busy.get(random as usize % busy.len().max(1)).and_then(|worker| worker.pid)
        else {
            continue;
        };
        // It may have ended since, and its number may be another's by now.
        if common::carries(pid, &mark) {
            let pid = rustix::process::Pid::from_raw(pid as i32).expect("not 0");
            kills += u64::from(
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok(),
            );
        }
    }
    kills
}

/// Runs these tasks while workers are killed; checks that each has one result and that keys keep their order. Says how many were killed.
fn run(tasks: u32, keys: u32, make: impl Fn(u32) -> Task + Sync, pause: Duration) -> u64 {
    let retry = Retry::fixed(Duration::ZERO).attempts(1_000);
    let runner = Runner::builder(Program::this())
        .workers(3)
        .retry(retry)
        .crash_limit(1_000)
        .capacity(256)
        .start()
        .expect("a runner");
    let mark = format!("BGRP_TOKEN={}-", runner.run_id());
    let mut results = runner.results();
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let (kills, got) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..tasks {
                if let Err(error) = runner.submit(make(n)) {
                    panic!("{error}");
                }
            }
        });
        let killer = scope.spawn(|| {
            killer(&runner, &stop, |random| pause.mul_f64((random % 200) as f64 / 100.0))
        });
        let mut got = Vec::new();
        while got.len() < tasks as usize {
            let left = LONG.saturating_sub(begin.elapsed());
            let Some(result) = results.next_timeout(left) else { break };
            got.push(result);
        }
        stop.store(true, SeqCst);
        (killer.join().expect("no panic"), got)
    });
    assert_eq!(got.len(), tasks as usize, "{:?} {:?}", runner.progress(), runner.running());
    let mut last = HashMap::new();
    for result in got {
        let n: i64 = result.id.parse().expect("a number");
        assert!(result.ended.is_ok(), "{result:?}");
        let before = last.insert(result.key.clone(), n).unwrap_or(-1);
        assert!(before < n, "{:?}: {n} after {before}", result.key);
    }
    assert_eq!(last.len(), keys as usize);
    let report = runner.close(LONG);
    assert_eq!((report.ok, report.failed, report.left), (u64::from(tasks), 0, 0));
    assert_eq!(results.next(), None, "one result a task");
    assert_eq!(common::with_text(&mark), [0i32; 0], "processes of the run");
    kills
}

#[test]
fn a_worker_killed_every_200_ms_for_ten_seconds_over_5_000_tasks() {
    let make = |n: u32| {
        let key = (n % 50).to_string();
        Task::new(n.to_string(), key, Value::json(&5).expect("JSON")).named("nap")
    };
    let kills = run(5_000, 50, make, Duration::from_millis(200));
    assert!(kills >= 20, "{kills}");
}

/// Recipe P2 (pebble #163): many kills while a megabyte a task flows.
#[test]
fn pebble_163_workers_killed_while_large_tasks_flow() {
    let text = "x".repeat(1 << 20);
    let make = |n: u32| {
        let key = (n % 20).to_string();
        Task::new(n.to_string(), key, Value::json(&text).expect("JSON")).named("length")
    };
    let kills = run(1_500, 20, make, Duration::from_millis(5));
    assert_eq!(kills, MOST);
}
