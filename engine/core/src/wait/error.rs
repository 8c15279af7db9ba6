//! Why a wait was refused, with the keys of the groups that would wait for each other.

use std::{fmt, time::Duration};

use super::picture::{Wait, WaitGraph};

/// Why waiting for a task came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The wait could never end: it would close a circle of groups that wait for each other, or the handler waits for its own
    /// group. The last wait of the list is the one that was refused.
    Cycle(Box<Deadlock>),
    /// The last worker that does not wait would wait: nobody would be left to run what they all wait for. Use more workers, or
    /// let the task that follows be submitted by the one that it waits for.
    AllWorkersWait(Box<Deadlock>),
    /// Every permit of the limit in flight would be held by a dispatch that waits. Raise `in_flight`, or wait outside of handlers.
    AllPermitsWait(Box<Deadlock>),
    /// The task is in a halted group, of which nobody knows when it goes on, and the caller is a handler.
    GroupHalted {
        /// The key of the halted group, as text.
        key: String,
    },
    /// The engine is halted: the task will not run, and the caller is a handler for which close waits.
    EngineHalted,
    /// The task was not over within this time.
    TimedOut(Duration),
}

/// The waits that hold each other up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// Who waits for what and where in the program; the one that was refused comes last.
    pub waits: Vec<Wait>,
    /// All waits of the engine at that moment, the refused one included.
    pub graph: WaitGraph,
}

impl WaitError {
    /// The waits that hold each other up, where that is why.
    pub fn deadlock(&self) -> Option<&Deadlock> {
        match self {
            Self::Cycle(deadlock)
            | Self::AllWorkersWait(deadlock)
            | Self::AllPermitsWait(deadlock) => Some(deadlock),
            _ => None,
        }
    }

    /// The keys of the groups concerned, as text. For a cycle: in the order in which they wait for each other, each once.
    pub fn keys(&self) -> Vec<&str> {
        match self {
            Self::GroupHalted { key } => vec![key],
            _ => self
                .deadlock()
                .into_iter()
                .flat_map(|deadlock| deadlock.waits.iter().filter_map(|wait| wait.waiter.key()))
                .collect(),
        }
    }
}

/// In one line; the alternate form (`{:#}`) adds all waits of the engine, as DOT.
impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cycle(deadlock) => {
                f.write_str("this wait could never end: ")?;
                deadlock.write(f)
            }
            Self::AllWorkersWait(deadlock) => {
                f.write_str(
                    "every worker would wait, and none be left to run what they wait for: ",
                )?;
                deadlock.write(f)
            }
            Self::AllPermitsWait(deadlock) => {
                f.write_str("every permit in flight would be held by a dispatch that waits: ")?;
                deadlock.write(f)
            }
            Self::GroupHalted { key } => write!(
                f,
                "the task is in the halted group {key}, and a handler must not wait until somebody resumes it"
            ),
            Self::EngineHalted => {
                f.write_str("the engine is halted: the task does not run any more")
            }
            Self::TimedOut(after) => write!(f, "the task was not over within {after:?}"),
        }
    }
}

impl Deadlock {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, wait) in self.waits.iter().enumerate() {
            write!(f, "{}{wait}", if i > 0 { ", " } else { "" })?;
        }
        if f.alternate() { write!(f, "\n{}", self.graph.to_dot()) } else { Ok(()) }
    }
}

impl std::error::Error for WaitError {}
