//! The feature `metrics`: the same figures for whatever recorder the program has installed.
//!
//! Counters and gauges are told when [`Engine::publish_metrics`](crate::Engine::publish_metrics) is called, so they cost nothing in between; histograms are
//! told at each dispatch that is timed (pace.rs). Install the recorder before engines are built: each worker asks for its
//! histograms once.

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{
    exposition::{BATCH_TIME, FIGURES, Kind, QUEUE_WAIT},
    pace::Timed,
};
use crate::Engine;

/// The histograms of one worker.
pub(crate) struct Times {
    queue_wait: metrics::Histogram,
    batch_time: metrics::Histogram,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self { queue_wait: histogram!(QUEUE_WAIT.0), batch_time: histogram!(BATCH_TIME.0) }
    }

    pub(crate) fn record(&self, timed: Timed) {
        let times = usize::try_from(timed.stands_for).unwrap_or(usize::MAX);
        self.queue_wait.record_many(timed.waited as f64 / 1e9, times);
        self.batch_time.record_many(timed.took as f64 / 1e9, times);
    }
}

/// Tells the recorder what each metric means. Once, after the recorder was installed.
pub fn describe_metrics() {
    for figure in FIGURES {
        match figure.kind {
            Kind::Counter => describe_counter!(figure.name, Unit::Count, figure.help),
            Kind::Gauge if figure.name.ends_with("_bytes") => {
                describe_gauge!(figure.name, Unit::Bytes, figure.help);
            }
            Kind::Gauge => describe_gauge!(figure.name, Unit::Count, figure.help),
        }
    }
    for (name, help) in [QUEUE_WAIT, BATCH_TIME] {
        describe_histogram!(name, Unit::Seconds, help);
    }
}

impl<K, T> Engine<K, T> {
    /// Tells the recorder of the crate `metrics` the figures of this moment. Call it whenever the recorder is read, or once a
    /// second. Names as in [`Stats::to_prometheus`](crate::Stats::to_prometheus), no labels.
    pub fn publish_metrics(&self) {
        let stats = self.stats();
        for figure in FIGURES {
            let value = (figure.of)(&stats);
            match figure.kind {
                Kind::Counter => counter!(figure.name).absolute(value),
                Kind::Gauge => gauge!(figure.name).set(value as f64),
            }
        }
    }
}
