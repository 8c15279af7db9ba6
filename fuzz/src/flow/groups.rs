//! Calls on one group, by its key and by a handle: pause, resume, cancel, discard, drain, close.

use std::time::Duration;

use bgrp::GroupError;

use super::{
    oracle::{Out, Script},
    setup::lock,
    stage::{KEYS, Stage},
};

impl Stage {
    /// One call.
    pub(super) fn call(&mut self, which: u8, key: u8) {
        let (key, by_handle) = (key % KEYS, key & 16 != 0);
        match which {
            0..=2 => self.pause(key, by_handle),
            3 => self.pause_within(key),
            4..=8 => self.resume(key, by_handle),
            9 | 10 => self.cancel(key, by_handle),
            11 => self.discard(key, by_handle),
            12 | 13 => self.drain(key, by_handle),
            _ => self.close_group(key, by_handle),
        }
    }

    /// Nothing of the group runs, is leased out or on its way to a worker: it must answer.
    fn is_quiet(&self, key: u8) -> bool {
        let out = lock(&self.oracle).groups.get(&key).map_or(Out::No, |group| group.out);
        self.at_rest && out == Out::No
    }

    fn pause(&mut self, key: u8, by_handle: bool) {
        match by_handle {
            true => self.handle(key).pause(),
            false => self.sim.engine().pause_group(key),
        }
        lock(&self.oracle).groups.entry(key).or_default().paused = true;
    }

    fn pause_within(&mut self, key: u8) {
        let quiet = self.is_quiet(key);
        let stands = self.handle(key).pause_within(Duration::ZERO);
        let mut oracle = lock(&self.oracle);
        let group = oracle.groups.entry(key).or_default();
        group.paused = true;
        assert!(stands || !quiet, "key {key} is quiet, and does not come to rest");
        assert!(!stands || group.out != Out::Leased, "key {key} rests under its lease");
    }

    pub(super) fn resume(&mut self, key: u8, by_handle: bool) {
        let stood = match by_handle {
            true => self.handle(key).resume(),
            false => self.sim.engine().resume_group(&key),
        };
        self.at_rest = false;
        let mut oracle = lock(&self.oracle);
        let stands = oracle.groups.get(&key).is_some_and(|group| group.stands());
        assert_eq!(stood, stands, "key {key} stood");
        if stands {
            oracle.resumed(key);
        }
    }

    fn cancel(&mut self, key: u8, by_handle: bool) {
        let quiet = self.is_quiet(key);
        let tasks = match by_handle {
            true => self.handle(key).cancel_pending(),
            false => self.sim.engine().cancel_pending(&key),
        };
        self.taken_out(key, quiet, tasks);
    }

    fn discard(&mut self, key: u8, by_handle: bool) {
        let quiet = self.is_quiet(key);
        let tasks = match by_handle {
            true => self.handle(key).discard(),
            false => self.sim.engine().discard_group(&key),
        };
        self.taken_out(key, quiet, tasks);
        self.at_rest = false;
        let mut oracle = lock(&self.oracle);
        let group = oracle.groups.entry(key).or_default();
        let closed = group.closed;
        // Also where the tasks could not be had at once.
        if group.stands() {
            oracle.resumed(key);
        }
        oracle.groups.entry(key).or_default().closed = closed;
    }

    fn taken_out(&mut self, key: u8, quiet: bool, tasks: Result<Vec<Script>, GroupError>) {
        let mut oracle = lock(&self.oracle);
        match tasks {
            Ok(tasks) => {
                let ids: Vec<u32> = tasks.iter().map(|script| script.id).collect();
                oracle.given_back(key, &ids);
                oracle.cancelled += ids.len() as u64;
            }
            Err(error) => {
                assert_eq!(error, GroupError::Busy);
                assert!(!quiet, "key {key} is quiet, and does not give its tasks back");
                // What has to end now may be on its way to a worker.
                drop(oracle);
                self.at_rest = false;
            }
        }
    }

    fn drain(&mut self, key: u8, by_handle: bool) {
        let quiet = self.is_quiet(key);
        let empty = match by_handle {
            true => self.handle(key).drain(Duration::ZERO),
            false => self.sim.engine().drain_group(&key, Duration::ZERO),
        };
        // Linger ends.
        self.at_rest = false;
        let oracle = lock(&self.oracle);
        let tasks = oracle.groups.get(&key).map_or(0, |group| group.queue.len());
        assert!(!empty || tasks == 0, "key {key} is drained with {tasks} tasks");
        assert!(empty || tasks > 0 || !quiet, "key {key} is empty, and not drained");
    }

    fn close_group(&mut self, key: u8, by_handle: bool) {
        let quiet = self.is_quiet(key) && !self.setup.lingers;
        let report = match by_handle {
            true => self.handle(key).close(Duration::ZERO),
            false => self.sim.engine().close_group(key, Duration::ZERO),
        };
        self.at_rest = false;
        let mut oracle = lock(&self.oracle);
        oracle.groups.entry(key).or_default().closed = true;
        if report.running {
            assert!(!quiet && report.left.is_empty(), "key {key} is quiet, and said to run");
            return;
        }
        let ids: Vec<u32> = report.left.iter().map(|script| script.id).collect();
        oracle.given_back(key, &ids);
        oracle.cancelled += ids.len() as u64;
    }
}
