//! What time it is, without asking at each dispatch; and which dispatches are timed.
//!
//! A worker reads the clock at each look at a shard, and around each dispatch that it times. In between it goes by its last
//! reading ([`Pace::now`]), which the stamps of groups and hands are made of.
//!
//! Timed are: every dispatch while they take long ([`LONG`]: two readings are less than 1 % of that), one in [`PERIOD`] while they are
//! short, and the first after a pause. A timed dispatch stands in the histograms for all since the one before, so counts
//! add up, and a mean is right on average. It is chosen by its number alone, so what is rare is seen as often as its
//! share says. With [`Timing::EveryDispatch`] nothing is left out.
//!
//! So a stamp may be early by what the worker did since its last reading: less than [`PERIOD`] short dispatches, and at
//! most one long one.

/// A dispatch that takes so long, in ns, is followed by another one that is timed.
const LONG: u64 = 8_000;
/// Short dispatches of which one is timed.
const PERIOD: u32 = 64;

/// Which dispatches are timed for [`Engine::histograms`](crate::Engine::histograms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Timing {
    /// All that follow one of 8 us or more, and one in 64 of the shorter ones, which then counts 64 times.
    #[default]
    Sampled,
    /// All: two readings of the clock for each (20 to 50 ns each on most machines).
    EveryDispatch,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The last reading, in ns.
    pub(crate) now: u64,
    /// Dispatches until the next timed one, that one included.
    left: u32,
    /// As `left` when it was set.
    period: u32,
    every: u32,
    /// Of the dispatch that is timed: when it began, and how long its group had waited then.
    start: u64,
    waited: u64,
}

/// A dispatch that was timed, in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) waited: u64,
    pub(crate) took: u64,
    /// Dispatches for which it stands.
    pub(crate) stands_for: u64,
}

impl Pace {
    pub(crate) fn new(timing: Timing, now: u64) -> Self {
        let every = if timing == Timing::EveryDispatch { 1 } else { PERIOD };
        Self { now, left: 1, period: 1, every, start: now, waited: 0 }
    }

    /// A dispatch begins. `true`: it is timed.
    #[inline(always)]
    pub(crate) fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// The clock says `now`, and a dispatch that is timed begins, of a group that has not got on since `stamp`.
    pub(crate) fn begin(&mut self, now: u64, stamp: u64) {
        (self.now, self.start, self.waited) = (now, now, now.saturating_sub(stamp));
    }

    /// The dispatch under way is timed.
    #[inline(always)]
    pub(crate) fn times(&self) -> bool {
        self.left == 0
    }

    /// Since when, if the dispatch under way is timed.
    #[cfg(feature = "tracing")]
    pub(crate) fn timed_since(&self) -> Option<u64> {
        self.times().then_some(self.start)
    }

    /// The worker found nothing to do: the next dispatch is timed, whenever that is.
    pub(crate) fn pause(&mut self) {
        self.period -= self.left - 1;
        self.left = 1;
    }

    /// The timed dispatch is over.
    pub(crate) fn end(&mut self, now: u64) -> Timed {
        let took = now.saturating_sub(self.start);
        let stands_for = u64::from(self.period);
        self.now = now;
        self.period = if took >= LONG { 1 } else { self.every };
        self.left = self.period;
        Timed { waited: self.waited, took, stands_for }
    }
}

impl<K, T, S> crate::Builder<K, T, S> {
    /// Which dispatches are timed for [`Engine::histograms`](crate::Engine::histograms). Default [`Timing::Sampled`].
    pub fn timing(mut self, timing: Timing) -> Self {
        self.draft.watch.timing = timing;
        self
    }
}

impl<K, T> crate::Engine<K, T> {
    /// How long groups wait and dispatches take, over the life of the engine. Adds up some kilobytes for each worker, and
    /// disturbs nobody.
    ///
    /// ```
    /// # use bgrp::{Engine, Timing};
    /// # use std::time::Duration;
    /// let engine = Engine::<u32, u32>::builder()
    ///     .timing(Timing::EveryDispatch)
    ///     .task_handler(|_, _| std::thread::sleep(Duration::from_millis(2)))
    ///     .build()?;
    /// engine.submit(1, 1)?;
    /// engine.wait_drain(Duration::from_secs(10));
    /// let times = engine.histograms();
    /// assert_eq!(times.batch_time.count(), 1);
    /// assert!(times.batch_time.quantile(0.99) >= Duration::from_millis(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn histograms(&self) -> super::histogram::Histograms {
        self.shared.control.histograms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs dispatches that take so long each; returns how many were timed and for how many they stand.
    fn run(pace: &mut Pace, times: &[u64]) -> (u64, u64) {
        let (mut timed, mut stands_for) = (0, 0);
        for time in times {
            if pace.is_due() {
                timed += 1;
                pace.begin(0, 0);
                stands_for += pace.end(*time).stands_for;
            }
        }
        (timed, stands_for)
    }

    #[test]
    fn short_dispatches_are_sampled_and_long_ones_all_timed() {
        let mut pace = Pace::new(Timing::Sampled, 0);
        assert_eq!(run(&mut pace, &[100; 641]), (11, 641));
        let mut pace = Pace::new(Timing::Sampled, 0);
        assert_eq!(run(&mut pace, &[9_000; 500]), (500, 500));
        let mut pace = Pace::new(Timing::EveryDispatch, 0);
        assert_eq!(run(&mut pace, &[1; 500]), (500, 500));
    }

    #[test]
    fn a_pause_loses_no_dispatch_and_the_next_one_is_timed() {
        let mut pace = Pace::new(Timing::Sampled, 0);
        let (mut timed, mut stands_for) = (0, 0);
        for _ in 0..50 {
            let (t, s) = run(&mut pace, &[10; 7]);
            timed += t;
            stands_for += s;
            pace.pause();
            pace.pause();
        }
        assert_eq!(timed, 50);
        let (t, s) = run(&mut pace, &[10; 1]);
        assert_eq!((t, stands_for + s), (1, 351));
    }
}
