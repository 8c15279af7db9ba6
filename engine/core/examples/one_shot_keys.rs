//! Ten million keys that are never seen again: what stays in memory.
//!
//! ```text
//! cargo run --release -p bgrp-engine --example one_shot_keys [keys] [idle_groups]
//! ```
//!
//! Prints groups, their bytes and the memory of the process ten times on the way, and fails when memory grows after
//! the first tenth (google-cloud-go #4288, parallel-consumer #859).

use std::time::Duration;

use bgrp::{Engine, Workers};

/// Resident memory of this process, in MB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kb.unwrap_or(f64::NAN) / 1024.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let keys: u64 = args.next().map_or(Ok(10_000_000), |text| text.parse())?;
    let idle: usize = args.next().map_or(Ok(10_000), |text| text.parse())?;
    let engine = Engine::<String, u64>::builder()
        .workers(Workers::fixed(2))
        .idle_groups(idle)
        .state(|key: &String| key.len())
        .task_handler(|length, task| assert_eq!(*length, task.key().len()))
        .build()?;
    println!("{:>12} {:>10} {:>12} {:>10}", "keys", "groups", "group MB", "RSS MB");
    let mut figures = Vec::new();
    for tenth in 0..10 {
        for n in keys * tenth / 10..keys * (tenth + 1) / 10 {
            engine.submit(format!("order {n}"), n)?;
        }
        engine.wait_drain(Duration::from_secs(600));
        let stats = engine.stats();
        let megabytes = stats.group_bytes as f64 / f64::from(1 << 20);
        println!("{:>12} {:>10} {megabytes:>12.2} {:>10.1}", stats.done, stats.groups, resident());
        figures.push((stats.group_bytes, resident()));
    }
    let report = engine.close(Duration::from_secs(600));
    assert_eq!((report.done, report.left.len()), (keys, 0));
    let (first, last) = (figures[0], figures[9]);
    assert!(last.0 <= first.0 + first.0 / 4, "groups' memory grows: {figures:?}");
    // One MB either way is what the allocator keeps or returns.
    let grows = last.1 > first.1 * 1.25 + 1.0;
    assert!(!grows, "memory grows: {figures:?}");
    println!("flat");
    Ok(())
}
