//! What the guardian tells.

use std::process::ExitStatus;
use std::time::Duration;

use super::SpawnError;

/// Something that happened to the process with this token.
///
/// A token sees `Started` or `NotStarted` first, `Exited` after `Started`, and `Swept` once for each sweep, not
/// before `Exited` unless the process itself survives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The program runs: exec has succeeded.
    Started {
        /// Which.
        token: u64,
        /// Its number, which is that of its group.
        pid: u32,
    },
    /// It never will.
    NotStarted {
        /// Which.
        token: u64,
        /// Why.
        error: SpawnError,
    },
    /// It has ended. What it started may still be there, and hold its pipes open.
    Exited {
        /// Which.
        token: u64,
        /// How it ended.
        status: ExitStatus,
        /// What it used.
        usage: Usage,
    },
    /// The answer to [`sweep`](super::Guardian::sweep).
    Swept {
        /// Which.
        token: u64,
        /// The numbers of those that were still there 2 s after KILL, in an uninterruptible wait for example, or
        /// because they run as somebody whom we may not signal.
        survivors: Vec<u32>,
    },
}

/// What a process and its reaped children used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in its own code.
    pub user: Duration,
    /// CPU time in the system.
    pub system: Duration,
    /// The most memory that one of them held, in bytes.
    pub max_rss: u64,
    /// Whether the system killed it, or something that it started, over its memory limit.
    pub oom_killed: bool,
}
