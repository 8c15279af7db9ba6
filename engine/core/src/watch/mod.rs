//! What the engine tells of itself.
//!
//! | file | what | who writes it, and when |
//! |---|---|---|
//! | `stats.rs` | counters | each worker its own, at each dispatch and look |
//! | `pace.rs`, `dispatch.rs`, `histogram.rs` | how long groups wait and dispatches take | each worker its own, at the dispatches that are timed |
//! | `running.rs` | what is in each worker's hand, since when | the worker, at each dispatch |
//! | `stuck.rs`, `walk.rs` | who does not get on, and why | nobody: read from words, places, stamps and hands under one claim at a time |
//! | `sketch.rs`, `hot_keys.rs` | who comes most often | each worker its own, at one look in eight |
//! | `exposition.rs`, `trace.rs`, `recorder.rs` | the same for Prometheus, `tracing`, `metrics` | |
//!
//! Nothing here is asked when the engine decides anything.

#[cfg(feature = "measure")]
pub mod claims;
pub(crate) mod dispatch;
pub(crate) mod exposition;
pub(crate) mod histogram;
pub(crate) mod hot_keys;
pub(crate) mod lanes;
pub(crate) mod pace;
#[cfg(feature = "metrics")]
pub(crate) mod recorder;
pub(crate) mod running;
pub(crate) mod sketch;
pub(crate) mod stats;
pub(crate) mod stuck;
#[cfg(feature = "tracing")]
pub(crate) mod trace;
pub(crate) mod walk;

use std::ptr::NonNull;

use self::{histogram::Histograms, hot_keys::Sketches, pace::Timing, stats::Stats, walk::Sight};
use crate::group::block::Group;

/// What the builder was told about watching.
pub(crate) struct WatchSettings<K> {
    pub(crate) timing: Timing,
    #[cfg(feature = "tracing")]
    pub(crate) trace: trace::Settings<K>,
    of: std::marker::PhantomData<fn(&K)>,
}

impl<K> Default for WatchSettings<K> {
    fn default() -> Self {
        Self {
            timing: Timing::default(),
            #[cfg(feature = "tracing")]
            trace: trace::Settings::default(),
            of: std::marker::PhantomData,
        }
    }
}

impl<K> std::fmt::Debug for WatchSettings<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchSettings").field("timing", &self.timing).finish_non_exhaustive()
    }
}

/// What the face of the engine asks the core for, to watch it.
pub(crate) trait Watched<K, T> {
    fn read_stats(&self) -> Stats;
    fn histograms(&self) -> Histograms;
    /// Shows every group that has work, and every shard whose ingress has: its claim is held during the call, and let go of
    /// every now and then.
    fn walk(&self, visit: &mut dyn FnMut(&K, Sight));
    /// Copies of what each worker has seen, halved to this moment.
    fn sketches(&self) -> Vec<Sketches<K, T>>;
    /// Shows the key of a group that is still the one with these hash bits, with what is to be seen of it if it is busy.
    fn show(
        &self,
        group: NonNull<Group<K, T>>,
        hash: u32,
        visit: &mut dyn FnMut(&K, Option<Sight>),
    );
    /// Since the engine's clock began, in ns.
    fn now(&self) -> u64;
    /// Fills in what only the places know where tokens wait: how long still, and which attempt.
    fn explain(&self, sights: &mut [&mut Sight]);
}
