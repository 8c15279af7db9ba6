//! How tasks come in: one bounded ring per shard for everybody, and opt-in lanes for one producer each.

pub(crate) mod barrier;
pub(crate) mod lane;
pub(crate) mod records;
pub(crate) mod ring;
#[cfg(all(test, target_os = "linux", not(any(loom, shuttle))))]
mod stalled_tests;
