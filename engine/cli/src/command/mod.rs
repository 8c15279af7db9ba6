//! Commands: put together, started, watched, stopped, and their output kept whole.
//!
//! ```text
//! records -> argv (fits the system's limits) -> child: spawn, pipes, deadline -> Ended
//!                                                |
//!                                             running: who can be signalled
//! ```

pub mod argv;
pub mod child;
pub mod limits;
pub mod running;
pub mod supply;
