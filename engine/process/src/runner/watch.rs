//! What can be seen of a run while it goes on.

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use super::{reactor::Reactor, worker::State};
use crate::task::Text;

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Tasks accepted so far.
    pub total: u64,
    /// Those that ended ok.
    pub ok: u64,
    /// Those that failed for good.
    pub failed: u64,
    /// Those that are with workers, or next in line.
    pub running: u64,
    /// The others that have not ended: they wait for those before them, for a rate, or for their next attempt.
    pub waiting: u64,
    /// Attempts that were followed by another one. Not part of the total.
    pub retries: u64,
}

/// A worker, and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Running {
    /// The worker, by its number in this run.
    pub worker: u32,
    /// Its process; `None` until it runs.
    pub pid: Option<u32>,
    /// How far it is.
    pub state: &'static str,
    /// The task that it runs.
    pub task: Option<Text>,
    /// The group of that task.
    pub key: Option<Text>,
    /// For how long it has run it.
    pub since: Duration,
    /// Tasks that it has, the running one included.
    pub has: u32,
    /// Tasks that it has answered.
    pub answered: u64,
}

/// Somebody asks who runs.
pub(super) struct Asked(Sender<Vec<Running>>);

impl Asked {
    pub(super) fn new() -> (Self, Receiver<Vec<Running>>) {
        let (sender, receiver) = channel();
        (Self(sender), receiver)
    }
}

impl Reactor {
    /// Answers whoever has asked.
    pub(super) fn tell(&self, asked: Vec<Asked>, now: Instant) {
        if asked.is_empty() {
            return;
        }
        let one = |worker: &super::worker::Worker| {
            let runs = worker.runs(now);
            let task = runs.and_then(|(number, _)| worker.hand.find(number));
            Running {
                worker: worker.number,
                pid: worker.pid,
                state: match worker.state {
                    State::Starting(_) => "starting",
                    State::Ready => "ready",
                    State::Draining(_) => "draining",
                    State::Stopping(_) => "stopping",
                },
                task: task.map(|(_, item)| item.id.clone()),
                key: task.and_then(|(key, _)| key.name()),
                since: runs.map_or(Duration::ZERO, |(_, since)| since),
                has: worker.hand.open(),
                answered: worker.sent - u64::from(worker.hand.open()),
            }
        };
        let all: Vec<Running> = self.workers.iter().map(one).collect();
        for Asked(sender) in asked {
            // Who asked may be gone.
            let _ = sender.send(all.clone());
        }
    }
}
