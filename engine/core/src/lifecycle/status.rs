//! The status of an engine: it only ever goes down this list.
//!
//! | status | submits | turns | linger |
//! |---|---|---|---|
//! | `Running` | accepted | run | waits |
//! | `Draining` | refused | run | ends at once |
//! | `Halted` | refused | no task starts any more | - |
//!
//! Beside it stands how many groups are wanted between two tasks (paused, cancelled, closed), so that a dispatch asks for both
//! with one load.

use crate::sync::{AtomicU32, Ordering};

const RUNNING: u32 = 0;
const DRAINING: u32 = 1;
const HALTED: u32 = 2;
const LIFE: u32 = DRAINING | HALTED;
/// One group that is wanted.
const CALL: u32 = 4;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Status(AtomicU32);

impl Status {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(RUNNING))
    }

    /// Running to draining; later states stay. Each ring is closed by its own bit (ingress/ring.rs).
    pub(crate) fn drain(&self) {
        // ORDERING: SeqCst: followed by a heavy barrier and a look at which lanes are being pushed to (lifecycle/close.rs); a
        // producer stores that it pushes, pays the light barrier, then loads the status.
        self.0.fetch_or(DRAINING, Ordering::SeqCst);
    }

    /// No task starts from now on.
    pub(crate) fn halt(&self) {
        // ORDERING: SeqCst: followed by a heavy barrier and a look at what each worker has in hand
        // (lifecycle/close.rs); the worker stores what it has in hand, then loads the status.
        self.0.fetch_or(LIFE, Ordering::SeqCst);
    }

    pub(crate) fn refuses(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LIFE != RUNNING
    }

    /// Read between tasks. Relaxed: it is a request to stop soon; the exact point is decided in `turn`.
    #[inline(always)]
    pub(crate) fn stops(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HALTED != 0
    }

    /// Read between tasks: the engine stops, or some group is wanted. Relaxed, as `stops`.
    #[inline(always)]
    pub(crate) fn interrupts(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= HALTED
    }

    /// One more group is wanted between two tasks.
    pub(crate) fn call(&self) {
        self.0.fetch_add(CALL, Ordering::Relaxed);
    }

    /// One group less.
    pub(crate) fn answered(&self) {
        self.0.fetch_sub(CALL, Ordering::Relaxed);
    }
}
