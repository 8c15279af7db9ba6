//! The primitives of every protocol in this crate: those of `std`; those of loom under `cfg(loom)`, for models of one
//! protocol; those of shuttle under `cfg(shuttle)`, for the whole engine under random schedules.
//!
//! These seams live here and nowhere else:
//!
//! * [`mutant`] weakens one line when a run under loom or shuttle or a fuzz target asks for it by name. A model or a
//!   target proves a line only if it fails without that line. In every other build the function is the constant
//!   `false`.
//! * [`sized`] makes rings, chunks and lists tiny under loom and shuttle, so that short runs reach their ends.
//! * [`instant`] is the time of deadlines, which under shuttle passes in steps (sync/virtual_time.rs).
//! * [`seqcst_for_loom`] is the fence that a SeqCst access stands for, under loom, which takes it for AcqRel.

#[cfg(loom)]
mod seen;
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{Ordering, fence},
};
#[cfg(loom)]
pub(crate) use seen::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, SEEN};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(shuttle)]
mod virtual_time;

/// Threads of the engine, and what belongs to one of them.
#[cfg(shuttle)]
pub(crate) use shuttle::{thread, thread_local};
#[cfg(not(shuttle))]
pub(crate) use std::{thread, thread_local};

/// `std::cell::UnsafeCell` with loom's closure interface, so that loom can watch every access.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(not(shuttle))]
use std::sync::TryLockError;

/// A mutex whose lock never fails: a panic under it leaves valid data here by construction (no user code runs
/// under any lock of this crate except `Hash`, `Eq` and `Clone` of keys, whose panics are caught at the call).
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(Inner<T>);

#[cfg(loom)]
type Inner<T> = loom::sync::Mutex<T>;
#[cfg(shuttle)]
type Inner<T> = shuttle::sync::Mutex<T>;
#[cfg(not(any(loom, shuttle)))]
type Inner<T> = std::sync::Mutex<T>;
#[cfg(loom)]
pub(crate) type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;
#[cfg(shuttle)]
pub(crate) use virtual_time::MutexGuard;
#[cfg(not(any(loom, shuttle)))]
pub(crate) type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

#[cfg(not(shuttle))]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Inner::new(value))
    }
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            // As `lock`: who must not wait must not be shut out either.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(shuttle)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Inner::new(value))
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard::lock(&self.0)
    }
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        MutexGuard::try_lock(&self.0)
    }
}

/// A condition variable to go with [`Mutex`].
#[cfg(loom)]
pub(crate) use loom::sync::Condvar;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::Condvar;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::Condvar;

#[cfg(shuttle)]
pub(crate) use virtual_time::{instant, nanos, pass, wait};

/// The time that deadlines are compared with.
#[cfg(not(shuttle))]
#[inline]
pub(crate) fn instant() -> std::time::Instant {
    std::time::Instant::now()
}

/// `normal`, or `tiny` where loom or shuttle run the engine.
pub(crate) const fn sized(normal: usize, tiny: usize) -> usize {
    if cfg!(any(loom, shuttle)) { tiny } else { normal }
}

/// Waits on `condvar`, at most for `timeout` where one is given. Loom knows no time: it waits for a notification.
#[cfg(not(shuttle))]
pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Option<std::time::Duration>,
) -> MutexGuard<'a, T> {
    #[cfg(not(loom))]
    if let Some(timeout) = timeout {
        return match condvar.wait_timeout(guard, timeout) {
            Ok((guard, _)) => guard,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    let _ = timeout;
    match condvar.wait(guard) {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// One turn of a short spin.
#[inline(always)]
pub(crate) fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::hint::spin_loop();
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
}

/// Gives the processor away once, while another thread ends a handful of instructions.
pub(crate) fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    thread::yield_now();
}

/// True when a run under loom or shuttle or a fuzz target asked (environment variable `BGRP_MUTANT`) for the mutant
/// `name`. See the module text.
#[cfg(not(any(loom, shuttle, fuzzing)))]
#[inline(always)]
pub(crate) const fn mutant(_name: &str) -> bool {
    false
}
#[cfg(any(loom, shuttle, fuzzing))]
pub(crate) fn mutant(name: &str) -> bool {
    use std::sync::OnceLock;
    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    WANTED.get_or_init(|| std::env::var("BGRP_MUTANT").ok()).as_deref() == Some(name)
}

/// Stands between a SeqCst read-modify-write and a SeqCst load of *another* word, where both sides of a
/// store-load race are SeqCst and so are ordered by the single total order. The C++ and Rust models need nothing
/// here; loom treats SeqCst accesses as AcqRel, so its models get the fence that the hardware already has.
#[inline(always)]
pub(crate) fn seqcst_for_loom() {
    #[cfg(loom)]
    if !SEQCST_IS_PLAIN.get() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
std::thread_local! {
    /// Models only: [`seqcst_for_loom`] is nothing, so that it does not hide that another barrier is missing. Loom
    /// runs all threads of a model on the thread that called it.
    pub(crate) static SEQCST_IS_PLAIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Asks the processor to fetch the line of `pointer` for writing. A hint: any address is fine.
#[inline(always)]
pub(crate) fn prefetch_write<P>(pointer: *const P) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(pointer.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
    // SAFETY: `prfm` changes no register, no flag and no memory, and faults on nothing.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    let _ = pointer;
}

/// Asks the processor to fetch the line of `pointer` for reading. A hint: any address is fine.
#[inline(always)]
pub(crate) fn prefetch<P>(pointer: *const P) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(pointer.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
    // SAFETY: as in `prefetch_write`.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    let _ = pointer;
}
