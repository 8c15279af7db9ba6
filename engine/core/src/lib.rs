//! Bgrp: the engine that runs keyed tasks.
#![allow(dead_code)]

mod shard;
mod time;

pub use time::clock::{Clock, MonotonicClock, VirtualClock};
