//! One record on its way through the run: the task of the engine.

use std::sync::Arc;

use crate::budget::Charge;
use crate::input::source::Source;
use crate::template::render::{Filling, Values};

/// A record, with everything that its command needs.
#[derive(Debug)]
pub struct Record {
    /// Number in the run, from 1.
    pub seq: u64,
    /// Line in its input, from 1.
    pub line: u64,
    /// Number in its input, from 1.
    pub ordinal: u64,
    /// Its input.
    pub source: Arc<Source>,
    /// Its bytes.
    pub raw: Box<[u8]>,
    /// The fields that the command uses.
    pub values: Values,
    /// Attempts begun.
    pub attempts: u32,
    /// How the last attempt ended, if it failed.
    pub failure: Option<Failure>,
    /// Its share of the memory bound.
    pub charge: Option<Charge>,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In words.
    pub reason: String,
    /// The exit status, if the command exited.
    pub exit: Option<i32>,
    /// The signal, if one ended the command.
    pub signal: Option<i32>,
}

impl Record {
    /// What the placeholders stand for in the next attempt of this record.
    #[must_use]
    pub fn filling<'a>(&'a self, key: &'a [u8]) -> Filling<'a> {
        Filling {
            whole: &self.raw,
            values: &self.values,
            key,
            seq: self.seq,
            attempt: self.attempts + 1,
        }
    }
}
