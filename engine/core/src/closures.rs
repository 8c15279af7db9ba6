//! Closures as tasks: small ones inline, large ones boxed; string keys inline up to 24 bytes.

use std::{fmt, mem::MaybeUninit, time::Duration};

use compact_str::CompactString;

use crate::{
    engine::Engine,
    error::{BuildError, SubmitReason},
    lifecycle::close::CloseReport,
    topology::Workers,
    watch::stats::Stats,
};

/// Words of a closure that is stored inline.
const INLINE: usize = 6;
type Space = MaybeUninit<[usize; INLINE]>;

/// A `FnOnce()` of any size in a fixed space.
pub(crate) struct Job {
    space: Space,
    /// Runs the closure in `space` and leaves it empty; or only drops it.
    call: unsafe fn(*mut Space, Use),
    full: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Run,
    Drop,
}

// SAFETY: a job is made of a closure that is Send.
unsafe impl Send for Job {}

impl Job {
    pub(crate) fn new<F: FnOnce() + Send + 'static>(closure: F) -> Self {
        let mut space = Space::uninit();
        if fits::<F>() {
            // SAFETY: it fits, by size and alignment.
            unsafe { space.as_mut_ptr().cast::<F>().write(closure) };
            Self { space, call: call_inline::<F>, full: true }
        } else {
            // SAFETY: a pointer fits.
            unsafe { space.as_mut_ptr().cast::<Box<F>>().write(Box::new(closure)) };
            Self { space, call: call_boxed::<F>, full: true }
        }
    }

    /// Runs the closure; a second call does nothing.
    pub(crate) fn run(&mut self) {
        if std::mem::take(&mut self.full) {
            // SAFETY: full until now: the space holds the closure that `call` was made for.
            unsafe { (self.call)(&raw mut self.space, Use::Run) };
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.full {
            // SAFETY: as in `run`.
            unsafe { (self.call)(&raw mut self.space, Use::Drop) };
        }
    }
}

const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Space>() && align_of::<F>() <= align_of::<Space>()
}

/// # Safety
/// `space` holds an `F`, which is moved out.
unsafe fn call_inline<F: FnOnce()>(space: *mut Space, what: Use) {
    // SAFETY: the caller's promise.
    let closure = unsafe { space.cast::<F>().read() };
    if what == Use::Run {
        closure();
    }
}

/// # Safety
/// `space` holds a `Box<F>`, which is moved out.
unsafe fn call_boxed<F: FnOnce()>(space: *mut Space, what: Use) {
    // SAFETY: the caller's promise.
    let closure = unsafe { space.cast::<Box<F>>().read() };
    if what == Use::Run {
        closure();
    }
}

/// Closures in groups: the closures of one key run one after another, in the order in which they were submitted.
///
/// ```
/// use std::{sync::{Arc, Mutex}, time::Duration};
/// use bgrp::Bgrp;
/// let bgrp = Bgrp::new(4, 16, Duration::ZERO)?;
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// for n in 0..3 {
///     let seen = seen.clone();
///     bgrp.submit("merchant_1001", move || seen.lock().unwrap().push(n))?;
/// }
/// assert!(bgrp.close(Duration::from_secs(10)).is_complete());
/// assert_eq!(*seen.lock().unwrap(), [0, 1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Closures of up to six words are stored in place; larger ones are boxed. Keys of up to 24 bytes are stored in place. A closure
/// that panics counts as failed; the next one of its key runs.
#[derive(Debug)]
pub struct Bgrp {
    engine: Engine<CompactString, Job>,
}

/// A closure that was not accepted. It was dropped without being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAccepted(
    /// Why.
    pub SubmitReason,
);

impl fmt::Display for NotAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "closure not accepted: {}", self.0)
    }
}

impl std::error::Error for NotAccepted {}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

impl Bgrp {
    /// An engine for closures. `max_workers`: threads; `batch_size`: closures of one key per dispatch, at most;
    /// `flush_interval`: how long a key may wait for a full batch (zero: not at all).
    ///
    /// # Errors
    /// A value is out of its bounds (see [`Builder`](crate::Builder)), or a thread could not be started.
    pub fn new(
        max_workers: usize,
        batch_size: usize,
        flush_interval: Duration,
    ) -> Result<Self, BuildError> {
        let engine = Engine::builder()
            .workers(Workers::fixed(max_workers))
            .batch_size(batch_size)
            .flush_interval(flush_interval)
            .task_handler(|(), job: &mut crate::Task<'_, CompactString, Job>| job.run())
            .build()?;
        Ok(Self { engine })
    }

    /// Submits a closure; waits while its group or the engine is full.
    ///
    /// # Errors
    /// The engine is closed, or a closure of this engine would have to wait.
    pub fn submit(
        &self,
        key: impl AsRef<str>,
        closure: impl FnOnce() + Send + 'static,
    ) -> Result<(), NotAccepted> {
        let key = CompactString::new(key);
        self.engine.submit(key, Job::new(closure)).map_err(|error| NotAccepted(error.reason))
    }

    /// Submits a closure if there is room now.
    ///
    /// # Errors
    /// There is no room, or the engine is closed.
    pub fn try_submit(
        &self,
        key: impl AsRef<str>,
        closure: impl FnOnce() + Send + 'static,
    ) -> Result<(), NotAccepted> {
        let key = CompactString::new(key);
        self.engine.try_submit(key, Job::new(closure)).map_err(|error| NotAccepted(error.reason))
    }

    /// As [`Engine::wait_drain`].
    pub fn wait_drain(&self, timeout: Duration) -> bool {
        self.engine.wait_drain(timeout)
    }

    /// As [`Engine::stats`].
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// As [`Engine::close`]. Closures that did not run are given back as counts per key.
    pub fn close(&self, timeout: Duration) -> BgrpReport {
        let report: CloseReport<CompactString, Job> = self.engine.close(timeout);
        BgrpReport {
            done: report.done,
            failed: report.failed,
            left: report.left.iter().map(|left| (left.key.to_string(), left.tasks.len())).collect(),
            running: report.running,
        }
    }
}

/// What a [`Bgrp`] did, and what it did not come to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BgrpReport {
    /// Closures that ran to their end.
    pub done: u64,
    /// Closures that panicked.
    pub failed: u64,
    /// Keys with closures that did not run, and how many.
    pub left: Vec<(String, usize)>,
    /// Keys whose closure was still running at the deadline.
    pub running: usize,
}

impl BgrpReport {
    /// Every accepted closure ran.
    pub fn is_complete(&self) -> bool {
        self.left.is_empty() && self.running == 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn small_and_large_closures_run_once_and_drop_once() {
        let witness = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = |by: usize| {
            let witness = witness.clone();
            move || {
                witness.fetch_add(by, std::sync::atomic::Ordering::Relaxed);
            }
        };
        let large = [1usize; 40];
        let (small, wide) = (count(1), count(10));
        let mut jobs = [Job::new(small), Job::new(move || (0..large[0]).for_each(|_| wide()))];
        jobs.iter_mut().for_each(|job| {
            job.run();
            job.run();
        });
        assert_eq!(witness.load(std::sync::atomic::Ordering::Relaxed), 11);
        drop(Job::new(count(100)));
        drop(jobs);
        assert_eq!(Arc::strong_count(&witness), 1);
        assert_eq!(witness.load(std::sync::atomic::Ordering::Relaxed), 11);
    }
}
