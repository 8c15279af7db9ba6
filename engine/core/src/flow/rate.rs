//! Rates: so many tasks a second, with bursts.
//!
//! A token bucket in the form of the generic cell rate algorithm (ATM Forum, Traffic Management 4.0): one number, the time
//! at which the bucket would be full again, says all. A bucket that is full is the same as no bucket, so idle groups need none.
//!
//! Cost: a few integer operations under the lock of whoever owns the bucket. No drift: the number is exact to a picosecond.

use crate::{error::BuildError, sync::mutant};

/// Picoseconds of a nanosecond.
const PS: u128 = 1_000;
/// What a rate gives within this many nanoseconds is let through at once, whatever the burst: timers tick once a millisecond.
const COARSE: u128 = 2_000_000;

/// A rate limit: tasks (or dispatches) a second, and how many may come at once after a pause.
///
/// ```
/// use bgrp::{Count, Rate};
/// let merchant = Rate::per_second(5).burst(10);
/// let calls = Rate::per_second(0.5).counting(Count::Batches);
/// assert_eq!(merchant.to_string(), "5 tasks/s, burst 10");
/// assert_eq!(calls.to_string(), "0.5 batches/s, burst 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    per_second: f64,
    burst: Option<u32>,
    count: Count,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Count {
    /// Tasks, whatever the size of the batches in which they run.
    #[default]
    Tasks,
    /// Dispatches: one for each call of a batch handler, or for each turn of a task handler.
    Batches,
}

impl Rate {
    /// So many a second, fractions included: more than 0, at most 10^9. Without [`Rate::burst`], what the rate gives in a tenth
    /// of a second may come at once, at least one.
    pub fn per_second(rate: impl Into<f64>) -> Self {
        Self { per_second: rate.into(), burst: None, count: Count::Tasks }
    }

    /// So many may come at once after a pause; at least 1. A batch is never larger. What the rate gives within two milliseconds
    /// counts as the least burst, since timers are that coarse.
    #[must_use]
    pub fn burst(mut self, tasks: u32) -> Self {
        self.burst = Some(tasks);
        self
    }

    /// Counts tasks (the default) or batches.
    #[must_use]
    pub fn counting(mut self, count: Count) -> Self {
        self.count = count;
        self
    }

    pub(crate) fn check(&self, field: &'static str) -> Result<(), BuildError> {
        let wrong = |value, bounds| Err(BuildError::OutOfBounds { field, value, bounds });
        if !(self.per_second > 0.0 && self.per_second <= 1e9) {
            let value = format!("{} a second", self.per_second);
            return wrong(value, "more than 0 and at most 1000000000 a second");
        }
        if self.burst == Some(0) {
            return wrong("burst 0".to_owned(), "a burst of at least 1");
        }
        Ok(())
    }

    fn interval(&self) -> u128 {
        ((1e12 / self.per_second) as u128).max(1)
    }

    /// The size of the bucket, with what timers need.
    fn size(&self) -> u32 {
        let asked = self.burst.unwrap_or((self.per_second / 10.0).ceil() as u32).max(1);
        let coarse = (COARSE * PS / self.interval()).min(u128::from(u32::MAX));
        asked.max(coarse as u32)
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = match self.count {
            Count::Tasks => "tasks",
            Count::Batches => "batches",
        };
        write!(f, "{} {unit}/s, burst {}", self.per_second, self.size())
    }
}

/// How full a bucket is, as the time (in ps on the engine's clock) at which it is full.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    full_at: u128,
}

/// A rate, ready to count with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    interval: u128,
    size: u32,
    count: Count,
}

impl Meter {
    pub(crate) fn new(rate: &Rate) -> Self {
        Self { interval: rate.interval(), size: rate.size(), count: rate.count }
    }

    /// How many tasks of `wanted` one dispatch may take at most, however long it waits.
    pub(crate) fn most(&self, wanted: u32) -> u32 {
        match self.count {
            Count::Tasks => wanted.min(self.size),
            Count::Batches => wanted,
        }
    }

    fn tokens(&self, tasks: u32) -> u32 {
        match self.count {
            Count::Tasks => tasks,
            Count::Batches => 1,
        }
    }

    /// When (in ns) a dispatch of `tasks`, at most [`Meter::most`], may start; at or before `now` where it may at once.
    pub(crate) fn ready_at(&self, bucket: &Bucket, tasks: u32) -> u64 {
        let after = bucket.full_at + self.interval * u128::from(self.tokens(tasks));
        let at = after.saturating_sub(self.interval * u128::from(self.size));
        u64::try_from(at.div_ceil(PS)).unwrap_or(u64::MAX)
    }

    /// A dispatch of `tasks` starts.
    pub(crate) fn take(&self, bucket: &mut Bucket, tasks: u32, now: u64) {
        let half = if mutant("rate-counts-half") { 2 } else { 1 };
        let tokens = u128::from(self.tokens(tasks)).div_ceil(half);
        bucket.full_at = bucket.full_at.max(u128::from(now) * PS) + self.interval * tokens;
    }

    /// A dispatch of `tasks` that was counted does not start.
    pub(crate) fn put_back(&self, bucket: &mut Bucket, tasks: u32) {
        let tokens = u128::from(self.tokens(tasks));
        bucket.full_at = bucket.full_at.saturating_sub(self.interval * tokens);
    }

    /// The bucket is full at `now`: nothing need be remembered of it.
    pub(crate) fn is_full(bucket: &Bucket, now: u64) -> bool {
        bucket.full_at <= u128::from(now) * PS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_burst_goes_at_once_and_then_one_in_an_interval() {
        let meter = Meter::new(&Rate::per_second(10).burst(3));
        let mut bucket = Bucket::default();
        for _ in 0..3 {
            assert!(meter.ready_at(&bucket, 1) <= 5 * S);
            meter.take(&mut bucket, 1, 5 * S);
        }
        assert_eq!(meter.ready_at(&bucket, 1), 5 * S + S / 10);
        assert_eq!(meter.ready_at(&bucket, 3), 5 * S + 3 * S / 10);
        assert!(!Meter::is_full(&bucket, 5 * S + S / 10));
        assert!(Meter::is_full(&bucket, 5 * S + 3 * S / 10));
    }

    #[test]
    fn no_drift_over_a_billion_tasks() {
        let meter = Meter::new(&Rate::per_second(3).burst(1));
        let mut bucket = Bucket::default();
        for n in 1..=3_000u64 {
            let at = meter.ready_at(&bucket, 1);
            meter.take(&mut bucket, 1, at);
            assert!(at <= n * S / 3 + 1, "task {n} at {at}");
        }
        assert!(meter.ready_at(&bucket, 1) >= 999 * S + 999_000_000);
    }

    #[test]
    fn a_fast_rate_lets_through_what_a_timer_tick_is_worth() {
        let meter = Meter::new(&Rate::per_second(1_000_000).burst(1));
        assert_eq!(meter.most(5_000), 2_000);
        assert_eq!(Meter::new(&Rate::per_second(1).burst(7)).most(100), 7);
        let batches = Meter::new(&Rate::per_second(1).burst(7).counting(Count::Batches));
        assert_eq!(batches.most(100), 100);
    }

    #[test]
    fn a_rate_out_of_bounds_is_named() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = Rate::per_second(wrong).check("rate").unwrap_err().to_string();
            assert!(error.starts_with(&format!("rate is {wrong} a second; it must be")), "{error}");
        }
        let error = Rate::per_second(1).burst(0).check("group_rate").unwrap_err();
        assert_eq!(error.to_string(), "group_rate is burst 0; it must be a burst of at least 1");
    }
}
