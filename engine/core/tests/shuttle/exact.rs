//! Submitters that wait for exact capacities: as futures that may be given up, and by handles that outlive their engine.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

use bgrp::{Engine, SubmitReason, Workers, topology::Snapshot};
use shuttle::{
    rand::Rng,
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

use super::oracle::{Item, Key, Oracle, Way};

/// Rings when a future is to be polled again.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    /// All threads of a run are one to std: what another one unwinds poisons this lock.
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut rung = self.lock();
        while !*rung {
            rung = self.1.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.lock() = true;
        self.1.notify_one();
    }
}

/// Polls it until it is ready, or gives it up while it waits: before it was woken, or when it was and others count on it.
pub(crate) fn poll<T>(submit: impl Future<Output = Result<(), T>>) -> bool {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut submit = pin!(submit);
    loop {
        if let Poll::Ready(sent) = submit.as_mut().poll(&mut Context::from_waker(&waker)) {
            return sent.is_ok();
        }
        match shuttle::rand::thread_rng().gen_range(0..4) {
            0 => {
                thread::yield_now();
                return false;
            }
            1 => {
                bell.wait();
                return false;
            }
            _ => bell.wait(),
        }
    }
}

/// Owners of handles alone wait for places in one group, and the engine goes away meanwhile: each is told, and what got in ran.
pub(crate) fn handles_outlive() {
    let (submitters, each) = (3, 3);
    let oracle = Oracle::new(submitters * each);
    let mut rng = shuttle::rand::thread_rng();
    let group = rng.gen_range(1..=2);
    oracle.bound(group, usize::MAX);
    let watched = oracle.clone();
    let engine = Engine::<Key, Item>::builder()
        .machine(Snapshot::one_node(2))
        .workers(Workers::fixed(rng.gen_range(1..=2)))
        .pin(false)
        .exact_group_capacity(group)
        .task_handler(move |_, task| {
            watched.starts(*task.key(), task.id);
            thread::yield_now();
            watched.stops(*task.key(), task.id, true);
        })
        .build()
        .expect("valid settings");
    let threads: Vec<_> = (0..submitters)
        .map(|source| {
            let (handle, oracle) = (engine.group(1), oracle.clone());
            thread::spawn(move || {
                for id in source * each..(source + 1) * each {
                    let item = oracle.item(id);
                    oracle.begins(id, Way::Handle, source, 1);
                    let sent = match handle.submit(item) {
                        Ok(()) => true,
                        Err(refused) => {
                            assert_eq!(refused.reason, SubmitReason::Closed);
                            false
                        }
                    };
                    oracle.returned(id, sent);
                }
            })
        })
        .collect();
    drop(engine);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    oracle.check();
}
