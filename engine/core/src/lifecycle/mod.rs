//! The life of an engine: running, draining, stopped; and what close gives back.

pub(crate) mod close;
pub(crate) mod status;
