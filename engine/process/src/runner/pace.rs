//! How many tasks are sent at a time: enough that the socket is not the bottleneck, few enough that no task waits long behind
//! others in a worker while another worker is idle.
//!
//! A frame is to take about [`AIM`]. What a task takes is learned from what the worker answers, and one that took long counts more
//! than many that were quick: the estimate jumps up and creeps down.

use std::time::Duration;

/// What a frame of tasks is to take.
const AIM: Duration = Duration::from_millis(20);
/// Tasks whose estimate is above this are sent one by one, and none is sent before the one before it has ended.
const LONG: Duration = Duration::from_millis(5);
/// The share of a new measurement that is lower than the estimate.
const CREEP: u64 = 8;

/// What is known of the tasks of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Of one task, in ns; 0: not known.
    task: u64,
    /// What may be sent at once while nothing is known against it: twice as much each time.
    trust: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { task: 0, trust: 1 }
    }
}

impl Pace {
    /// `tasks` were answered in `took`.
    pub(super) fn learn(&mut self, tasks: u32, took: Duration) {
        if tasks == 0 {
            return;
        }
        let each = (took.as_nanos() as u64 / u64::from(tasks)).max(1);
        self.task = if each > self.task { each } else { self.task - (self.task - each) / CREEP };
        self.trust = (self.trust * 2).min(1 << 16);
    }

    /// So many tasks may be sent in the next frame, of `most`, while `out` are with the worker.
    pub(super) fn next(&self, most: u32, out: u32) -> u32 {
        if out > 0 && (self.task == 0 || self.task > LONG.as_nanos() as u64) {
            return 0;
        }
        let fit = AIM.as_nanos() as u64 / self.task.max(1);
        (fit.min(u64::from(most.min(self.trust))) as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_tasks_are_sent_in_ever_larger_frames_and_long_ones_alone() {
        let mut pace = Pace::default();
        assert_eq!((pace.next(256, 0), pace.next(256, 1)), (1, 0), "nothing is known yet");
        for round in 0..20 {
            let n = pace.next(256, 0);
            assert_eq!(n, 256.min(1 << round));
            pace.learn(n, Duration::from_micros(u64::from(n)));
        }
        assert_eq!(pace.next(256, 256), 256, "the next frame lies ready");
        // One that takes a second: the next ones go alone, and for a while.
        pace.learn(1, Duration::from_secs(1));
        assert_eq!((pace.next(256, 0), pace.next(256, 1)), (1, 0));
        for _ in 0..20 {
            pace.learn(1, Duration::from_micros(1));
        }
        assert_eq!(pace.next(256, 1), 0, "not forgotten so soon");
        for _ in 0..100 {
            pace.learn(1, Duration::from_micros(1));
        }
        assert_eq!(pace.next(256, 1), 256);
    }
}
