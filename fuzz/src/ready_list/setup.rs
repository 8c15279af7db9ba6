//! The settings of one run, and the engine that they make.

use std::time::Duration;

use bgrp::{
    Engine, Exhausted, OnExhausted, Outcome, Retry, Sim, Verdict, Workers, topology::Snapshot,
};

use super::{
    leases, model,
    values::{Burial, Fate, Key, State, Task, panics, wanted_panic},
};
use crate::bytes::Bytes;

pub(super) const MS: Duration = Duration::from_millis(1);

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// New tasks are refused, everything else runs to its end, then close.
    Drain,
    Close,
    /// As a close whose deadline has passed.
    Halt,
    Drop,
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    /// Workers sleep and must be woken.
    pub(super) sleep: bool,
    pub(super) workers: usize,
    cpus: usize,
    pub(super) batched: bool,
    pub(super) batch: usize,
    pub(super) flush: Duration,
    pub(super) capacity: usize,
    pub(super) group_capacity: usize,
    idle_groups: usize,
    pub(super) attempts: u32,
    /// The wait before a retry, and whether it doubles, and whether it has jitter.
    pub(super) wait: Duration,
    pub(super) doubles: bool,
    pub(super) jitter: bool,
    /// A task may halt the engine.
    pub(super) halts: bool,
    pub(super) end: End,
    /// Handles and lanes outlive the engine.
    pub(super) handles_last: bool,
    /// Batches leave as leases.
    pub(super) leases: bool,
}

impl Setup {
    pub(super) fn decode(bytes: &mut Bytes<'_>) -> Self {
        let (flags, more) = (bytes.u8(), bytes.u8());
        let mut setup = Self {
            seed: u64::from(bytes.u8()),
            sleep: flags & 1 != 0,
            batched: flags & 2 != 0,
            doubles: flags & 4 != 0,
            jitter: flags & 8 != 0,
            halts: flags & 16 != 0,
            handles_last: flags & 32 != 0,
            end: [End::Drain, End::Close, End::Halt, End::Drop][usize::from(flags >> 6)],
            workers: usize::from(more & 3) + 1,
            cpus: usize::from(more >> 2 & 3) + 1,
            attempts: u32::from(more >> 4 & 3) + 1,
            flush: u32::from(more >> 6) * 10 * MS,
            batch: usize::from(bytes.pick(&[1u8, 2, 3, 4, 5, 8, 12, 40])),
            capacity: bytes.pick(&[64, 65, 100, 256, 4_096, 1 << 14]),
            group_capacity: bytes.pick(&[1, 2, 3, 8, 30, 1 << 16]),
            idle_groups: usize::from(bytes.below(14)),
            wait: Duration::ZERO,
            leases: false,
        };
        let last = bytes.u8();
        setup.wait = u32::from(last % 12) * MS / 2;
        setup.leases = last >= 156;
        setup.batched |= setup.leases;
        setup
    }

    /// The policy's wait after so many attempts, at least and at most.
    pub(super) fn retry_wait(&self, attempts: u32) -> (Duration, Duration) {
        let factor = if self.doubles { 1 << (attempts - 1).min(8) } else { 1 };
        let most = (self.wait * factor).min(if self.doubles { 4 * self.wait } else { self.wait });
        // Half a wait is exact in nanoseconds; the share of the other half is rounded.
        (if self.jitter { most / 2 } else { most }, most)
    }

    fn retry(&self) -> Retry {
        let retry = match self.doubles {
            true => Retry::exponential(self.wait, 4 * self.wait),
            false => Retry::fixed(self.wait),
        };
        let retry = retry.attempts(self.attempts);
        if self.jitter { retry.with_jitter() } else { retry }
    }

    pub(super) fn build(self) -> Sim<Key, Task> {
        let builder = Engine::<Key, Task>::builder()
            .machine(Snapshot::one_node(self.cpus))
            .workers(Workers::fixed(self.workers))
            // Nobody may spin: the clock stands still.
            .pin(false)
            .batch_size(self.batch)
            .flush_interval(self.flush)
            .capacity(self.capacity)
            .group_capacity(self.group_capacity)
            .idle_groups(self.idle_groups)
            .retry(self.retry())
            .on_exhausted(OnExhausted::with(move |failed| self.verdict(failed)))
            .state(State::open);
        let configured = if self.leases {
            builder.lease_handler(leases::take)
        } else if self.batched {
            builder.handler(|state: &mut State, batch| {
                let tasks: Vec<_> =
                    batch.iter().enumerate().map(|(i, task)| (task, batch.attempt(i))).collect();
                run_batch(state, batch.key(), &tasks)
            })
        } else {
            builder.task_handler(|state: &mut State, task| {
                run_one(state, task.key(), task, task.attempt())
            })
        };
        configured.build_sim(self.seed).expect("settings within their bounds")
    }

    fn verdict(&self, failed: Exhausted<'_, Key, Task>) -> Verdict {
        let (key, task, attempts) = (failed.key.n, failed.task, failed.attempts);
        let id = task.id;
        if attempts == 0 {
            // Its key could not be compared: it never came to a group.
            model::with(|model| model.rejected(key, id));
            return Verdict::HaltEngine;
        }
        let verdict = match task.burial() {
            Burial::Hold(times, ms) if task.held < times => {
                task.held += 1;
                Verdict::Hold(ms * MS)
            }
            Burial::HaltGroup => Verdict::HaltGroup,
            Burial::HaltEngine if self.halts => Verdict::HaltEngine,
            Burial::DeadLetter => {
                task.take_payload();
                Verdict::Skip
            }
            _ => Verdict::Skip,
        };
        model::with(|model| model.verdict(key, id, attempts, verdict));
        if task.burial() == Burial::Panic {
            wanted_panic();
        }
        verdict
    }
}

/// The handler of batches.
fn run_batch(state: &State, key: &Key, tasks: &[(&Task, u32)]) -> Vec<Outcome> {
    assert_eq!(state.key, key.n, "the state of another group");
    model::with(|model| {
        let offered: Vec<_> =
            tasks.iter().map(|(task, attempt)| (task.id, task.source, *attempt)).collect();
        model.offer(key.n, &offered);
    });
    tasks.iter().for_each(|(task, _)| task.handle());
    let bad_drops: Vec<_> = tasks.iter().map(|(task, _)| task.fate() == Fate::BadDrop).collect();
    if tasks.iter().any(|(task, attempt)| panics(task, *attempt)) {
        let all = vec![failed(); tasks.len()];
        model::with(|model| model.settle(key.n, &all, &bad_drops));
        wanted_panic();
    }
    let mut outcomes: Vec<_> = tasks.iter().map(|(task, attempt)| task.answer(*attempt)).collect();
    if tasks.iter().any(|(task, _)| task.fate() == Fate::WrongCount) {
        let all = vec![Outcome::Fail(bgrp::Failure::new("wrong count")); tasks.len()];
        model::with(|model| model.settle(key.n, &all, &bad_drops));
        outcomes.push(Outcome::Done);
        return outcomes;
    }
    model::with(|model| model.settle(key.n, &outcomes, &bad_drops));
    outcomes
}

/// The handler of single tasks.
fn run_one(state: &State, key: &Key, task: &Task, attempt: u32) -> Outcome {
    assert_eq!(state.key, key.n, "the state of another group");
    model::with(|model| model.offer(key.n, &[(task.id, task.source, attempt)]));
    task.handle();
    let bad_drop = [task.fate() == Fate::BadDrop];
    if panics(task, attempt) {
        model::with(|model| model.settle(key.n, &[failed()], &bad_drop));
        wanted_panic();
    }
    let outcome = task.answer(attempt);
    model::with(|model| model.settle(key.n, std::slice::from_ref(&outcome), &bad_drop));
    outcome
}

/// What a panic counts as.
fn failed() -> Outcome {
    Outcome::Retry(bgrp::Failure::new("panic"))
}
