//! What comes out: one final result a task.

use std::{fmt, time::Duration};

use crate::task::{Text, Value};

/// The end of one task. Each task that was accepted gets exactly one.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskResult {
    /// The task's own.
    pub id: Text,
    /// Its group.
    pub key: Option<Text>,
    /// How it ended.
    pub ended: Ended,
    /// Attempts that were begun, this one included.
    pub attempts: u32,
    /// The worker that had it last, by its number in this run; `None` where none had it.
    pub worker: Option<u32>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// With this value.
    Ok(Value),
    /// The task function reported an error, and its attempts are used up.
    Error(TaskError),
    /// It ran longer than it may. The worker was stopped, with everything that it had started.
    Timeout {
        /// What it was allowed.
        limit: Duration,
        /// Processes that could not be ended, by number.
        survivors: Vec<i32>,
    },
    /// It ended its worker.
    Crashed(Crash),
    /// The worker went over its limit of memory.
    OutOfMemory {
        /// The limit, in bytes.
        limit: u64,
        /// Who saw it.
        seen_by: &'static str,
    },
    /// The caller took it back.
    Cancelled,
    /// It was not run: its group or the run was halted by a failure before it.
    Skipped,
    /// It can never be run.
    InputError(String),
}

/// What a task function reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskError {
    /// Its class, as the language of the worker names it.
    pub class: Text,
    /// In words.
    pub message: String,
    /// Where, if the worker can tell.
    pub trace: String,
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.class.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.class, self.message)
    }
}

/// How a worker ended that should not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How many workers this task has ended.
    pub times: u32,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "its worker exited with status {code}")?,
            (None, Some(signal)) => write!(f, "its worker was killed by signal {signal}")?,
            (None, None) => f.write_str("its worker is gone")?,
        }
        if self.times > 1 { write!(f, ", {} times", self.times) } else { Ok(()) }
    }
}

impl Ended {
    /// It is done.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok(_))
    }

    /// The word for it, as logs and tables have it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok(_) => "ok",
            Self::Error(_) => "error",
            Self::Timeout { .. } => "timeout",
            Self::Crashed(_) => "crashed",
            Self::OutOfMemory { .. } => "oom",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::InputError(_) => "input_error",
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok(_) => f.write_str("ok"),
            Self::Error(error) => write!(f, "error: {error}"),
            Self::Timeout { limit, survivors } if survivors.is_empty() => {
                write!(f, "timeout: longer than {limit:?}")
            }
            Self::Timeout { limit, survivors } => {
                write!(f, "timeout: longer than {limit:?}; not to be ended: {survivors:?}")
            }
            Self::Crashed(crash) => write!(f, "crashed: {crash}"),
            Self::OutOfMemory { limit, seen_by } => {
                write!(f, "oom: its worker went over {limit} bytes ({seen_by})")
            }
            Self::Cancelled => f.write_str("cancelled"),
            Self::Skipped => {
                f.write_str("skipped: a failure before it halted its group or the run")
            }
            Self::InputError(why) => write!(f, "input_error: {why}"),
        }
    }
}

/// An error may come with megabytes of text: the beginning is kept, and how much was cut is said.
pub(crate) fn cut(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{} [{} bytes were cut]", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn what_is_cut_is_said_and_no_character_is_parted() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "abc [1 bytes were cut]");
        assert_eq!(cut("a\u{20ac}b", 3), "a [4 bytes were cut]");
    }
}
