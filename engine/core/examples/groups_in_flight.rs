//! How much a group in flight costs: two workers, and as many groups with a future that waits as asked for.
//!
//! ```text
//! cargo run --release -p bgrp-engine --features tokio --example groups_in_flight -- [groups] [tasks per group]
//! ```
//!
//! Every future holds its lease until all groups are in flight, then all end. Prints times, and the resident memory with every group
//! in flight, beside that of the idle engine.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bgrp::{Engine, Lease, Workers};
use tokio::sync::Semaphore;

/// Resident memory in MiB; 0 where the kernel does not say.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    pages * 4_096.0 / f64::from(1 << 20)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let groups = numbers.next().transpose()?.unwrap_or(100_000);
    let each = numbers.next().transpose()?.unwrap_or(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
    let (entry, count) = (gate.clone(), begun.clone());
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .batch_size(1)
        .capacity((groups * each) as usize * 2 + (1 << 16))
        .state(|_| 0)
        .tokio_handler(runtime.handle(), move |mut lease: Lease<u64, u64, u64>| {
            let (gate, begun) = (entry.clone(), count.clone());
            async move {
                begun.fetch_add(1, SeqCst);
                // Closed when all may go on.
                let _ = gate.acquire().await;
                let (next, batch) = lease.split();
                // The order of the group, watched over its state.
                assert!(batch.iter().all(|n| *n == *next), "out of order");
                *next += 1;
            }
        })
        .build()?;
    let idle = resident();
    let start = Instant::now();
    for n in 0..each {
        for group in 0..groups {
            engine.submit(group, n)?;
        }
    }
    while begun.load(SeqCst) < groups {
        std::thread::sleep(Duration::from_millis(1));
    }
    let up = start.elapsed();
    let full = resident();
    let leased = engine.stats().leased;
    assert_eq!(leased, groups, "every group is in flight, once");
    let start = Instant::now();
    gate.close();
    let report = engine.close(Duration::from_secs(60));
    let down = start.elapsed();
    assert_eq!((report.done, report.is_complete()), (groups * each, true));
    println!("{leased} groups in flight, {each} tasks each, 2 workers, 2 runtime threads");
    println!("all in flight after     {:>8.1} ms", up.as_secs_f64() * 1e3);
    println!("all {} tasks done   {:>8.1} ms later", report.done, down.as_secs_f64() * 1e3);
    println!(
        "resident                {:>8.1} MiB, idle {idle:.1} MiB: {:.0} bytes a group in flight",
        full,
        (full - idle) * f64::from(1 << 20) / groups as f64
    );
    Ok(())
}
