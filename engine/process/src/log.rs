//! What workers print and log.

use std::time::SystemTime;

use crate::task::Text;

/// Where a line comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
    /// A log frame, with its level.
    Logged(Text),
}

/// One line of a worker, or one log record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// When it was read.
    pub at: SystemTime,
    /// The worker, by its number in this run.
    pub worker: u32,
    /// The task that ran when it was read; `None` between tasks.
    pub task: Option<Text>,
    /// The group of that task.
    pub key: Option<Text>,
    /// Where it comes from.
    pub origin: Origin,
    /// The line, byte for byte, without its end. Longer ones than 64 KiB come in pieces.
    pub line: Vec<u8>,
}
