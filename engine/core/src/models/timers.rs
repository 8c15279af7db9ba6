//! The keeper of the time (time/timers.rs): an entry that is due before the keeper wakes must nudge it. And the lingers
//! (time/lingers.rs), which are told to the timer after the word says so.

use std::{ptr::NonNull, sync::Arc, time::Duration};

use loom::thread;

use super::{ALL, check};
use crate::{
    group::{block::Block, state::Published},
    ready::{Ready, link::Chain},
    sync::{Condvar, Mutex, wait},
    time::{
        clock::VirtualClock,
        timers::{Entry, KeeperCall, Timers},
    },
};

const MS: u64 = 1_000_000;

/// A park token.
struct Parker {
    token: Mutex<bool>,
    changed: Condvar,
}

fn nudged(before: Option<u64>) {
    check(ALL, move || {
        let timers = Arc::new(Timers::<u32, u32>::new(0));
        // The group behind an entry is never looked at here: nothing fires.
        let entry = |deadline| Entry::Linger(NonNull::dangling(), 0, deadline);
        if let Some(deadline) = before {
            assert_eq!(timers.add([entry(deadline)], || false), KeeperCall::Appoint);
        }
        let parker = Arc::new(Parker { token: Mutex::new(false), changed: Condvar::new() });
        let (theirs, place) = (timers.clone(), parker.clone());
        let keeper = thread::spawn(move || {
            let timeout = theirs.keep(0, 0);
            let mut token = place.token.lock();
            // A timeout within the new deadline would pass. A later one is as good as none.
            while timeout.is_none_or(|timeout| timeout > Duration::from_nanos(2 * MS)) && !*token {
                token = wait(&place.changed, token, None);
            }
            drop(token);
            assert!(theirs.unkeep(0));
        });
        // With no keeper yet, the one to come looks at `next` itself.
        if let KeeperCall::Nudge(id) = timers.add([entry(2 * MS)], || false) {
            assert_eq!(id, 0);
            *parker.token.lock() = true;
            parker.changed.notify_one();
        }
        keeper.join().unwrap();
    });
}

#[test]
fn a_first_entry() {
    nudged(None);
}

#[test]
fn an_earlier_entry() {
    nudged(Some(9 * MS));
}

/// Workers 0 and 1 sleep, and 1 keeps the time. It wakes and has something to run, perhaps for long, while a third
/// worker adds an entry: worker 0 must be called, by the one or by the other.
#[test]
fn a_keeper_that_leaves() {
    check(ALL, || {
        let stealers = [(); 2].map(|()| crate::ready::deque::Deque::new_fifo().stealer());
        let ready = Arc::new(Ready::new(stealers.into(), Arc::new(VirtualClock::new())));
        let timers = Arc::new(Timers::<u32, u32>::new(0));
        ready.idle.announce(0, false);
        ready.idle.announce(1, false);
        assert_eq!(timers.keep(1, 0), None, "nothing waits yet");
        let (theirs, idle) = (timers.clone(), ready.clone());
        let keeper = thread::spawn(move || {
            // `Worker::sleep`, then `Worker::find_and_run`.
            let owes = theirs.unkeep(1);
            let searching = !idle.idle.cancel(1);
            if searching && idle.idle.end_search(1, 0) {
                idle.wake();
            }
            if owes && theirs.any() {
                idle.idle.wake_one(0);
            }
        });
        let entry = Entry::Linger(NonNull::dangling(), 0, 2 * MS);
        ready.call_keeper(timers.add([entry], || false));
        keeper.join().unwrap();
        assert_eq!(
            ready.idle.sleepers(),
            0,
            "an entry waits, a worker sleeps, and nobody keeps the time"
        );
    });
}

/// A group and the timer it lingers in.
struct Lingering {
    timers: Timers<u32, u32>,
    block: Block<u32, u32, ()>,
}

// SAFETY: of the block only the word is touched, which is atomic.
unsafe impl Sync for Lingering {}
// SAFETY: as above.
unsafe impl Send for Lingering {}

impl Lingering {
    fn tell(&self, sequence: u32, deadline: u64) {
        let entry = Entry::Linger(NonNull::from(&self.block.group), sequence, deadline);
        let _ = self.timers.add([entry], || false);
    }
}

/// A worker lets a rest linger and is slow to tell the timer. Meanwhile the batch fills up, runs, and its rest lingers anew: that
/// linger ends at its time, whoever was at the timer first.
#[test]
fn a_linger_that_is_told_late() {
    const BATCH: u32 = 2;
    check(ALL, || {
        let here = Arc::new(Lingering { timers: Timers::new(0), block: Block::new() });
        let word = &here.block.group.word;
        word.publish(1);
        let theirs = here.clone();
        let worker = thread::spawn(move || {
            let lingers = theirs.block.group.word.linger(BATCH);
            if let Ok(sequence) = lingers {
                theirs.tell(sequence, MS);
            }
            lingers.is_err()
        });
        if word.publish(1).1 == Published::Lingering && word.end_linger(None) {
            // A turn that had the time for one task.
            assert!(!word.settle(1).is_idle());
            here.tell(word.linger(BATCH).expect("one of two"), 2 * MS);
        }
        let in_hand = worker.join().unwrap();
        let mut ended = Chain::default();
        here.timers.fire(MS, &mut ended);
        here.timers.fire(2 * MS, &mut ended);
        assert_eq!(usize::from(in_hand) + ended.len(), 1, "a token that nobody takes out");
        while let Some(unit) = ended.pop() {
            unit.open();
        }
    });
}
