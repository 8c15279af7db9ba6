//! Taking units from other workers: when there is nothing else to do, and every few steps for the sake of fairness.
//!
//! *Steal*: near workers first (SMT sibling, same cache, same node, remote), each tier from a random start; half of a
//! deque, [`GRAB`] units at most; then the inbox, which is taken whole.
//!
//! *Rob*: then the rows of others, of which nobody but the owner takes a unit while it goes on: one that has stood at
//! the same step for [`PATIENCE`] loses all that is left in its row.
//!
//! *Balance*: an always busy worker never comes to steal, so a unit behind a long task, or in a long deque, could be
//! passed without bound by the units of a short one. Every 16 steps a worker looks at [`SAMPLE`] others in turn, and
//! takes half of the deque of one that has not moved since the last look, or else of the longest, if that is longer
//! than twice its own. That is the bound of row E6 where everything fits into deques; beyond, the overflow list
//! keeps the order by itself.

use std::hash::Hash;

use super::{GRAB, Worker};
use crate::{
    handler::Work,
    ready::{
        deque::Steal,
        link::{Chain, Unit},
        overflow::DEQUE_LIMIT,
    },
    sync::mutant,
};

/// For how long a worker that has units in its row may stand at one step, in ns, before others take them. Robbing costs a
/// system call and interrupts the owner; less is not worth it, more would show in the latency of what waits.
pub(crate) const PATIENCE: u64 = 10_000;
/// How many times as long a farther worker may stand while a nearer one has a row to take: who is near gets there first.
const FARTHER: u64 = 4;

/// Workers that are looked at in one balance.
const SAMPLE: usize = 4;

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// See the module text.
    pub(crate) fn steal(&mut self) -> Option<Unit> {
        let core = self.core();
        let tiers = &core.plan.workers[self.id].steal;
        for tier in tiers.iter().filter(|tier| !tier.is_empty()) {
            let start = self.random.next() as usize % tier.len();
            for i in 0..tier.len() {
                let post = &core.front.ready.posts[tier[(start + i) % tier.len()]];
                // A victim that is contended is left for the next one.
                for _ in 0..2 {
                    match post.stealer.steal_batch_with_limit_and_pop(&self.deque, GRAB) {
                        Steal::Success(unit) => {
                            self.wake_for_stolen();
                            return Some(unit);
                        }
                        Steal::Empty => break,
                        Steal::Retry => {}
                    }
                }
                if let Some(unit) = self.empty_inbox(post) {
                    return Some(unit);
                }
            }
        }
        None
    }

    fn empty_inbox(&mut self, post: &crate::ready::Post) -> Option<Unit> {
        if post.inbox.is_empty() {
            return None;
        }
        let mut chain = post.inbox.take();
        if mutant("steal-loses-rest") {
            return chain.pop();
        }
        self.queue_all(&mut chain);
        self.deque.pop()
    }

    /// See the module text.
    pub(crate) fn rob(&mut self) -> Option<Unit> {
        let core = self.core();
        let mut patience = core.settings.patience;
        for tier in &core.plan.workers[self.id].steal {
            let mut nearer = false;
            for &other in tier.iter() {
                if core.front.ready.posts[other].row.waits() {
                    nearer = true;
                    if self.stands(other, patience) && self.rob_row(other) {
                        return self.deque.pop();
                    }
                }
            }
            if nearer {
                // Farther ones come later, yet they come.
                patience *= FARTHER;
            }
        }
        None
    }

    /// The worker has been at the same step for so long.
    fn stands(&mut self, other: usize, patience: u64) -> bool {
        let core = self.core();
        let steps = core.front.ready.steps(other);
        let now = core.front.ready.clock.now();
        let (seen, since) = &mut self.sighted[other];
        if *seen != steps {
            (*seen, *since) = (steps, now);
            return false;
        }
        now.saturating_sub(*since) >= patience
    }

    /// `true`: units were taken.
    fn rob_row(&mut self, other: usize) -> bool {
        let core = self.core();
        let mut chain = Chain::default();
        core.front.ready.posts[other].row.rob(core.front.barrier, |unit| chain.push(unit));
        let any = chain.len() > 0;
        if any {
            self.queue_all(&mut chain);
        }
        any
    }

    /// See the module text.
    pub(crate) fn balance(&mut self) {
        let core = self.core();
        let posts = &core.front.ready.posts;
        let ours = self.deque.len();
        // The longest deque so far; one that stands still counts as longer than any other.
        let mut worst: Option<(bool, usize, usize)> = None;
        for _ in 0..SAMPLE.min(posts.len() - 1) {
            let other = self.next_victim();
            let steps = core.front.ready.steps(other);
            let stands = std::mem::replace(&mut self.seen[other], steps) == steps;
            let theirs = posts[other].stealer.len();
            if stands && !posts[other].inbox.is_empty() {
                let mut chain = posts[other].inbox.take();
                self.queue_all(&mut chain);
            }
            if stands && posts[other].row.waits() {
                self.rob_row(other);
            }
            if theirs > 0 && (stands || theirs > 2 * ours + 1) {
                worst = worst.max(Some((stands, theirs, other)));
            }
        }
        let room = DEQUE_LIMIT.saturating_sub(self.deque.len()).min(GRAB);
        if let Some((_, _, other)) = worst
            && room > 0
        {
            let _ = posts[other].stealer.steal_batch_with_limit(&self.deque, room);
            self.wake_for_more();
        }
    }

    fn next_victim(&mut self) -> usize {
        self.victim = (self.victim + 1) % self.seen.len();
        if self.victim == self.id {
            self.victim = (self.victim + 1) % self.seen.len();
        }
        self.victim
    }
}
