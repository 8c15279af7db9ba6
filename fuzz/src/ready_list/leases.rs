//! Batches that leave their worker: they lie on a shelf until an operation takes one down and says what became of it.

use std::cell::RefCell;

use bgrp::{Failure, Lease, Outcome};

use super::{
    model,
    values::{Fate, Key, State, Task, panics, wanted_panic},
};

thread_local! {
    static SHELF: RefCell<Vec<Lease<Key, Task, State>>> = const { RefCell::new(Vec::new()) };
}

/// Forgets the run before.
pub(super) fn start() {
    SHELF.take();
}

/// Leases that are out.
pub(super) fn out() -> usize {
    SHELF.with_borrow(Vec::len)
}

/// The handler. A batch whose first task says so is lost at once, with a panic.
pub(super) fn take(lease: Lease<Key, Task, State>) {
    let key = lease.key().n;
    assert_eq!(lease.state().key, key, "the state of another group");
    let tasks: Vec<_> =
        lease.iter().enumerate().map(|(i, t)| (t.id, t.source, lease.attempt(i))).collect();
    model::with(|model| {
        model.offer(key, &tasks);
        model.lent(key, true);
    });
    lease.iter().for_each(Task::handle);
    let first = lease.get(0).expect("a lease has tasks");
    if panics(first, lease.attempt(0)) {
        lost(key, tasks.len());
        wanted_panic();
    }
    SHELF.with_borrow_mut(|shelf| shelf.push(lease));
}

/// One of those that are out comes back, if there is one. `how`: dropped, or completed as its tasks say. Nothing of the user's
/// runs in it.
pub(super) fn come_back(which: usize, how: u8) {
    let lease = SHELF.with_borrow_mut(|shelf| {
        let out = shelf.len();
        (out > 0).then(|| shelf.remove(which % out))
    });
    let Some(lease) = lease else { return };
    let (key, n) = (lease.key().n, lease.len());
    let panics = lease.iter().enumerate().any(|(i, task)| panics(task, lease.attempt(i)));
    if how & 3 == 3 || panics {
        lost(key, n);
        drop(lease);
        return;
    }
    let bad_drops: Vec<_> = lease.iter().map(|task| task.fate() == Fate::BadDrop).collect();
    let mut outcomes: Vec<_> =
        lease.iter().enumerate().map(|(i, task)| task.answer(lease.attempt(i))).collect();
    if lease.iter().any(|task| task.fate() == Fate::WrongCount) {
        outcomes = vec![Outcome::Fail(Failure::new("wrong count")); n];
        model::with(|model| model.settle(key, &outcomes, &bad_drops));
        outcomes.push(Outcome::Done);
    } else {
        model::with(|model| model.settle(key, &outcomes, &bad_drops));
    }
    model::with(|model| model.lent(key, false));
    lease.complete(outcomes);
}

/// All of them.
pub(super) fn all_come_back() {
    while out() > 0 {
        come_back(0, 0);
    }
}

fn lost(key: u8, tasks: usize) {
    let all = vec![Outcome::Retry(Failure::new("lost")); tasks];
    model::with(|model| {
        model.settle(key, &all, &[]);
        model.lent(key, false);
    });
}
