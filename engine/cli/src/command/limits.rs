//! How much the operating system takes as arguments of one command.
//!
//! Linux counts the bytes of arguments and environment with their NULs and a pointer each against a
//! quarter of the stack limit, at most 6 MiB, at least 128 KiB (execve(2)); one string may have 32 pages.

/// Kept free for what the system adds (file name, auxiliary vector), as POSIX asks of xargs.
const HEADROOM: usize = 4096;
const POINTER: usize = size_of::<usize>();

/// The limits for one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgLimits {
    /// Bytes for all arguments, after the environment is taken off.
    pub total: usize,
    /// Bytes of one argument, with its NUL.
    pub single: usize,
}

impl ArgLimits {
    /// The limits of this machine for commands that inherit our environment.
    #[must_use]
    pub fn of_system() -> Self {
        let environment: usize =
            std::env::vars_os().map(|(name, value)| name.len() + value.len() + 2 + POINTER).sum();
        Self {
            total: space().saturating_sub(environment + HEADROOM),
            single: if cfg!(target_os = "linux") {
                32 * rustix::param::page_size()
            } else {
                usize::MAX
            },
        }
    }
}

#[cfg(target_os = "linux")]
fn space() -> usize {
    const SMALLEST: u64 = 128 * 1024;
    const LARGEST: u64 = 6 * 1024 * 1024;
    let stack = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    let space = stack.map_or(LARGEST, |stack| (stack / 4).clamp(SMALLEST, LARGEST));
    usize::try_from(space).unwrap_or(128 * 1024)
}

#[cfg(not(target_os = "linux"))]
fn space() -> usize {
    // The smallest that a current system without this rule has.
    256 * 1024
}

/// What one argument or variable of `length` bytes costs.
#[must_use]
pub fn cost(length: usize) -> usize {
    length + 1 + POINTER
}
