//! `latency`: from the *intended* send time to the start of the task, open loop: a late producer or a full engine counts
//! as delay instead of slowing the load down.
//!
//! The first load is run three times: with workers that park as soon as there is nothing to do (`spin_us` 0), with workers
//! that spin between any two tasks (1,000), and with the default.
//!
//! `producer_cpu_s` is the producer thread's processor time: mostly its wait for the next send time, and its calls of
//! `submit`. `cpu_s` is that of all other threads, so of the engine.

use std::{
    error::Error,
    sync::OnceLock,
    time::{Duration, Instant},
};

use bgrp::{Engine, Workers};
use serde_json::json;

use super::workloads;
use crate::{
    histogram::{self, Percentiles},
    measure::Prepared,
    process,
    report::{Report, round},
    system::bgrp::{Bgrp, Way},
};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Keys
    #[arg(long, default_value_t = 1_000)]
    pub keys: u64,
    /// Workers
    #[arg(long, default_value_t = 2)]
    pub workers: usize,
    /// Workers that are not pinned to a CPU
    #[arg(long)]
    pub unpinned: bool,
    /// Seconds of each load
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Loads in tasks per second instead of 100,000 and 10 % and 50 % of the measured capacity
    #[arg(long, value_delimiter = ',')]
    pub rate: Vec<f64>,
}

/// The origin of all times of this process.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// Nanoseconds since the origin.
pub fn now() -> u64 {
    origin().elapsed().as_nanos() as u64
}

/// Calls `send(i, intended)` for `n` tasks at `rate` per second, each as soon as its time has come.
pub fn open_loop(n: u64, rate: f64, mut send: impl FnMut(u64, u64)) {
    let start = now() + 1_000_000;
    for i in 0..n {
        let intended = start + (i as f64 / rate * 1e9) as u64;
        loop {
            let now = now();
            if now >= intended {
                break;
            }
            if intended - now > 200_000 {
                std::thread::sleep(Duration::from_nanos(intended - now - 100_000));
            } else {
                std::hint::spin_loop();
            }
        }
        send(i, intended);
    }
}

/// Runs it.
///
/// # Errors
/// The engine could not be started, or did not drain.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let rates = if args.rate.is_empty() {
        let prepared = Prepared::new(workloads(Some("uniform-200"), 0.5)?.remove(0));
        let capacity = (0..3)
            .map(|_| prepared.run(&Bgrp(Way::Key)).map(|run| run.rate()))
            .try_fold(0f64, |best, rate| rate.map(|rate| best.max(rate)))?;
        vec![100_000.0, capacity * 0.1, capacity * 0.5]
    } else {
        args.rate.clone()
    };
    let mut report = Report::new(json);
    let usual = Duration::from_micros(20);
    // The lowest load also with workers that park at once, and with workers that keep looking.
    let mut loads = vec![(rates[0], Duration::ZERO), (rates[0], Duration::from_millis(1))];
    loads.extend(rates.iter().map(|rate| (*rate, usual)));
    for (rate, spin) in loads {
        let engine = Engine::<u64, u64>::builder()
            .workers(Workers::fixed(args.workers))
            .pin(!args.unpinned)
            .spin(spin)
            .group_capacity(1 << 24)
            .state(|_| 0u64)
            .task_handler(|last: &mut u64, intended| {
                histogram::record(now().saturating_sub(**intended));
                // The oracle: intended times of a key only go up.
                assert!(*last <= **intended, "order violated");
                *last = **intended;
            })
            .build()?;
        let n = (rate * args.seconds) as u64;
        let (cpu, producer_cpu) = (process::cpu_seconds(), process::thread_cpu_seconds());
        let start = Instant::now();
        open_loop(n, rate, |i, intended| {
            engine.submit(i % args.keys, intended).expect("open");
        });
        let drained = engine.wait_drain(Duration::from_secs(60));
        let wall = start.elapsed().as_secs_f64();
        let producer_cpu = process::thread_cpu_seconds() - producer_cpu;
        // The two clocks tick apart, so an idle engine may come out a little below nothing.
        let cpu = (process::cpu_seconds() - cpu - producer_cpu).max(0.0);
        let done = engine.close(Duration::from_secs(60)).done;
        drop(engine);
        if !drained || done != n {
            return Err(format!(
                "{done} of {n} tasks done at {rate:.0}/s: order violated, or not drained"
            )
            .into());
        }
        let p = Percentiles::of(&histogram::take());
        report.add(json!({
            "system": "bgrp-key",
            "rate_per_s": rate.round(),
            "spin_us": spin.as_micros() as u64,
            "tasks": p.count,
            "p50_us": round(p.p50, 1),
            "p99_us": round(p.p99, 1),
            "p999_us": round(p.p999, 1),
            "max_us": round(p.max, 1),
            "cpu_s": round(cpu, 3),
            "producer_cpu_s": round(producer_cpu, 3),
            "wall_s": round(wall, 2),
        }));
    }
    report.finish();
    Ok(())
}
