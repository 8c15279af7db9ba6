//! What the engine tells of itself.

pub(crate) mod stats;
