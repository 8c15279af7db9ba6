//! Workers that do not start: tried again, later each time, and given up after so many in a row. One that was ready
//! once counts as a start that worked, also if it dies at once: what is wrong then is a task.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// See the module text.
#[derive(Debug)]
pub(super) struct Starts {
    most: u32,
    failed: u32,
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
        Self { most, failed: 0, not_before: None }
    }

    pub(super) fn worked(&mut self) {
        (self.failed, self.not_before) = (0, None);
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
