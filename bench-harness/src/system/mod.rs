//! The systems under measure: Bgrp by each of its ways in, and what a user would take instead.

#[cfg(feature = "actix")]
pub mod actix;
pub mod bgrp;
pub mod channel;
pub mod done;
#[cfg(feature = "kameo")]
pub mod kameo;
pub mod key_queue;
#[cfg(feature = "languages")]
pub mod languages;
pub mod locks;
#[cfg(feature = "ractor")]
pub mod ractor;
pub mod rayon;
#[cfg(feature = "tokio")]
pub mod tokio;

use crate::{
    measure::Timed,
    workload::{Stream, Workload},
};

/// A system that runs keyed tasks.
pub trait System {
    /// Its name on the command line and in the tables.
    fn name(&self) -> &'static str;
    /// Each key has a queue of its own, so that a slow key does not hold up others.
    fn isolates(&self) -> bool {
        true
    }
    /// The most tasks that it is given, where a full run would take minutes; the rows of results say how many ran.
    fn most_tasks(&self) -> Option<usize> {
        None
    }
    /// Why it cannot run here; asked once before it is measured.
    fn missing(&self) -> Option<String> {
        None
    }
    /// Starts, runs all streams, waits for the last task, stops. Every task calls the oracle's body.
    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed;
}

/// All systems of this build, Bgrp first.
pub fn all() -> Vec<Box<dyn System>> {
    vec![
        Box::new(bgrp::Bgrp(bgrp::Way::Key)),
        Box::new(bgrp::Bgrp(bgrp::Way::Handle)),
        Box::new(bgrp::Bgrp(bgrp::Way::Many)),
        Box::new(bgrp::Bgrp(bgrp::Way::Lane)),
        Box::new(bgrp::Closures),
        Box::new(rayon::QueuePerKey),
        Box::new(locks::LockPerKey),
        #[cfg(feature = "tokio")]
        Box::new(tokio::ChannelPerKey),
        #[cfg(feature = "tokio")]
        Box::new(tokio::QueuePerKey),
        #[cfg(feature = "tokio")]
        Box::new(tokio::ChannelPerKeyInside),
        #[cfg(feature = "kameo")]
        Box::new(kameo::ActorPerKey),
        #[cfg(feature = "ractor")]
        Box::new(ractor::ActorPerKey),
        #[cfg(feature = "actix")]
        Box::new(actix::ActorPerKey),
        Box::new(channel::Sharded { batch: 1 }),
        Box::new(channel::Sharded { batch: 256 }),
        #[cfg(feature = "languages")]
        Box::new(languages::Program::go()),
        #[cfg(feature = "languages")]
        Box::new(languages::Program::asio()),
        #[cfg(feature = "languages")]
        Box::new(languages::Program::python()),
    ]
}
