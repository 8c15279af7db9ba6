//! Adaptive concurrency: finds the number of dispatches in flight that a downstream takes without throttling.
//!
//! Additive increase, decrease to what was in flight beside the call that was throttled (Chiu and Jain 1989 for the shape; the
//! decrease is not by a factor, since a downstream that rejects at once says exactly where its cap is). Until the
//! first throttled call the limit doubles with each round of calls. After it the limit is probed one higher, first after
//! [`PROBE`], and after twice as long each time that the probe was throttled: so few calls are wasted on a cap that stands still,
//! and a cap that rises is found again.

use crate::{error::BuildError, flow::rate::Count, sync::mutant};

/// Between a throttled call and the next probe, at first and at most, in ns.
const PROBE: u64 = 100_000_000;
const PROBE_MOST: u64 = 30_000_000_000;

/// How much may be in flight downstream.
///
/// ```
/// use bgrp::InFlight;
/// let calls = InFlight::batches(20);
/// assert_eq!(calls, 20.into());
/// let messages = InFlight::tasks(1_000);
/// let found_by_itself = InFlight::adaptive(1, 500);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub(crate) least: u32,
    pub(crate) most: u32,
    pub(crate) count: Count,
    pub(crate) adaptive: bool,
}

impl InFlight {
    /// At most so many dispatches at a time, of all groups together.
    pub fn batches(most: u32) -> Self {
        Self { least: most, most, count: Count::Batches, adaptive: false }
    }

    /// At most so many tasks at a time: a dispatch takes as many as there is room for.
    pub fn tasks(most: u32) -> Self {
        Self { least: most, most, count: Count::Tasks, adaptive: false }
    }

    /// Between `least` and `most` dispatches at a time: as many as the downstream takes without answering
    /// [`Outcome::Throttled`](crate::Outcome::Throttled).
    pub fn adaptive(least: u32, most: u32) -> Self {
        Self { least, most, count: Count::Batches, adaptive: true }
    }
}

impl std::fmt::Display for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.count {
            _ if self.adaptive => write!(f, "{} to {} batches", self.least, self.most),
            Count::Batches => write!(f, "{} batches", self.most),
            Count::Tasks => write!(f, "{} tasks", self.most),
        }
    }
}

impl From<u32> for InFlight {
    fn from(most: u32) -> Self {
        Self::batches(most)
    }
}

pub(crate) fn check(limit: InFlight) -> Result<(), BuildError> {
    if limit.least > 0 && limit.least <= limit.most {
        return Ok(());
    }
    Err(BuildError::OutOfBounds {
        field: "in_flight",
        value: limit.to_string(),
        bounds: "at least 1, and the upper bound not below the lower",
    })
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeker {
    least: u32,
    most: u32,
    /// No call was throttled yet.
    climbing: bool,
    wait: u64,
    /// When the limit goes up by one.
    probe_at: u64,
}

impl Seeker {
    pub(crate) fn new(least: u32, most: u32) -> Self {
        Self { least, most, climbing: true, wait: PROBE, probe_at: 0 }
    }

    /// A dispatch came back at `now`. `in_flight` counts it still. Returns the new limit.
    pub(crate) fn after(&mut self, limit: u32, in_flight: u32, throttled: bool, now: u64) -> u32 {
        if throttled {
            // Several calls that one probe sent over the cap are one finding.
            if !self.climbing && now >= self.probe_at.saturating_sub(self.wait / 2) {
                self.wait = (self.wait * 2).min(PROBE_MOST);
            }
            self.climbing = false;
            self.probe_at = now + self.wait;
            return limit.min(in_flight.saturating_sub(1)).max(self.least);
        }
        if in_flight < limit || (limit >= self.most && !mutant("adaptive-past-most")) {
            // What is not used says nothing about the cap.
            return limit;
        }
        if self.climbing {
            return limit + 1;
        }
        if now >= self.probe_at {
            // The probe before went well all this time.
            self.probe_at = now + self.wait;
            return limit + 1;
        }
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Rounds of calls of 10 ms at a downstream that takes `cap`; returns the last limit, calls and throttled calls.
    fn rounds(seeker: &mut Seeker, mut limit: u32, cap: u32, from: u64, n: u64) -> (u32, u64, u64) {
        let (mut calls, mut throttled) = (0, 0);
        for round in 0..n {
            let now = (from + round) * 10 * MS;
            let sent = limit;
            for call in 0..sent {
                calls += 1;
                let over = call >= cap;
                throttled += u64::from(over);
                // As one comes back, another is sent: the limit is used.
                limit = seeker.after(limit, limit.max(sent - call), over, now);
            }
        }
        (limit, calls, throttled)
    }

    #[test]
    fn the_cap_is_found_and_few_calls_are_wasted_on_it() {
        let mut seeker = Seeker::new(1, 500);
        let (limit, _, _) = rounds(&mut seeker, 1, 20, 0, 100);
        assert!((19..=21).contains(&limit), "{limit}");
        let (limit, calls, throttled) = rounds(&mut seeker, limit, 20, 100, 5_000);
        assert!((19..=21).contains(&limit), "{limit}");
        assert!(throttled * 200 < calls, "{throttled} of {calls}");
    }

    #[test]
    fn a_cap_that_moves_is_followed() {
        let mut seeker = Seeker::new(1, 500);
        let (limit, _, _) = rounds(&mut seeker, 1, 50, 0, 200);
        let (lower, _, _) = rounds(&mut seeker, limit, 10, 200, 200);
        assert!((9..=11).contains(&lower), "{lower}");
        let (higher, _, _) = rounds(&mut seeker, lower, 40, 400, 40_000);
        assert!((38..=41).contains(&higher), "{higher}");
    }

    #[test]
    fn what_is_not_used_does_not_grow() {
        let mut seeker = Seeker::new(2, 8);
        assert_eq!(seeker.after(4, 3, false, 0), 4);
        assert_eq!(seeker.after(8, 8, false, 0), 8, "at its bound");
        assert_eq!(seeker.after(2, 1, true, 0), 2, "never below the least");
    }
}
