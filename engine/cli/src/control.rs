//! One place that knows whether the run is to stop, and wakes whoever waits.
//!
//! | reason | who finds it | what follows |
//! |---|---|---|
//! | interrupted | the signal thread | running commands finish, nothing starts |
//! | halted | a final failure under `--on-failure halt` | the same |
//! | output closed, output failed | whoever writes a command's output | the same |
//!
//! I1: the first reason stays. I2: after [`Control::stop`] no read of an input blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a run stops before its input is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A signal.
    Interrupted,
    /// `--on-failure halt`.
    Halted,
    /// Whoever read our output went away.
    OutputClosed,
    /// Our output cannot be written.
    OutputFailed(String),
}

impl StopReason {
    /// Why a record was not run.
    #[must_use]
    pub fn not_run(&self) -> &'static str {
        match self {
            Self::Interrupted => "not run: interrupted",
            Self::Halted => "not run: the run was halted by a failure",
            Self::OutputClosed => "not run: nobody reads the output any more",
            Self::OutputFailed(_) => "not run: the output cannot be written",
        }
    }
}

#[derive(Debug, Default)]
struct State {
    reason: Option<StopReason>,
    finished: bool,
}

/// Whether and why the run stops.
#[derive(Debug)]
pub struct Control {
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
    /// Becomes readable at the stop, by losing its writer.
    wake: OwnedFd,
    writer: Mutex<Option<OwnedFd>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// A run that goes on.
    ///
    /// # Errors
    /// The operating system has no pipe left.
    pub fn new() -> io::Result<Self> {
        let (wake, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            wake,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Stops the run; says whether this is the first reason.
    pub fn stop(&self, reason: StopReason) -> bool {
        let mut state = lock(&self.state);
        let first = state.reason.is_none();
        state.reason.get_or_insert(reason);
        // ORDERING: pairs with the load in `stopped`; whoever sees the flag finds the reason set.
        self.stopped.store(true, Ordering::Release);
        drop(state);
        lock(&self.writer).take();
        self.changed.notify_all();
        first
    }

    /// Whether the run is to stop.
    #[must_use]
    pub fn stopped(&self) -> bool {
        // ORDERING: pairs with the store in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// Why, if it is.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        if self.stopped() { lock(&self.state).reason.clone() } else { None }
    }

    /// A descriptor that is readable from the stop on.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Says that there is nothing left to stop.
    pub fn finish(&self) {
        lock(&self.state).finished = true;
        self.changed.notify_all();
    }

    /// Waits for the stop or the finish; says whether it was the stop.
    #[must_use]
    pub fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while state.reason.is_none() && !state.finished {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.reason.is_some()
    }

    /// Sleeps, but not beyond the stop.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = lock(&self.state);
        while state.reason.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays() {
        let control = Control::new().unwrap();
        assert_eq!(control.reason(), None);
        assert!(control.stop(StopReason::Halted));
        assert!(!control.stop(StopReason::Interrupted));
        assert_eq!(control.reason(), Some(StopReason::Halted));
        assert!(control.wait());
        control.sleep(Duration::from_secs(3600));
    }

    #[test]
    fn finishing_wakes_the_waiter() {
        let control = Control::new().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| control.wait());
            control.finish();
            assert!(!waiter.join().unwrap());
        });
    }
}
