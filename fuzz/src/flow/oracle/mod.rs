//! What must hold, counted in the simplest way: a queue for each key, a leaking level for each rate.
//!
//! A task that was answered as exhausted stays in its queue until the policy has the word. Where batches are leases an answer is
//! settled by a worker later, which nothing shows: until the group runs again or all is at rest, both are right.

mod rates;
mod room;
mod script;
mod tickets;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bgrp::{Failure, Outcome, Ticket};
use rates::Level;
pub(super) use rates::Limit;
pub(super) use script::{Answer, End, HOLD, Reply, Rules, Script};

/// A task that has not ended.
pub(super) struct Waiting {
    pub(super) script: Script,
    pub(super) attempts: u32,
    /// How often it was tried, throttled tries included.
    tries: usize,
    /// Its attempts are used up, and the policy is to say what follows; so often it was asked.
    exhausted: Option<u8>,
}

/// Where the batch of a group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Out {
    /// There is none.
    #[default]
    No,
    /// Leased out.
    Leased,
    /// It came back, and perhaps a worker has settled it.
    Returned,
}

/// One group.
#[derive(Default)]
pub(super) struct Group {
    pub(super) queue: VecDeque<Waiting>,
    pub(super) out: Out,
    /// It is not run before.
    not_before: u64,
    /// The last back-off ends then, even if somebody has cut it short.
    pub(super) rests_until: u64,
    pub(super) paused: bool,
    pub(super) closed: bool,
    pub(super) halted: bool,
    /// Tasks that a lease brought back done, and what they weigh: inside until a worker has settled it.
    leaving: (usize, usize),
}

impl Group {
    /// It starts nothing.
    pub(super) fn stands(&self) -> bool {
        self.paused || self.closed || self.halted
    }

    fn rest(&mut self, until: u64) {
        if !self.halted {
            self.not_before = self.not_before.max(until);
            self.rests_until = self.rests_until.max(until);
        }
    }
}

/// See the module text.
#[derive(Default)]
pub(super) struct Oracle {
    pub(super) rules: Rules,
    /// Nanoseconds.
    pub(super) now: u64,
    pub(super) groups: HashMap<u8, Group>,
    pub(super) accepted: u64,
    /// Dispatches.
    pub(super) begun: u64,
    /// Tasks that ended as done.
    pub(super) done: u64,
    /// Tasks that failed for good.
    pub(super) failed: u64,
    /// Tasks that calls gave back.
    pub(super) cancelled: u64,
    /// Attempts that are followed by another one.
    pub(super) retries: u64,
    /// Tasks that the sink took.
    pub(super) letters: u64,
    ends: HashMap<u32, End>,
    tickets: Vec<(u32, bool, Ticket)>,
    woken: tickets::Woken,
    /// The downstream is throttled until then; and, for leases that are not settled for certain, until then.
    pub(super) paused_until: u64,
    pause_to_come: u64,
    /// The rate of the engine.
    pub(super) rate: Option<Limit>,
    level: Level,
    /// The rate of each group.
    pub(super) group_rate: Option<Limit>,
    levels: HashMap<u8, Level>,
    /// Tasks of one dispatch, at most: the batch, and the limit in flight where tasks are counted.
    pub(super) most: usize,
}

impl Oracle {
    /// A task was accepted.
    pub(super) fn accepted(&mut self, key: u8, script: Script) {
        self.accepted += 1;
        let task = Waiting { script, attempts: 0, tries: 0, exhausted: None };
        self.groups.entry(key).or_default().queue.push_back(task);
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

    fn end(&mut self, id: u32, end: End) {
        let before = self.ends.insert(id, end);
        assert!(before.is_none(), "task {id} ends as {end:?} after {before:?}");
    }

    /// A dispatch starts with these tasks and their attempts.
    pub(super) fn begin(&mut self, key: u8, batch: &[(Script, u32)]) {
        assert!(self.now >= self.paused_until, "a throttled downstream is called");
        let group = self.groups.get_mut(&key).expect("a key that was submitted");
        assert!(!group.stands(), "key {key} runs and stands: {:?}", (group.paused, group.closed));
        assert_ne!(group.out, Out::Leased, "two batches of key {key} at once");
        // The wheel may be early by less than this.
        assert!(self.now + 1_000 >= group.not_before, "key {key} runs in its back-off");
        assert!(!batch.is_empty() && batch.len() <= self.most, "a batch of {}", batch.len());
        let tasks = batch.len() as u64;
        if let Some(limit) = self.rate {
            self.level.start(&limit, tasks, self.now);
        }
        if let Some(limit) = self.group_rate {
            let fresh = Level { at: self.now, used: 0 };
            self.levels.entry(key).or_insert(fresh).start(&limit, tasks, self.now);
        }
        for (i, (script, attempt)) in batch.iter().enumerate() {
            let waiting = group.queue.get(i).expect("a task that was accepted and has not ended");
            assert_eq!(waiting.script.id, script.id, "order of key {key}");
            assert_eq!(waiting.attempts + 1, *attempt, "attempt of task {}", script.id);
            assert!(waiting.exhausted.is_none(), "task {} is held, and runs", script.id);
        }
        (group.out, group.leaving) = (Out::Leased, (0, 0));
        self.begun += 1;
    }

    /// The dispatch of so many tasks is answered: the outcomes, or nothing, then it is lost.
    pub(super) fn answer(&mut self, key: u8, tasks: usize, reply: Reply) -> Option<Vec<Outcome>> {
        let now = self.now;
        let group = self.groups.get_mut(&key).expect("a key that runs");
        assert_eq!(group.out, Out::Leased, "a batch of key {key} that is out");
        group.out = Out::Returned;
        let batch: Vec<Waiting> = group.queue.drain(..tasks).collect();
        let panics = batch.iter().any(|task| task.script.answer(task.tries) == Answer::Panic);
        let lost = reply == Reply::Lost || (reply == Reply::Scripts && panics);
        let (mut outcomes, mut stay, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let (mut wait, mut pause) = (None, Duration::ZERO);
        for mut task in batch {
            let given = match reply {
                _ if lost => Answer::Panic,
                Reply::WrongCount => Answer::Fail,
                _ => task.script.answer(task.tries),
            };
            task.tries += 1;
            let counts = !matches!(given, Answer::Throttled(_) | Answer::NotRun);
            task.attempts += u32::from(counts);
            let used_up = task.attempts >= self.rules.attempts;
            let why = || Failure::new("wanted");
            let (outcome, rests) = match given {
                Answer::Done => (Outcome::Done, Duration::ZERO),
                Answer::NotRun => (Outcome::NotRun, Duration::ZERO),
                Answer::Fail => (Outcome::Fail(why()), Duration::ZERO),
                Answer::Retry | Answer::Panic => (Outcome::Retry(why()), self.rules.delay),
                Answer::After(ms) => {
                    let after = Duration::from_millis(ms.into());
                    (Outcome::RetryAfter(after, why()), after)
                }
                Answer::Throttled(ms) => {
                    let after = Duration::from_millis(ms.max(1).into());
                    pause = pause.max(after);
                    (Outcome::Throttled(Duration::from_millis(ms.into())), after)
                }
            };
            outcomes.push(outcome);
            match given {
                Answer::Done => {
                    ends.push(task.script.id);
                    group.leaving.0 += 1;
                    group.leaving.1 += task.script.weight();
                    continue;
                }
                Answer::NotRun => {}
                Answer::Throttled(_) => wait = wait.max(Some(rests)),
                Answer::Fail => task.exhausted = Some(0),
                _ if used_up => task.exhausted = Some(0),
                _ => wait = wait.max(Some(rests)),
            }
            // Neither a throttled try nor one that was not begun is an attempt that another one follows.
            self.retries += u64::from(task.exhausted.is_none() && counts);
            stay.push(task);
        }
        stay.into_iter().rev().for_each(|task| group.queue.push_front(task));
        group.not_before = 0;
        group.rests_until = 0;
        if let Some(wait) = wait {
            group.rest(now + wait.as_nanos() as u64);
        }
        if !pause.is_zero() {
            self.pause_to_come = self.pause_to_come.max(now + pause.as_nanos() as u64);
        }
        self.done += ends.len() as u64;
        ends.into_iter().for_each(|id| self.end(id, End::Done));
        if !self.rules.leases {
            self.settled(key);
        }
        if reply == Reply::WrongCount {
            outcomes.push(Outcome::Done);
        }
        (!lost).then_some(outcomes)
    }

    /// What was answered is settled.
    fn settled(&mut self, key: u8) {
        let group = self.groups.entry(key).or_default();
        (group.out, group.leaving) = (Out::No, (0, 0));
        self.paused_until = self.paused_until.max(self.pause_to_come);
    }

    /// No worker finds anything to do: what came back is settled.
    pub(super) fn at_rest(&mut self) {
        for (key, group) in &mut self.groups {
            group.leaving = (0, 0);
            if group.out == Out::Returned {
                group.out = Out::No;
            }
            let asked = |task: &Waiting| task.exhausted != Some(0);
            assert!(group.queue.iter().all(asked), "nobody asked what follows, key {key}");
        }
        self.paused_until = self.paused_until.max(self.pause_to_come);
    }

    /// The policy, or the sink, is asked about a task whose attempts are used up. `true`: it is over, failed.
    pub(super) fn exhausted(&mut self, key: u8, script: &Script, attempts: u32) -> bool {
        let id = script.id;
        let (now, sink) = (self.now, self.rules.sink);
        let halts = !sink && self.rules.halts != 0 && key.is_multiple_of(self.rules.halts);
        let group = self.groups.get_mut(&key).expect("a key that runs");
        let at = group.queue.iter().position(|task| task.script.id == id);
        let at = at.expect("a task that has not ended");
        let task = &mut group.queue[at];
        assert_eq!(task.attempts, attempts, "attempts of task {id}");
        let asked = task.exhausted.as_mut().expect("its attempts are used up");
        *asked += 1;
        let again = *asked > 1;
        if again {
            assert_eq!(at, 0, "held behind others, and asked about");
            assert!(now + 1_000 >= group.not_before, "asked about {id} in its back-off");
        }
        if sink && *asked <= script.bad_writes {
            if again {
                (group.not_before, group.rests_until) = (0, 0);
            }
            group.rest(now + HOLD.as_nanos() as u64);
            return false;
        }
        group.queue.remove(at);
        if halts {
            group.halted = true;
            (group.not_before, group.rests_until) = (0, 0);
        }
        self.failed += 1;
        self.letters += u64::from(sink);
        self.end(id, End::Failed(attempts));
        true
    }

    /// All that waits in a group was given back.
    pub(super) fn given_back(&mut self, key: u8, ids: &[u32]) {
        let group = self.groups.entry(key).or_default();
        assert_ne!(group.out, Out::Leased, "key {key}: given back under its lease");
        group.out = Out::No;
        let queue = std::mem::take(&mut group.queue);
        (group.not_before, group.rests_until) = (0, 0);
        let want: Vec<u32> = queue.iter().map(|task| task.script.id).collect();
        assert_eq!(want, ids, "tasks of key {key} given back");
        ids.iter().for_each(|id| self.end(*id, End::GivenBack));
    }

    /// A group that stood goes on, and does not wait for what is left of a back-off.
    pub(super) fn resumed(&mut self, key: u8) {
        let group = self.groups.entry(key).or_default();
        (group.paused, group.closed, group.halted) = (false, false, false);
        group.not_before = 0;
    }

    /// Tasks that have not ended.
    pub(super) fn left(&self) -> u64 {
        self.groups.values().map(|group| group.queue.len() as u64).sum()
    }

    /// Those of them whose groups stand.
    pub(super) fn held(&self) -> u64 {
        let standing = self.groups.values().filter(|group| group.stands());
        standing.map(|group| group.queue.len() as u64).sum()
    }
}
