//! Around a dispatch: what is noted when it begins and when it is over.
//!
//! Cost where nothing is special: five stores and loads of lines that the worker has anyway, and one branch (pace.rs).

use std::{hash::Hash, ptr::NonNull};

use super::{
    histogram::{Histograms, Recorder},
    hot_keys::Id,
    pace::Timed,
    stats::add,
};
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
        if self.pace.is_due() {
            self.begin_timed(head);
        }
        self.hand().begins(self.pace.now, tasks);
        Begun {
            #[cfg(feature = "tracing")]
            span: self.begin_span(group, head, tasks),
        }
    }

    #[cold]
    fn begin_timed(&mut self, head: End<T>) {
        self.pace.begin(self.core().front.ready.clock.now(), head.stamp());
    }

    /// The handler is back, and the token still in hand. `troubled`: not all simply ended as done.
    #[cfg_attr(not(feature = "tracing"), expect(unused_variables))]
    #[inline(always)]
    pub(crate) fn end_dispatch(
        &mut self,
        group: &Group<K, T>,
        begun: Begun,
        troubled: Option<&Settled>,
    ) {
        #[cfg(feature = "tracing")]
        let began = self.pace.timed_since();
        if self.pace.times() {
            self.end_timed();
        }
        #[cfg(feature = "tracing")]
        self.end_span(group, begun.span, began, troubled);
    }

    #[cold]
    fn end_timed(&mut self) {
        let timed = self.pace.end(self.core().front.ready.clock.now());
        let times = &self.post().times;
        times.queue_wait.record(timed.waited, timed.stands_for);
        times.batch_time.record(timed.took, timed.stands_for);
        #[cfg(feature = "metrics")]
        self.recorder.record(timed);
    }

    /// As [`Worker::begin_dispatch`], of a batch that is lent: each is timed, by the stamp of its group. What it returns stands
    /// until the handler has it, and how long the group had waited.
    pub(crate) fn begin_lease(
        &mut self,
        #[cfg_attr(not(feature = "tracing"), expect(unused_variables))] group: &Group<K, T>,
        mut head: End<T>,
        tasks: u32,
    ) -> (Begun, u64) {
        let now = self.core().front.ready.clock.now();
        let waited = now.saturating_sub(head.stamp());
        self.pace.now = now;
        head.set_stamp(now);
        self.hand().begins(now, tasks);
        if head.trouble().is_some() {
            self.hand().note_attempt(head.trouble().as_deref());
        }
        let begun = Begun {
            #[cfg(feature = "tracing")]
            span: self.begin_span(group, head, tasks),
        };
        (begun, waited)
    }

    /// A batch that was lent has come back, and is in hand.
    pub(crate) fn lease_is_back(&mut self, group: &Group<K, T>) {
        self.pace.now = self.core().front.ready.clock.now();
        // SAFETY: we hold the token.
        let mut head = unsafe { group.head_end() };
        let leased = head.trouble().as_ref().and_then(|record| record.lease.as_ref());
        self.hand().begins(self.pace.now, leased.map_or(0, |leased| leased.tasks));
    }

    /// It is settled but for the word, and its token still in hand. `waited`: as it began.
    pub(crate) fn end_lease(&mut self, group: &Group<K, T>, waited: u64, settled: &Settled) {
        // SAFETY: we hold the token.
        let began = unsafe { group.head_end() }.stamp();
        let timed = Timed { waited, took: self.pace.now.saturating_sub(began), stands_for: 1 };
        let times = &self.post().times;
        times.queue_wait.record(timed.waited, timed.stands_for);
        times.batch_time.record(timed.took, timed.stands_for);
        #[cfg(feature = "metrics")]
        self.recorder.record(timed);
        #[cfg(feature = "tracing")]
        self.tell_end(group, Some(began), Some(settled));
        #[cfg(not(feature = "tracing"))]
        let _ = settled;
    }

    /// After the word was settled: attempts of the group have failed. The block may hold another group by now, which then gets
    /// the blame for this once.
    #[cold]
    pub(crate) fn note_failures(&self, group: NonNull<Group<K, T>>, settled: &Settled) {
        let counters = &self.post().counters;
        add(&counters.failed, u64::from(settled.removed - settled.done));
        add(&counters.retries, u64::from(settled.retries));
        // Whoever reads it holds it for some microseconds; failures of that moment are not worth a wait.
        if let Some(mut sketches) = self.core().sketches[self.id].try_lock() {
            let failures = u64::from(settled.failures());
            sketches.failures.draw(failures, self.pace.now);
            // SAFETY: blocks live as long as the engine; of the group only its hash bits are read, which are atomic.
            sketches.failures.add(Id::of(unsafe { group.as_ref() }), failures);
        }
    }
}
