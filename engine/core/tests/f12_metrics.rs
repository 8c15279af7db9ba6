//! Row F12, feature `metrics`: counters, gauges and histograms under stable names, told to a recorder of the test's own.
#![cfg(feature = "metrics")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use bgrp::{Engine, Timing, Workers};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

#[derive(Default)]
struct Book {
    counters: BTreeMap<String, Arc<AtomicU64>>,
    gauges: BTreeMap<String, Arc<AtomicU64>>,
    histograms: BTreeMap<String, Arc<Values>>,
    described: BTreeMap<String, (Option<Unit>, String)>,
    labels: usize,
}

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(value);
    }
}

#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Book>>);

impl Recording {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn describe(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.book().described.insert(key.as_str().to_owned(), (unit, text.into_owned()));
    }
}

impl Recorder for Recording {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut book = self.book();
        book.labels += key.labels().count();
        Counter::from_arc(book.counters.entry(key.name().to_owned()).or_default().clone())
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut book = self.book();
        book.labels += key.labels().count();
        Gauge::from_arc(book.gauges.entry(key.name().to_owned()).or_default().clone())
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut book = self.book();
        book.labels += key.labels().count();
        Histogram::from_arc(book.histograms.entry(key.name().to_owned()).or_default().clone())
    }
}

#[test]
fn the_recorder_is_told_what_the_figures_say() {
    let recording = Recording::default();
    metrics::with_local_recorder(&recording, || {
        bgrp::describe_metrics();
        let mut sim = Engine::<u64, u64>::builder()
            .workers(Workers::fixed(2))
            .timing(Timing::EveryDispatch)
            .task_handler(|(), task| if **task == 3 { Err("three") } else { Ok(()) })
            .build_sim(1)
            .expect("valid settings");
        for n in 0..2_000u64 {
            sim.submit(n % 300, n % 10).expect("room");
            if n % 400 == 0 {
                sim.run();
            }
        }
        sim.engine().publish_metrics();
        let backlog = sim.stats().backlog();
        assert!(backlog > 0);
        assert_eq!(gauge(&recording, "bgrp_backlog_tasks"), backlog as f64);
        sim.run();
        sim.engine().publish_metrics();
        sim.engine().publish_metrics();

        let stats = sim.stats();
        let counter = |name: &str| recording.book().counters[name].load(SeqCst);
        assert_eq!(counter("bgrp_tasks_accepted_total"), 2_000);
        assert_eq!(counter("bgrp_tasks_done_total"), 1_800);
        assert_eq!(counter("bgrp_tasks_failed_total"), 200);
        assert_eq!(counter("bgrp_dispatches_total"), stats.dispatches);
        assert_eq!(gauge(&recording, "bgrp_backlog_tasks"), 0.0);
        assert_eq!(gauge(&recording, "bgrp_groups"), 300.0);
        let book = recording.book();
        let times = |name: &str| book.histograms[name].0.lock().expect("no panic").len() as u64;
        assert_eq!(times("bgrp_batch_seconds"), stats.dispatches);
        assert_eq!(times("bgrp_queue_wait_seconds"), stats.dispatches);
    });
    let book = recording.book();
    assert_eq!(book.labels, 0, "no key in a label");
    for name in book.counters.keys().chain(book.gauges.keys()).chain(book.histograms.keys()) {
        let (unit, text) =
            book.described.get(name).unwrap_or_else(|| panic!("{name} is not described"));
        assert!(unit.is_some() && !text.is_empty(), "{name}");
    }
    assert_eq!(
        book.described.len(),
        book.counters.len() + book.gauges.len() + book.histograms.len()
    );
}

fn gauge(recording: &Recording, name: &str) -> f64 {
    f64::from_bits(recording.book().gauges[name].load(SeqCst))
}
