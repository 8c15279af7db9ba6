//! The oracle: per key what was accepted and not ended, and what may happen to it next.
//!
//! User code (handler, policy, state) tells it what the engine does, while the engine does it. The driver tells it
//! what was submitted, and asks it at rest whether anything waits that nothing keeps.

mod submits;

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bgrp::{Outcome, Verdict};

use super::setup::{MS, Setup};

/// A task that was accepted and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    id: u32,
    /// When the engine was at rest with it for the first time: it had been looked at by then.
    seen: Option<Duration>,
}

/// A task at the head that was tried.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// Not known while only the state of its group was to be opened for it: it is the first of one of the queues.
    entry: Option<Entry>,
    attempts: u32,
    /// The policy has the word.
    held: bool,
}

#[derive(Debug, Default)]
struct Group {
    head: Vec<Tried>,
    /// Tasks that were never offered to the handler, per way in.
    queues: BTreeMap<u16, VecDeque<Entry>>,
    /// In back-off until then: at least, and at most.
    rests: (Duration, Duration),
    halted: bool,
    /// Since when there is always a task.
    busy_since: Duration,
    /// The last step in which something of this group ran.
    step: u64,
    has_state: bool,
    /// Its batch is leased out.
    lent: bool,
    lent_at: Duration,
    /// When it came back, if it was not at rest since: a worker settles it some time later, and the wait begins then.
    back_at: Option<Duration>,
}

impl Group {
    fn waiting(&self) -> usize {
        let tried = self.head.iter().filter(|tried| tried.entry.is_some()).count();
        tried + self.queues.values().map(VecDeque::len).sum::<usize>()
    }

    fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        let tried = self.head.iter_mut().filter_map(|tried| tried.entry.as_mut());
        tried.chain(self.queues.values_mut().flatten())
    }
}

/// Figures that the engine must agree with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) accepted: u64,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) retries: u64,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Model {
    setup: Setup,
    groups: BTreeMap<u8, Group>,
    pub(super) now: Duration,
    /// Goes up with each step of a worker: one step is one turn of a group at most.
    pub(super) step: u64,
    pub(super) figures: Figures,
    pub(super) refuses: bool,
    pub(super) halted: bool,
    /// Keys that may have been reclaimed by close, so their states may go.
    pub(super) closing: bool,
    /// Nothing was submitted since the engine was at rest with room for more.
    pub(super) at_rest: bool,
    wrong: Vec<String>,
}

thread_local! {
    static MODEL: RefCell<Option<Model>> = const { RefCell::new(None) };
}

/// A fresh oracle for a run.
pub(super) fn start(setup: Setup) {
    MODEL.set(Some(Model {
        setup,
        groups: BTreeMap::new(),
        now: Duration::ZERO,
        step: 0,
        figures: Figures::default(),
        refuses: false,
        halted: false,
        closing: false,
        at_rest: true,
        wrong: Vec::new(),
    }));
}

pub(super) fn with<R>(f: impl FnOnce(&mut Model) -> R) -> R {
    MODEL.with_borrow_mut(|model| f(model.as_mut().expect("a run is under way")))
}

/// Panics if anything was wrong. User code only takes notes, so that its unwinding stays what the input wants.
pub(super) fn check() {
    let wrong = with(|model| std::mem::take(&mut model.wrong));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

impl Model {
    fn require(&mut self, ok: bool, what: impl FnOnce() -> String) {
        if !ok {
            let at = format!(" (step {}, {:?})", self.step, self.now);
            self.wrong.push(what() + &at);
        }
    }

    /// The handler is offered these tasks, oldest first: id, way in, attempt.
    pub(super) fn offer(&mut self, key: u8, tasks: &[(u32, u16, u32)]) {
        let (now, step, setup) = (self.now, self.step, self.setup);
        let mut wrong = Vec::new();
        let mut note = |what: String| wrong.push(what);
        let lingers = !setup.flush.is_zero() && !self.refuses;
        if self.halted {
            note(format!("key {key} runs in an engine that is halted"));
        }
        let group = self.groups.entry(key).or_default();
        if group.lent {
            note(format!("key {key} runs twice at once"));
        }
        if group.halted {
            note(format!("key {key} runs although it is halted"));
        }
        if !group.has_state {
            note(format!("key {key} runs without its state"));
        }
        if now + MS / 1_000 < group.rests.0 {
            note(format!("key {key} runs before {:?}", group.rests.0));
        }
        if tasks.len() > setup.batch {
            note(format!("a batch of {}", tasks.len()));
        }
        // A turn that follows a back-off need not be full, nor what comes after the first task of a turn.
        let fresh = std::mem::replace(&mut group.step, step) != step && group.head.is_empty();
        let full = if setup.batched { tasks.len() } else { group.waiting() } >= setup.batch;
        if lingers && fresh && !full && now + MS < group.busy_since + setup.flush {
            let since = group.busy_since;
            note(format!("{} tasks of key {key} run early: busy since {since:?}", tasks.len()));
        }
        for (i, (id, source, attempt)) in tasks.iter().enumerate() {
            if group.head.get(i).is_none_or(|tried| tried.entry.is_none()) {
                let entry = group.queues.entry(*source).or_default().pop_front();
                if entry.map(|entry| entry.id) != Some(*id) {
                    note(format!("key {key}: {id} runs, {entry:?} is next on way {source}"));
                }
                match group.head.get_mut(i) {
                    Some(tried) => tried.entry = entry,
                    None => group.head.push(Tried { entry, attempts: 0, held: false }),
                }
            }
            let tried = group.head[i];
            if tried.entry.map(|entry| entry.id) != Some(*id) || tried.held {
                note(format!("key {key}: {id} runs before {tried:?}"));
            }
            if tried.attempts + 1 != *attempt {
                note(format!("{id}: attempt {attempt} after {}", tried.attempts));
            }
        }
        for what in wrong {
            self.require(false, || what);
        }
    }

    /// What became of the tasks at the head. `bad_drops`: their drop will panic.
    pub(super) fn settle(&mut self, key: u8, outcomes: &[Outcome], bad_drops: &[bool]) {
        let (now, setup) = (self.now, self.setup);
        let group = self.groups.entry(key).or_default();
        let mut wait = (Duration::ZERO, Duration::ZERO);
        let mut kept = Vec::new();
        for (i, mut tried) in std::mem::take(&mut group.head).into_iter().enumerate() {
            let Some(outcome) = outcomes.get(i) else {
                kept.push(tried);
                continue;
            };
            tried.attempts += 1;
            let own = match outcome {
                Outcome::Done => {
                    let bad = bad_drops.get(i) == Some(&true);
                    self.figures.failed += u64::from(bad);
                    self.figures.done += u64::from(!bad);
                    continue;
                }
                Outcome::Retry(_) => setup.retry_wait(tried.attempts),
                Outcome::RetryAfter(after, _) => (*after, *after),
                Outcome::Fail(_) => (Duration::ZERO, Duration::ZERO),
                other => unreachable!("no task of this target answers {other:?}"),
            };
            tried.held = matches!(outcome, Outcome::Fail(_)) || tried.attempts >= setup.attempts;
            if !tried.held {
                self.figures.retries += 1;
                wait = (wait.0.max(own.0), wait.1.max(own.1));
            }
            kept.push(tried);
        }
        group.head = kept;
        group.rests = (now + wait.0, now + wait.1);
    }

    /// The batch of a group is leased out, or comes back.
    pub(super) fn lent(&mut self, key: u8, out: bool) {
        let now = self.now;
        let group = self.groups.entry(key).or_default();
        group.lent = out;
        if out {
            group.lent_at = now;
        }
        group.back_at = (!out).then_some(now);
    }

    /// The state of a group could not be opened: an attempt of the task at its head, whoever that is.
    pub(super) fn open_failed(&mut self, key: u8) {
        let (has_state, step) = (self.groups.entry(key).or_default().has_state, self.step);
        self.require(!has_state, || format!("key {key} opens a second state"));
        let group = self.groups.entry(key).or_default();
        group.step = step;
        if group.head.is_empty() {
            group.head.push(Tried { entry: None, attempts: 0, held: false });
        }
        self.settle(key, &[Outcome::Retry(bgrp::Failure::new("state"))], &[]);
    }

    pub(super) fn opened(&mut self, key: u8) {
        let had = std::mem::replace(&mut self.groups.entry(key).or_default().has_state, true);
        self.require(!had, || format!("key {key} opens a second state"));
    }

    /// A state goes: its group was reclaimed, or the engine ends.
    pub(super) fn state_dropped(&mut self, key: u8, pinned: bool) {
        let had = std::mem::take(&mut self.groups.entry(key).or_default().has_state);
        let closing = self.closing;
        self.require(had, || format!("key {key} loses a state that it had not"));
        self.require(closing || !pinned, || format!("key {key} is reclaimed under its handle"));
        let tried = self.groups.entry(key).or_default().head.len();
        self.require(closing || tried == 0, || format!("key {key} is reclaimed with its head"));
    }

    /// The policy is asked about a task and answers.
    pub(super) fn verdict(&mut self, key: u8, id: u32, attempts: u32, verdict: Verdict) {
        let (now, step) = (self.now, self.step);
        let group = self.groups.entry(key).or_default();
        let held_before = std::mem::replace(&mut group.step, step) != step;
        // A lease is settled some steps after it came back.
        let early = held_before && group.back_at.is_none() && now < group.rests.0;
        let is = |tried: &Tried| tried.entry.is_none_or(|entry| entry.id == id);
        let Some(at) = group.head.iter().position(is) else {
            self.require(false, || format!("the policy is asked about {id}, which is not tried"));
            return;
        };
        let mut tried = group.head[at];
        if tried.entry.is_none() {
            // Now it is known who was at the head.
            let queue =
                group.queues.values_mut().find(|queue| queue.front().is_some_and(|e| e.id == id));
            tried.entry = queue.and_then(VecDeque::pop_front);
            group.head[at] = tried;
        }
        let ok = tried.held && tried.attempts == attempts && tried.entry.is_some() && !early;
        match verdict {
            Verdict::Hold(wait) => {
                let until = now + wait;
                group.rests = (group.rests.0.max(until), group.rests.1.max(until));
            }
            verdict => {
                group.head.remove(at);
                group.halted |= verdict == Verdict::HaltGroup;
                self.figures.failed += 1;
                self.halted |= verdict == Verdict::HaltEngine;
            }
        }
        self.require(ok, || format!("the policy is asked about {id} after {attempts}: {tried:?}"));
    }

    /// The key of a task could not be compared, so it never came to its group.
    pub(super) fn rejected(&mut self, key: u8, id: u32) {
        self.figures.failed += 1;
        let group = self.groups.entry(key).or_default();
        let before = group.waiting();
        group.queues.values_mut().for_each(|queue| queue.retain(|entry| entry.id != id));
        let gone = before - group.waiting();
        self.require(gone == 1, || format!("{id} is rejected, and {gone} such tasks waited"));
    }

    /// Tasks of groups that are not halted.
    pub(super) fn waiting(&self) -> usize {
        self.groups.values().filter(|group| !group.halted).map(Group::waiting).sum()
    }

    /// Tasks of groups that are halted.
    pub(super) fn held(&self) -> usize {
        self.groups.values().filter(|group| group.halted).map(Group::waiting).sum()
    }

    /// The engine may be so full of tasks that wait for a time that it takes no more out of the ingress.
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting() * 16 > self.setup.capacity * 7
    }

    /// No worker finds anything to do: what waits must have a reason.
    pub(super) fn rest(&mut self) {
        if self.halted || self.is_crowded() {
            return;
        }
        self.at_rest = true;
        let (now, setup, refuses) = (self.now, self.setup, self.refuses);
        let mut wrong = Vec::new();
        for (key, group) in &mut self.groups {
            if let Some(back_at) = group.back_at.take() {
                group.rests.1 += now - back_at;
            }
            group.entries().for_each(|entry| entry.seen = entry.seen.or(Some(now)));
            let oldest = group.entries().filter_map(|entry| entry.seen).min();
            let Some(oldest) = oldest else { continue };
            let in_back_off =
                now < group.rests.1 + MS && !group.head.is_empty() || now < group.rests.1;
            let lingers = !refuses
                && group.head.is_empty()
                && group.waiting() < setup.batch
                && now < oldest + setup.flush + MS;
            if !group.halted && !in_back_off && !lingers && !group.lent {
                wrong.push(format!("nothing keeps key {key}: {group:?}"));
            }
        }
        for what in wrong {
            self.require(false, || what);
        }
    }

    /// What close gives back of a group, oldest first: id and way in. Forgets it.
    pub(super) fn give_back(&mut self, key: u8, tasks: &[(u32, u16)]) {
        let mut group = self.groups.remove(&key).unwrap_or_default();
        let tried: Vec<_> = group.head.iter().filter_map(|tried| tried.entry).collect();
        let mut wrong = tasks.len() != group.waiting();
        for (i, (id, source)) in tasks.iter().enumerate() {
            let wanted = match tried.get(i) {
                Some(entry) => Some(*entry),
                None => group.queues.entry(*source).or_default().pop_front(),
            };
            wrong |= wanted.map(|entry| entry.id) != Some(*id);
        }
        self.require(!wrong, || format!("key {key} gives back {tasks:?}, not {tried:?} and more"));
    }
}
