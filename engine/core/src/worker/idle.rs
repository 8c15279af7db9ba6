//! Sleep and wake: no unit waits while a worker sleeps, and no worker spins while nothing waits.
//!
//! ```text
//! word:  | sleeping (high 32 bits) | searching (low 32 bits) |       stack: ids of the sleeping workers
//!
//! waker                                   worker that found nothing
//!   make a unit visible                     announce: push id, sleeping + 1, searching - 1
//!   fence SeqCst              <-- SB -->    fence SeqCst
//!   load word                               look at *every* source again
//!   nobody searches: pop a sleeper          nothing: park
//! ```
//!
//! Invariants:
//!
//! * **I1** A unit made visible before `wake` is found by a searching worker, by a worker's last look before it
//!   parks, or by the worker that `wake` unparks. (Store-load race: both sides fence, so one of them sees the other.)
//! * **I2** `sleeping` is the length of the stack; only who removes an id from the stack lowers it.
//! * **I3** A searching worker either finds something, and then wakes the next if it was the last, or announces and
//!   sees nothing in its last look. One that sees something there searches on.
//! * **I4** A searching worker counts for [`SUPPRESS`] after it was last seen at it, each on its own: for so long a wake is
//!   left to it, and it keeps others from searching. One that has lost its processor holds up nobody. (With one time for
//!   all of them a searcher on the producer's CPU kept the other worker asleep: the median latency at 100,000 tasks/s
//!   was 18 us instead of 1.)
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | waker: fence before the load of the word | SeqCst | the sleeper's fence | models::idle `one_sleeper`, mutant `wake-no-fence` |
//! | sleeper: fence after the announcement | SeqCst | the waker's fence | models::idle `one_sleeper`, mutant `sleep-no-fence` |
//! | sleeper: last look after the announcement | - | | models::idle `one_sleeper`, mutant `sleep-no-recheck` |
//! | unpark after the pop | - | park | models::idle `one_sleeper`, mutant `wake-no-unpark` |
//! | who ends a search and sees nobody else at it wakes the next | - | I3 | models::idle `long_task`, mutant `search-no-chain` |
//! | a last look that saw something: search on | - | a wake left to the caller | models::idle `long_task_apart`, mutant `sleep-no-resume` |
//! | who has more than the unit it runs next wakes | - | a last look that found neither | models::idle `long_task`, mutant `refill-no-wake` |
//!
//! `wake_all` needs no fence for the sleepers: it takes the stack's lock, so a worker that announces later sees the
//! status (models::idle `halt`, without a mutant of its own).
//!
//! The scheme follows tokio's multi-thread scheduler (searching and sleeping counts in one word) and rayon's sleep
//! module (announce, fence, look again).

use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::{
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, mutant},
    topology::{Plan, current_cpu},
};

/// For how long a wake may be left to a worker that was last seen searching, in ns. A woken worker needs about half of
/// it to get going.
pub(crate) const SUPPRESS: u64 = 10_000;

const SLEEPING: u64 = 1 << 32;
const SEARCHING: u64 = 1;

const fn sleeping(word: u64) -> u64 {
    word >> 32
}
const fn searching(word: u64) -> u64 {
    word & (SLEEPING - 1)
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Idle {
    word: AtomicU64,
    stack: Mutex<Vec<usize>>,
    /// When each worker was last known to search (woken for it, or seen at it), in ns; [`NEVER`] for one that does not.
    seen_at: Box<[CachePadded<AtomicU64>]>,
    parkers: Box<[Parker]>,
    /// The CPU that each worker is pinned to, [`ANYWHERE`] for the others.
    cpus: Box<[AtomicUsize]>,
    /// The node of each worker; nothing where there is one node only.
    nodes: Box<[usize]>,
}

const ANYWHERE: usize = usize::MAX;
const NEVER: u64 = u64::MAX;

impl Idle {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            word: AtomicU64::new(0),
            stack: Mutex::new(Vec::with_capacity(workers)),
            seen_at: (0..workers).map(|_| CachePadded::new(AtomicU64::new(NEVER))).collect(),
            parkers: (0..workers).map(|_| Parker::new()).collect(),
            cpus: (0..workers).map(|_| AtomicUsize::new(ANYWHERE)).collect(),
            nodes: Box::default(),
        }
    }

    /// Where the workers are: before any of them runs.
    pub(crate) fn on_nodes(&mut self, plan: &Plan) {
        if plan.nodes > 1 {
            self.nodes = plan.workers.iter().map(|worker| worker.node).collect();
        }
    }

    /// Worker `id` is pinned to this CPU.
    pub(crate) fn pinned(&self, id: usize, cpu: usize) {
        self.cpus[id].store(cpu, Ordering::Relaxed);
    }

    /// The sleeper to wake: the last that went to sleep (its caches are warm), if possible on the node of worker `near`,
    /// whose unit it will take, and none that is pinned to the CPU of the caller, which would have to wait for the
    /// caller to leave it.
    fn pop(&self, stack: &mut Vec<usize>, near: Option<usize>) -> Option<usize> {
        let last = *stack.last()?;
        let cpu_of = |id: usize| self.cpus[id].load(Ordering::Relaxed);
        let here = if cpu_of(last) == ANYWHERE { None } else { current_cpu() };
        let is_free = |id: &usize| here.is_none_or(|here| cpu_of(*id) != here);
        let node = near.and_then(|near| self.nodes.get(near));
        let at = node
            .and_then(|node| stack.iter().rposition(|id| is_free(id) && self.nodes[*id] == *node))
            .or_else(|| stack.iter().rposition(is_free));
        Some(stack.remove(at.unwrap_or(stack.len() - 1)))
    }

    /// The worker thread `id` introduces itself; from then on it can be unparked.
    pub(crate) fn enlist(&self, id: usize) {
        self.parkers[id].enlist();
    }

    /// Call after a unit has become visible. Wakes one sleeper unless a worker is searching already.
    #[inline]
    pub(crate) fn wake(&self, now: impl FnOnce() -> u64) {
        self.wake_near(None, now);
    }

    /// As [`Idle::wake`], for a unit that is at this worker.
    #[inline]
    pub(crate) fn wake_near(&self, near: Option<usize>, now: impl FnOnce() -> u64) {
        if !mutant("wake-no-fence") {
            // ORDERING: SeqCst fence between "unit visible" and the load below; pairs with the one in `announce`.
            fence(Ordering::SeqCst);
        }
        let word = self.word.load(Ordering::Relaxed);
        if sleeping(word) > 0 {
            self.wake_slow(word, near, now);
        }
    }

    #[cold]
    fn wake_slow(&self, word: u64, near: Option<usize>, now: impl FnOnce() -> u64) {
        let now = now();
        if searching(word) > 0 && self.anybody_at_it(now) {
            return;
        }
        self.wake_one_near(near, now);
    }

    /// Wakes a sleeper, whoever searches. `false`: none sleeps.
    pub(crate) fn wake_one(&self, now: u64) -> bool {
        self.wake_one_near(None, now)
    }

    fn wake_one_near(&self, near: Option<usize>, now: u64) -> bool {
        let popped = {
            let mut stack = self.stack.lock();
            let popped = self.pop(&mut stack, near);
            if popped.is_some() {
                // Relaxed: the lock orders changes of `sleeping` (I2); the fences do the rest.
                self.word.fetch_sub(SLEEPING - SEARCHING, Ordering::Relaxed);
            }
            popped
        };
        match popped {
            Some(id) => {
                self.searches(id, now);
                if !mutant("wake-no-unpark") {
                    self.parkers[id].unpark();
                }
                true
            }
            None => false,
        }
    }

    /// Wakes every sleeper (status changed).
    pub(crate) fn wake_all(&self, now: u64) {
        // No fence: `wake_one` takes the stack's lock, so who announces after its last look sees the status.
        while self.wake_one(now) {}
    }

    /// Unparks `id` whether it sleeps or not, without taking it off the stack (the keeper's deadline moved).
    pub(crate) fn nudge(&self, id: usize) {
        self.parkers[id].unpark();
    }

    /// Worker `id` starts to search. `false`: half of the workers are at it already, so it should sleep.
    pub(crate) fn start_search(&self, id: usize, now: u64) -> bool {
        let workers = self.parkers.len();
        let many = 2 * searching(self.word.load(Ordering::Relaxed)) >= workers as u64;
        if many && 2 * self.at_it(now).count() >= workers {
            return false;
        }
        self.searches(id, now);
        self.word.fetch_add(SEARCHING, Ordering::Relaxed);
        true
    }

    /// Worker `id` is at it, with a processor under it.
    #[inline]
    pub(crate) fn searches(&self, id: usize, now: u64) {
        self.seen_at[id].store(now, Ordering::Relaxed);
    }

    /// The workers that were seen searching a moment ago (I4).
    fn at_it(&self, now: u64) -> impl Iterator<Item = u64> {
        self.seen_at
            .iter()
            .map(|seen| seen.load(Ordering::Relaxed))
            .filter(move |&seen| seen != NEVER && now.saturating_sub(seen) < SUPPRESS)
    }

    fn anybody_at_it(&self, now: u64) -> bool {
        self.at_it(now).next().is_some()
    }

    /// The last look of worker `id` before it parked saw something: it counts as searching again, whoever else does.
    pub(crate) fn resume_search(&self, id: usize, now: u64) {
        self.searches(id, now);
        self.word.fetch_add(SEARCHING, Ordering::Relaxed);
    }

    /// Worker `id` found something, or leaves. `true`: nobody else is at it, so it should wake the next (I3).
    pub(crate) fn end_search(&self, id: usize, now: u64) -> bool {
        self.seen_at[id].store(NEVER, Ordering::Relaxed);
        let others = searching(self.word.fetch_sub(SEARCHING, Ordering::Relaxed)) > 1;
        !others || !self.anybody_at_it(now)
    }

    /// First step to sleep. The caller looks at every source afterwards, then calls [`Idle::park`] or
    /// [`Idle::cancel`].
    pub(crate) fn announce(&self, id: usize, was_searching: bool) {
        {
            let mut stack = self.stack.lock();
            stack.push(id);
            if was_searching {
                self.seen_at[id].store(NEVER, Ordering::Relaxed);
            }
            let change = if was_searching { SLEEPING - SEARCHING } else { SLEEPING };
            self.word.fetch_add(change, Ordering::Relaxed);
        }
        if !mutant("sleep-no-fence") {
            // ORDERING: SeqCst fence between the announcement and the last look; pairs with the one in `wake`.
            fence(Ordering::SeqCst);
        }
    }

    /// Takes the announcement back. `true`: in time, the caller is just awake. `false`: somebody has taken the id
    /// off the stack to wake it, so the caller counts as searching.
    pub(crate) fn cancel(&self, id: usize) -> bool {
        let mut stack = self.stack.lock();
        match stack.iter().rposition(|other| *other == id) {
            Some(at) => {
                stack.remove(at);
                self.word.fetch_sub(SLEEPING, Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    /// Parks until unparked, or for `timeout`. May return early: the caller then cancels and looks again.
    pub(crate) fn park(&self, id: usize, timeout: Option<Duration>) {
        self.parkers[id].park(timeout);
    }

    /// Worker `id`, which has no thread, has its park token: takes it, as the end of a park does.
    #[cfg(fuzzing)]
    pub(crate) fn was_unparked(&self, id: usize) -> bool {
        std::mem::take(&mut *self.parkers[id].token.lock())
    }

    /// How many workers are counted as searching now.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn searchers(&self) -> usize {
        searching(self.word.load(Ordering::Relaxed)) as usize
    }

    /// How many workers sleep now (statistics, tests).
    pub(crate) fn sleepers(&self) -> usize {
        sleeping(self.word.load(Ordering::Relaxed)) as usize
    }
}

/// One worker's place to sleep, over the thread's own park token.
#[cfg(not(any(loom, shuttle, fuzzing)))]
#[derive(Debug)]
struct Parker(std::sync::OnceLock<std::thread::Thread>);

#[cfg(not(any(loom, shuttle, fuzzing)))]
impl Parker {
    fn new() -> Self {
        Self(std::sync::OnceLock::new())
    }
    fn enlist(&self) {
        let _ = self.0.set(std::thread::current());
    }
    fn unpark(&self) {
        // A worker that is not enlisted has not looked at its sources yet; it will.
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
    fn park(&self, timeout: Option<Duration>) {
        match timeout {
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        }
    }
}

/// A park token by the book: under loom, whose `unpark` also releases a thread that waits for a lock; under shuttle,
/// whose `park` has no timeout; and for fuzz targets, whose workers have no threads and only ask for the token.
#[cfg(any(loom, shuttle, fuzzing))]
#[derive(Debug)]
struct Parker {
    token: Mutex<bool>,
    changed: crate::sync::Condvar,
}

#[cfg(any(loom, shuttle, fuzzing))]
impl Parker {
    fn new() -> Self {
        Self { token: Mutex::new(false), changed: crate::sync::Condvar::new() }
    }
    fn enlist(&self) {}
    fn unpark(&self) {
        *self.token.lock() = true;
        self.changed.notify_one();
    }
    fn park(&self, timeout: Option<Duration>) {
        // Who parks with a timeout comes back at once, as if it had passed.
        #[cfg(shuttle)]
        crate::sync::pass(timeout);
        let mut token = self.token.lock();
        while !*token && timeout.is_none() {
            token = crate::sync::wait(&self.changed, token, None);
        }
        *token = false;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Who sleeps in which order, on which nodes, and who is woken for a unit at worker 0.
    fn woken(sleepers: &[usize], nodes: &[usize]) -> Option<usize> {
        let mut idle = Idle::new(nodes.len());
        idle.nodes = nodes.into();
        sleepers.iter().for_each(|id| idle.announce(*id, false));
        assert_eq!(idle.sleepers(), sleepers.len());
        idle.wake_near(Some(0), || 0);
        let left = idle.stack.lock().clone();
        sleepers.iter().copied().find(|id| !left.contains(id))
    }

    #[test]
    fn the_last_sleeper_on_the_node_of_the_unit_is_woken() {
        assert_eq!(woken(&[1, 0, 2, 3], &[0, 0, 1, 1]), Some(0));
        assert_eq!(woken(&[0, 1, 3, 2], &[0, 0, 1, 1]), Some(1));
        // One of another node is better than none.
        assert_eq!(woken(&[2, 3], &[0, 0, 1, 1]), Some(3));
        // One node: the last.
        assert_eq!(woken(&[2, 3, 1], &[0, 0, 0, 0]), Some(1));
        assert_eq!(woken(&[], &[0]), None);
    }
}
