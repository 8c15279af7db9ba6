//! Tying a thread to a CPU, and asking where a thread may run.
//!
//! Invariant I1: CPU numbers of any size work: the sets are as long as they must be, not the 1,024
//! bits of the C library's fixed type.
//!
//! Cost: one system call, once a worker.

use std::fmt;
use std::io;

/// Why a thread was not tied to its CPU. A warning: the worker runs on, wherever it is put.
#[derive(Debug)]
#[non_exhaustive]
pub enum PinError {
    /// No machine has a CPU of this number.
    NoSuchCpu(usize),
    /// The kernel said no, most often since the CPU went offline or out of the mask.
    Refused {
        /// The CPU.
        cpu: usize,
        /// What the kernel answered.
        why: io::Error,
    },
    /// This system has no call for it.
    Unsupported,
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCpu(cpu) => write!(f, "cannot pin to CPU {cpu}: no machine has so many"),
            Self::Refused { cpu, why } => {
                write!(f, "cannot pin to CPU {cpu}: {why}; is it online, and in the mask?")
            }
            Self::Unsupported => write!(f, "threads cannot be pinned on this system"),
        }
    }
}

impl std::error::Error for PinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { why, .. } => Some(why),
            Self::NoSuchCpu(_) | Self::Unsupported => None,
        }
    }
}

/// Lets the calling thread run on `cpu` only, as workers are pinned by themselves.
///
/// ```
/// use bgrp::topology::{Snapshot, pin_current_thread};
///
/// let mask = Snapshot::read().mask;
/// std::thread::spawn(move || {
///     if let Some(&cpu) = mask.first() {
///         match pin_current_thread(cpu) {
///             Ok(()) => println!("on CPU {cpu} from now on"),
///             Err(why) => eprintln!("{why}"),
///         }
///     }
/// })
/// .join()
/// .unwrap();
/// ```
///
/// # Errors
/// There is no such CPU, it is offline or outside of the mask, or the system has no call for it.
#[cfg(target_os = "linux")]
pub fn pin_current_thread(cpu: usize) -> Result<(), PinError> {
    if cpu > super::list::MAX_ID {
        return Err(PinError::NoSuchCpu(cpu));
    }
    let mut set: Vec<libc::c_ulong> = vec![0; cpu / WORD_BITS + 1];
    set[cpu / WORD_BITS] = 1 << (cpu % WORD_BITS);
    // SAFETY: the kernel reads `size_of_val(set)` bytes from the pointer, which is exactly what
    // `set` owns, and keeps no reference to them; thread 0 is the calling one. It takes sets of any
    // length as a row of longs; `cpu_set_t` is only the C library's name for a fixed one.
    let done =
        unsafe { libc::sched_setaffinity(0, size_of_val(set.as_slice()), set.as_ptr().cast()) };
    if done == 0 { Ok(()) } else { Err(PinError::Refused { cpu, why: io::Error::last_os_error() }) }
}

/// Pins nothing here.
///
/// # Errors
/// Always: the system has no call for it.
#[cfg(not(target_os = "linux"))]
pub fn pin_current_thread(_cpu: usize) -> Result<(), PinError> {
    Err(PinError::Unsupported)
}

/// The CPU that the calling thread runs on at this moment; `None` if the system does not say.
#[cfg(all(target_os = "linux", not(loom), not(shuttle), not(miri)))]
pub(crate) fn current_cpu() -> Option<usize> {
    // SAFETY: takes no arguments and touches no memory of ours.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The CPU that the calling thread runs on at this moment; `None` if the system does not say.
#[cfg(not(all(target_os = "linux", not(loom), not(shuttle), not(miri))))]
pub(crate) fn current_cpu() -> Option<usize> {
    None
}

/// Ids of the CPUs the calling thread may run on; `None` if the system does not say.
#[cfg(target_os = "linux")]
pub(super) fn affinity_of_current_thread() -> Option<Vec<usize>> {
    let mut words = 16;
    while words * WORD_BITS <= 2 * super::list::MAX_ID {
        let mut set: Vec<libc::c_ulong> = vec![0; words];
        // SAFETY: the kernel writes at most `size_of_val(set)` bytes to the pointer, all of which
        // `set` owns and for which every bit pattern is a value; thread 0 is the calling one.
        let done = unsafe {
            libc::sched_getaffinity(0, size_of_val(set.as_slice()), set.as_mut_ptr().cast())
        };
        if done == 0 {
            let bits = |at: usize| (0..WORD_BITS).map(move |bit| (at, bit));
            let ids = (0..words).flat_map(bits).filter(|&(at, bit)| set[at] >> bit & 1 == 1);
            return Some(ids.map(|(at, bit)| at * WORD_BITS + bit).collect());
        }
        // The kernel's own set is longer than this one.
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return None;
        }
        words *= 2;
    }
    None
}

/// Ids of the CPUs the calling thread may run on; `None` if the system does not say.
#[cfg(not(target_os = "linux"))]
pub(super) fn affinity_of_current_thread() -> Option<Vec<usize>> {
    None
}

#[cfg(target_os = "linux")]
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_pinned_to_a_cpu_of_its_mask_stays_there() {
        std::thread::spawn(|| {
            let mask = affinity_of_current_thread().expect("Linux tells the mask");
            let cpu = *mask.last().expect("a thread runs somewhere");
            match pin_current_thread(cpu) {
                Ok(()) => assert_eq!(affinity_of_current_thread(), Some(vec![cpu])),
                Err(why) => eprintln!("not pinned here: {why}"),
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_is_not_there_is_a_warning() {
        std::thread::spawn(|| {
            for cpu in [10_000, 1 << 14] {
                let why = pin_current_thread(cpu).expect_err("no such CPU");
                assert!(matches!(why, PinError::Refused { .. }), "{why}");
                assert!(why.to_string().contains(&cpu.to_string()));
            }
            let why = pin_current_thread(usize::MAX).expect_err("no such CPU");
            assert!(matches!(why, PinError::NoSuchCpu(usize::MAX)), "{why}");
        })
        .join()
        .unwrap();
    }
}
