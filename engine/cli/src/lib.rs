//! The `bgrp` command line: runs a command for each record of an input, records of one key in order, keys
//! in parallel.
//!
//! ```text
//! input -> feed -> schedule (the engine: order per key) -> work -> command -> output
//!           |                                               |
//!           +---- input errors ----> dead letter <----------+ failures, records left
//! ```
//!
//! The library half exists for tests and fuzzing; the interface that is promised is that of the program.
#![forbid(unsafe_code)]

pub mod budget;
pub mod command;
pub mod control;
pub mod doctor;
pub mod dry_run;
pub mod feed;
pub mod input;
pub mod key;
pub mod options;
pub mod plan;
pub mod record;
pub mod report;
pub mod run;
pub mod schedule;
pub mod signals;
pub mod template;
pub mod work;
