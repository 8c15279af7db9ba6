//! One group: its word, its ring, its control block and its run token.

pub(crate) mod block;
mod place;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod state;
pub(crate) mod token;
mod weights;
