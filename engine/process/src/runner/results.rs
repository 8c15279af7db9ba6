//! Final results on their way to the caller.
//!
//! Whoever produces one never waits: what is with workers is bounded, so what may come is too. Where more than `capacity` results wait,
//! nothing is sent to workers until the caller has taken half of them.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::result::TaskResult;

struct State {
    batches: VecDeque<Vec<TaskResult>>,
    /// Results in all batches.
    waiting: usize,
    /// Somebody has a [`Results`], or had one.
    asked: bool,
    /// No result comes any more.
    ended: bool,
}

/// See the module text.
pub(super) struct Outlet {
    capacity: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// Tells the reactor that there is room again.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Outlet {
    pub(super) fn new(capacity: usize, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let state = State { batches: VecDeque::new(), waiting: 0, asked: false, ended: false };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { capacity, state, changed, wake: Box::new(wake) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, batch: Vec<TaskResult>) {
        if batch.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.waiting += batch.len();
        state.batches.push_back(batch);
        drop(state);
        self.changed.notify_one();
    }

    /// So many wait that no more should come.
    pub(super) fn is_full(&self) -> bool {
        self.lock().waiting >= self.capacity
    }

    /// It is full, and nobody has ever asked for a result.
    pub(super) fn is_stuck(&self) -> bool {
        let state = self.lock();
        state.waiting >= self.capacity && !state.asked
    }

    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn take(&self, until: Option<Instant>) -> Option<Vec<TaskResult>> {
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                let before = state.waiting;
                state.waiting -= batch.len();
                let opens = before > self.capacity / 2 && state.waiting <= self.capacity / 2;
                let more = !state.batches.is_empty();
                drop(state);
                if opens {
                    (self.wake)();
                }
                if more {
                    self.changed.notify_one();
                }
                return Some(batch);
            }
            if state.ended {
                return None;
            }
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let woken = self.changed.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// The results of a run, as they come: those of one key in the order of its tasks. Clones share them: each result goes to one of them.
/// Ends after the runner is closed and every result was taken.
pub struct Results {
    outlet: Arc<Outlet>,
    /// What is left of the batch in hand.
    hand: std::vec::IntoIter<TaskResult>,
}

impl Results {
    pub(super) fn new(outlet: Arc<Outlet>) -> Self {
        outlet.lock().asked = true;
        Self { outlet, hand: Vec::new().into_iter() }
    }

    /// Some results at once, or none when there will be no more. Waits for the first one.
    pub fn next_batch(&mut self) -> Vec<TaskResult> {
        let rest: Vec<_> = self.hand.by_ref().collect();
        if rest.is_empty() { self.outlet.take(None).unwrap_or_default() } else { rest }
    }

    /// The next one, if it comes within this time. Waiting touches no task.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<TaskResult> {
        if let Some(result) = self.hand.next() {
            return Some(result);
        }
        let until = Instant::now().checked_add(timeout);
        self.hand = self.outlet.take(until)?.into_iter();
        self.hand.next()
    }

    /// Every result was taken, and no more will come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let state = self.outlet.lock();
        self.hand.len() == 0 && state.batches.is_empty() && state.ended
    }
}

impl Iterator for Results {
    type Item = TaskResult;

    fn next(&mut self) -> Option<TaskResult> {
        if let Some(result) = self.hand.next() {
            return Some(result);
        }
        self.hand = self.outlet.take(None)?.into_iter();
        self.hand.next()
    }
}

impl Clone for Results {
    fn clone(&self) -> Self {
        Self::new(self.outlet.clone())
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").field("waiting", &self.outlet.lock().waiting).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::result::Ended;

    fn results(ids: std::ops::Range<u32>) -> Vec<TaskResult> {
        let one = |id: u32| TaskResult {
            id: id.to_string().into(),
            key: None,
            ended: Ended::Skipped,
            attempts: 0,
            worker: None,
        };
        ids.map(one).collect()
    }

    #[test]
    fn each_result_comes_once_and_then_the_end() {
        let outlet = Outlet::new(100, || ());
        let (mut first, mut second) = (Results::new(outlet.clone()), Results::new(outlet.clone()));
        outlet.push(results(0..3));
        outlet.push(results(3..5));
        assert_eq!(first.next().map(|result| result.id), Some("0".into()));
        assert_eq!(second.next_batch(), results(3..5));
        assert_eq!(first.next_batch(), results(1..3));
        assert_eq!(first.next_timeout(Duration::ZERO), None);
        assert!(!first.is_over());
        let waiter = std::thread::spawn(move || second.next());
        outlet.end();
        assert_eq!(waiter.join().expect("no panic"), None);
        assert!(first.is_over() && first.next_batch().is_empty());
    }

    #[test]
    fn the_reactor_is_woken_once_half_of_them_are_taken() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let outlet = Outlet::new(4, move || {
            count.fetch_add(1, SeqCst);
        });
        (0..5).for_each(|id| outlet.push(results(id..id + 1)));
        assert!(outlet.is_full() && outlet.is_stuck());
        let mut taker = Results::new(outlet.clone());
        assert!(!outlet.is_stuck());
        let woken_after = taker.by_ref().take(5).map(|_| woken.load(SeqCst)).collect::<Vec<_>>();
        assert_eq!(woken_after, [0, 0, 1, 1, 1]);
    }
}
