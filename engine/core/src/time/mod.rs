//! Time: the clock behind a trait, the wheel in which tokens wait, and who looks at it.

pub(crate) mod clock;
mod lingers;
pub(crate) mod timers;
pub(crate) mod wheel;
