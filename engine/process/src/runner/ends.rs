//! What is due: deadlines of tasks, of starts, of stops; and what becomes of the tasks of a worker that is gone.
//!
//! | a worker that has ended had | and | then |
//! |---|---|---|
//! | a task that it ran | it was stopped for it | timeout, with the survivors of the sweep |
//! | a task that it ran | it was not | crashed, or over its memory |
//! | tasks that it did not run | | not run: their places and their attempts are as they were |
//! | answered nothing in its life | ran none | many of them in a row end the run, as starts that fail do |
//!
//! I1: a worker is gone when the guardian has reaped it, its socket is read to the end (or what it started holds it open for
//! [`LINGER`]), and what it started is swept. Before that, none of its tasks is answered for it.

use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use bgrp::{Lease, Outcome};
use rustix::process::Signal;

use super::{
    hand::Answer,
    item::{Item, Key},
    memory,
    reactor::{FAREWELL, Reactor, timed_out},
    wire,
    worker::{State, Stop, Worker},
};
use crate::{
    guardian::Guardian,
    result::{Crash, Ended},
};

/// How long a worker may have nothing to do, where there are more than the least number.
const IDLE: Duration = Duration::from_secs(10);

/// No task of it was run.
pub(super) fn not_run(lease: Lease<Key, Item>) {
    let outcomes = vec![Outcome::NotRun; lease.len()];
    lease.complete(outcomes);
}

/// It is asked to stop, and terminated; killed after `grace`.
pub(super) fn stop(
    worker: &mut Worker,
    guardian: &mut Guardian,
    blamed: Option<(u64, Ended)>,
    now: Instant,
    grace: Duration,
) {
    if matches!(worker.state, State::Stopping(_)) {
        return;
    }
    if let Some((number, _)) = &blamed {
        wire::cancel(worker, *number);
        worker.write();
    }
    guardian.signal(worker.number.into(), Signal::TERM);
    worker.state = State::Stopping(Stop { blamed, kill_at: Some(now + grace) });
}

impl Worker {
    /// It gets no more, and is to end when it has done what it has.
    pub(super) fn drain(&mut self, now: Instant) {
        self.hand.give_back_unsent();
        wire::drain(self);
        self.write();
        self.state = State::Draining(now + FAREWELL);
    }
}

impl Reactor {
    /// Does what is due, and says when something is again.
    pub(super) fn tend(&mut self, now: Instant) -> Option<Instant> {
        let mut due = Vec::new();
        let (limit, look) = self.looks.due(now);
        // Idle workers are nothing to look at.
        due.extend(look.filter(|_| self.workers.iter().any(|worker| worker.hand.open() > 0)));
        for at in (0..self.workers.len()).rev() {
            if self.is_gone(at, now) {
                self.bury(at, now);
                // There is room for another one.
                due.push(now);
                continue;
            }
            if let Some(limit) = limit {
                self.check_memory(at, limit, now);
            }
            due.extend(self.tend_one(at, now));
        }
        due.into_iter().min()
    }

    fn tend_one(&mut self, at: usize, now: Instant) -> Option<Instant> {
        let worker = &mut self.workers[at];
        if worker.exited.is_some() {
            return worker.gone_at.filter(|_| worker.socket.is_some());
        }
        match &mut worker.state {
            State::Starting(give_up) if now < *give_up => Some(*give_up),
            State::Starting(_) => {
                let limit = self.settings.start_timeout;
                stop(worker, &mut self.guardian, None, now, self.settings.grace);
                self.start_failed(format!("not ready within {limit:?}{}", self.said()), now);
                Some(now)
            }
            State::Ready if self.settings.recycle.is_some_and(|most| worker.sent >= most) => {
                worker.drain(now);
                Some(now)
            }
            State::Ready if worker.hand.is_empty() => self.check_idle(at, now),
            State::Ready => self.check_deadline(at, now),
            State::Draining(until) => {
                if !worker.hand.is_empty() {
                    *until = now + FAREWELL;
                    return self.check_deadline(at, now);
                }
                if now < *until {
                    return Some(*until);
                }
                stop(worker, &mut self.guardian, None, now, self.settings.grace);
                Some(now)
            }
            State::Stopping(stop) => {
                let kill_at = stop.kill_at?;
                if now < kill_at {
                    return Some(kill_at);
                }
                stop.kill_at = None;
                self.kill(at);
                None
            }
        }
    }

    /// The task that runs now may not run longer than it may.
    fn check_deadline(&mut self, at: usize, now: Instant) -> Option<Instant> {
        let worker = &self.workers[at];
        if worker.hand.open() == 0 {
            return None;
        }
        let Some((number, since)) = worker.runs(now) else {
            // Between two tasks: the next one has all its time before it.
            let (_, item) = worker.hand.find(worker.hand.oldest()?)?;
            return self.timeout_of(item).map(|limit| now + limit);
        };
        let (_, item) = worker.hand.find(number)?;
        let limit = self.timeout_of(item)?;
        if since < limit {
            return Some(now + (limit - since));
        }
        let grace = self.settings.grace;
        let worker = &mut self.workers[at];
        worker.hand.give_back_unsent();
        stop(worker, &mut self.guardian, Some((number, timed_out(limit))), now, grace);
        Some(now + grace)
    }

    /// A worker that has had nothing to do for long ends, if more than the least number of them are there.
    fn check_idle(&mut self, at: usize, now: Instant) -> Option<Instant> {
        let least = *self.settings.workers.start();
        if self.workers.iter().filter(|worker| worker.is_usable()).count() <= least {
            return None;
        }
        let until = self.workers[at].moved + IDLE;
        if now < until {
            return Some(until);
        }
        self.workers[at].drain(now);
        Some(now)
    }

    /// A worker over this limit is ended, and its task is to blame.
    fn check_memory(&mut self, at: usize, limit: u64, now: Instant) {
        let worker = &mut self.workers[at];
        let over = worker.pid.and_then(memory::resident).is_some_and(|held| held > limit);
        if !over || worker.exited.is_some() || matches!(worker.state, State::Stopping(_)) {
            return;
        }
        let ended = Ended::OutOfMemory { limit, seen_by: "a look at /proc" };
        let blamed = worker.runs(now).map(|(number, _)| (number, ended));
        worker.hand.give_back_unsent();
        // It may be far over before it ends by itself.
        worker.state = State::Stopping(Stop { blamed, kill_at: None });
        self.kill(at);
    }

    fn is_gone(&self, at: usize, now: Instant) -> bool {
        let worker = &self.workers[at];
        let read = worker.socket.is_none() || worker.gone_at.is_some_and(|gone| now >= gone);
        worker.exited.is_some() && worker.swept.is_some() && read
    }

    /// A worker is gone: its tasks are answered for it, and it is forgotten.
    fn bury(&mut self, at: usize, now: Instant) {
        let mut worker = self.workers.swap_remove(at);
        for stream in 0..2 {
            self.say_rest(&mut worker, stream);
        }
        let status = worker.exited.unwrap_or_default();
        let survivors = worker.swept.take().unwrap_or_default();
        let running = worker.runs(now).map(|(number, _)| number);
        let useless = worker.hand.is_useless();
        let state = std::mem::replace(&mut worker.state, State::Ready);
        let was_starting = matches!(state, State::Starting(_));
        let was_ready = matches!(state, State::Ready);
        let blamed = match state {
            State::Stopping(Stop { blamed: Some((number, ended)), .. }) => {
                Some((number, with_survivors(ended, survivors)))
            }
            State::Stopping(_) => None,
            _ => running.map(|number| {
                let crash = Crash { code: status.code(), signal: status.signal(), times: 0 };
                (number, if worker.oom { self.out_of_memory() } else { Ended::Crashed(crash) })
            }),
        };
        if was_starting {
            self.start_failed(format!("it ended with {status}{}", self.said()), now);
        } else if useless && blamed.is_none() && was_ready {
            self.was_useless(format!("ready, it ended with {status}{}", self.said()), now);
        }
        if let Some((number, ended)) = blamed {
            worker.hand.answer(number, Answer::Lost(ended), &self.judge, &mut self.results);
        }
        worker.hand.give_back_all();
    }

    fn out_of_memory(&self) -> Ended {
        Ended::OutOfMemory { limit: self.settings.memory.unwrap_or(0), seen_by: "the system" }
    }

    /// What a worker printed last, for the error of a start.
    fn said(&self) -> String {
        match self.last_line.trim() {
            "" => String::new(),
            line => format!("; it said: {line}"),
        }
    }
}

fn with_survivors(ended: Ended, pids: Vec<u32>) -> Ended {
    match ended {
        Ended::Timeout { limit, .. } => {
            Ended::Timeout { limit, survivors: pids.into_iter().map(|pid| pid as i32).collect() }
        }
        other => other,
    }
}
