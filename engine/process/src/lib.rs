//! Keyed tasks in worker processes: a crash costs one task, a hang ends at its deadline, and order per key holds across
//! processes and retries.
//!
//! See `docs/design/process.md`.

pub mod frame;
