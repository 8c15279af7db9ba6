//! Workers that do not start: tried again, later each time, and given up after so many in a row. One that was ready and ended before it
//! had answered anything, and without a task that could be blamed, may have been killed by somebody: more of those are needed.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// So many workers that were of no use count as one that did not start.
const USELESS: u32 = 20;

/// See the module text.
#[derive(Debug)]
pub(super) struct Starts {
    most: u32,
    failed: u32,
    useless: u32,
    not_before: Option<Instant>,
}

/// What follows a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is tried again.
    Again,
    /// So many failed in a row: the run ends.
    GiveUp(u32),
}

impl Starts {
    /// Gives up after `most` failures in a row.
    pub(super) fn new(most: u32) -> Self {
        Self { most, failed: 0, useless: 0, not_before: None }
    }

    pub(super) fn worked(&mut self) {
        (self.failed, self.useless, self.not_before) = (0, 0, None);
    }

    /// One was ready, and of no use.
    pub(super) fn useless(&mut self, now: Instant) -> After {
        self.useless += 1;
        if self.useless.is_multiple_of(USELESS) { self.failed(now) } else { After::Again }
    }

    pub(super) fn failed(&mut self, now: Instant) -> After {
        self.failed += 1;
        if self.failed >= self.most {
            return After::GiveUp(self.failed);
        }
        let wait = FIRST.saturating_mul(1 << (self.failed - 1).min(16)).min(LONGEST);
        self.not_before = Some(now + wait);
        After::Again
    }

    /// The last one failed.
    pub(super) fn in_doubt(&self) -> bool {
        self.failed > 0
    }

    /// How long nothing may be started; `None`: it may now.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        self.not_before.map(|at| at.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_are_of_no_use_are_given_up_too() {
        let (mut starts, now) = (Starts::new(2), Instant::now());
        let ended = (1..).find(|_| starts.useless(now) != After::Again);
        assert_eq!(ended, Some(2 * USELESS));
    }

    #[test]
    fn waits_longer_each_time_and_gives_up_at_last() {
        let (mut starts, mut now) = (Starts::new(5), Instant::now());
        let mut waits = Vec::new();
        while starts.failed(now) == After::Again {
            let wait = starts.wait(now).expect("after a failure");
            waits.push(wait.as_millis());
            now += wait;
            assert_eq!(starts.wait(now), None);
        }
        assert_eq!(waits, [100, 200, 400, 800]);
        starts.worked();
        assert_eq!(starts.failed(now), After::Again, "they are counted in a row");
    }
}
