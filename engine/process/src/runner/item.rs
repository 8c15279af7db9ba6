//! A task inside the engine.

use std::time::Duration;

use crate::{
    result::{Ended, TaskResult},
    task::{Task, Text, Value},
};

/// The group of a task in the engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Those with this key.
    Named(Text),
    /// It alone: a number of its own.
    Alone(u64),
}

impl Key {
    pub(super) fn name(&self) -> Option<Text> {
        match self {
            Self::Named(name) => Some(name.clone()),
            Self::Alone(_) => None,
        }
    }
}

/// What the engine keeps of a task.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: Text,
    pub(super) name: Option<Text>,
    pub(super) args: Value,
    pub(super) timeout: Option<Duration>,
    /// Workers that it has ended so far.
    pub(super) crashes: u32,
    /// The worker that had it last.
    pub(super) worker: Option<u32>,
    /// How its last attempt ended, if badly.
    pub(super) fault: Option<Box<Ended>>,
}

impl Item {
    /// The task, with the group that it belongs to. `number`: of all those without a key.
    pub(super) fn new(task: Task, number: impl FnOnce() -> u64) -> (Key, Self) {
        let Task { id, key, name, args, timeout } = task;
        let key = key.map_or_else(|| Key::Alone(number()), Key::Named);
        (key, Self { id, name, args, timeout, crashes: 0, worker: None, fault: None })
    }

    /// Its final result. The item is a shell from here on.
    pub(super) fn end(&mut self, key: Option<Text>, ended: Ended, attempts: u32) -> TaskResult {
        self.fault = None;
        TaskResult { id: std::mem::take(&mut self.id), key, ended, attempts, worker: self.worker }
    }

    /// As the caller gave it.
    pub(super) fn into_task(self, key: Key) -> Task {
        let key = match key {
            Key::Named(name) => Some(name),
            Key::Alone(_) => None,
        };
        Task { id: self.id, key, name: self.name, args: self.args, timeout: self.timeout }
    }
}
