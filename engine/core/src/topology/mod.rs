//! The machine as a value, and where workers go on it as a pure function of that value.
//!
//! ```text
//!  /sys, /proc, affinity mask --read--> Snapshot --Plan::new(.., Workers)--> Plan --pin--> threads
//!                                        ^    |                                |
//!  invented machines in tests -----------+    +--> text, read on another one   +--> who steals from whom
//! ```
//!
//! Only [`Snapshot::read`] looks at the machine; a file that is missing or odd costs a note and
//! some precision, never the start of the engine.

mod cgroup;
mod limits;
mod list;
pub(crate) mod memory;
mod near;
mod pin;
mod plan;
mod read;
mod snapshot;
mod text;

pub use limits::Limits;
pub use list::{CpuList, parse_cpu_list};
pub use memory::can_bind_memory;
pub use near::{Distance, Near, Tier};
pub(crate) use pin::current_cpu;
pub use pin::{PinError, pin_current_thread};
pub(crate) use plan::MAX_WORKERS;
pub use plan::{Plan, WorkerPlan, Workers};
pub use snapshot::{Cpu, FULL_CAPACITY, Node, Snapshot};
pub use text::SnapshotError;

/// Whether the kernel offers the barrier that makes submits cheaper (`membarrier`, private expedited). Without it
/// each submit pays a fence instead; nothing else changes.
///
/// ```
/// println!("{}", bgrp::topology::has_membarrier());
/// ```
pub fn has_membarrier() -> bool {
    crate::ingress::barrier::Barrier::detect() == crate::ingress::barrier::Barrier::Asymmetric
}
