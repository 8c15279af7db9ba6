//! Around a dispatch: what is noted when it begins and when it is over.
//!
//! Cost where nothing is special: five stores and loads of lines that the worker has anyway, and one branch (pace.rs).

use std::hash::Hash;

use super::histogram::{Histograms, Recorder};
use crate::{
    group::{block::Group, ring::End},
    handler::Work,
    worker::{Worker, settle::Settled},
};

/// The histograms of one worker.
#[derive(Debug)]
pub(crate) struct Times {
    queue_wait: Recorder,
    batch_time: Recorder,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self { queue_wait: Recorder::new(), batch_time: Recorder::new() }
    }

    pub(crate) fn read_into(&self, histograms: &mut Histograms) {
        self.queue_wait.read_into(&mut histograms.queue_wait);
        self.batch_time.read_into(&mut histograms.batch_time);
    }
}

/// A dispatch that has begun.
#[must_use]
pub(crate) struct Begun {
    /// When, and how long its group had waited, if it is timed.
    timed: Option<(u64, u64)>,
    #[cfg(feature = "tracing")]
    span: super::trace::DispatchSpan,
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// The dispatch of up to `tasks` tasks at `head` begins.
    #[inline(always)]
    pub(crate) fn begin_dispatch(
        &mut self,
        #[cfg_attr(not(feature = "tracing"), expect(unused_variables))] group: &Group<K, T>,
        head: End<T>,
        tasks: u32,
    ) -> Begun {
        let timed = if self.pace.is_due() { Some(self.begin_timed(head)) } else { None };
        self.hand().begins(self.pace.now, tasks);
        Begun {
            timed,
            #[cfg(feature = "tracing")]
            span: self.begin_span(group, head, tasks),
        }
    }

    #[cold]
    fn begin_timed(&mut self, head: End<T>) -> (u64, u64) {
        let now = self.core().front.ready.clock.now();
        self.pace.now = now;
        (now, now.saturating_sub(head.stamp()))
    }

    /// What came of it. The token is still in hand.
    #[inline(always)]
    pub(crate) fn end_dispatch(&mut self, group: &Group<K, T>, begun: Begun, settled: &Settled) {
        if let Some((start, waited)) = begun.timed {
            self.end_timed(start, waited);
        }
        if settled.failures() > 0 {
            self.note_failures(group, settled.failures());
        }
        #[cfg(feature = "tracing")]
        self.end_span(group, begun.span, begun.timed, settled);
    }

    #[cold]
    fn end_timed(&mut self, start: u64, waited: u64) {
        let now = self.core().front.ready.clock.now();
        let took = now.saturating_sub(start);
        let stands_for = self.pace.timed(start, now);
        let times = &self.post().times;
        times.queue_wait.record(waited, stands_for);
        times.batch_time.record(took, stands_for);
        #[cfg(feature = "metrics")]
        self.recorder.record(waited, took, stands_for);
    }

    #[cold]
    fn note_failures(&mut self, group: &Group<K, T>, failures: u32) {
        // Whoever reads it holds it for some microseconds; failures of that moment are not worth a wait.
        if let Some(mut sketches) = self.core().sketches[self.id].try_lock() {
            sketches.failures.draw(u64::from(failures), self.pace.now);
            sketches.failures.add(super::hot_keys::Id::of(group), u64::from(failures));
        }
    }
}
