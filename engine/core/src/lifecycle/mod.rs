//! The life of an engine: running, draining, stopped; and what close gives back.

pub(crate) mod close;
pub(crate) mod held;
pub(crate) mod status;
pub(crate) mod take_in;
