//! The end of one task, told once and heard by all who wait for it.
//!
//! | who | does |
//! |---|---|
//! | whoever settles the task | `Tracked::end`: stores the end under the lock, then wakes behind it |
//! | a waiter | asks under the lock, sleeps under it |
//! | the last engine-side owner | ends what nobody ended: discarded |

use std::{
    ptr::NonNull,
    sync::Arc,
    task::{Poll, Waker},
    time::Instant,
};

use crate::{
    group::block::Group,
    outcome::Failure,
    sync::{AtomicBool, AtomicPtr, AtomicU64, Condvar, Mutex, Ordering, wait},
};

/// How a tracked task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was done.
    Done,
    /// It failed for good: its attempts were used up, or it was not to be retried. Where the engine has a dead letter sink, the
    /// sink has taken it.
    Failed {
        /// The last failure.
        failure: Failure,
        /// How often it was tried.
        attempts: u32,
    },
    /// It did not run to its end and was given back to who closed the engine or took it out of its group.
    GivenBack,
    /// It did not run to its end and was dropped: with its engine, or because somebody discarded it.
    Discarded,
}

impl Ended {
    /// The task was done.
    pub fn is_done(&self) -> bool {
        *self == Self::Done
    }
}

/// What ticket and engine share of one task.
#[derive(Debug)]
pub(crate) struct Cell {
    over: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// The block of the task's group once that is known; the block is good for as long as the task is not over.
    group: AtomicPtr<()>,
    pub(crate) way: Way,
}

/// Where to find the task while its group is not known.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) shard: usize,
    pub(crate) hash: u32,
    /// Its position in the ring of the shard, once reserved.
    position: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<Ended>,
    wakers: Vec<Waker>,
    /// Goes up when waiters must look at their surroundings again (`Cell::poke`).
    pokes: u64,
}

const UNKNOWN: u64 = u64::MAX;

impl Cell {
    pub(crate) fn new(shard: usize, hash: u32) -> Self {
        Self {
            over: AtomicBool::new(false),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            group: AtomicPtr::new(std::ptr::null_mut()),
            way: Way { shard, hash, position: AtomicU64::new(UNKNOWN) },
        }
    }

    /// The task is over. What it did is seen by who hears `true`.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Acquire pairs with the Release of `end`.
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        if self.is_over() { self.state.lock().ended.clone() } else { None }
    }

    fn end(&self, ended: Ended) {
        wake_all(self.end_unheard(ended));
    }

    /// As `end`; whom to wake is left to the caller.
    fn end_unheard(&self, ended: Ended) -> Vec<Waker> {
        let wakers = {
            let mut state = self.state.lock();
            if state.ended.is_some() {
                return Vec::new();
            }
            state.ended = Some(ended);
            // ORDERING: Release pairs with the Acquire of `is_over`.
            self.over.store(true, Ordering::Release);
            std::mem::take(&mut state.wakers)
        };
        self.changed.notify_all();
        wakers
    }

    /// Whoever waits looks again whether its wait still can end.
    pub(crate) fn poke(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.pokes += 1;
            std::mem::take(&mut state.wakers)
        };
        self.changed.notify_all();
        wake_all(wakers);
    }

    /// The number of pokes so far: ask for it before the look at the surroundings.
    pub(crate) fn pokes(&self) -> u64 {
        self.state.lock().pokes
    }

    /// Sleeps until the task is over, until `deadline`, or until there were more pokes than `seen`.
    pub(crate) fn sleep(&self, deadline: Option<Instant>, seen: Option<u64>) -> Option<Ended> {
        let mut state = self.state.lock();
        loop {
            if state.ended.is_some() {
                return state.ended.clone();
            }
            let left = deadline.map(|end| end.saturating_duration_since(crate::sync::instant()));
            if left.is_some_and(|left| left.is_zero()) || seen.is_some_and(|n| n != state.pokes) {
                return None;
            }
            state = wait(&self.changed, state, left);
        }
    }

    /// As a future: the end, or `waker` is woken at the end and at each poke. `None`: there were more pokes than `seen`.
    pub(crate) fn poll(&self, waker: &Waker, seen: u64) -> Option<Poll<Ended>> {
        let mut state = self.state.lock();
        if let Some(ended) = &state.ended {
            return Some(Poll::Ready(ended.clone()));
        }
        if state.pokes != seen {
            return None;
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Some(Poll::Pending)
    }

    /// The block of the group, where it is known.
    pub(crate) fn group<K, T>(&self) -> Option<NonNull<Group<K, T>>> {
        // ORDERING: Acquire pairs with the Release of `found`.
        NonNull::new(self.group.load(Ordering::Acquire)).map(NonNull::cast)
    }

    /// Submitter by handle, or claim holder: the task belongs to this group.
    pub(crate) fn found<K, T>(&self, group: NonNull<Group<K, T>>) {
        // ORDERING: Release pairs with the Acquire of `group`.
        self.group.store(group.as_ptr().cast(), Ordering::Release);
    }

    /// Submitter, between reserve and publish.
    pub(crate) fn at(&self, position: u64) {
        // Relaxed: who asks has the ticket, which the submit hands out later, or holds the claim.
        self.way.position.store(position, Ordering::Relaxed);
    }
}

impl Way {
    /// The position in the ring of the shard.
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

/// Wakers are user code: not under a lock.
pub(crate) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        // A waker is user code, and the engine's threads come by here.
        let woken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        if let Err(payload) = woken {
            crate::outcome::drop_quietly(payload);
        }
    }
}

/// The engine's side of a ticket. Clones speak of the same task; when the last goes without a word, the task was discarded.
#[derive(Clone, Debug)]
pub(crate) struct Tracked(Arc<Guard>);

#[derive(Debug)]
struct Guard(Arc<Cell>);

impl Tracked {
    pub(crate) fn new(cell: Arc<Cell>) -> Self {
        Self(Arc::new(Guard(cell)))
    }

    pub(crate) fn end(&self, ended: Ended) {
        self.0.0.end(ended);
    }

    /// As [`Tracked::end`], under a lock: the wakers are to be woken ([`wake_all`]) when it is released.
    pub(crate) fn end_unheard(&self, ended: Ended) -> Vec<Waker> {
        self.0.0.end_unheard(ended)
    }

    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.0.0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.end(Ended::Discarded);
    }
}
