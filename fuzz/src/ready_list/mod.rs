//! The whole engine on one thread, with virtual workers and a virtual clock, against an oracle.
//!
//! An input is a set of settings and then operations: submit by key, by handle, many at once, by lane; let a worker
//! go on, or all of them; move the clock; arm a panic in user code; refuse, halt, close, drop. What a handler answers
//! for a task is written in the task itself, so it is part of the input too.
//!
//! Half of the inputs step workers that never sleep ([`Sim::step`]). In the other half workers sleep and must be
//! woken ([`Sim::live`]): a wake that is forgotten leaves work behind.
//!
//! The oracle ([`model`]) knows no schedule. It says what must hold in all of them: order per key and way in, each task
//! once, attempts in place, waits kept and not overdone, limits, counts; and at the end every value that was ever made
//! is dropped exactly once. In some inputs batches leave as
//! leases, and come back when an operation says so.
//!
//! [`Sim::step`]: bgrp::Sim::step
//! [`Sim::live`]: bgrp::Sim::live

mod drive;
mod ends;
mod leases;
mod model;
mod setup;
mod values;

use crate::{bytes::Bytes, witness};

/// Tasks of one input, at most.
const TASKS: u32 = 4_000;

/// Runs one input.
pub fn run(input: &[u8]) {
    witness::start();
    values::start();
    leases::start();
    let mut bytes = Bytes::new(input);
    let setup = setup::Setup::decode(&mut bytes);
    model::start(setup);
    let mut drive = drive::Drive::new(setup);
    while !bytes.is_empty() && !drive.is_closed() {
        drive.operation(&mut bytes);
        model::check();
    }
    drive.end();
    model::check();
    witness::all_gone();
}
