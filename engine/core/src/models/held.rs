//! A group that is paused and resumed (lifecycle/held.rs, group/state.rs): the caller under the claim against the token holder,
//! and halts against publishes. What is held is exact, and the token is neither lost nor doubled.

use std::sync::Arc;

use loom::thread;

use super::{ALL, check};
use crate::{
    group::state::{Called, Published, Word},
    sync::{AtomicU32, Mutex, Ordering, UnsafeCell},
};

/// A group, its table, and its ready list of at most one token.
struct World {
    word: Word,
    /// What the token holder owns: how many tasks it has run.
    ran: UnsafeCell<u32>,
    ready: Mutex<bool>,
    table: Mutex<Entry>,
    held: AtomicU32,
}

#[derive(Default)]
struct Entry {
    paused: bool,
    /// The token is here.
    token: bool,
}

// SAFETY: loom watches each access to the cell.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: Word::new(),
            ran: UnsafeCell::new(0),
            ready: Mutex::new(false),
            table: Mutex::new(Entry::default()),
            held: AtomicU32::new(0),
        })
    }

    fn list(&self) {
        let mut ready = self.ready.lock();
        assert!(!*ready, "two tokens");
        *ready = true;
    }

    /// Claim holder: `n` tasks.
    fn publish(&self, n: u32) {
        let state = self.word.load();
        if state.is_quiet() {
            // SAFETY: quiet under the claim: the consumer's side is ours.
            self.ran.with_mut(|ran| unsafe { *ran += 0 });
            self.word.activate(state, n);
            self.list();
            return;
        }
        match self.word.publish(n).1 {
            Published::Token => self.list(),
            Published::Held => drop(self.held.fetch_add(n, Ordering::Relaxed)),
            Published::Busy => {}
            Published::Lingering => unreachable!("nothing lingers here"),
        }
    }

    /// Token holder, as `Core::decide`. `true`: it runs.
    fn decide(&self, entry: &mut Entry) -> bool {
        if entry.paused {
            let count = self.word.hold().count();
            self.held.fetch_add(count, Ordering::Relaxed);
            assert!(!entry.token, "two tokens");
            entry.token = true;
            return false;
        }
        !self.word.free().is_idle()
    }

    /// Claim holder, as `GroupControl::request`.
    fn request(&self, paused: bool) {
        let mut entry = self.table.lock();
        if !paused && !entry.paused {
            return;
        }
        entry.paused = paused;
        let ours = match self.word.call() {
            Called::Token => true,
            Called::Held => {
                assert!(std::mem::take(&mut entry.token), "a held token is in its entry");
                self.held.fetch_sub(self.word.load().count(), Ordering::Relaxed);
                true
            }
            Called::Busy => false,
        };
        if ours {
            // SAFETY: the token is ours.
            self.ran.with_mut(|ran| unsafe { *ran += 0 });
            if self.decide(&mut entry) {
                self.list();
            }
        }
    }

    /// A worker's look at the ready list: runs one task, if the group may run.
    fn step(&self) -> bool {
        if !std::mem::take(&mut *self.ready.lock()) {
            return false;
        }
        if self.word.load().is_called() && !self.decide(&mut self.table.lock()) {
            return true;
        }
        assert!(self.word.load().count() > 0, "a token without a task runs");
        // SAFETY: the token is ours.
        self.ran.with_mut(|ran| unsafe { *ran += 1 });
        if !self.word.settle(1).is_idle() {
            self.list();
        }
        true
    }

    /// Alone: resumes the group and runs the rest; `tasks` in all.
    fn end(&self, tasks: u32) {
        let held = self.held.load(Ordering::Relaxed);
        let stands = self.table.lock().token;
        assert_eq!(held, if stands { self.word.load().count() } else { 0 }, "what is held");
        self.request(false);
        while self.step() {}
        assert!(self.word.load().is_idle(), "tasks without a token: {:?}", self.word);
        // SAFETY: alone.
        self.ran.with(|ran| assert_eq!(unsafe { *ran }, tasks));
    }
}

/// Pause, a task more, resume, another one: against a worker that runs what it may.
#[test]
fn pause() {
    check(ALL, || {
        let world = World::new();
        world.publish(1);
        let theirs = world.clone();
        let worker = thread::spawn(move || {
            theirs.step();
            theirs.step();
        });
        world.request(true);
        world.publish(1);
        world.request(false);
        world.publish(1);
        worker.join().unwrap();
        world.end(3);
    });
}

/// A pause that stays, against a worker: the task that comes behind it is held, or was run before.
#[test]
fn pause_stays() {
    check(ALL, || {
        let world = World::new();
        world.publish(2);
        let theirs = world.clone();
        let worker = thread::spawn(move || while theirs.step() {});
        world.request(true);
        world.publish(1);
        worker.join().unwrap();
        world.end(3);
    });
}

/// The first turn halts the group, as the policy does: what is held is exact, whichever side counts it.
#[test]
fn halt() {
    check(ALL, || {
        let world = World::new();
        world.publish(2);
        let theirs = world.clone();
        let worker = thread::spawn(move || {
            assert!(std::mem::take(&mut *theirs.ready.lock()));
            // SAFETY: the token is ours.
            theirs.ran.with_mut(|ran| unsafe { *ran += 1 });
            {
                let mut entry = theirs.table.lock();
                entry.paused = true;
                theirs.word.call_self();
            }
            assert!(!theirs.word.settle(1).is_idle(), "the table is asked first");
            assert!(!theirs.decide(&mut theirs.table.lock()));
        });
        world.publish(1);
        world.publish(1);
        worker.join().unwrap();
        assert_eq!(world.held.load(Ordering::Relaxed), 3);
        world.end(4);
    });
}
