//! Row F12, feature `tracing`: a span for each dispatch, events for what goes wrong, seen by a subscriber of the test's own.
#![cfg(feature = "tracing")]

mod common;

use std::{
    fmt::{Debug, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bgrp::{Engine, Failure, OnExhausted, Outcome, Retry, Sim, VirtualClock, Workers};
use common::{Log, MS, lock};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Notes spans and events as lines, with how many spans are entered.
#[derive(Clone)]
struct Notes {
    log: Log<String>,
    entered: Arc<AtomicU64>,
    ids: Arc<AtomicU64>,
    level: Level,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "bgrp" && *metadata.level() <= self.level
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(format!("span {}", span.metadata().name()));
        span.record(&mut line);
        self.log.push(line.0);
        Id::from_u64(1 + self.ids.fetch_add(1, SeqCst))
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        let _ = write!(line.0, " inside={}", self.entered.load(SeqCst));
        self.log.push(line.0);
    }
    fn enter(&self, _: &Id) {
        self.entered.fetch_add(1, SeqCst);
    }
    fn exit(&self, _: &Id) {
        self.entered.fetch_sub(1, SeqCst);
    }
}

/// Runs `sim` with a subscriber of this level; returns what it has noted.
fn traced(level: Level, run: impl FnOnce()) -> Vec<String> {
    let notes = Notes { log: Log::new(), entered: Arc::default(), ids: Arc::default(), level };
    tracing::subscriber::with_default(notes.clone(), run);
    assert_eq!(notes.entered.load(SeqCst), 0, "every span was left");
    notes.log.take()
}

fn run(mut sim: Sim<&'static str, u32>, tasks: &[(&'static str, u32)]) {
    for (key, task) in tasks {
        sim.submit(key, *task).expect("room");
    }
    for _ in 0..100 {
        sim.run();
        sim.advance(MS);
    }
}

fn with(lines: &[String], parts: &[&str]) -> usize {
    lines.iter().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

fn failing() -> Sim<&'static str, u32> {
    Engine::<&'static str, u32>::builder()
        .workers(Workers::fixed(1))
        .trace_keys()
        .retry(Retry::fixed(MS).attempts(2))
        .on_exhausted(OnExhausted::halt_group())
        .task_handler(|(), task| match **task {
            0 => Outcome::Done,
            1 if task.attempt() == 1 => Outcome::Retry(Failure::new("once")),
            1 => Outcome::Done,
            2 => Outcome::Throttled(MS),
            _ => Outcome::Retry(Failure::new("always")),
        })
        .build_sim(1)
        .expect("valid settings")
}

#[test]
fn each_dispatch_has_a_span_with_key_size_and_attempt() {
    let lines = traced(Level::DEBUG, || run(failing(), &[("a", 0), ("a", 0), ("b", 1)]));
    assert_eq!(
        with(&lines, &["span dispatch", "key=\"a\"", "tasks=2", "attempt=1"]),
        1,
        "{lines:#?}"
    );
    assert_eq!(with(&lines, &["span dispatch", "key=\"b\"", "attempt=1"]), 1, "{lines:#?}");
    assert_eq!(with(&lines, &["span dispatch", "key=\"b\"", "attempt=2"]), 1, "{lines:#?}");
    assert_eq!(with(&lines, &["span dispatch", "group="]), 3, "{lines:#?}");
    assert_eq!(
        with(&lines, &["DEBUG", "will be retried", "key=\"b\"", "tasks=1", "inside=1"]),
        1,
        "{lines:#?}"
    );
}

#[test]
fn what_fails_for_good_halts_or_is_throttled_is_told_at_its_level() {
    let tasks = [("bad", 3), ("bad", 0), ("slow", 2), ("good", 0)];
    let lines = traced(Level::DEBUG, || run(failing(), &tasks));
    assert_eq!(
        with(&lines, &["WARN", "failed for good", "key=\"bad\"", "tasks=1"]),
        1,
        "{lines:#?}"
    );
    assert_eq!(with(&lines, &["ERROR", "group halted", "key=\"bad\""]), 1, "{lines:#?}");
    assert!(with(&lines, &["DEBUG", "throttled", "key=\"slow\""]) >= 1, "{lines:#?}");
    // Whoever wants warnings gets no spans.
    let lines = traced(Level::WARN, || run(failing(), &tasks));
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[test]
fn keys_are_not_shown_unless_asked_for() {
    let sim = Engine::<&'static str, u32>::builder()
        .workers(Workers::fixed(1))
        .task_handler(|(), _| Err::<(), _>("no"))
        .build_sim(1)
        .expect("valid settings");
    let lines = traced(Level::DEBUG, || run(sim, &[("secret", 0)]));
    assert_eq!(with(&lines, &["span dispatch"]), 1);
    assert_eq!(with(&lines, &["failed for good"]), 1);
    assert_eq!(with(&lines, &["secret"]), 0, "{lines:#?}");
}

#[test]
fn a_slow_dispatch_is_told_and_a_fast_one_is_not() {
    let clock: Arc<Mutex<Option<VirtualClock>>> = Arc::default();
    let moved = clock.clone();
    let sim = Engine::<&'static str, u32>::builder()
        .workers(Workers::fixed(1))
        .trace_keys()
        .slow_dispatch(Duration::from_secs(1))
        .batch_size(1)
        .task_handler(move |(), task| {
            lock(&moved)
                .as_ref()
                .expect("set below")
                .advance(Duration::from_millis((**task).into()));
        })
        .build_sim(1)
        .expect("valid settings");
    *lock(&clock) = Some(sim.clock());
    let lines = traced(Level::WARN, || run(sim, &[("fast", 1_000), ("slow", 1_001), ("fast", 3)]));
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(with(&lines, &["slow dispatch", "key=\"slow\"", "took=1.001s"]), 1, "{lines:#?}");
}
