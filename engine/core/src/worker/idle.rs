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
//! * **I4** A wake is left to a searching worker only for [`SUPPRESS`] after one was last seen at it, and only then does
//!   it keep others from searching: one that has no processor may not hold up the rest. (Bounded from the last *wake*
//!   instead, the median latency at 100,000 tasks/s was those 20 us: a searcher on the producer's CPU did not run.)
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | waker: fence before the load of the word | SeqCst | the sleeper's fence | models::idle `one_sleeper`, mutant `wake-no-fence` |
//! | sleeper: fence after the announcement | SeqCst | the waker's fence | models::idle `one_sleeper`, mutant `sleep-no-fence` |
//! | sleeper: last look after the announcement | - | | models::idle `one_sleeper`, mutant `sleep-no-recheck` |
//! | unpark after the pop | - | park | models::idle `one_sleeper`, mutant `wake-no-unpark` |
//! | who ends a search as the last wakes the next | - | I3 | models::idle `long_task`, mutant `search-no-chain` |
//! | a last look that saw something: search on | - | a wake left to the caller | models::idle `long_task_apart`, mutant `sleep-no-resume` |
//! | who has more than the unit it runs next wakes | - | a last look that found neither | models::idle `long_task`, mutant `refill-no-wake` |
//!
//! `wake_all` needs no fence for the sleepers: it takes the stack's lock, so a worker that announces later sees the
//! status (models::idle `halt`, without a mutant of its own).
//!
//! The scheme follows tokio's multi-thread scheduler (searching and sleeping counts in one word) and rayon's sleep
//! module (announce, fence, look again).

use std::time::Duration;

use crate::{
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, mutant},
    topology::current_cpu,
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
    /// When a worker was last known to search: woken for it, or seen at it. In ns.
    last_search: AtomicU64,
    parkers: Box<[Parker]>,
    /// The CPU that each worker is pinned to, [`ANYWHERE`] for the others.
    cpus: Box<[AtomicUsize]>,
}

const ANYWHERE: usize = usize::MAX;

impl Idle {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            word: AtomicU64::new(0),
            stack: Mutex::new(Vec::with_capacity(workers)),
            last_search: AtomicU64::new(0),
            parkers: (0..workers).map(|_| Parker::new()).collect(),
            cpus: (0..workers).map(|_| AtomicUsize::new(ANYWHERE)).collect(),
        }
    }

    /// Worker `id` is pinned to this CPU.
    pub(crate) fn pinned(&self, id: usize, cpu: usize) {
        self.cpus[id].store(cpu, Ordering::Relaxed);
    }

    /// The sleeper to wake: the last that went to sleep (its caches are warm), but if possible none that is pinned to
    /// the CPU of the caller, which would have to wait for the caller to leave it.
    fn pop(&self, stack: &mut Vec<usize>) -> Option<usize> {
        let last = *stack.last()?;
        let cpu_of = |id: usize| self.cpus[id].load(Ordering::Relaxed);
        let here = if cpu_of(last) == ANYWHERE { None } else { current_cpu() };
        let at = match here {
            Some(here) => stack.iter().rposition(|id| cpu_of(*id) != here),
            None => None,
        };
        Some(stack.remove(at.unwrap_or(stack.len() - 1)))
    }

    /// The worker thread `id` introduces itself; from then on it can be unparked.
    pub(crate) fn enlist(&self, id: usize) {
        self.parkers[id].enlist();
    }

    /// Call after a unit has become visible. Wakes one sleeper unless a worker is searching already.
    #[inline]
    pub(crate) fn wake(&self, now: impl FnOnce() -> u64) {
        if !mutant("wake-no-fence") {
            // ORDERING: SeqCst fence between "unit visible" and the load below; pairs with the one in `announce`.
            fence(Ordering::SeqCst);
        }
        let word = self.word.load(Ordering::Relaxed);
        if sleeping(word) > 0 {
            self.wake_slow(word, now);
        }
    }

    #[cold]
    fn wake_slow(&self, word: u64, now: impl FnOnce() -> u64) {
        let now = now();
        if searching(word) > 0 && !self.is_stale(now) {
            return;
        }
        self.wake_one(now);
    }

    /// Wakes a sleeper, whoever searches. `false`: none sleeps.
    pub(crate) fn wake_one(&self, now: u64) -> bool {
        let popped = {
            let mut stack = self.stack.lock();
            let popped = self.pop(&mut stack);
            if popped.is_some() {
                // Relaxed: the lock orders changes of `sleeping` (I2); the fences do the rest.
                self.word.fetch_sub(SLEEPING - SEARCHING, Ordering::Relaxed);
            }
            popped
        };
        self.searches(now);
        match popped {
            Some(id) => {
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

    /// The caller starts to search. `false` when half of the workers search already: then it should sleep.
    pub(crate) fn start_search(&self, now: impl FnOnce() -> u64) -> bool {
        let many = 2 * searching(self.word.load(Ordering::Relaxed)) >= self.parkers.len() as u64;
        if many && !self.is_stale(now()) {
            return false;
        }
        self.word.fetch_add(SEARCHING, Ordering::Relaxed);
        true
    }

    /// The caller is at it, with a processor under it.
    #[inline]
    pub(crate) fn searches(&self, now: u64) {
        self.last_search.store(now, Ordering::Relaxed);
    }

    /// Whoever is counted as searching has not been seen at it for a while: it has no processor, probably.
    fn is_stale(&self, now: u64) -> bool {
        now.saturating_sub(self.last_search.load(Ordering::Relaxed)) >= SUPPRESS
    }

    /// The caller's last look before it parked saw something: it counts as searching again, whoever else does.
    pub(crate) fn resume_search(&self) {
        self.word.fetch_add(SEARCHING, Ordering::Relaxed);
    }

    /// The caller found something. `true`: it was the last that searched and should wake the next (I3).
    pub(crate) fn end_search(&self) -> bool {
        searching(self.word.fetch_sub(SEARCHING, Ordering::Relaxed)) == 1
    }

    /// First step to sleep. The caller looks at every source afterwards, then calls [`Idle::park`] or
    /// [`Idle::cancel`].
    pub(crate) fn announce(&self, id: usize, was_searching: bool) {
        {
            let mut stack = self.stack.lock();
            stack.push(id);
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
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
struct Parker(std::sync::OnceLock<std::thread::Thread>);

#[cfg(not(any(loom, shuttle)))]
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

/// The same under loom, whose `unpark` also releases a thread that waits for a lock, and under shuttle, whose `park` has
/// no timeout: a park token by the book.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
struct Parker {
    token: Mutex<bool>,
    changed: crate::sync::Condvar,
}

#[cfg(any(loom, shuttle))]
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
