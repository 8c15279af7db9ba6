//! The word of a group (group/state.rs): claim holder against token holders, linger (recipes R1, S2).

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::{ALL, check};
use crate::{
    group::state::{Published, State, Word},
    ready::{
        inbox::Inbox,
        link::{Kind, Link, Unit},
    },
    sync::UnsafeCell,
};

const TASKS: usize = 4;

/// A group whose ring never wraps, and the ready list.
#[repr(C)]
struct Group {
    link: Link,
    word: Word,
    slots: [UnsafeCell<u32>; TASKS],
    consumer: UnsafeCell<Consumer>,
    ready: Inbox,
}

/// What the token holder owns, and the claim holder of a quiet group.
struct Consumer {
    head: usize,
    since: u32,
}

// SAFETY: loom watches each access to the cells.
unsafe impl Sync for Group {}
// SAFETY: as above.
unsafe impl Send for Group {}

impl Group {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            link: Link::new(),
            word: Word::new(),
            slots: [(); TASKS].map(|()| UnsafeCell::new(0)),
            consumer: UnsafeCell::new(Consumer { head: 0, since: 0 }),
            ready: Inbox::new(),
        })
    }

    /// The caller has become the holder of the token.
    fn list(&self) {
        self.ready.push(Unit::group(NonNull::from(&self.link)));
    }

    /// Claim holder: `n` tasks, as `Demux::append` and `Touched::publish` do it. Task `i` is the number `i + 1`.
    fn chunk(&self, tail: &mut usize, n: u32) -> (u32, Published) {
        let state = self.word.load();
        let quiet = state.is_quiet().then_some(state);
        if quiet.is_some() {
            // SAFETY: quiet under the claim: the consumer's side is ours (group/ring.rs, I2).
            self.consumer.with_mut(|consumer| unsafe {
                assert_eq!((*consumer).head, *tail, "I2: both ends of an idle group meet");
                (*consumer).since += 1;
            });
        }
        for _ in 0..n {
            // SAFETY: not counted yet: the claim holder's.
            self.slots[*tail].with_mut(|slot| unsafe { *slot = *tail as u32 + 1 });
            *tail += 1;
        }
        match quiet {
            Some(state) => {
                self.word.activate(state, n);
                (n, Published::Token)
            }
            None => {
                let (before, meaning) = self.word.publish(n);
                (before.count() + n, meaning)
            }
        }
    }

    /// Token holder: runs up to `most` tasks in order. How many.
    fn tasks(&self, most: u32) -> u32 {
        let n = self.word.load().count().min(most);
        assert!(n > 0, "I1: a token without a task");
        // SAFETY: the token is ours.
        self.consumer.with_mut(|consumer| unsafe {
            for _ in 0..n {
                let at = (*consumer).head;
                // Counted and not settled: the token holder's.
                self.slots[at].with(|slot| assert_eq!(*slot, at as u32 + 1));
                (*consumer).head = at + 1;
            }
        });
        n
    }

    /// Token holder: one turn of up to `most` tasks; the token goes back to the list while there is more.
    fn turn(&self, most: u32) -> State {
        let n = self.tasks(most);
        let after = self.word.settle(n);
        if !after.is_idle() {
            self.list();
        }
        after
    }

    /// A worker's look at the ready list: one turn, if there is a token.
    fn step(&self, most: u32) -> bool {
        let mut chain = self.ready.take();
        let Some(unit) = chain.pop() else { return false };
        assert!(chain.pop().is_none(), "I1: two tokens");
        assert!(matches!(unit.open(), Kind::Group(_)));
        self.turn(most);
        true
    }

    /// Everybody is gone: the rest must be found by the tokens that exist.
    fn end(&self, tasks: usize) {
        while self.step(1) {}
        assert!(self.word.load().is_idle(), "R1: tasks without a token: {:?}", self.word);
        // SAFETY: alone.
        self.consumer.with(|consumer| unsafe {
            assert_eq!((*consumer).head, tasks, "each task once, in order");
        });
    }
}

/// Two chunks against two workers that pass the token on through the ready list.
#[test]
fn turns() {
    check(ALL, || {
        let group = Group::new();
        let workers = [1, 2].map(|most| {
            let group = group.clone();
            thread::spawn(move || group.step(most))
        });
        let mut tail = 0;
        for n in [1, 2] {
            if group.chunk(&mut tail, n).1 == Published::Token {
                group.list();
            }
        }
        workers.into_iter().for_each(|worker| {
            worker.join().unwrap();
        });
        group.end(3);
    });
}

/// One token holder that goes on while there is more, against three chunks: the give-up meets the publish at each
/// step (R1).
#[test]
fn give_up() {
    check(ALL, || {
        let group = Group::new();
        let theirs = group.clone();
        let worker = thread::spawn(move || while theirs.step(1) {});
        let mut tail = 0;
        for n in [1, 1, 1] {
            if group.chunk(&mut tail, n).1 == Published::Token {
                group.list();
            }
        }
        worker.join().unwrap();
        group.end(3);
    });
}

/// A claim holder that fills the batch, against the timer, against an old entry of the timer.
#[test]
fn linger() {
    const BATCH: u32 = 2;
    check(ALL, || {
        let group = Group::new();
        let mut tail = 0;
        let linger = |group: &Group| {
            // SAFETY: the caller holds the token.
            group.consumer.with_mut(|consumer| unsafe { (*consumer).since += 1 });
            group.word.linger(BATCH)
        };
        assert_eq!(group.chunk(&mut tail, 1).1, Published::Token);
        let entry = linger(&group).expect("one of two");
        let timer = {
            let group = group.clone();
            thread::spawn(move || {
                if group.word.end_linger(Some(entry)) {
                    // SAFETY: who clears LINGER owns the token.
                    let head = group.consumer.with(|consumer| unsafe { (*consumer).head });
                    assert_eq!(head, 0, "I4: the entry of an earlier linger");
                    group.turn(BATCH);
                }
            })
        };
        let mut second = None;
        for _ in 0..2 {
            let (count, meaning) = group.chunk(&mut tail, 1);
            match meaning {
                Published::Token => {
                    let again = linger(&group);
                    second = Some(again.expect("the token is ours and the publish is ours"));
                }
                Published::Lingering if count >= BATCH => {
                    if group.word.end_linger(None) {
                        group.turn(BATCH);
                    }
                }
                Published::Lingering | Published::Busy => {}
                Published::Held => unreachable!("nobody halts it"),
            }
        }
        timer.join().unwrap();
        if let Some(sequence) = second
            && group.word.end_linger(Some(sequence))
        {
            group.turn(BATCH);
        }
        group.end(3);
    });
}

/// A token holder that lets a rest linger, against a claim holder that fills the batch. No timer: its lock would
/// order what the word must order alone.
#[test]
fn linger_again() {
    const BATCH: u32 = 2;
    check(ALL, || {
        let group = Group::new();
        let mut tail = 0;
        assert_eq!(group.chunk(&mut tail, 2).1, Published::Token);
        let theirs = group.clone();
        let worker = thread::spawn(move || {
            let n = theirs.tasks(1);
            let after = theirs.word.settle(n);
            if after.is_idle() {
                return;
            }
            // SAFETY: the token is still ours.
            theirs.consumer.with_mut(|consumer| unsafe { (*consumer).since += 1 });
            if theirs.word.linger(BATCH).is_err() {
                theirs.turn(BATCH);
            }
        });
        for _ in 0..2 {
            let (count, meaning) = group.chunk(&mut tail, 1);
            match meaning {
                Published::Token => group.list(),
                Published::Lingering if count >= BATCH => {
                    if group.word.end_linger(None) {
                        group.turn(BATCH);
                    }
                }
                Published::Lingering | Published::Busy => {}
                Published::Held => unreachable!("nobody halts it"),
            }
        }
        worker.join().unwrap();
        // The engine drains.
        if group.word.end_linger(None) {
            group.turn(BATCH);
        }
        group.end(4);
    });
}
