//! The operations.

use std::time::Duration;

use bgrp::{Producer, Sim};

use super::{
    ends, leases,
    model::{self, with},
    setup::Setup,
    values::{Arms, KEYS, Key, Task, at_work, with_handles},
};
use crate::bytes::Bytes;

const LANES: usize = 3;

/// The engine of one run and what submits to it.
pub(super) struct Drive {
    pub(super) setup: Setup,
    pub(super) sim: Option<Sim<Key, Task>>,
    /// Each with its number as a way in.
    pub(super) lanes: [Option<(u16, Producer<Key, Task>)>; LANES],
    ways: u16,
    closed: bool,
}

impl Drive {
    pub(super) fn new(setup: Setup) -> Self {
        Self { setup, sim: Some(setup.build()), lanes: [None, None, None], ways: 0, closed: false }
    }

    /// A close came in the middle.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn sim(&self) -> &Sim<Key, Task> {
        self.sim.as_ref().expect("the engine is there until the end")
    }

    /// One operation.
    pub(super) fn operation(&mut self, bytes: &mut Bytes<'_>) {
        let op = bytes.u8();
        let arg = op >> 4;
        match op & 15 {
            0 | 1 => self.submit(arg, Task::read(bytes, 0)),
            2 => self.submit_by_handle(arg, Task::read(bytes, 0)),
            3 => self.submit_many(arg, bytes),
            4 => self.submit_by_lane(arg, bytes),
            5 => self.burst(arg, bytes),
            6..=8 => {
                self.step(usize::from(arg), Arms::default());
            }
            9 => self.rest(),
            10 => self.advance(Duration::from_millis(u64::from(arg) + 1)),
            11 => self.advance(Duration::from_micros(u64::from(bytes.u16()) * 10)),
            12 => with_handles(|handles| drop(handles[usize::from(arg % KEYS)].take())),
            13 => drop(self.lanes[usize::from(arg) % LANES].take()),
            14 => {
                let n = bytes.u8();
                let arms = Arms {
                    eq: if arg & 4 != 0 { n % 16 } else { 0 },
                    open: if arg & 8 != 0 { n >> 6 } else { 0 },
                    drop: if arg & 3 == 3 { n >> 4 & 3 } else { 0 },
                };
                self.step(usize::from(arg), arms);
            }
            _ => self.seldom(arg, bytes),
        }
    }

    fn seldom(&mut self, arg: u8, bytes: &mut Bytes<'_>) {
        match arg {
            0 => self.refuse(),
            1 => self.halt(),
            2 => {
                self.closed = true;
                ends::close(self);
            }
            3 => self.advance(Duration::from_millis(u64::from(bytes.u16()))),
            4..=11 if self.setup.leases => self.lease_comes_back(bytes.u8(), arg),
            _ => self.rest(),
        }
    }

    fn submit(&mut self, key: u8, task: Option<Task>) {
        let Some(task) = task else { return };
        let (key, id) = (key % KEYS, task.id);
        match self.sim().submit(Key::new(key), task) {
            Ok(()) => with(|model| model.accept(key, 0, id)),
            Err(error) => {
                assert_eq!((error.key.n, error.task.id), (key, id), "another task comes back");
                with(|model| model.refuse(key, error.reason));
            }
        }
    }

    fn submit_by_handle(&mut self, key: u8, task: Option<Task>) {
        let Some(task) = task else { return };
        let (key, id) = (key % KEYS, task.id);
        let submitted = with_handles(|handles| {
            let handle =
                handles[usize::from(key)].get_or_insert_with(|| self.sim().group(Key::new(key)));
            handle.try_submit(task)
        });
        match submitted {
            Ok(()) => with(|model| model.accept(key, 0, id)),
            Err(error) => {
                assert_eq!(error.task.id, id, "another task comes back");
                with(|model| model.refuse(key, error.reason));
            }
        }
    }

    fn submit_by_lane(&mut self, arg: u8, bytes: &mut Bytes<'_>) {
        let sim = self.sim.as_ref().expect("the engine is there until the end");
        let (way, lane) = self.lanes[usize::from(arg) % LANES].get_or_insert_with(|| {
            self.ways += 1;
            (self.ways, sim.producer())
        });
        let way = *way;
        let key = bytes.below(KEYS);
        let Some(task) = Task::read(bytes, way) else { return };
        let id = task.id;
        match lane.try_submit(Key::new(key), task) {
            Ok(()) => with(|model| model.accept(key, way, id)),
            Err(error) => {
                assert_eq!((error.key.n, error.task.id), (key, id), "another task comes back");
                with(|model| model.refuse_lane(key, error.reason));
            }
        }
    }

    /// Tasks of several keys, at once.
    fn submit_many(&mut self, arg: u8, bytes: &mut Bytes<'_>) {
        let (n, keys) = (usize::from(bytes.u8()), bytes.below(KEYS) + 1);
        let script = bytes.u8();
        // Their scripts are alike, or else the input would consist of nothing else.
        let mut tasks: Vec<_> = (0..if arg == 15 { 3 * n } else { n / 8 })
            .filter_map(|i| Some((i, Task::new(0, script.rotate_left(i as u32 / 7))?)))
            .map(|(i, task)| (Key::new((i * (1 + usize::from(arg))) as u8 % keys), task))
            .collect();
        let given: Vec<_> = tasks.iter().map(|(key, task)| (key.n, task.id)).collect();
        let result = self.sim().submit_many(&mut tasks);
        let left: Vec<_> = tasks.iter().map(|(_, task)| task.id).collect();
        assert!(left.is_sorted(), "the rest is out of order: {left:?}");
        assert_eq!(result.is_ok(), left.is_empty(), "{result:?} with {left:?}");
        let mut closed = [false; KEYS as usize];
        for (key, id) in &given {
            if left.binary_search(id).is_ok() {
                closed[usize::from(*key)] = true;
            } else {
                assert!(!closed[usize::from(*key)], "{id} overtook one that was refused");
                with(|model| model.accept(*key, 0, *id));
            }
        }
        if let Err(error) = result {
            assert_eq!(error.accepted, given.len() - left.len());
            // Which of them was refused first is not said: it is one of those.
            let keys: Vec<u8> = tasks.iter().map(|(key, _)| key.n).collect();
            with(|model| model.refuse_one_of(&keys, error.reason));
        }
    }

    /// Tasks of one key, one by one.
    fn burst(&mut self, key: u8, bytes: &mut Bytes<'_>) {
        let n = bytes.u8();
        let script = bytes.u8();
        for _ in 0..n / 4 {
            self.submit(key, Task::new(0, script));
        }
    }

    /// Lets a worker go on. `false`: it found nothing, or sleeps.
    pub(super) fn step(&mut self, worker: usize, arms: Arms) -> bool {
        with(|model| {
            model.step += 1;
            model.at_rest = false;
        });
        let (sleep, workers) = (self.setup.sleep, self.setup.workers);
        let sim = self.sim.as_mut().expect("the engine is there until the end");
        let worker = worker % workers;
        at_work(arms, || if sleep { sim.live(worker) } else { sim.step(worker) })
    }

    /// Lets all workers go on until none finds anything.
    pub(super) fn rest(&mut self) {
        let workers = self.setup.workers;
        while (0..workers).fold(false, |any, w| self.step(w, Arms::default()) | any) {
            model::check();
        }
        with(|model| model.rest());
        ends::compare(self);
    }

    pub(super) fn advance(&mut self, by: Duration) {
        with(|model| model.now += by);
        let sim = self.sim.as_mut().expect("the engine is there until the end");
        sim.advance(by);
    }

    fn lease_comes_back(&mut self, which: u8, how: u8) {
        with(|model| model.at_rest = false);
        leases::come_back(usize::from(which), how);
    }

    pub(super) fn refuse(&mut self) {
        self.sim().refuse();
        with(|model| model.refuses = true);
    }

    pub(super) fn halt(&mut self) {
        self.sim().halt();
        with(|model| model.halted = true);
    }
}
