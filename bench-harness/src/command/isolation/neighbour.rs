//! Open loop: a thousand keys, and one that is not like them.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use bgrp::{Builder, Engine, Failure, Lease, Outcome, Rate, Retry, Workers};
use serde_json::json;

use super::{Args, BAD, LONG, median, percentiles};
use crate::{
    command::latency::{now, open_loop},
    histogram::{self, Percentiles},
    report::{Report, round},
};

/// What is wrong with the one key. But for the first, a thread of its own submits to it ten times what it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Its tasks block 50 ms each, and one always waits.
    Slow,
    /// Its first task blocks all the time.
    Blocked,
    /// Each group may start 200 tasks a second.
    RateLimited,
    /// Its own downstream says each time: again in 50 ms.
    ComeAgain,
    /// Its first task fails each time, and is retried after a second.
    BackOff,
    /// It is paused, and full.
    Paused,
    /// Its first batch is leased out all the time, with one of sixteen permits.
    Leased,
}

impl Trouble {
    const ALL: [Self; 7] = [
        Self::Slow,
        Self::Blocked,
        Self::RateLimited,
        Self::ComeAgain,
        Self::BackOff,
        Self::Paused,
        Self::Leased,
    ];
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slow => "one key blocks 50 ms a task",
            Self::Blocked => "one blocked key at 10 times its capacity",
            Self::RateLimited => "one key far over the rate of a group",
            Self::ComeAgain => "one key whose downstream says: again in 50 ms",
            Self::BackOff => "one full key in back-off",
            Self::Paused => "one full key, paused",
            Self::Leased => "one full key whose lease is kept",
        })
    }
}

const GROUP_CAPACITY: usize = 10_000;

/// One row for each trouble.
pub(super) fn add(args: &Args, report: &mut Report) -> Result<(), Box<dyn Error>> {
    for trouble in Trouble::ALL {
        if !trouble.to_string().contains(&args.only) {
            continue;
        }
        let (mut alone, mut beside, mut refused) = (Vec::new(), Vec::new(), 0);
        for _ in 0..args.rounds.max(1) {
            alone.push(one(args, trouble, false)?.0);
            let (figures, refusals) = one(args, trouble, true)?;
            beside.push(figures);
            refused = refusals;
        }
        let of = |all: &[Percentiles], figure: fn(&Percentiles) -> f64| {
            round(median(all.iter().map(figure).collect()), 1)
        };
        let ratios = beside.iter().zip(&alone).map(|(with, without)| with.p99 / without.p99);
        report.add(json!({
            "scenario": trouble.to_string(),
            "others": beside[0].count,
            "p50_us": of(&beside, |p| p.p50),
            "p99_us": of(&beside, |p| p.p99),
            "p999_us": of(&beside, |p| p.p999),
            "max_us": of(&beside, |p| p.max),
            "alone_p50_us": of(&alone, |p| p.p50),
            "alone_p99_us": of(&alone, |p| p.p99),
            "alone_p999_us": of(&alone, |p| p.p999),
            "p99_times_alone": round(median(ratios.collect()), 2),
            "refused_of_bad_key": refused,
        }));
    }
    Ok(())
}

/// What the handler of the bad key looks at.
#[derive(Default)]
struct Switch {
    released: AtomicBool,
    kept: Mutex<Option<Lease<u64, u64, Option<u64>>>>,
}

/// The order oracle: the tasks of a key are numbered by their intended times.
fn started(last: &mut Option<u64>, task: u64) {
    histogram::record(now().saturating_sub(task));
    assert!(last.is_none_or(|last| last < task), "order violated");
    *last = Some(task);
}

fn builder(trouble: Trouble) -> Builder<u64, u64, Option<u64>> {
    let builder = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .group_capacity(GROUP_CAPACITY)
        .state(|_| None);
    match trouble {
        Trouble::RateLimited => builder.group_rate(Rate::per_second(200).burst(200)),
        Trouble::ComeAgain | Trouble::BackOff => {
            builder.retry(Retry::fixed(Duration::from_secs(1)).attempts(u32::MAX))
        }
        Trouble::Leased => builder.in_flight(16),
        Trouble::Slow | Trouble::Blocked | Trouble::Paused => builder,
    }
}

/// The handler of the bad key, while it is to be bad.
fn bad_task(trouble: Trouble, switch: &Switch) -> Outcome {
    let released = || switch.released.load(Relaxed);
    match trouble {
        Trouble::Slow => thread::sleep(Duration::from_millis(50)),
        Trouble::Blocked => {
            while !released() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Trouble::ComeAgain if !released() => {
            return Outcome::RetryAfter(Duration::from_millis(50), Failure::new("busy"));
        }
        Trouble::BackOff if !released() => return Outcome::Retry(Failure::new("broken")),
        _ => {}
    }
    Outcome::Done
}

fn engine(trouble: Trouble, switch: Arc<Switch>) -> Result<Engine<u64, u64>, Box<dyn Error>> {
    let configured = match trouble {
        Trouble::Leased => builder(trouble).lease_handler(move |mut lease| {
            if *lease.key() == BAD {
                if !switch.released.load(Relaxed) {
                    *switch.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
                    return;
                }
            } else {
                let (last, batch) = lease.split();
                batch.iter().for_each(|task| started(last, *task));
            }
            lease.complete(());
        }),
        _ => builder(trouble).task_handler(move |last: &mut Option<u64>, task| {
            if *task.key() == BAD {
                return bad_task(trouble, &switch);
            }
            started(last, **task);
            Outcome::Done
        }),
    };
    Ok(configured.build()?)
}

/// The others, with the bad key or without. Returns their latencies, and how many tasks of the bad key were refused.
fn one(args: &Args, trouble: Trouble, with: bool) -> Result<(Percentiles, u64), Box<dyn Error>> {
    let switch = Arc::new(Switch::default());
    let engine = engine(trouble, switch.clone())?;
    let over = AtomicBool::new(false);
    let refused = AtomicU64::new(0);
    let seconds = if trouble == Trouble::Blocked { args.blocked_seconds } else { args.seconds };
    let tasks = (args.rate * seconds) as u64;
    thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        if with && trouble == Trouble::Paused {
            engine.pause_group(BAD);
        }
        if with {
            scope.spawn(|| feed(trouble, &engine, &over, &refused));
        }
        open_loop(tasks, args.rate, |i, intended| {
            engine.submit(i % args.keys, intended).expect("open");
        });
        over.store(true, Relaxed);
        switch.released.store(true, Relaxed);
        Ok(())
    })?;
    if with {
        if let Some(lease) = switch.kept.lock().unwrap_or_else(PoisonError::into_inner).take() {
            lease.complete(());
        }
        // What the bad key has left is of no interest, and would take long.
        engine.cancel_pending(&BAD).map_err(|error| error.to_string())?;
        engine.resume_group(&BAD);
    }
    let figures = percentiles(&engine.close(LONG), engine)?;
    if figures.count != tasks {
        return Err(format!("{} of {tasks} tasks ran", figures.count).into());
    }
    Ok((figures, refused.load(Relaxed)))
}

/// The submitter of the bad key.
fn feed(trouble: Trouble, engine: &Engine<u64, u64>, over: &AtomicBool, refused: &AtomicU64) {
    let submit = || engine.try_submit(BAD, 0).is_ok();
    if trouble == Trouble::Slow {
        // Always one that waits: a refusal means that enough do.
        submit();
        while !over.load(Relaxed) {
            submit();
            thread::sleep(Duration::from_millis(40));
        }
        return;
    }
    for _ in 0..10 * GROUP_CAPACITY {
        if over.load(Relaxed) {
            break;
        }
        if !submit() {
            refused.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_micros(100));
        }
    }
}
