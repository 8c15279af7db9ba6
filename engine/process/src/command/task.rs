//! What to run, and how it ended.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::Capture;
use crate::guardian::{SpawnError, Usage};

/// One of the two streams that a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StdStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Takes lines, with their terminator where they have one.
pub type LineSink = Box<dyn FnMut(StdStream, &[u8]) + Send>;

/// What becomes of the output.
#[derive(Default)]
pub enum Output {
    /// It is kept, each stream for itself.
    #[default]
    Kept,
    /// Each line is given away as it comes, those of one stream in order. Lines of more than 16 MiB come in pieces.
    Lines(LineSink),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Kept) { "Kept" } else { "Lines" })
    }
}

/// A command to run.
#[derive(Debug)]
pub struct Command {
    /// Program and arguments; executed without a shell, byte for byte.
    pub args: Vec<Vec<u8>>,
    /// Variables to set, or with `None` to remove.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Where it starts.
    pub cwd: Option<PathBuf>,
    /// Given on standard input, which is `/dev/null` if `None`.
    pub stdin: Option<Vec<u8>>,
    /// What becomes of its output.
    pub output: Output,
    /// From its start until it is asked to end.
    pub timeout: Option<Duration>,
    /// From asking until all that it started is killed.
    pub grace: Duration,
    /// Whether what it leaves behind is killed as soon as it has ended, and not only with the run.
    pub clean: bool,
    /// Added to the niceness.
    pub nice: i32,
    /// See [`Spawn::memory`](crate::guardian::Spawn::memory).
    pub memory: Option<u64>,
    /// See [`Spawn::address_space`](crate::guardian::Spawn::address_space).
    pub address_space: Option<u64>,
}

impl Command {
    /// A command with these arguments, the program first; no deadline, grace 2 s.
    #[must_use]
    pub fn new<A: Into<Vec<u8>>>(args: impl IntoIterator<Item = A>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            stdin: None,
            output: Output::Kept,
            timeout: None,
            grace: Duration::from_secs(2),
            clean: false,
            nice: 0,
            memory: None,
            address_space: None,
        }
    }

    pub(super) fn program(&self) -> &OsStr {
        OsStr::from_bytes(self.args.first().map_or(&[], Vec::as_slice))
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; `None` if it is among the survivors.
    pub status: Option<ExitStatus>,
    /// What it used.
    pub usage: Usage,
    /// Whether the deadline stopped it.
    pub timed_out: bool,
    /// Whether it was running when a stop asked it to end.
    pub asked: bool,
    /// What was still there 2 s after KILL; only filled where something was killed.
    pub survivors: Vec<u32>,
    /// What it wrote to standard output, if that was to be kept.
    pub stdout: Capture,
    /// What it wrote to standard error, if that was to be kept.
    pub stderr: Capture,
    /// From start to exit.
    pub wall: Duration,
}

impl Ended {
    /// Whether it ended with status 0 by itself.
    #[must_use]
    pub fn success(&self) -> bool {
        !self.timed_out && self.status.is_some_and(|status| status.success())
    }
}

/// Why a command did not run, or its output is lost.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It never ran, and would not the next time.
    #[error("{0}")]
    NotStarted(SpawnError),
    /// It never ran: the system was short of something for so long, although nothing else of this run was running.
    #[error(
        "{error}; tried {tries} times while nothing else was running, so this limit is too low for even one"
    )]
    Short {
        /// The last answer.
        error: SpawnError,
        /// How often it was tried.
        tries: u32,
    },
    /// Its output could not be kept, so it was killed.
    #[error("its output cannot be kept: {0}")]
    Output(#[source] io::Error),
    /// It waited for its next try when the run was stopped.
    #[error("the run was stopped before it started")]
    Stopped,
    /// The guardian is gone, and the command with it.
    #[error("{0}")]
    Guardian(String),
}
