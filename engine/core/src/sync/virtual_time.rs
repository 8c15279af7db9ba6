//! Locks and time under shuttle, which knows no time: a wait with a timeout would never end by itself.
//!
//! Here time passes in steps. Each reading moves it by [`STEP`]; who waits with a timeout lets it pass, gives the
//! processor away, and comes back as if something had woken it. So deadlines, linger and back-off all come to their end,
//! at any moment that the schedule likes, and a run is a function of its seed alone. All threads of a run are on the
//! thread of the operating system that started it, and so is their time.

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
    sync::{OnceLock, TryLockError},
    time::{Duration, Instant},
};

use shuttle::sync::{Condvar, Mutex as Inner, MutexGuard as Guard};

/// How much later each reading of the time is than the one before. A worker that spins for 20 us reads four times.
const STEP: u64 = 5_000;

std::thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });

/// Nanoseconds of this run's time, each reading later than the one before.
pub(crate) fn nanos() -> u64 {
    NOW.set(NOW.get() + STEP);
    NOW.get()
}

/// The time that deadlines are compared with.
pub(crate) fn instant() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now) + Duration::from_nanos(nanos())
}

/// A wait with a timeout: it ends, but others run first.
pub(crate) fn pass(timeout: Option<Duration>) {
    if let Some(timeout) = timeout {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        NOW.set(NOW.get() + nanos.min(1 << 40));
        shuttle::thread::yield_now();
    }
}

/// A lock that is held, and remembers which.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    lock: &'a Inner<T>,
    guard: Guard<'a, T>,
}

impl<'a, T> MutexGuard<'a, T> {
    pub(super) fn lock(lock: &'a Inner<T>) -> Self {
        let guard = lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Self { lock, guard }
    }

    pub(super) fn try_lock(lock: &'a Inner<T>) -> Option<Self> {
        // Poisoned while another thread of the run unwinds: to std all of them are one.
        let guard = match lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Self { lock, guard })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Waits on `condvar`; with a timeout it comes back soon, and a part of the timeout has passed.
pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    let MutexGuard { lock, guard } = guard;
    if timeout.is_some() {
        drop(guard);
        pass(timeout.map(|timeout| timeout / 4 + Duration::from_micros(1)));
        return MutexGuard::lock(lock);
    }
    let guard = condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
    MutexGuard { lock, guard }
}
