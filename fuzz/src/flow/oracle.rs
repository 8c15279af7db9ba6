//! What must hold, counted in the simplest way: a queue for each key, a leaking level for each rate.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use bgrp::{Failure, Outcome};

/// A task, with all that will become of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// Its number.
    pub(super) id: u32,
    /// What the handler answers at which attempt.
    pub(super) answers: [Answer; 3],
}

/// What the handler answers. After the third time it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Done.
    Done,
    /// To be retried as the policy says.
    Retry,
    /// To be retried after so many milliseconds.
    After(u8),
    /// Failed for good.
    Fail,
    /// The downstream has had enough for so many milliseconds.
    Throttled(u8),
    /// The handler panics.
    Panic,
}

/// A rate, as far as the oracle counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Tasks or batches a second.
    pub(super) per_second: u64,
    /// How many at once.
    pub(super) burst: u64,
    /// Batches are counted.
    pub(super) batches: bool,
}

impl Limit {
    /// What the engine promises as burst: at least what the rate gives within two milliseconds.
    fn size(&self) -> u64 {
        self.burst.max(self.per_second / 500)
    }
}

/// How much of a rate was used, leaking as time passes.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    at: u64,
    /// In billionths of a task.
    used: u64,
}

impl Level {
    fn start(&mut self, limit: &Limit, tasks: u64, now: u64) {
        self.used = self.used.saturating_sub((now - self.at) * limit.per_second);
        self.at = now;
        self.used += if limit.batches { 1 } else { tasks } * 1_000_000_000;
        // One interval of rounding.
        let most = (limit.size() * 1_000_000_000) + limit.per_second;
        assert!(self.used <= most, "{} started at once, {limit:?}", self.used / 1_000_000_000);
    }
}

struct Waiting {
    script: Script,
    attempts: u32,
    /// How often it was tried, throttled tries included.
    tries: usize,
}

/// See the module text.
#[derive(Default)]
pub(super) struct Oracle {
    /// Nanoseconds.
    pub(super) now: u64,
    queues: HashMap<u8, VecDeque<Waiting>>,
    /// Tasks that ended as done.
    pub(super) done: u64,
    /// Tasks that failed for good.
    pub(super) failed: u64,
    halted: Vec<u8>,
    paused_until: u64,
    /// The rate of the engine.
    pub(super) rate: Option<Limit>,
    level: Level,
    /// The rate of each group.
    pub(super) group_rate: Option<Limit>,
    levels: HashMap<u8, Level>,
    /// Tasks of one dispatch, at most: the batch, and the limit in flight where tasks are counted.
    pub(super) most: usize,
    /// Attempts of a task.
    pub(super) attempts: u32,
    /// Groups whose keys are a multiple of this halt when a task fails for good.
    pub(super) halts: u8,
}

impl Oracle {
    /// A task was accepted.
    pub(super) fn accepted(&mut self, key: u8, script: Script) {
        self.queues.entry(key).or_default().push_back(Waiting { script, attempts: 0, tries: 0 });
    }

    /// The rate of the engine changes; a new bucket is full.
    pub(super) fn set_rate(&mut self, limit: Option<Limit>) {
        (self.rate, self.level) = (limit, Level { at: self.now, used: 0 });
    }

    /// The rate of each group changes; new buckets are full.
    pub(super) fn set_group_rate(&mut self, limit: Option<Limit>) {
        self.group_rate = limit;
        self.levels.clear();
    }

    /// A group whose task fails for good halts.
    pub(super) fn halts(&self, key: u8) -> bool {
        self.halts != 0 && key.is_multiple_of(self.halts)
    }

    /// The handler got these tasks. Returns the outcomes, or nothing: then it panics.
    pub(super) fn run(&mut self, key: u8, batch: &[(Script, u32)]) -> Option<Vec<Outcome>> {
        assert!(self.now >= self.paused_until, "a throttled downstream is called");
        assert!(!self.halted.contains(&key), "a halted group runs");
        assert!(
            batch.len() <= self.most,
            "{} tasks in one dispatch, {} allowed",
            batch.len(),
            self.most
        );
        let tasks = batch.len() as u64;
        if let Some(limit) = self.rate {
            self.level.start(&limit, tasks, self.now);
        }
        if let Some(limit) = self.group_rate {
            let fresh = Level { at: self.now, used: 0 };
            self.levels.entry(key).or_insert(fresh).start(&limit, tasks, self.now);
        }
        let queue = self.queues.get_mut(&key).expect("a key that was submitted");
        let mut panics = false;
        for (i, (script, attempt)) in batch.iter().enumerate() {
            let waiting = &queue[i];
            assert_eq!(waiting.script.id, script.id, "order of key {key}");
            assert_eq!(waiting.attempts + 1, *attempt, "attempt of task {}", script.id);
            panics |= answer(waiting) == Answer::Panic;
        }
        let before: Vec<Waiting> = queue.drain(..batch.len()).collect();
        let (mut outcomes, mut stay) = (Vec::new(), Vec::new());
        let (mut failed_for_good, mut pause) = (false, 0);
        for mut task in before {
            let given = if panics { Answer::Panic } else { answer(&task) };
            task.tries += 1;
            let why = || Failure::new("wanted");
            let outcome = match given {
                Answer::Done => Outcome::Done,
                Answer::Retry | Answer::Panic => Outcome::Retry(why()),
                Answer::After(ms) => Outcome::RetryAfter(Duration::from_millis(ms.into()), why()),
                Answer::Fail => Outcome::Fail(why()),
                Answer::Throttled(ms) => {
                    pause = pause.max(1_000_000 * u64::from(ms.max(1)));
                    Outcome::Throttled(Duration::from_millis(ms.into()))
                }
            };
            outcomes.push(outcome);
            match given {
                Answer::Done => self.done += 1,
                Answer::Throttled(_) => stay.push(task),
                Answer::Fail => (self.failed, failed_for_good) = (self.failed + 1, true),
                _ if task.attempts + 1 >= self.attempts => {
                    (self.failed, failed_for_good) = (self.failed + 1, true);
                }
                _ => {
                    task.attempts += 1;
                    stay.push(task);
                }
            }
        }
        stay.into_iter().rev().for_each(|task| queue.push_front(task));
        self.paused_until = self.paused_until.max(self.now + pause);
        if failed_for_good && self.halts(key) {
            self.halted.push(key);
        }
        (!panics).then_some(outcomes)
    }

    /// Tasks that have not ended.
    pub(super) fn left(&self) -> u64 {
        self.queues.values().map(|queue| queue.len() as u64).sum()
    }

    /// Those of them whose groups are halted.
    pub(super) fn held(&self) -> u64 {
        let of = |key| self.queues.get(key).map_or(0, |queue| queue.len() as u64);
        self.halted.iter().map(of).sum()
    }

    /// These tasks of a group were given back.
    pub(super) fn given_back(&mut self, key: u8, ids: &[u32]) {
        let queue = self.queues.remove(&key).expect("a key with tasks, once");
        let want: Vec<u32> = queue.iter().map(|task| task.script.id).collect();
        assert_eq!(want, ids, "tasks of key {key} given back");
    }
}

fn answer(task: &Waiting) -> Answer {
    task.script.answers.get(task.tries).copied().unwrap_or(Answer::Done)
}
