//! A barrier whose cost lies on the side that needs it seldom.
//!
//! Between "publish a record" and "is the shard idle?" a producer needs a full barrier, or a worker that goes idle
//! may miss the record. On the hot side that barrier costs more than the rest of the submit. Where the kernel
//! offers it (Linux `membarrier`, private expedited), the worker asks every running thread of the process for a
//! barrier instead, and the producer pays nothing. Elsewhere both sides pay a fence. Under loom both sides fence, or,
//! where a model is about what holds without the barrier, neither does (`Absent`).
//!
//! The idea and its name are those of Linux's `membarrier(2)` and of "asymmetric fences" (C++ P1202).

use crate::sync::{Ordering, fence, mutant};

/// How [`Barrier::light`] and [`Barrier::heavy`] are paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// `light` is free, `heavy` is a system call.
    Asymmetric,
    /// Both are a SeqCst fence.
    Symmetric,
    /// Models only: `light` is nothing and `heavy` must not be reached.
    #[cfg(loom)]
    Absent,
}

impl Barrier {
    /// The best that this system offers.
    pub(crate) fn detect() -> Self {
        if register() { Self::Asymmetric } else { Self::Symmetric }
    }

    /// The frequent side.
    #[inline(always)]
    pub(crate) fn light(self) {
        if mutant("barrier-light-missing") {
            return;
        }
        #[cfg(loom)]
        if self == Self::Absent {
            return;
        }
        if self == Self::Asymmetric && !cfg!(loom) {
            // ORDERING: only the compiler must keep the order; the other side's `heavy` does the rest.
            std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        } else {
            // ORDERING: SeqCst fence, pairs with the one in `heavy`.
            fence(Ordering::SeqCst);
        }
    }

    /// The rare side.
    pub(crate) fn heavy(self) {
        if mutant("barrier-heavy-missing") {
            return;
        }
        #[cfg(loom)]
        assert!(self != Self::Absent, "this model has no heavy barrier");
        // ORDERING: SeqCst fence, pairs with `light`; the system call adds one on every other running thread.
        fence(Ordering::SeqCst);
        if self == Self::Asymmetric {
            expedite();
        }
    }
}

#[cfg(all(target_os = "linux", not(loom), not(shuttle), not(miri)))]
fn register() -> bool {
    // SAFETY: membarrier takes no pointers.
    let answer = unsafe {
        libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0)
    };
    answer == 0
}

#[cfg(all(target_os = "linux", not(loom), not(shuttle), not(miri)))]
fn expedite() {
    // SAFETY: membarrier takes no pointers.
    let answer = unsafe {
        libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)
    };
    // The registration succeeded, so the only failure left would be a filter installed since. Order is not
    // negotiable: without a barrier the engine must not go on.
    assert!(answer == 0, "membarrier was registered and then refused by the kernel");
}

#[cfg(not(all(target_os = "linux", not(loom), not(shuttle), not(miri))))]
fn register() -> bool {
    false
}

#[cfg(not(all(target_os = "linux", not(loom), not(shuttle), not(miri))))]
fn expedite() {}
