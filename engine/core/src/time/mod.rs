//! Time: the clock the engine reads, and the wheel that waiting groups sit in.

pub(crate) mod clock;
pub(crate) mod wheel;
