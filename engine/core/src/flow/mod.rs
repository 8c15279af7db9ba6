//! Flow control: limits, retries, what happens when they are used up, and backpressure.

pub(crate) mod adaptive;
pub(crate) mod admission;
pub(crate) mod dead_letter;
pub(crate) mod exhausted;
pub(crate) mod filter;
pub(crate) mod gate;
pub(crate) mod group_rates;
pub(crate) mod line;
pub(crate) mod rate;
pub(crate) mod retry;
pub(crate) mod room;
pub(crate) mod share;
