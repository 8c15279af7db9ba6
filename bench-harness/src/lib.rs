//! The measure: every system does the same tasks, in the same run, and an oracle inside the task checks the order.
//!
//! A rate is only ever made from a run whose oracle agrees ([`measure::Checked`]): fast and wrong is wrong.

pub mod command;
pub mod count_alloc;
pub mod histogram;
pub mod measure;
pub mod oracle;
pub mod process;
pub mod report;
pub mod system;
pub mod workload;
