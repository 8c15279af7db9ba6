//! Keyed tasks in worker processes: a crash costs one task, a hang ends at its deadline, and order per key holds across
//! processes and retries.
//!
//! See `docs/design/process.md`.

/// The example of the guide is compiled with the tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/guide/processes.md")]
    struct Guide;
}

mod clock;
pub mod command;
mod frame;
pub mod guardian;
mod log;
mod result;
mod runner;
mod task;
mod work;

pub use log::{Log, Origin};
pub use result::{Crash, Ended, TaskError, TaskResult};
pub use runner::{
    Builder, OnFailure, Program, Progress, Refused, Report, Results, Runner, Running, StartError,
    SubmitError, Workers,
};
pub use task::{Task, Text, Value};
pub use work::{Context, Server};
