//! Ten million tasks over a million groups, with the order checked inside each task.
//!
//! `cargo run --release -p bgrp-engine --example million_groups [tasks] [groups]`

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bgrp::{Engine, Workers};

/// State of one group: the number that the next task must carry, and a sum that depends on the order.
#[derive(Default)]
struct Check {
    next: u64,
    sum: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let tasks = arguments.next().transpose()?.unwrap_or(10_000_000);
    let groups = arguments.next().transpose()?.unwrap_or(1_000_000);

    let violations = Arc::new(AtomicU64::new(0));
    let seen = violations.clone();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::per_core())
        .idle_groups(usize::try_from(groups)? * 2)
        .state(|_| Check::default())
        .task_handler(move |check, task| {
            if check.next != **task {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            check.next = **task + 1;
            check.sum = check.sum.rotate_left(5) ^ **task;
        })
        .build()?;

    let before = resident_bytes();
    let start = Instant::now();
    // Every group gets task 0, then every group task 1, and so on, in an order that jumps over the memory.
    let step = (7_368_787 % groups..).find(|step| gcd(*step, groups) == 1).unwrap_or(1);
    let mut group = 0;
    for n in 0..tasks {
        engine.submit(group, n / groups)?;
        group += step;
        if group >= groups {
            group -= groups;
        }
        if (n + 1) % groups == 0 {
            group = 0;
        }
    }
    let submitted = start.elapsed();
    assert!(engine.wait_drain(Duration::from_secs(600)), "not drained within ten minutes");
    let took = start.elapsed();
    let stats = engine.stats();
    let after = resident_bytes();
    let report = engine.close(Duration::from_secs(60));

    println!("tasks {tasks}, groups {}, done {}", stats.groups, report.done);
    println!("order violations {}", violations.load(Ordering::Relaxed));
    println!(
        "{:.2} M tasks/s ({:.3} s; submitted after {:.3} s)",
        tasks as f64 / took.as_secs_f64() / 1e6,
        took.as_secs_f64(),
        submitted.as_secs_f64()
    );
    println!(
        "{:.1} bytes per idle group (control block, state of {} bytes and map)",
        stats.group_bytes as f64 / stats.groups as f64,
        size_of::<Check>()
    );
    if let (Some(before), Some(after)) = (before, after) {
        println!("resident memory grew by {:.1} MB", after.saturating_sub(before) as f64 / 1e6);
    }
    if violations.load(Ordering::Relaxed) > 0 || report.done != tasks {
        return Err("the oracle disagrees".into());
    }
    Ok(())
}

/// A step that has no factor in common with the number of groups visits each group once a round.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Resident memory of this process, where the system tells.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split_whitespace().nth(1)?.parse::<u64>().ok().map(|pages| pages * 4_096)
}
