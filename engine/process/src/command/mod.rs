//! One command as a task, on top of the [guardian](crate::guardian).
//!
//! ```text
//! Command ─> Running: pipes, deadline, ladder ─> Ended: status, what it used, both streams byte for byte
//!               │  driven by one poll loop: Commands, or the runner's own
//!               └─ spawn, signal, sweep ─> guardian
//! ```
//!
//! | event | what follows |
//! |---|---|
//! | deadline, or a stop | TERM to the group; after the grace, KILL to all that it started, wherever it went |
//! | exit | pipes held open by something that it left behind are read for 200 ms more, then closed |
//! | exit after we asked it to end | a sweep of what it left; survivors are reported |
//! | the system is short of something | it waits until another has ended, or a little, and fewer run at once |
//!
//! Output of any size is taken from the pipes as it comes, so nothing waits for anything else: up to 1 MiB a stream is
//! kept in memory, more in a file without a name.

mod capture;
mod driver;
mod running;
mod stop;
mod task;

pub use capture::{Capture, IN_MEMORY};
pub use driver::{Commands, Report};
pub use running::Running;
pub use stop::{Stage, Stopper};
pub use task::{Command, Ended, LineSink, Output, RunError, StdStream};
