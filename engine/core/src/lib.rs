//! Bgrp: the engine that runs keyed tasks.
//!
//! Tasks of one group run strictly in order, one at a time; different groups run in parallel, in batches, on workers
//! that know the machine. Start with [`Engine`]; closures go to [`Bgrp`]; tests without threads use [`Sim`].

#![cfg_attr(any(loom, shuttle), allow(dead_code, unused_imports))]

/// The examples of README and guide are compiled and run with the tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/library.md")]
    struct Guide;
    #[doc = include_str!("../../../docs/guide/limits.md")]
    struct Limits;
    #[doc = include_str!("../../../docs/guide/numa.md")]
    struct Numa;
    #[cfg(all(feature = "rayon", feature = "tokio"))]
    #[doc = include_str!("../../../docs/guide/async.md")]
    struct Async;
    #[doc = include_str!("../../../docs/guide/groups-that-stop.md")]
    struct GroupsThatStop;
    #[doc = include_str!("../../../docs/guide/waiting.md")]
    struct Waiting;
    #[doc = include_str!("../../../docs/guide/hot-keys.md")]
    struct HotKeys;
    #[cfg(feature = "tokio")]
    #[doc = include_str!("../../../docs/guide/service.md")]
    struct Service;
    #[doc = include_str!("../../../docs/guide/watching.md")]
    struct Watching;
}

mod batch;
mod builder;
mod closures;
mod core;
mod engine;
mod error;
mod exact;
mod flow;
mod front;
mod front_async;
mod front_many;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod group_control;
mod group_handle;
mod handler;
mod ingress;
mod lease;
mod lifecycle;
#[cfg(all(loom, test))]
mod models;
mod outcome;
mod producer;
mod ready;
mod shard;
mod sim;
mod split;
mod sync;
mod task;
mod time;
pub mod topology;
#[cfg(feature = "rayon")]
mod unordered;
mod wait;
mod watch;
mod worker;

pub use batch::{Batch, Iter, IterMut};
pub use builder::{Builder, Configured};
pub use closures::{Bgrp, BgrpReport, NotAccepted};
pub use engine::Engine;
pub use error::{BuildError, GroupSubmitError, SubmitError, SubmitManyError, SubmitReason};
pub use flow::{
    adaptive::InFlight,
    admission::LimitStats,
    dead_letter::{DeadLetterSink, Durability, FileSink, Json, Letter, MemorySink, SinkFull},
    exhausted::{Exhausted, OnExhausted, Verdict},
    rate::{Count, Rate},
    retry::Retry,
    share::Class,
};
pub use front_async::{GroupSubmitAsync, SubmitAsync};
pub use group_control::{GroupError, GroupReport, HaltReason, HaltedGroup};
pub use group_handle::GroupHandle;
#[cfg(feature = "tokio")]
pub use lease::OnTokio;
pub use lease::{Attempt, Lease};
pub use lifecycle::close::{CloseReport, Left};
pub use outcome::{Failure, FailureKind, IntoOutcomes, Outcome};
pub use producer::Producer;
pub use sim::Sim;
pub use split::{JoinError, Split, SplitError};
pub use task::Task;
pub use time::clock::{Clock, MonotonicClock, VirtualClock};
pub use topology::Workers;
#[cfg(feature = "rayon")]
pub use unordered::{ParIterMut, Part};
pub use wait::{
    cell::Ended,
    error::{Deadlock, WaitError},
    picture::{Wait, WaitEdge, WaitGraph, WaitNode},
    submit::TrackedBy,
    tally::Figures,
    ticket::Ticket,
};
#[cfg(feature = "measure")]
#[doc(hidden)]
pub use watch::claims as measure;
#[cfg(feature = "metrics")]
pub use watch::recorder::describe_metrics;
pub use watch::{
    histogram::{Bucket, Histogram, Histograms},
    hot_keys::HotKey,
    pace::Timing,
    stats::{ClassStats, Stats},
    stuck::{By, Stuck, TopGroup, Why},
};
