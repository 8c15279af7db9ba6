//! Two small protocols of the shared core (core.rs): who waits for the end of all work, and the shards that starve
//! while the engine holds all the tasks it may.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::{ALL, check};
use crate::{
    core::{DrainWatch, Starved},
    ready::link::{Link, Unit},
    sync::{AtomicU32, Mutex, Ordering},
    worker::idle::Idle,
};

/// The last task ends while somebody begins to wait for it. A lost notification is a deadlock.
#[test]
fn drain() {
    check(ALL, || {
        let watch = Arc::new(DrainWatch::new());
        let settled = Arc::new(AtomicU32::new(0));
        let (theirs, ended) = (watch.clone(), settled.clone());
        let worker = thread::spawn(move || {
            for _ in 0..2 {
                ended.fetch_add(1, Ordering::Relaxed);
                theirs.notify();
            }
        });
        assert!(watch.wait_until(None, || settled.load(Ordering::Relaxed) == 2));
        worker.join().unwrap();
    });
}

/// The question of who waits takes claims (`Core::accepted`), and a worker may notify while it holds one: so nothing is
/// asked under the watch's own lock.
#[test]
fn drain_and_claim() {
    check(ALL, || {
        let watch = Arc::new(DrainWatch::new());
        let claim = Arc::new(Mutex::new(0));
        let (theirs, back) = (watch.clone(), claim.clone());
        let worker = thread::spawn(move || {
            let mut held = back.lock();
            *held += 1;
            theirs.notify();
            drop(held);
            theirs.notify();
        });
        assert!(watch.wait_until(None, || *claim.lock() == 1));
        worker.join().unwrap();
    });
}

/// A shard finds no room while the last task ends on a worker that is about to park: one of the two feeds the shard.
#[test]
fn starved() {
    check(ALL, || {
        let link = Link::new();
        let starved = Arc::new(Starved::new());
        let backlog = Arc::new(AtomicU32::new(1));
        let feed = |starved: &Starved, backlog: &AtomicU32| {
            let room = starved.any() && backlog.load(Ordering::Relaxed) == 0;
            if room { starved.take().len() } else { 0 }
        };
        let idle = Idle::new(1);
        let (theirs, ended) = (starved.clone(), backlog.clone());
        let worker = thread::spawn(move || {
            ended.store(0, Ordering::Relaxed);
            idle.announce(0, false);
            let fed = feed(&theirs, &ended);
            idle.cancel(0);
            fed
        });
        starved.add(Unit::shard(NonNull::from(&link)));
        let fed = feed(&starved, &backlog);
        assert_eq!(fed + worker.join().unwrap(), 1, "a shard starves for ever");
    });
}
