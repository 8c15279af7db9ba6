//! Errors: what was wrong, with which value, and what to do about it.

use std::{fmt, time::Duration};

/// Why a task was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitReason {
    /// The engine is closing, closed or halted.
    Closed,
    /// The group holds `group_capacity` tasks.
    GroupFull,
    /// The group is full and halted by the policy (see [`Engine::halted_groups`](crate::Engine::halted_groups)): nothing in it
    /// is run before somebody resumes or discards it, so nobody waits for room.
    GroupHalted,
    /// The group was closed, see [`Engine::close_group`](crate::Engine::close_group).
    GroupClosed,
    /// The engine's ingress for this key is full: the engine holds as many tasks as `capacity` allows, or workers
    /// have not come round yet.
    EngineFull,
    /// What the task weighs is more than the engine has free (see [`Builder::capacity_bytes`](crate::Builder::capacity_bytes)),
    /// or somebody who waits for that was here before.
    BytesFull {
        /// What it weighs.
        bytes: u32,
        /// What was free.
        free: u32,
    },
    /// The task weighs more than all tasks inside the engine may weigh together: there will never be room for it.
    TooLarge {
        /// What it weighs; the largest number of this type also stands for more.
        bytes: u32,
        /// What all tasks inside the engine may weigh together.
        capacity: u32,
    },
    /// The function that weighs tasks ([`Builder::weigh`](crate::Builder::weigh)) panicked on this one.
    WeigherPanicked,
    /// `Eq` of the key panicked, where the submitter looks the group up itself: in an engine whose groups have an
    /// [exact capacity](crate::Builder::exact_group_capacity), or whose tasks are weighed.
    KeyPanicked,
    /// There was no room within the time that the caller gave.
    TimedOut(Duration),
    /// There is no room, and the caller is a handler of this very engine: waiting would hold the worker that could
    /// make room.
    OwnWorker,
    /// The group is full, and the caller is the handler that runs this very group: room is made only when it comes back.
    OwnGroup,
}

impl fmt::Display for SubmitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the engine is closed; keep the task or start a new engine"),
            Self::GroupFull => f.write_str(
                "the group is full; wait (submit), drop the task, or raise group_capacity",
            ),
            Self::GroupHalted => f.write_str(
                "the group is full and halted; resume or discard it (Engine::halted_groups), or drop the task",
            ),
            Self::GroupClosed => {
                f.write_str("the group is closed; open it again (resume_group), or keep the task")
            }
            Self::EngineFull => {
                f.write_str("the engine is full; wait (submit), drop the task, or raise capacity")
            }
            Self::BytesFull { bytes, free } => write!(
                f,
                "the task weighs {bytes} bytes, and {free} of capacity_bytes are free; \
                 wait (submit), drop the task, or raise capacity_bytes"
            ),
            Self::TooLarge { bytes, capacity } => write!(
                f,
                "the task weighs {bytes} bytes, more than capacity_bytes ({capacity}); \
                 split it, or raise capacity_bytes"
            ),
            Self::WeigherPanicked => f.write_str("the function given to weigh panicked on this task"),
            Self::KeyPanicked => f.write_str("comparing keys panicked"),
            Self::TimedOut(after) => write!(f, "no room within {after:?}"),
            Self::OwnGroup => f.write_str(
                "the group is full, and its own handler must not wait for it; use try_submit and keep the task",
            ),
            Self::OwnWorker => f.write_str(
                "there is no room, and a handler must not wait for its own engine; use try_submit and keep the task",
            ),
        }
    }
}

/// A task that was not accepted, with its key and the reason. Nothing is lost: take both back.
#[derive(Clone, PartialEq, Eq)]
pub struct SubmitError<K, T> {
    /// The key as it was given.
    pub key: K,
    /// The task as it was given.
    pub task: T,
    /// Why.
    pub reason: SubmitReason,
}

impl<K, T> fmt::Debug for SubmitError<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<K, T> fmt::Display for SubmitError<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task not accepted: {}", self.reason)
    }
}

impl<K: fmt::Debug, T> SubmitError<K, T> {
    /// As `Display`, with the key of the group.
    pub fn explain(&self) -> String {
        format!("task for group {:?} not accepted: {}", self.key, self.reason)
    }
}

impl<K, T> std::error::Error for SubmitError<K, T> {}

/// A task that a group handle could not submit, with the reason.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupSubmitError<T> {
    /// The task as it was given.
    pub task: T,
    /// Why.
    pub reason: SubmitReason,
}

impl<T> fmt::Debug for GroupSubmitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupSubmitError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for GroupSubmitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task not accepted: {}", self.reason)
    }
}

impl<T> std::error::Error for GroupSubmitError<T> {}

/// `submit_many` stopped early; what was not accepted is still in the caller's vector, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmitManyError {
    /// How many tasks were accepted.
    pub accepted: usize,
    /// Why the next one was not.
    pub reason: SubmitReason,
}

impl fmt::Display for SubmitManyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tasks accepted, the rest is still in the vector: {}",
            self.accepted, self.reason
        )
    }
}

impl std::error::Error for SubmitManyError {}

/// A setting of the builder is out of its bounds.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A field has a value outside its bounds.
    OutOfBounds {
        /// The builder method.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// The bounds in words.
        bounds: &'static str,
    },
    /// The operating system did not start a worker thread.
    Spawn {
        /// Which worker, counted from 0.
        worker: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds { field, value, bounds } => {
                write!(f, "{field} is {value}; it must be {bounds}")
            }
            Self::Spawn { worker, source } => {
                write!(f, "worker {worker} could not be started: {source}; ask for fewer workers")
            }
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::OutOfBounds { .. } => None,
            Self::Spawn { source, .. } => Some(source),
        }
    }
}
