//! The keeper of the time (time/timers.rs): an entry that is due before the keeper wakes must nudge it.

use std::{ptr::NonNull, sync::Arc, time::Duration};

use loom::thread;

use super::{ALL, check};
use crate::{
    sync::{Condvar, Mutex, wait},
    time::timers::{Entry, KeeperCall, Timers},
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
        let entry = || Entry::Linger(NonNull::dangling(), 0);
        if let Some(deadline) = before {
            assert_eq!(timers.add([(deadline, entry())], || false), KeeperCall::Appoint);
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
        if let KeeperCall::Nudge(id) = timers.add([(2 * MS, entry())], || false) {
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
