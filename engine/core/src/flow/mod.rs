//! Flow control: retries, what happens when they are used up, and backpressure.

pub(crate) mod exhausted;
pub(crate) mod gate;
pub(crate) mod retry;
