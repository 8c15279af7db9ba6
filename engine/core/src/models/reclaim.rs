//! Reclaim (shard/reclaim.rs) against handles that are dropped while their records still lie in the ring: R4.

use loom::thread;

use super::{check_seen, tiny::tiny};
use crate::{engine::Control, front::Patience};

/// A handle submits and goes, and another one comes, while the worker looks at the shard a record at a time and reclaims all it may. The record
/// names its group by its block: that must still be the group of its key when the record's turn comes, not a free
/// block, and not the group of another key.
#[test]
fn stale_handle() {
    check_seen(2, || {
        let (core, mut worker, log) = tiny(0);
        let front = core.front.clone();
        let (_, hash) = front.hash(&1);
        let index = core.pin(hash, 1);
        front.submit(2, 20, Patience::None).expect("room");
        let theirs = core.clone();
        let handle = thread::spawn(move || {
            let front = &theirs.front;
            front.submit_to(hash, index, 10).expect("room");
            theirs.unpin(hash, index);
        });
        worker.step();
        // A new handle takes the block of the first group, if it is free.
        let (_, other) = front.hash(&3);
        let third = core.pin(other, 3);
        front.submit_to(other, third, 30).expect("room");
        for _ in 0..3 {
            worker.step();
        }
        handle.join().unwrap();
        while worker.step() {}
        let mut runs = std::mem::take(&mut *log.lock().unwrap());
        runs.sort_unstable();
        assert_eq!(runs, [(1, 10), (2, 20), (3, 30)]);
    });
}

/// A key goes and comes again, by key and by a new handle, while the worker reclaims: one live queue at any time, and the
/// first task runs first.
#[test]
fn key_again() {
    check_seen(2, || {
        let (core, mut worker, log) = tiny(0);
        let theirs = core.clone();
        let submitter = thread::spawn(move || {
            let front = &theirs.front;
            front.submit(1, 10, Patience::None).expect("room");
            let (_, hash) = front.hash(&1);
            let index = theirs.pin(hash, 1);
            front.submit_to(hash, index, 11).expect("room");
            theirs.unpin(hash, index);
        });
        for _ in 0..6 {
            worker.step();
        }
        submitter.join().unwrap();
        while worker.step() {}
        assert_eq!(*log.lock().unwrap(), [(1, 10), (1, 11)]);
    });
}
