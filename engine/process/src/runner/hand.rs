//! What one worker has of the engine's: leases, the tasks of them that were sent, and what was answered so far.
//!
//! | a task of a lease is | answered by | its outcome |
//! |---|---|---|
//! | sent | a result of the worker | as the result says |
//! | sent | the end of the worker: it ran then | crashed, timed out, or over its memory |
//! | sent | the end of the worker: it did not run | not run: it keeps its place and its attempts |
//! | not sent | whoever gives the rest back | not run |
//!
//! A lease goes back to the engine when all its tasks are answered.
//!
//! Invariants:
//!
//! * **I1** Numbers of tasks rise by one in the order in which they were sent, so a number names one attempt of one task. A result
//!   for another number, or the second one for the same, changes nothing and is counted ([`Hand::strays`]).
//! * **I2** Where a failure stops its group, no task of a lease is sent while an earlier one of it is not answered, unless both are in the same
//!   frame: there the worker itself stops (the stop flag).
//! * **I3** Final results of one group come in the order of its tasks: each is made when it is known that no attempt follows, and tasks behind
//!   it are not run before.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bgrp::{Failure, Lease, Outcome, Retry};

use super::item::{Item, Key};
use crate::{
    result::{Crash, Ended, TaskError, TaskResult},
    task::Value,
};

/// What a worker says of a task, or its end does.
#[derive(Debug)]
pub(super) enum Answer {
    Ok(Value),
    Error(TaskError, Hint),
    NotRun,
    /// The worker is gone, or was stopped, and this task was running.
    Lost(Ended),
}

/// What a worker says of the next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hint {
    #[default]
    Policy,
    Never,
    After(Duration),
}

/// How failures are judged.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    pub(super) retry: Retry,
    /// Workers that a task may end.
    pub(super) crashes: u32,
    /// A failure stops its group: until it was tried again, or for good.
    pub(super) stops: bool,
}

/// A lease that the worker has.
struct Held {
    lease: Lease<Key, Item>,
    since: Instant,
    outcomes: Vec<Outcome>,
    /// Tasks that were sent.
    sent: usize,
    answered: usize,
}

/// A task that was sent.
struct Sent {
    /// Of all leases so far.
    lease: u64,
    index: usize,
    open: bool,
}

/// See the module text.
#[derive(Default)]
pub(super) struct Hand {
    leases: VecDeque<Held>,
    /// The number of the first of them, of all leases so far.
    first_lease: u64,
    sent: VecDeque<Sent>,
    /// The number of the first of them.
    first: u64,
    /// Sent and not answered.
    open: u32,
    /// Answers that nobody waited for.
    pub(super) strays: u64,
}

/// A task that is to be sent.
pub(super) struct Parcel<'a> {
    pub(super) number: u64,
    pub(super) key: &'a Key,
    pub(super) item: &'a Item,
    pub(super) attempt: u32,
    /// It is the first of its group in this frame.
    pub(super) opens: bool,
}

impl Hand {
    /// With numbers from 1: 0 stands for none.
    pub(super) fn new() -> Self {
        Self { first: 1, ..Self::default() }
    }

    /// Tasks that were sent and are not answered.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Tasks that may be sent now, of all its leases.
    pub(super) fn unsent(&self, judge: &Judge) -> usize {
        self.leases.iter().map(|held| held.ready(judge)).sum()
    }

    pub(super) fn take(&mut self, lease: Lease<Key, Item>, now: Instant) {
        let outcomes = Vec::with_capacity(lease.len());
        self.leases.push_back(Held { lease, since: now, outcomes, sent: 0, answered: 0 });
    }

    /// Up to `most` tasks are sent with the next frame, and no more of them than have so many bytes. Says how many.
    pub(super) fn send(&mut self, most: u32, bytes: usize, worker: u32, judge: &Judge) -> u32 {
        let (mut count, mut size) = (0, 0);
        for (at, held) in self.leases.iter_mut().enumerate() {
            for _ in 0..held.ready(judge) {
                if count == most || size >= bytes {
                    return count;
                }
                let item = held.lease.get_mut(held.sent).expect("inside");
                item.worker = Some(worker);
                size += item.args.len();
                let lease = self.first_lease + at as u64;
                self.sent.push_back(Sent { lease, index: held.sent, open: true });
                held.sent += 1;
                held.outcomes.push(Outcome::NotRun);
                self.open += 1;
                count += 1;
            }
        }
        count
    }

    /// The last `count` tasks that were sent.
    pub(super) fn last(&self, count: u32) -> impl Iterator<Item = Parcel<'_>> {
        let from = self.sent.len() - count as usize;
        let mut before = None;
        self.sent.range(from..).zip(self.first + from as u64..).map(move |(sent, number)| {
            let lease = &self.leases[(sent.lease - self.first_lease) as usize].lease;
            Parcel {
                number,
                key: lease.key(),
                item: lease.get(sent.index).expect("inside"),
                attempt: lease.attempt(sent.index),
                opens: before.replace(sent.lease) != Some(sent.lease),
            }
        })
    }

    /// It has never answered anything.
    pub(super) fn is_useless(&self) -> bool {
        self.first == 1 && self.sent.iter().all(|sent| sent.open)
    }

    /// The task with this number, if it was sent and is not answered.
    pub(super) fn find(&self, number: u64) -> Option<(&Key, &Item)> {
        let sent = self.sent.get(number.checked_sub(self.first)? as usize)?;
        let held = self.leases.get((sent.lease - self.first_lease) as usize)?;
        sent.open.then(|| (held.lease.key(), held.lease.get(sent.index).expect("inside")))
    }

    /// The first task that was sent and is not answered.
    pub(super) fn oldest(&self) -> Option<u64> {
        let at = self.sent.iter().position(|sent| sent.open)?;
        Some(self.first + at as u64)
    }

    /// The worker, or its end, answers for a task. A final result goes to `results`.
    pub(super) fn answer(
        &mut self,
        number: u64,
        answer: Answer,
        judge: &Judge,
        results: &mut Vec<TaskResult>,
    ) {
        let sent = number.checked_sub(self.first).and_then(|at| self.sent.get_mut(at as usize));
        let Some(sent) = sent.filter(|sent| sent.open) else {
            self.strays += 1;
            return;
        };
        sent.open = false;
        self.open -= 1;
        let held = &mut self.leases[(sent.lease - self.first_lease) as usize];
        held.answered += 1;
        held.outcomes[sent.index] = held.outcome(sent.index, answer, judge, results);
        while self.sent.front().is_some_and(|sent| !sent.open) {
            self.sent.pop_front();
            self.first += 1;
        }
        self.tidy();
    }

    /// The worker gets no more: what was not sent goes back.
    pub(super) fn give_back_unsent(&mut self) {
        for held in &mut self.leases {
            held.stop();
        }
        self.tidy();
    }

    /// Others wait: what was not sent of leases that were had so long goes back, and behind them.
    pub(super) fn give_way(&mut self, now: Instant, after: Duration) {
        for held in &mut self.leases {
            if now.duration_since(held.since) >= after {
                held.stop();
            }
        }
        self.tidy();
    }

    /// The worker is gone. What it had and is not answered was not run.
    pub(super) fn give_back_all(&mut self) {
        self.sent.clear();
        self.open = 0;
        for mut held in self.leases.drain(..) {
            held.stop();
            held.lease.complete(held.outcomes);
        }
    }

    /// Leases whose tasks are all answered go back.
    fn tidy(&mut self) {
        while self.leases.front().is_some_and(Held::is_over) {
            let held = self.leases.pop_front().expect("just seen");
            self.first_lease += 1;
            held.lease.complete(held.outcomes);
        }
    }
}

impl Held {
    /// Tasks that may be sent now (I2).
    fn ready(&self, judge: &Judge) -> usize {
        let waits = judge.stops && self.answered < self.sent;
        let failed = judge.stops && self.outcomes.iter().any(|outcome| *outcome != Outcome::Done);
        // What was not sent was given back already.
        let stopped = self.outcomes.len() > self.sent;
        if waits || failed || stopped { 0 } else { self.lease.len() - self.sent }
    }

    fn is_over(&self) -> bool {
        self.answered == self.sent && self.outcomes.len() == self.lease.len()
    }

    /// What was not sent is not run.
    fn stop(&mut self) {
        self.outcomes.resize(self.lease.len(), Outcome::NotRun);
    }

    fn outcome(
        &mut self,
        index: usize,
        answer: Answer,
        judge: &Judge,
        results: &mut Vec<TaskResult>,
    ) -> Outcome {
        let attempts = self.lease.attempt(index);
        let key = self.lease.key().name();
        let item = self.lease.get_mut(index).expect("inside");
        let (ended, hint) = match answer {
            Answer::NotRun => {
                self.stop();
                return Outcome::NotRun;
            }
            Answer::Ok(value) => {
                results.push(item.end(key, Ended::Ok(value), attempts));
                return Outcome::Done;
            }
            Answer::Error(error, hint) => (Ended::Error(error), hint),
            Answer::Lost(ended) => (ended, Hint::Policy),
        };
        let ended = match ended {
            Ended::Crashed(crash) => {
                item.crashes += 1;
                Ended::Crashed(Crash { times: item.crashes, ..crash })
            }
            other => other,
        };
        let never = hint == Hint::Never || matches!(ended, Ended::InputError(_));
        let quarantined = item.crashes >= judge.crashes || never;
        let failure = Failure::new(ended.to_string());
        let again = if quarantined { None } else { judge.retry.delay(attempts) };
        match (again, hint) {
            (None, _) => {
                results.push(item.end(key, ended, attempts));
                // The rest of the lease was not sent if this stops the group, and is not.
                if judge.stops {
                    self.stop();
                }
                Outcome::Fail(failure)
            }
            (Some(_), hint) => {
                item.fault = Some(Box::new(ended));
                self.stop();
                match hint {
                    Hint::After(after) => Outcome::RetryAfter(after, failure),
                    _ => Outcome::Retry(failure),
                }
            }
        }
    }
}
