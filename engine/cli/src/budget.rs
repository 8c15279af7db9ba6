//! A bound on the bytes of records between reading and the end of their command.
//!
//! The engine bounds the number of tasks; a record can have 16 MiB. A charge is taken before a record is
//! submitted and given back when the record is dropped, on whatever path.
//!
//! I1: charges together are at most the bound, or one record that is alone larger than it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that may be in flight together.
#[derive(Debug)]
pub struct Budget {
    bound: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    closed: bool,
}

impl Budget {
    /// A budget of `bound` bytes.
    #[must_use]
    pub fn new(bound: usize) -> Arc<Self> {
        Arc::new(Self { bound, state: Mutex::default(), freed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes`, waiting for room; after [`Budget::close`] it does not wait.
    #[must_use]
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let mut state = self.lock();
        while state.used > 0 && state.used + bytes > self.bound && !state.closed {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.used += bytes;
        Charge { budget: Arc::clone(self), bytes }
    }

    /// Lets nobody wait any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.freed.notify_all();
    }
}

/// Bytes in flight; given back on drop.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.lock().used -= self.bytes;
        self.budget.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_waits_for_room_and_one_alone_always_fits() {
        let budget = Budget::new(10);
        let large = budget.charge(1000);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| budget.charge(10));
            drop(large);
            let next = next.join().unwrap();
            assert_eq!(budget.lock().used, 10);
            drop(next);
        });
        assert_eq!(budget.lock().used, 0);
    }

    #[test]
    fn closing_wakes_the_waiter() {
        let budget = Budget::new(10);
        let _held = budget.charge(10);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(budget.charge(1)));
            budget.close();
            waiter.join().unwrap();
        });
    }
}
