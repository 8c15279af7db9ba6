//! `latency`: from the *intended* send time to the start of the task, open loop: a late producer or a full engine counts
//! as delay instead of slowing the load down.
//!
//! The first load is run three times: with workers that park as soon as there is nothing to do (`spin_us` 0), with workers
//! that spin between any two tasks (1,000), and with the default.
//!
//! The first row, `park-unpark`, is no engine: the producer unparks one thread, which notes the time and parks again, at the
//! lowest load. It is what the wake by the system costs with nothing around it.
//!
//! `late_percent` is the share of tasks that came over 100 us late; `producer_late_percent` of those that the producer itself sent
//! so late. `workers_no_cpu_ms` and `producer_no_cpu_ms` say how long these threads could have run and had no CPU,
//! `preempted` how often one was taken from them: at a steady load a tail that is about as large a share of the tasks as
//! these times are of the run comes from the scheduler. `submit_p50_us` is the time of a call of `submit`, the wake included.
//!
//! `producer_cpu_s` is the producer thread's processor time: mostly its wait for the next send time, and its calls of
//! `submit`. `cpu_s` is that of all other threads, so of the engine.

use std::{
    error::Error,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
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
    report.add(ping(rates[0], args.seconds)?);
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
        let (before, producer) = (process::threads(), process::this_thread());
        let mut sender = Sender::new()?;
        open_loop(n, rate, |i, intended| {
            sender.send(intended, || engine.submit(i % args.keys, intended).expect("open"));
        });
        let producer = process::this_thread().since(&[producer]);
        let drained = engine.wait_drain(Duration::from_secs(60));
        let wall = start.elapsed().as_secs_f64();
        let workers = process::workers_since(&before);
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
        let all = histogram::take();
        let late = late_share(&all);
        let p = Percentiles::of(&all);
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
            "submit_p50_us": sender.p50(),
            "late_percent": round(late * 100.0, 3),
            "producer_late_percent": sender.late_percent(n),
            "workers_no_cpu_ms": ms(workers.delayed),
            "producer_no_cpu_ms": ms(producer.delayed),
            "preempted": workers.preempted + producer.preempted,
        }));
    }
    report.finish();
    Ok(())
}

/// Later than this is late, in ns.
const LATE: u64 = 100_000;

fn ms(nanos: u64) -> f64 {
    round(nanos as f64 / 1e6, 1)
}

/// What the producer sees of its own calls.
struct Sender {
    calls: hdrhistogram::Histogram<u64>,
    late: u64,
}

impl Sender {
    fn new() -> Result<Self, Box<dyn Error>> {
        Ok(Self { calls: hdrhistogram::Histogram::new(3)?, late: 0 })
    }

    fn send(&mut self, intended: u64, call: impl FnOnce()) {
        let start = now();
        call();
        self.calls.saturating_record(now() - start);
        self.late += u64::from(start - intended > LATE);
    }

    fn p50(&self) -> f64 {
        round(self.calls.value_at_quantile(0.5) as f64 / 1e3, 2)
    }

    fn late_percent(&self, n: u64) -> f64 {
        round(self.late as f64 / n as f64 * 100.0, 3)
    }
}

/// A thread that parks, woken for each send: the first look after the wake counts, for the first of the sends that it sees.
fn ping(rate: f64, seconds: f64) -> Result<serde_json::Value, Box<dyn Error>> {
    let n = (rate * seconds) as u64;
    let sent = AtomicU64::new(0);
    let before = process::threads();
    let (cpu, producer) = (process::cpu_seconds(), process::this_thread());
    let start = Instant::now();
    let mut sender = Sender::new()?;
    let (woken, producer) = std::thread::scope(|scope| {
        let sent = &sent;
        let sleeper = scope.spawn(move || {
            loop {
                match sent.swap(0, Ordering::Acquire) {
                    0 => std::thread::park(),
                    u64::MAX => break process::this_thread(),
                    intended => histogram::record(now().saturating_sub(intended)),
                }
            }
        });
        open_loop(n, rate, |_, intended| {
            sender.send(intended, || {
                // One that was not seen yet stays: it is the older one.
                let _ = sent.compare_exchange(0, intended, Ordering::Release, Ordering::Relaxed);
                sleeper.thread().unpark();
            });
        });
        let producer = process::this_thread().since(&[producer]);
        while sent.compare_exchange(0, u64::MAX, Ordering::Release, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        sleeper.thread().unpark();
        sleeper.join().map(|woken| (woken.since(&before), producer))
    })
    .map_err(|_| "the thread that was woken has panicked")?;
    let all = histogram::take();
    let p = Percentiles::of(&all);
    Ok(json!({
        "system": "park-unpark",
        "rate_per_s": rate.round(),
        "spin_us": 0,
        "tasks": p.count,
        "p50_us": round(p.p50, 1),
        "p99_us": round(p.p99, 1),
        "p999_us": round(p.p999, 1),
        "max_us": round(p.max, 1),
        "cpu_s": round((process::cpu_seconds() - cpu - producer.ran as f64 / 1e9).max(0.0), 3),
        "producer_cpu_s": round(producer.ran as f64 / 1e9, 3),
        "wall_s": round(start.elapsed().as_secs_f64(), 2),
        "submit_p50_us": sender.p50(),
        "late_percent": round(late_share(&all) * 100.0, 3),
        "producer_late_percent": sender.late_percent(n),
        "workers_no_cpu_ms": ms(woken.delayed),
        "producer_no_cpu_ms": ms(producer.delayed),
        "preempted": woken.preempted + producer.preempted,
    }))
}

/// The share of the times that are over [`LATE`].
fn late_share(all: &hdrhistogram::Histogram<u64>) -> f64 {
    let late: u64 = all
        .iter_recorded()
        .filter(|v| v.value_iterated_to() > LATE)
        .map(|v| v.count_at_value())
        .sum();
    late as f64 / all.len().max(1) as f64
}
