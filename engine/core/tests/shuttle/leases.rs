//! Threads that end leases, each at its own time.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
};

use bgrp::{Lease, Outcome};
use shuttle::{
    rand::Rng,
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

use super::{
    oracle::{Item, Key, Oracle},
    world::{Knobs, answer},
};

type Leased = Lease<Key, Item, (Key, Oracle)>;

/// Leases that wait for a thread.
pub(crate) struct Out {
    /// With `true`: no more will come.
    queue: Mutex<(VecDeque<Leased>, bool)>,
    changed: Condvar,
}

impl Out {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new((VecDeque::new(), false)), changed: Condvar::new() })
    }

    /// All threads of a run are one to std: what another one unwinds poisons this lock.
    fn lock(&self) -> MutexGuard<'_, (VecDeque<Leased>, bool)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, lease: Leased) {
        self.lock().0.push_back(lease);
        self.changed.notify_one();
    }

    pub(crate) fn close(&self) {
        self.lock().1 = true;
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<Leased> {
        let mut queue = self.lock();
        loop {
            if let Some(lease) = queue.0.pop_front() {
                return Some(lease);
            }
            if queue.1 {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One or two threads that end what comes.
    pub(crate) fn start(self: &Arc<Self>, knobs: Knobs, oracle: &Oracle) -> Vec<JoinHandle<()>> {
        (0..shuttle::rand::thread_rng().gen_range(1..=2))
            .map(|_| {
                let (out, oracle) = (self.clone(), oracle.clone());
                thread::spawn(move || {
                    while let Some(lease) = out.pop() {
                        end(lease, knobs, &oracle);
                    }
                })
            })
            .collect()
    }
}

fn end(lease: Leased, knobs: Knobs, oracle: &Oracle) {
    let key = *lease.key();
    if lease.state().0 != key {
        oracle.fault(format!("the state of group {} in group {key}", lease.state().0));
    }
    // A wanted panic drops the lease on its way.
    drop(catch_unwind(AssertUnwindSafe(move || {
        let outcomes: Vec<Outcome> = (0..lease.len())
            .map(|at| {
                let item = lease.get(at).expect("one of them");
                answer(oracle, knobs, key, item.id, lease.attempt(at))
            })
            .collect();
        lease.complete(outcomes);
    })));
}
