//! The plain model: per key what was accepted and did not end, and what may happen to it next.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use bgrp::{Outcome, Verdict};

use crate::common::Counted;

pub(crate) const RETRY: Duration = Duration::from_millis(7);

/// A task: who it is, and by which way it came (0: in the common order; else a lane of its own).
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: usize,
    pub(crate) source: usize,
    pub(crate) counted: Counted,
}

#[derive(Debug, Default)]
pub(crate) struct KeyModel {
    /// Tasks that stay at the head, in their order, with their attempts, and whether the policy holds them.
    pub(crate) head: Vec<(usize, u32, bool)>,
    /// Accepted tasks that were never offered to the handler, per way in.
    pub(crate) queues: HashMap<usize, VecDeque<usize>>,
    pub(crate) not_before: Duration,
    pub(crate) halted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) keys: HashMap<u8, KeyModel>,
    pub(crate) now: Duration,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) retries: u64,
    pub(crate) accepted: u64,
    pub(crate) engine_halted: bool,
    /// The policy was asked about these tasks since the last look: what it said.
    pub(crate) verdicts: HashMap<usize, Verdict>,
    pub(crate) wrong: Vec<String>,
}

impl Model {
    pub(crate) fn check(&mut self, ok: bool, what: impl FnOnce() -> String) {
        if !ok {
            self.wrong.push(what());
        }
    }

    pub(crate) fn accept(&mut self, key: u8, source: usize, id: usize) {
        self.accepted += 1;
        self.keys.entry(key).or_default().queues.entry(source).or_default().push_back(id);
    }

    /// The handler is offered these tasks, oldest first.
    pub(crate) fn offer(&mut self, key: u8, tasks: &[(usize, usize, u32)]) {
        let (now, engine_halted) = (self.now, self.engine_halted);
        let model = self.keys.entry(key).or_default();
        let mut wrong = Vec::new();
        if now < model.not_before {
            wrong.push(format!("key {key} ran at {now:?}, before {:?}", model.not_before));
        }
        if model.halted || engine_halted {
            wrong.push(format!("key {key} ran although it is halted"));
        }
        for (i, (id, source, attempt)) in tasks.iter().enumerate() {
            match model.head.get(i) {
                Some((wanted, attempts, held)) => {
                    if wanted != id || *held {
                        wrong.push(format!("key {key}: {id} before {wanted} (held: {held})"));
                    }
                    if attempts + 1 != *attempt {
                        wrong.push(format!("{id}: attempt {attempt} after {attempts}"));
                    }
                }
                None => {
                    let next = model.queues.entry(*source).or_default().pop_front();
                    if next != Some(*id) || *attempt != 1 {
                        wrong.push(format!("key {key}: {id} before {next:?}, attempt {attempt}"));
                    }
                    model.head.push((*id, 0, false));
                }
            }
        }
        self.wrong.append(&mut wrong);
    }

    pub(crate) fn settle(&mut self, key: u8, attempts: u32, outcomes: &[Outcome]) {
        // What stays, stays in its order. Verdicts of this very dispatch are not known yet: see `verdict`.
        let now = self.now;
        let mut kept = Vec::new();
        let mut wait = Duration::ZERO;
        let model = self.keys.entry(key).or_default();
        for (i, (id, before, held)) in std::mem::take(&mut model.head).into_iter().enumerate() {
            let Some(outcome) = outcomes.get(i) else {
                kept.push((id, before, held));
                continue;
            };
            let used = before + 1;
            let asked = match outcome {
                Outcome::Done => {
                    self.done += 1;
                    continue;
                }
                Outcome::Retry(_) => RETRY,
                Outcome::RetryAfter(asked, _) => *asked,
                Outcome::Fail(_) => {
                    kept.push((id, used, true));
                    continue;
                }
                other => unreachable!("no task of this test answers {other:?}"),
            };
            if used >= attempts {
                kept.push((id, used, true));
            } else {
                self.retries += 1;
                wait = wait.max(asked);
                kept.push((id, used, false));
            }
        }
        model.head = kept;
        model.not_before = now + wait;
    }

    /// The policy is asked about a task and answers.
    pub(crate) fn verdict(&mut self, key: u8, id: usize, attempts: u32, verdict: Verdict) {
        let now = self.now;
        let model = self.keys.entry(key).or_default();
        let Some(at) = model.head.iter().position(|(other, ..)| *other == id) else {
            self.wrong.push(format!("the policy was asked about {id}, which is not at the head"));
            return;
        };
        if (attempts, true) != (model.head[at].1, model.head[at].2) {
            self.wrong.push(format!("{id}: asked after {attempts}, know {:?}", model.head[at]));
        }
        match verdict {
            Verdict::Hold(wait) => model.not_before = model.not_before.max(now + wait),
            verdict => {
                model.head.remove(at);
                self.failed += 1;
                model.halted |= verdict == Verdict::HaltGroup;
                self.engine_halted |= verdict == Verdict::HaltEngine;
            }
        }
    }

    pub(crate) fn waiting(&self, key: u8) -> Vec<usize> {
        let Some(model) = self.keys.get(&key) else { return Vec::new() };
        model.head.iter().map(|(id, ..)| *id).collect()
    }
}
