//! Bgrp: the engine that runs keyed tasks.
#![allow(dead_code)]

mod shard;
mod time;
pub mod topology;

pub use time::clock::{Clock, MonotonicClock, VirtualClock};
