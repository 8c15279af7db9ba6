//! The sharded ready list: which groups and shards wait for a worker, in which order.
//!
//! A *unit* is a shard with records or a group with a run token. It is at one place at a time: an inbox (pushed by
//! anyone), a worker's row (the groups of its last look, ready/row.rs), a worker's deque (pushed by its owner,
//! stealable), or the overflow list (first in, first out, shared).
//!
//! Order: the groups of a look run at once, each of them once; any other unit that becomes ready goes behind all that are ready already: to the tail of the worker's deque while
//! everything fits into deques, otherwise to the tail of the overflow list (ready/overflow.rs).

pub(crate) mod deque;
pub(crate) mod inbox;
pub(crate) mod link;
pub(crate) mod overflow;
pub(crate) mod row;

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use self::{
    deque::Stealer,
    inbox::Inbox,
    link::{Chain, Unit},
    overflow::Overflow,
    row::Row,
};
use crate::{
    sync::{AtomicU32, Ordering},
    time::{clock::Clock, timers::KeeperCall},
    watch::{dispatch::Times, stats::Counters},
    worker::idle::Idle,
};

/// What others may touch of a worker.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) inbox: Inbox,
    pub(crate) stealer: Stealer<Unit>,
    pub(crate) row: Row,
    /// Steps of the worker; one that does not move has a long task in hand.
    pub(crate) steps: AtomicU32,
    pub(crate) counters: Counters,
    pub(crate) times: Times,
}

/// See the module text.
pub(crate) struct Ready {
    pub(crate) posts: Box<[CachePadded<Post>]>,
    pub(crate) overflow: Overflow,
    /// Ready groups of the bulk class, where there are classes.
    pub(crate) bulk: Option<Overflow>,
    pub(crate) idle: Idle,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Ready {
    pub(crate) fn new(stealers: Vec<Stealer<Unit>>, clock: Arc<dyn Clock>) -> Self {
        let idle = Idle::new(stealers.len());
        let posts = stealers
            .into_iter()
            .map(|stealer| {
                CachePadded::new(Post {
                    inbox: Inbox::new(),
                    stealer,
                    row: Row::new(),
                    steps: AtomicU32::new(0),
                    counters: Counters::new(),
                    times: Times::new(),
                })
            })
            .collect();
        Self { posts, overflow: Overflow::new(), bulk: None, idle, clock }
    }

    /// From any thread: a unit for the worker with this index (or for whoever takes it first).
    pub(crate) fn send(&self, worker: usize, unit: Unit) {
        self.posts[worker].inbox.push(unit);
        self.wake_near(worker);
    }

    /// From any thread: units for the tail of the ready list.
    pub(crate) fn spill(&self, chain: &mut Chain) {
        if chain.len() > 0 {
            self.overflow.append(chain);
            self.wake();
        }
    }

    /// From any thread: a unit that fell out of somebody's hand.
    #[cold]
    pub(crate) fn put_back(&self, unit: Unit) {
        self.overflow.push(unit);
        self.wake();
    }

    /// Call after a unit has become visible to others.
    #[inline]
    pub(crate) fn wake(&self) {
        self.idle.wake(|| self.clock.now());
    }

    /// As [`Ready::wake`], for a unit that is at this worker.
    #[inline]
    pub(crate) fn wake_near(&self, worker: usize) {
        self.idle.wake_near(Some(worker), || self.clock.now());
    }

    /// Sees to it that somebody keeps the time.
    pub(crate) fn call_keeper(&self, call: KeeperCall) {
        match call {
            KeeperCall::None => {}
            KeeperCall::Nudge(keeper) => self.idle.nudge(keeper),
            KeeperCall::Appoint => {
                if self.idle.sleepers() > 0 {
                    self.idle.wake_one(self.clock.now());
                }
            }
        }
    }

    /// A look at every place where a unit can be. Who must not miss one fences first.
    pub(crate) fn has_units(&self) -> bool {
        !self.overflow.is_empty()
            || self.bulk.as_ref().is_some_and(|bulk| !bulk.is_empty())
            || self
                .posts
                .iter()
                .any(|post| !post.inbox.is_empty() || !post.stealer.is_empty() || post.row.waits())
    }

    /// Units that wait, about; those on their way are missed, and an inbox counts for one.
    pub(crate) fn units(&self) -> usize {
        let of = |post: &Post| {
            post.stealer.len() + post.row.left() + usize::from(!post.inbox.is_empty())
        };
        let bulk = self.bulk.as_ref().map_or(0, Overflow::len);
        self.overflow.len() + bulk + self.posts.iter().map(|post| of(post)).sum::<usize>()
    }

    /// The other worker's step counter.
    pub(crate) fn steps(&self, worker: usize) -> u32 {
        self.posts[worker].steps.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("posts", &self.posts)
            .field("overflow", &self.overflow)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}
