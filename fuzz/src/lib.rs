//! What the fuzz targets do: each drives a part of the engine with operations that it reads from the input, and
//! compares it with an oracle that does the same in the simplest way. A difference is a panic.
//!
//! Inputs are decoded by hand (see [`bytes`]), so that the same bytes mean the same operations for good: the seeds in
//! `seeds/` stay of use.

pub mod bytes;
pub mod flow;
pub mod map;
pub mod ready_list;
pub mod ring;
pub mod timer;
pub mod topology;
pub mod witness;
