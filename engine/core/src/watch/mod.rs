//! What the engine tells of itself.

#[cfg(feature = "measure")]
pub mod claims;
pub(crate) mod stats;
