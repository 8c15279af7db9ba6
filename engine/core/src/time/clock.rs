//! Where the engine reads the time: the machine's monotonic clock, or one that a test moves.
//!
//! Invariant I1: `now` never goes back, for one thread and for any two threads of which one knows
//! of the other's reading.
//!
//! | operation | order | pairs with |
//! |---|---|---|
//! | `VirtualClock::advance`, `set` | AcqRel | the load in `now` |
//! | `VirtualClock::now` | Acquire | whoever moved the clock to what is read |
//!
//! Cost: `MonotonicClock::now` is one `Instant::now` (20-50 ns where the kernel lets programs read
//! the counter themselves), `VirtualClock::now` one load.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of time. The engine asks it for delays, deadlines and rates, never for the date.
///
/// ```
/// use bgrp::{Clock, MonotonicClock};
///
/// let clock = MonotonicClock::new();
/// let before = clock.now();
/// assert!(clock.now() >= before);
/// ```
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since an origin of the clock's choice. Never less than an earlier answer.
    ///
    /// Called often, from every worker: it should take well under a microsecond, and not block.
    fn now(&self) -> u64;
}

/// The machine's monotonic clock; its origin is the moment [`new`](MonotonicClock::new) was called.
///
/// It runs on while the date is set, and (on Linux) stands still while the machine is suspended.
/// Good for 584 years.
///
/// ```
/// use bgrp::{Clock, MonotonicClock};
/// use std::time::Duration;
///
/// let clock = MonotonicClock::new();
/// std::thread::sleep(Duration::from_millis(2));
/// assert!(clock.now() >= 2_000_000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    /// A clock that shows 0 now.
    pub fn new() -> Self {
        Self { origin: crate::sync::instant() }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> u64 {
        nanos(crate::sync::instant().saturating_duration_since(self.origin))
    }
}

/// A clock that stands still until it is moved: for tests of delays, retries and rates that take no
/// time. Clones show, and move, the same time. It starts at 0.
///
/// Moving it wakes nobody by itself: a worker that sleeps until a deadline on this clock notices
/// when it next looks.
///
/// ```
/// use bgrp::{Clock, VirtualClock};
/// use std::time::Duration;
///
/// let clock = VirtualClock::new();
/// let of_the_engine = clock.clone();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(of_the_engine.now(), 3_600_000_000_000);
/// ```
#[derive(Clone, Default)]
pub struct VirtualClock {
    nanos: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock that shows 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward by `by`; it stops at `u64::MAX` nanoseconds.
    ///
    /// ```
    /// # use bgrp::{Clock, VirtualClock};
    /// # use std::time::Duration;
    /// let clock = VirtualClock::new();
    /// clock.advance(Duration::from_millis(5));
    /// clock.advance(Duration::from_nanos(1));
    /// assert_eq!(clock.now(), 5_000_001);
    /// ```
    pub fn advance(&self, by: Duration) {
        let by = nanos(by);
        // ORDERING: AcqRel and Acquire: pairs with the load in `now` and with other moves: whoever
        // reads the new time sees what was done before the clock was moved to it.
        let moved = self
            .nanos
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(now.saturating_add(by)));
        debug_assert!(moved.is_ok(), "the update always has a value");
    }

    /// Moves the clock forward to `nanos` nanoseconds; does nothing if it shows more already, since
    /// a [`Clock`] never goes back.
    ///
    /// ```
    /// # use bgrp::{Clock, VirtualClock};
    /// let clock = VirtualClock::new();
    /// clock.set(7_000);
    /// clock.set(5_000);
    /// assert_eq!(clock.now(), 7_000);
    /// ```
    pub fn set(&self, nanos: u64) {
        // ORDERING: AcqRel: pairs with the load in `now`, as in `advance`.
        self.nanos.fetch_max(nanos, Ordering::AcqRel);
    }
}

impl Clock for VirtualClock {
    #[inline]
    fn now(&self) -> u64 {
        // ORDERING: Acquire: pairs with `advance` and `set`.
        self.nanos.load(Ordering::Acquire)
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualClock").field("now", &self.now()).finish()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_is_shared_and_never_goes_back() {
        let clock = VirtualClock::new();
        let other = clock.clone();
        assert_eq!(clock.now(), 0);
        clock.advance(Duration::from_micros(3));
        assert_eq!(other.now(), 3_000);
        other.set(2_999);
        assert_eq!(clock.now(), 3_000);
        other.set(10_000);
        assert_eq!(clock.now(), 10_000);
        assert_eq!(format!("{clock:?}"), "VirtualClock { now: 10000 }");
    }

    #[test]
    fn virtual_time_stops_at_its_end() {
        let clock = VirtualClock::new();
        clock.set(u64::MAX - 1);
        clock.advance(Duration::from_nanos(5));
        assert_eq!(clock.now(), u64::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), u64::MAX);
    }

    #[test]
    fn monotonic_time_goes_on() {
        let clock = MonotonicClock::default();
        let readings: Vec<u64> = (0..1000).map(|_| clock.now()).collect();
        assert!(readings.is_sorted());
        std::thread::sleep(Duration::from_millis(1));
        assert!(clock.now() >= readings[0] + 1_000_000);
    }
}
