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
        let (shard, hash) = front.hash(&1);
        let (index, block) = core.pin(shard, hash, 1);
        front.submit(2, 20, Patience::None).expect("room");
        let theirs = core.clone();
        let handle = thread::spawn(move || {
            let front = &theirs.front;
            front.submit_to((shard, hash, index), block, 10, Patience::None).expect("room");
            theirs.unpin(shard, index);
        });
        worker.step();
        // A new handle takes the block of the first group, if it is free.
        let (shard, other) = front.hash(&3);
        let (third, its_block) = core.pin(shard, other, 3);
        front.submit_to((shard, other, third), its_block, 30, Patience::None).expect("room");
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
            let (shard, hash) = front.hash(&1);
            let (index, block) = theirs.pin(shard, hash, 1);
            front.submit_to((shard, hash, index), block, 11, Patience::None).expect("room");
            theirs.unpin(shard, index);
        });
        for _ in 0..6 {
            worker.step();
        }
        submitter.join().unwrap();
        while worker.step() {}
        assert_eq!(*log.lock().unwrap(), [(1, 10), (1, 11)]);
    });
}
