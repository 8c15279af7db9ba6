//! The machine as a value, and where workers go on it as a pure function of that value.
//!
//! ```text
//!  /sys, /proc, affinity mask --read--> Snapshot --Plan::new(.., Workers)--> Plan --pin--> threads
//!                                          ^                                   |
//!  invented machines in tests -------------+                                   +--> who steals from whom
//! ```
//!
//! Only [`Snapshot::read`] looks at the machine; a file that is missing or odd costs a note and
//! some precision, never the start of the engine.

mod cgroup;
mod pin;
mod plan;
mod snapshot;

#[allow(unused_imports, reason = "for the workers of the engine")]
pub(crate) use pin::{PinError, current_cpu, pin_current_thread};
pub(crate) use plan::MAX_WORKERS;
pub use plan::{Plan, WorkerPlan, Workers};
pub use snapshot::{Cpu, Node, Snapshot};
