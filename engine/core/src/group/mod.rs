//! One group: its word, its ring, its control block and its run token.

pub(crate) mod block;
pub(crate) mod ring;
pub(crate) mod state;
pub(crate) mod token;
