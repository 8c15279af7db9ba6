//! Figures as text for Prometheus (exposition format 0.0.4), without a dependency.
//!
//! The names are the same as those of the feature `metrics` (recorder.rs), and stay. No label carries a key: what there is to
//! count does not grow with the number of groups.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use super::{
    histogram::{Histogram, Histograms},
    stats::Stats,
};

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}

/// A figure of [`Stats`] under its name.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    pub(crate) of: fn(&Stats) -> u64,
}

const fn figure(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    of: fn(&Stats) -> u64,
) -> Figure {
    Figure { name, kind, help, of }
}

/// All figures of [`Stats`]; docs/reference/metrics.md lists them.
pub(crate) const FIGURES: &[Figure] = {
    use Kind::{Counter, Gauge};
    &[
        figure("bgrp_tasks_accepted_total", Counter, "Tasks that a submit accepted.", |s| {
            s.accepted
        }),
        figure("bgrp_tasks_done_total", Counter, "Tasks that ended as done.", |s| s.done),
        figure("bgrp_tasks_failed_total", Counter, "Tasks that failed for good.", |s| s.failed),
        figure(
            "bgrp_tasks_cancelled_total",
            Counter,
            "Tasks given back while the engine ran.",
            |s| s.cancelled,
        ),
        figure("bgrp_retries_total", Counter, "Attempts followed by another one.", |s| s.retries),
        figure("bgrp_dead_letters_total", Counter, "Tasks that a dead-letter sink took.", |s| {
            s.dead_lettered
        }),
        figure("bgrp_throttled_total", Counter, "Dispatches that a downstream throttled.", |s| {
            s.throttled
        }),
        figure("bgrp_dispatches_total", Counter, "Turns of a group.", |s| s.dispatches),
        figure("bgrp_bulk_dispatches_total", Counter, "Turns of a group of the bulk class.", |s| {
            s.bulk.dispatches
        }),
        figure(
            "bgrp_bulk_tasks_done_total",
            Counter,
            "Tasks of the bulk class that ended as done.",
            |s| s.bulk.done,
        ),
        figure(
            "bgrp_claims_total",
            Counter,
            "Chunks of records that a worker took from a shard.",
            |s| s.claims,
        ),
        figure("bgrp_groups_made_total", Counter, "Groups made since the start.", |s| {
            s.groups_made
        }),
        figure("bgrp_backlog_tasks", Gauge, "Tasks accepted and not ended.", Stats::backlog),
        figure(
            "bgrp_ingress_tasks",
            Gauge,
            "Tasks accepted and not yet in their groups.",
            Stats::ingress,
        ),
        figure("bgrp_held_tasks", Gauge, "Tasks in halted, paused and closed groups.", |s| s.held),
        figure(
            "bgrp_task_bytes",
            Gauge,
            "What all tasks inside weigh, by the user's function.",
            |s| s.bytes,
        ),
        figure("bgrp_leased_batches", Gauge, "Batches that are leased out.", |s| s.leased),
        figure("bgrp_running_dispatches", Gauge, "Dispatches that run.", |s| s.running),
        figure("bgrp_running_tasks", Gauge, "Tasks of the dispatches that run.", |s| {
            s.running_tasks
        }),
        figure(
            "bgrp_waiting_groups",
            Gauge,
            "Groups that wait for a permit, the rate or a throttled downstream.",
            |s| s.waiting,
        ),
        figure("bgrp_groups", Gauge, "Groups that exist, idle ones included.", |s| s.groups),
        figure("bgrp_group_bytes", Gauge, "Bytes of control blocks and maps.", |s| s.group_bytes),
        figure("bgrp_sleeping_workers", Gauge, "Workers that sleep.", |s| s.sleeping_workers),
    ]
};

/// Names and meaning of the histograms, in seconds.
pub(crate) const QUEUE_WAIT: (&str, &str) =
    ("bgrp_queue_wait_seconds", "From when a group has work until its handler is called.");
pub(crate) const BATCH_TIME: (&str, &str) = ("bgrp_batch_seconds", "Duration of a dispatch.");

/// Upper bounds of the buckets that are exposed, in us: 1, 2, 5 of each decade up to 500 s.
const DECADES: u32 = 9;

fn bounds() -> impl Iterator<Item = Duration> {
    (0..DECADES).flat_map(|decade| [1, 2, 5].map(|n| Duration::from_micros(n * 10u64.pow(decade))))
}

impl Stats {
    /// These figures as text for Prometheus.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// # let engine = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build()?;
    /// let page = engine.stats().to_prometheus() + &engine.histograms().to_prometheus();
    /// assert!(page.contains("\n# TYPE bgrp_backlog_tasks gauge\nbgrp_backlog_tasks 0\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_prometheus(&self) -> String {
        let mut out = String::with_capacity(4_096);
        for figure in FIGURES {
            let kind = if figure.kind == Kind::Counter { "counter" } else { "gauge" };
            let Figure { name, help, of, .. } = figure;
            line(&mut out, format_args!("# HELP {name} {help}"));
            line(&mut out, format_args!("# TYPE {name} {kind}"));
            line(&mut out, format_args!("{name} {}", of(self)));
        }
        out
    }
}

impl Histograms {
    /// Both as text for Prometheus, in seconds, with buckets of 1, 2 and 5 of each decade from 1 us to 500 s.
    pub fn to_prometheus(&self) -> String {
        let mut out = String::with_capacity(4_096);
        for ((name, help), histogram) in
            [(QUEUE_WAIT, &self.queue_wait), (BATCH_TIME, &self.batch_time)]
        {
            expose(&mut out, name, help, histogram);
        }
        out
    }
}

fn expose(out: &mut String, name: &str, help: &str, histogram: &Histogram) {
    line(out, format_args!("# HELP {name} {help}"));
    line(out, format_args!("# TYPE {name} histogram"));
    for bound in bounds() {
        let (le, count) = (bound.as_secs_f64(), histogram.count_below(bound));
        line(out, format_args!("{name}_bucket{{le=\"{le}\"}} {count}"));
    }
    let count = histogram.count();
    line(out, format_args!("{name}_bucket{{le=\"+Inf\"}} {count}"));
    line(out, format_args!("{name}_sum {}", histogram.sum().as_secs_f64()));
    line(out, format_args!("{name}_count {count}"));
}

fn line(out: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_the_reference_is_exposed_and_every_exposed_one_is_in_the_reference() {
        let reference = include_str!("../../../../docs/reference/metrics.md");
        let named: Vec<&str> =
            FIGURES.iter().map(|f| f.name).chain([QUEUE_WAIT.0, BATCH_TIME.0]).collect();
        for name in &named {
            assert!(reference.contains(&format!("| `{name}` |")), "{name} is not in the reference");
        }
        assert_eq!(reference.matches("| `bgrp_").count(), named.len());
        for figure in FIGURES {
            assert_eq!(
                figure.name.ends_with("_total"),
                figure.kind == Kind::Counter,
                "{}",
                figure.name
            );
        }
    }
}
