//! When a failed task is run again. The task keeps the head of its group; other groups go on.

use std::{sync::Arc, time::Duration};

use crate::outcome::Failure;

/// A retry policy: how long to wait before which attempt, and how many attempts a task has.
///
/// ```
/// use std::time::Duration;
/// use bgrp::Retry;
/// let policy = Retry::exponential(Duration::from_millis(50), Duration::from_secs(5)).attempts(5);
/// assert_eq!(policy.delay(1), Some(Duration::from_millis(50)));
/// assert_eq!(policy.delay(2), Some(Duration::from_millis(100)));
/// assert_eq!(policy.delay(5), None, "five attempts are all");
/// ```
#[derive(Clone)]
pub struct Retry {
    shape: Shape,
    attempts: u32,
    jitter: bool,
}

#[derive(Clone)]
enum Shape {
    Fixed(Duration),
    Exponential { first: Duration, most: Duration },
    Custom(Arc<Custom>),
}

type Custom = dyn Fn(u32, &Failure) -> Option<Duration> + Send + Sync;

impl Retry {
    /// No retry: the first failure is the last. The default.
    pub fn none() -> Self {
        Self::fixed(Duration::ZERO).attempts(1)
    }

    /// The same wait before every attempt. Without [`Retry::attempts`]: for ever.
    pub fn fixed(delay: Duration) -> Self {
        Self { shape: Shape::Fixed(delay), attempts: u32::MAX, jitter: false }
    }

    /// `first` before the second attempt, twice as long before each further one, never more than `most`.
    pub fn exponential(first: Duration, most: Duration) -> Self {
        Self { shape: Shape::Exponential { first, most }, attempts: u32::MAX, jitter: false }
    }

    /// A policy of your own: it gets the number of attempts so far and the failure, and answers how long to wait, or
    /// `None` to give up. A panic in it counts as `None`.
    pub fn custom(
        policy: impl Fn(u32, &Failure) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        Self { shape: Shape::Custom(Arc::new(policy)), attempts: u32::MAX, jitter: false }
    }

    /// How many times a task is tried in all, the first time included.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Spreads each wait evenly over half of it to all of it, so that groups which failed together do not come back
    /// together.
    #[must_use]
    pub fn with_jitter(mut self) -> Self {
        self.jitter = true;
        self
    }

    /// The wait after `attempts` failed attempts, before jitter; `None`: they are used up. A custom policy is asked
    /// with an empty failure.
    pub fn delay(&self, attempts: u32) -> Option<Duration> {
        self.after(attempts, &Failure::new(""))
    }

    fn after(&self, attempts: u32, failure: &Failure) -> Option<Duration> {
        if attempts >= self.attempts {
            return None;
        }
        match &self.shape {
            Shape::Fixed(delay) => Some(*delay),
            Shape::Exponential { first, most } => {
                let factor = 1u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
                Some(first.saturating_mul(factor).min(*most))
            }
            Shape::Custom(policy) => policy(attempts, failure),
        }
    }

    /// The wait with jitter, from `random` bits. `asked` is the wait that the handler asked for, if it did.
    pub(crate) fn wait(
        &self,
        attempts: u32,
        failure: &Failure,
        asked: Option<Duration>,
        random: u64,
    ) -> Option<Duration> {
        let policy = std::panic::AssertUnwindSafe(|| self.after(attempts, failure));
        let wait = match std::panic::catch_unwind(policy) {
            Ok(wait) => wait?,
            Err(payload) => {
                crate::outcome::drop_quietly(payload);
                return None;
            }
        };
        if let Some(asked) = asked {
            return Some(asked);
        }
        if !self.jitter {
            return Some(wait);
        }
        let half = wait / 2;
        let share = (random >> 32) as f64 / (1u64 << 32) as f64;
        Some(half + half.mul_f64(share))
    }

    pub(crate) fn limit(&self) -> u32 {
        self.attempts
    }
}

impl std::fmt::Debug for Retry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = match &self.shape {
            Shape::Fixed(delay) => format!("fixed {delay:?}"),
            Shape::Exponential { first, most } => format!("exponential {first:?} to {most:?}"),
            Shape::Custom(_) => "custom".to_owned(),
        };
        f.debug_struct("Retry")
            .field("shape", &shape)
            .field("attempts", &self.attempts)
            .field("jitter", &self.jitter)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn exponential_doubles_up_to_its_bound_and_never_overflows() {
        let policy = Retry::exponential(MS, 300 * MS);
        assert_eq!(policy.delay(4), Some(8 * MS));
        assert_eq!(policy.delay(20), Some(300 * MS));
        assert_eq!(policy.delay(u32::MAX - 1), Some(300 * MS));
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        let policy = Retry::fixed(100 * MS).with_jitter();
        let failure = Failure::new("");
        assert_eq!(policy.wait(1, &failure, None, 0), Some(50 * MS));
        assert!(policy.wait(1, &failure, None, u64::MAX).unwrap() <= 100 * MS);
        assert_eq!(policy.wait(1, &failure, Some(7 * MS), 99), Some(7 * MS), "asked for is exact");
    }

    #[test]
    fn a_panicking_policy_gives_up() {
        let policy = Retry::custom(|_, _| panic!("policy"));
        assert_eq!(policy.wait(1, &Failure::new(""), None, 0), None);
    }

    #[test]
    fn one_attempt_is_no_retry() {
        assert_eq!(Retry::none().delay(1), None);
        assert_eq!(Retry::fixed(MS).attempts(2).delay(1), Some(MS));
    }
}
