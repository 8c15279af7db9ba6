//! The process that is the parent of all others, and the hand on it.
//!
//! [`Guardian::start`] executes the program again; a constructor takes over before `main`, so programs that link
//! this library need to do nothing. The guardian starts, reaps, signals and sweeps processes as it is asked over a
//! socket; when that closes, for whatever reason, it kills all it has and goes.
//!
//! | file | side | what |
//! |---|---|---|
//! | `handle.rs` | runner | [`Guardian`] |
//! | `orphans.rs` | runner | what is left when the guardian itself was killed |
//! | `spawn.rs`, `event.rs`, `protections.rs` | both | what is asked and told |
//! | `wire.rs`, `channel.rs` | both | frames as bytes; the socket |
//! | `tree.rs` | both | what `/proc` tells of processes |
//! | `role/` | guardian | the process itself |
//!
//! See `docs/design/process.md` for the protocol and its invariants.

mod channel;
mod event;
mod handle;
mod orphans;
mod protections;
mod role;
mod spawn;
mod tree;
mod wire;

use std::hash::{BuildHasher, Hasher, RandomState};

pub use event::{Event, Usage};
pub use handle::{Guardian, StartError};
pub use protections::Protections;
pub use spawn::{Fds, Spawn, SpawnError, Stage};

/// The variable that says what a program which was executed again is to be.
const ROLE: &str = "BGRP_ROLE";
/// Its value for the guardian.
const GUARDIAN: &str = "guardian";
/// The variable that tells the guardian its run and its runner.
const RUN: &str = "BGRP_RUN";
/// The mark of everything that a run starts.
const TOKEN: &str = "BGRP_TOKEN";

/// A name that no other run has.
fn new_run() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}
