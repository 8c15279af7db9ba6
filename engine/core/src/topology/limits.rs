//! What else the control groups of this process limit: memory and processes.

use std::path::Path;

use super::cgroup;

/// Limits that control groups set, the least of all levels up to the root. `None` is no limit.
///
/// ```
/// let limits = bgrp::topology::Limits::read();
/// println!("{:?} bytes of memory, {:?} processes", limits.memory, limits.processes);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory; above it the kernel kills.
    pub memory: Option<u64>,
    /// Processes and threads together.
    pub processes: Option<u64>,
    /// What could not be read, one sentence each.
    pub notes: Vec<String>,
}

impl Limits {
    /// The limits of this process. Never fails: what cannot be read counts as none, and is noted.
    pub fn read() -> Self {
        if cfg!(target_os = "linux") { Self::read_from("/") } else { Self::default() }
    }

    /// The same from a copy of `/sys` and `/proc` below `root`.
    pub fn read_from(root: impl AsRef<Path>) -> Self {
        let mut notes = Vec::new();
        let memory = cgroup::memory(root.as_ref(), &mut notes);
        let processes = cgroup::processes(root.as_ref(), &mut notes);
        Self { memory, processes, notes }
    }
}
