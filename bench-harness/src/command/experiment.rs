//! `experiment`: the classic one. 100,000 tasks of 200 groups, each 5 ms + U(0, 10 ms) at a downstream that takes 20 at a time
//! and rejects the next at once. A plain pool with one queue, a lock per group, and Bgrp: with as many workers as calls in flight, with a limit,
//! and with the cap hidden from it.
//!
//! Definitions. *Physical limit*: the sum of all sleeps / calls in flight. *Latency* of a task: from the start of the experiment
//! (when everything is waiting already) to the end of its call. *Out of order*: a task whose call ended after
//! the call of a later task of its group. *Throttled*: calls that the downstream rejected; they are repeated after 1 ms.
//! *Overlaps*: calls that began while another of the group was under way.

use std::{
    collections::VecDeque,
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bgrp::{Engine, InFlight, Outcome, Workers};
use serde_json::json;

use crate::{
    histogram, process,
    report::{Report, round},
    workload::Random,
};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Share of the 100,000 tasks
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Only systems whose name contains this
    #[arg(long)]
    pub system: Option<String>,
}

const GROUPS: usize = 200;
const CAP: usize = 20;

#[derive(Clone, Copy)]
struct Call {
    group: u32,
    number: u32,
    sleep: Duration,
}

/// The downstream and the oracle at its door.
struct Downstream {
    in_flight: AtomicUsize,
    throttled: AtomicU64,
    overlaps: AtomicU64,
    out_of_order: AtomicU64,
    done: AtomicU64,
    groups: Vec<(AtomicUsize, AtomicU32)>,
    start: Instant,
}

impl Downstream {
    fn new() -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            throttled: AtomicU64::new(0),
            overlaps: AtomicU64::new(0),
            out_of_order: AtomicU64::new(0),
            done: AtomicU64::new(0),
            groups: (0..GROUPS).map(|_| (AtomicUsize::new(0), AtomicU32::new(0))).collect(),
            start: Instant::now(),
        }
    }

    fn call(&self, call: Call) {
        while !self.try_call(call) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `false`: rejected.
    fn try_call(&self, call: Call) -> bool {
        if self.in_flight.fetch_add(1, SeqCst) >= CAP {
            self.in_flight.fetch_sub(1, SeqCst);
            self.throttled.fetch_add(1, SeqCst);
            return false;
        }
        let (inside, latest) = &self.groups[call.group as usize];
        if inside.fetch_add(1, SeqCst) > 0 {
            self.overlaps.fetch_add(1, SeqCst);
        }
        std::thread::sleep(call.sleep);
        // `latest` is one more than the greatest number that has ended.
        if latest.fetch_max(call.number + 1, SeqCst) > call.number {
            self.out_of_order.fetch_add(1, SeqCst);
        }
        inside.fetch_sub(1, SeqCst);
        self.in_flight.fetch_sub(1, SeqCst);
        self.done.fetch_add(1, SeqCst);
        histogram::record(self.start.elapsed().as_nanos() as u64);
        true
    }
}

fn calls(n: usize) -> Vec<Call> {
    let mut random = Random::new(7);
    let mut numbers = [0u32; GROUPS];
    (0..n)
        .map(|_| {
            let group = random.below(GROUPS as u64) as usize;
            numbers[group] += 1;
            Call {
                group: group as u32,
                number: numbers[group] - 1,
                sleep: Duration::from_micros(5_000 + random.below(10_001)),
            }
        })
        .collect()
}

/// A pool of threads over one queue; with `locks`, a worker takes the lock of the group for the call.
fn pool(calls: &[Call], threads: usize, locks: bool, downstream: &Downstream) {
    let queue: Mutex<VecDeque<Call>> = Mutex::new(calls.iter().copied().collect());
    let groups: Vec<Mutex<()>> = (0..GROUPS).map(|_| Mutex::new(())).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no panic under it").pop_front();
                    let Some(call) = next else { break };
                    let _guard = locks
                        .then(|| groups[call.group as usize].lock().expect("no panic under it"));
                    downstream.call(call);
                }
            });
        }
    });
}

/// How Bgrp keeps to the cap.
#[derive(Clone, Copy)]
enum Keeps {
    /// As many workers as calls in flight, batches of so many.
    Workers(usize, usize),
    /// More workers than that, and a limit in flight.
    Limit(u32),
    /// The cap is hidden: it is found by what the downstream rejects.
    Adaptive,
}

/// Workers where a limit, and not their number, keeps to the cap.
const MANY: usize = 64;

fn bgrp(calls: &[Call], keeps: Keeps, downstream: &Arc<Downstream>) -> Result<(), Box<dyn Error>> {
    let own = downstream.clone();
    let builder = Engine::<u32, Call>::builder().capacity(1 << 14);
    let builder = match keeps {
        Keeps::Workers(in_flight, batch) => {
            builder.workers(Workers::fixed(in_flight)).batch_size(batch)
        }
        // A dispatch is one call, so that a limit of dispatches is one of calls.
        Keeps::Limit(limit) => builder.workers(Workers::fixed(MANY)).batch_size(1).in_flight(limit),
        Keeps::Adaptive => builder
            .workers(Workers::fixed(MANY))
            .batch_size(1)
            .in_flight(InFlight::adaptive(1, 1_000)),
    };
    let engine = builder
        .task_handler(move |(), call| {
            if own.try_call(**call) { Outcome::Done } else { Outcome::Throttled(Duration::ZERO) }
        })
        .build()?;
    for call in calls {
        engine.submit(call.group, *call)?;
    }
    let report = engine.close(Duration::from_secs(600));
    if report.is_complete() { Ok(()) } else { Err("tasks left".into()) }
}

/// Runs it.
///
/// # Errors
/// A task was lost, or the engine failed to start.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let calls = calls(((100_000.0 * args.scale) as usize).max(GROUPS));
    let sleep: f64 = calls.iter().map(|call| call.sleep.as_secs_f64()).sum();
    let mut report = Report::new(json);
    let mut cases: Vec<(String, usize, Option<Keeps>)> = vec![
        ("A one queue, 20 threads".into(), 20, None),
        ("B lock per group, 20 threads".into(), 20, None),
    ];
    for in_flight in [16, 20] {
        for batch in [200, 1_000] {
            cases.push((
                format!("C bgrp {in_flight} in flight, batch {batch}"),
                in_flight,
                Some(Keeps::Workers(in_flight, batch)),
            ));
        }
    }
    cases.push(("C bgrp limit 20, 64 workers".into(), 20, Some(Keeps::Limit(20))));
    cases.push(("C bgrp adaptive, 64 workers".into(), 20, Some(Keeps::Adaptive)));
    for (name, in_flight, keeps) in cases {
        if args.system.as_ref().is_some_and(|wanted| !name.contains(wanted.as_str())) {
            continue;
        }
        process::reset_peak();
        let before = process::resident_bytes();
        let downstream = Arc::new(Downstream::new());
        match keeps {
            None => pool(&calls, in_flight, name.starts_with('B'), &downstream),
            Some(keeps) => bgrp(&calls, keeps, &downstream)?,
        }
        let seconds = downstream.start.elapsed().as_secs_f64();
        let memory = process::peak_bytes().saturating_sub(before);
        let done = downstream.done.load(SeqCst);
        if done != calls.len() as u64 {
            return Err(format!("{name}: {done} of {} tasks ended", calls.len()).into());
        }
        let limit = sleep / in_flight as f64;
        let out = downstream.out_of_order.load(SeqCst);
        let histogram = histogram::take();
        report.add(json!({
            "system": name,
            "tasks": done,
            "seconds": round(seconds, 2),
            "physical_limit_s": round(limit, 2),
            "over_limit_percent": round((seconds / limit - 1.0) * 100.0, 2),
            "p95_latency_s": round(histogram.value_at_quantile(0.95) as f64 / 1e9, 2),
            "out_of_order_percent": round(out as f64 / done as f64 * 100.0, 2),
            "overlaps": downstream.overlaps.load(SeqCst),
            "throttled": downstream.throttled.load(SeqCst),
            "peak_growth_mb": round(memory as f64 / 1e6, 1),
        }));
    }
    report.finish();
    Ok(())
}
