//! As fast as it goes: five of a hundred keys fail for ever, with retries and back-off (parallel-consumer fork #487).

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};

use bgrp::{Engine, Failure, Outcome, Retry, Workers};
use serde_json::json;

use super::{Args, LONG, median};
use crate::report::{Report, round};

/// One key of so many fails.
const ONE_OF: u64 = 20;
/// Tasks that a group may hold: those that fail are soon full.
const GROUP_CAPACITY: usize = 10_000;

/// The row.
pub(super) fn add(args: &Args, report: &mut Report) -> Result<(), Box<dyn Error>> {
    const NAME: &str = "5 % of the keys fail for ever, full speed";
    if !NAME.contains(&args.only) {
        return Ok(());
    }
    let (mut without, mut with, mut ratios, mut failures) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..args.rounds.max(1) {
        let healthy = one(args, false)?.0;
        let (beside, failed) = one(args, true)?;
        without.push(healthy);
        with.push(beside);
        ratios.push(beside / healthy);
        failures = failed;
    }
    report.add(json!({
        "scenario": NAME,
        "healthy_tasks": args.tasks,
        "healthy_per_second": round(median(with), 0),
        "without_failures_per_second": round(median(without), 0),
        "share": round(median(ratios), 3),
        "failed_attempts": failures,
    }));
    Ok(())
}

/// Tasks per second of the healthy keys, and failed attempts. Without failures the same tasks come, those of the keys that fail in
/// the other run included, so both runs have as many healthy tasks and as many submits.
fn one(args: &Args, fails: bool) -> Result<(f64, u64), Box<dyn Error>> {
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .group_capacity(GROUP_CAPACITY)
        .retry(
            Retry::exponential(Duration::from_millis(1), Duration::from_millis(100))
                .with_jitter()
                .attempts(u32::MAX),
        )
        .state(|_| 0u64)
        .task_handler(move |next: &mut u64, task| {
            assert_eq!(*next, **task, "order violated");
            if fails && task.key().is_multiple_of(ONE_OF) {
                return Outcome::Retry(Failure::new("for ever"));
            }
            *next += 1;
            Outcome::Done
        })
        .build()?;
    let mut numbers = vec![0u64; args.keys as usize];
    let (mut healthy, mut expected) = (0, 0);
    let begin = Instant::now();
    for i in 0.. {
        if healthy == args.tasks {
            break;
        }
        let key = i % args.keys;
        let number = &mut numbers[key as usize];
        if key.is_multiple_of(ONE_OF) {
            // A group that is full for ever would hold up who waits for it.
            if fails {
                *number += u64::from(engine.try_submit(key, *number).is_ok());
            } else {
                engine.submit(key, *number)?;
                (*number, expected) = (*number + 1, expected + 1);
            }
        } else {
            engine.submit(key, *number)?;
            (*number, healthy) = (*number + 1, healthy + 1);
        }
    }
    let expected = expected + healthy;
    while engine.stats().done < expected {
        if begin.elapsed() > LONG {
            return Err("healthy tasks do not end".into());
        }
        thread::sleep(Duration::from_micros(200));
    }
    let took = begin.elapsed().as_secs_f64();
    let report = engine.close(Duration::ZERO);
    let held: u64 = (0..args.keys).step_by(ONE_OF as usize).map(|key| numbers[key as usize]).sum();
    let left = if fails { held } else { 0 };
    if report.done != expected || report.failed > 0 || report.left_tasks() as u64 != left {
        return Err(format!("order violated, or tasks lost: {} done", report.done).into());
    }
    Ok((healthy as f64 / took, report.retries))
}
