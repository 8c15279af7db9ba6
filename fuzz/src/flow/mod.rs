//! Limits, rates, throttled downstreams, retries and halts together: the whole engine on virtual workers and a virtual clock.
//!
//! Checked in each dispatch: order per key, attempts, the size of a batch, no call while the downstream is throttled, no rate exceeded
//! in any window, no dispatch of a halted group. Checked after each operation: permits in use are within the limit, or were before
//! it went down. At the end, whatever happened: each task ended once (done, failed, or given back in order), no permit is missing,
//! and nothing waits that nothing keeps.

mod oracle;

use std::{
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bgrp::{
    Batch, Class, Count, Engine, InFlight, OnExhausted, Rate, Retry, Sim, Verdict, Workers,
};
use oracle::{Answer, Limit, Oracle, Script};

use crate::bytes::Bytes;

type Shared = Arc<Mutex<Oracle>>;

fn lock(oracle: &Shared) -> MutexGuard<'_, Oracle> {
    oracle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The panic of a handler that its script asks for; its message is not printed.
struct Wanted;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mut stage = Stage::new(&mut bytes);
    let mut submitted = 0;
    while !bytes.is_empty() && submitted < 400 {
        let op = bytes.u8();
        let arg = op >> 4;
        match op & 15 {
            0..=4 => {
                for _ in 0..=arg {
                    let key = bytes.u8() & 15;
                    let answers = [bytes.u8(), bytes.u8() & 3, 0].map(to_answer);
                    stage.submit(key, Script { id: submitted, answers });
                    submitted += 1;
                }
            }
            5 | 6 => stage.step(arg),
            7 => stage.settle(),
            8..=10 => {
                let ms = [0, 1, 2, 5, 10, 50, 100, 1_000][usize::from(arg & 7)];
                stage.pass(ms + u64::from(bytes.u8() & 3));
            }
            11 => stage.limit_in_flight(arg, bytes.u8()),
            12 => {
                let limit = to_limit(arg, bytes.u8());
                // What was granted under the old rate starts before the new one begins.
                stage.settle();
                lock(&stage.oracle).set_rate(limit);
                stage.sim.engine().set_rate(limit.map(to_rate)).expect("valid");
            }
            13 => {
                let limit = to_limit(arg, bytes.u8());
                lock(&stage.oracle).set_group_rate(limit);
                stage.sim.engine().set_group_rate(limit.map(to_rate)).expect("valid");
            }
            14 => stage.sim.refuse(),
            _ => {
                if arg == 15 {
                    break;
                }
                stage.settle();
            }
        }
        stage.check();
    }
    stage.end(bytes.u8());
}

struct Stage {
    sim: Sim<u8, Script>,
    oracle: Shared,
    batch: usize,
    limit: Option<InFlight>,
    /// The limit is what it was when all that is in flight was admitted.
    settled: bool,
}

impl Stage {
    fn new(bytes: &mut Bytes<'_>) -> Self {
        let settings = bytes.u8();
        let batch = [1, 2, 7, 64][usize::from(settings & 3)];
        let attempts = 1 + u32::from(settings >> 2 & 3);
        let halts = [0, 0, 3, 1][usize::from(settings >> 4 & 3)];
        let oracle = Shared::default();
        {
            let mut oracle = lock(&oracle);
            (oracle.most, oracle.attempts, oracle.halts) = (batch, attempts, halts);
        }
        let delay = Duration::from_millis([0, 1, 30, 1_000][usize::from(settings >> 6)]);
        let more = bytes.u8();
        let mut builder = Engine::<u8, Script>::builder()
            .workers(Workers::fixed(1 + usize::from(more & 3)))
            .batch_size(batch)
            .retry(Retry::fixed(delay).attempts(attempts))
            .on_exhausted({
                let oracle = oracle.clone();
                OnExhausted::with(move |failed: bgrp::Exhausted<'_, u8, Script>| {
                    let halts = lock(&oracle).halts(*failed.key);
                    if halts { Verdict::HaltGroup } else { Verdict::Skip }
                })
            });
        if more & 4 != 0 {
            builder = builder.weight(|key| 1 + u32::from(key & 3));
        }
        if more & 8 != 0 {
            let class = |key: &u8| if key & 4 != 0 { Class::Bulk } else { Class::Interactive };
            builder = builder.class(class);
        }
        if more & 16 != 0 {
            builder = builder.flush_interval(Duration::from_millis(20));
        }
        let shared = oracle.clone();
        let sim = builder
            .handler(move |(), tasks: &mut Batch<'_, u8, Script>| {
                let batch: Vec<_> = (0..tasks.len())
                    .map(|i| (*tasks.get(i).expect("there"), tasks.attempt(i)))
                    .collect();
                let outcomes = lock(&shared).run(*tasks.key(), &batch);
                outcomes.unwrap_or_else(|| resume_unwind(Box::new(Wanted)))
            })
            .build_sim(u64::from(more))
            .expect("valid settings");
        Self { sim, oracle, batch, limit: None, settled: true }
    }

    fn submit(&mut self, key: u8, script: Script) {
        if self.sim.submit(key, script).is_ok() {
            lock(&self.oracle).accepted(key, script);
        }
    }

    fn step(&mut self, worker: u8) {
        let worker = usize::from(worker) % self.sim.workers();
        self.sim.step(worker);
        self.fail_on_finding();
    }

    /// Whatever can run without the clock moving has run.
    fn settle(&mut self) {
        self.sim.run();
        self.settled = true;
        self.fail_on_finding();
    }

    /// A finding is a panic in the handler, which the engine catches: its lock tells.
    fn fail_on_finding(&self) {
        assert!(!self.oracle.is_poisoned(), "a check in a handler failed, see above");
    }

    /// The clock moves by itself only while nothing can run: rates are counted when a dispatch starts.
    fn pass(&mut self, ms: u64) {
        self.settle();
        self.sim.advance(Duration::from_millis(ms));
        lock(&self.oracle).now += ms * 1_000_000;
    }

    fn limit_in_flight(&mut self, kind: u8, n: u8) {
        let n = u32::from(n & 7) + 1;
        let limit = match kind & 3 {
            0 => None,
            1 => Some(InFlight::batches(n)),
            2 => Some(InFlight::tasks(n)),
            _ => Some(InFlight::adaptive(1, n)),
        };
        // A dispatch that was granted more under the former limit runs as it was granted.
        self.settle();
        self.sim.engine().set_in_flight(limit).expect("valid");
        lock(&self.oracle).most =
            if kind & 3 == 2 { self.batch.min(n as usize) } else { self.batch };
        self.limit = limit;
        self.settled = false;
    }

    fn check(&mut self) {
        let limits = self.sim.engine().limits();
        if let Some(limit) = limits.limit
            && self.settled
        {
            assert!(limits.in_flight <= limit, "{limits:?}");
        }
    }

    fn end(mut self, how: u8) {
        if how & 1 != 0 {
            // Whatever waits for a rate or a retry has its time.
            self.sim.refuse();
            for _ in 0..4_000 {
                self.settle();
                if self.sim.stats().backlog() == lock(&self.oracle).held() {
                    break;
                }
                self.pass(1_003);
            }
            let (left, held) = (self.sim.stats().backlog(), lock(&self.oracle).held());
            assert_eq!(left, held, "something waits for ever; {:?}", self.sim.engine().limits());
            self.settle();
            let limits = self.sim.engine().limits();
            assert_eq!((limits.in_flight, limits.waiting), (0, 0), "a permit is missing");
        }
        let report = self.sim.close();
        self.fail_on_finding();
        let mut oracle = lock(&self.oracle);
        assert_eq!((report.done, report.failed), (oracle.done, oracle.failed));
        assert_eq!(report.left_tasks() as u64, oracle.left());
        for left in report.left {
            let ids: Vec<u32> = left.tasks.iter().map(|script| script.id).collect();
            oracle.given_back(left.key, &ids);
        }
        assert_eq!(self.sim.engine().limits().in_flight, 0, "a permit is missing");
    }
}

fn to_answer(byte: u8) -> Answer {
    match byte & 15 {
        0..=7 => Answer::Done,
        8 | 9 => Answer::Retry,
        10 => Answer::After(byte >> 4),
        11 => Answer::Fail,
        12..=14 => Answer::Throttled(byte >> 3),
        _ => Answer::Panic,
    }
}

fn to_limit(kind: u8, burst: u8) -> Option<Limit> {
    let per_second = [0, 1, 2, 10, 50, 333, 1_000, 100_000][usize::from(kind & 7)];
    let burst = 1 + u64::from(burst & 31);
    (per_second > 0).then_some(Limit { per_second, burst, batches: kind & 8 != 0 })
}

fn to_rate(limit: Limit) -> Rate {
    let count = if limit.batches { Count::Batches } else { Count::Tasks };
    Rate::per_second(limit.per_second as u32).burst(limit.burst as u32).counting(count)
}
