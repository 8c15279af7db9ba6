//! Frames between the runner and a worker: bytes to messages and back, without I/O. The page `docs/reference/frames.md`
//! says what they mean.
//!
//! * [`Decoder`] cuts a stream into [`Frame`]s; [`write`] appends frames to a buffer; [`read`] takes bodies apart.
//! * A body is read in one of two forms ([`json`], [`pack`]) through one [`Source`], so each message is told once.
//!
//! Invariants, each with a test: (I1) how the bytes come in pieces changes nothing; (I2) a decoder holds no more than a
//! frame of the largest size and what it was fed; (I3) what is read is what was written; (I4) no bytes make it panic.

mod error;
mod json;
mod pack;
pub mod read;
mod source;
mod split;
#[cfg(test)]
mod tests;
mod transcode;
mod value;
pub mod write;

pub use self::error::FrameError;
pub use self::split::{Decoder, Frame};
pub use self::value::{ReadValue, Value};
use serde::{Deserialize, Serialize};

/// Most bytes of a body.
pub const MAX_BODY: usize = 16 << 20;
/// Bytes in front of a body: length, type, flags, zero.
pub const HEADER: usize = 8;
/// How deep arrays and objects may nest in a value.
pub const MAX_DEPTH: usize = 100;
/// The version of the protocol.
pub const VERSION: u32 = 1;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Hello = 1,
    Init = 2,
    Ready = 3,
    Tasks = 4,
    Results = 5,
    Started = 6,
    Log = 7,
    Progress = 8,
    Heartbeat = 9,
    Cancel = 10,
    Recall = 11,
    Drain = 12,
    Bye = 13,
}

impl Kind {
    /// All of them, by number.
    pub const ALL: [Kind; 13] = [
        Kind::Hello,
        Kind::Init,
        Kind::Ready,
        Kind::Tasks,
        Kind::Results,
        Kind::Started,
        Kind::Log,
        Kind::Progress,
        Kind::Heartbeat,
        Kind::Cancel,
        Kind::Recall,
        Kind::Drain,
        Kind::Bye,
    ];

    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }

    /// As the page calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Hello => "HELLO",
            Kind::Init => "INIT",
            Kind::Ready => "READY",
            Kind::Tasks => "TASKS",
            Kind::Results => "RESULTS",
            Kind::Started => "STARTED",
            Kind::Log => "LOG",
            Kind::Progress => "PROGRESS",
            Kind::Heartbeat => "HB",
            Kind::Cancel => "CANCEL",
            Kind::Recall => "RECALL",
            Kind::Drain => "DRAIN",
            Kind::Bye => "BYE",
        }
    }
}

/// How bodies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// All is JSON.
    Json,
    /// All is MessagePack.
    Msgpack,
    /// MessagePack, with args and results as JSON text inside: nothing is transcoded. What Rust workers ask for.
    Mixed,
}

/// What a worker says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Versions of the protocol that it can.
    pub versions: Vec<u32>,
    /// Names of encodings, the one it likes best first. Names that the runner does not know are passed over.
    pub encodings: Vec<String>,
    /// Name and version of what serves the worker.
    #[serde(default)]
    pub sdk: String,
    /// Its process.
    #[serde(default)]
    pub pid: u32,
}

impl Hello {
    /// The first encoding of the worker's list that there is.
    pub fn encoding(&self) -> Option<Encoding> {
        self.encodings.iter().find_map(|name| match name.as_str() {
            "json" => Some(Encoding::Json),
            "msgpack" => Some(Encoding::Msgpack),
            "mixed" => Some(Encoding::Mixed),
            _ => None,
        })
    }
}

/// What the runner answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Init {
    /// The version that both use from here.
    pub version: u32,
    /// The encoding of all frames from here.
    pub encoding: Encoding,
    /// The run; the idempotency key of a task is `run/id`.
    pub run: String,
    /// Number of the worker in the run.
    pub worker: u32,
    /// A heartbeat at least this often, in milliseconds; 0 for none.
    #[serde(default)]
    pub heartbeat_ms: u64,
    /// No result waits longer than this in a buffer, in milliseconds.
    #[serde(default = "flush_default")]
    pub flush_ms: u64,
    /// Where files for values are made; the worker's temporary directory if empty.
    #[serde(default)]
    pub dir: String,
    /// Values of more bytes than this travel by file.
    #[serde(default = "file_above_default")]
    pub file_above: usize,
}

fn flush_default() -> u64 {
    5
}

/// What `file_above` is where INIT does not say.
pub(crate) fn file_above_default() -> usize {
    1 << 20
}

/// What a worker knows and can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Names of its tasks; `None` for any.
    pub tasks: Option<Vec<String>>,
    /// It keeps the cell.
    pub cell: bool,
    /// It takes more than one task a frame.
    pub batch: bool,
    /// It answers RECALL.
    pub recall: bool,
}

/// A task, to be written or as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Task<T, V> {
    /// Unique in the run, and rising.
    pub number: u64,
    /// The caller's.
    pub id: T,
    /// Which function of the worker; may be empty where it has one.
    pub name: T,
    /// From 1.
    pub attempt: u32,
    /// Its time for this attempt in milliseconds; 0 for no limit.
    pub timeout_ms: u64,
    /// What it is about.
    pub args: V,
}

/// What the worker thinks of another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryHint {
    /// As the policy says.
    Default,
    /// It would fail again.
    Never,
    /// Not before so many milliseconds.
    After(u64),
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Status<T, V> {
    /// With a value.
    Ok(V),
    /// With an error.
    Error {
        /// Kind of the error, to choose a policy by: a type's name.
        class: T,
        /// For a person.
        message: T,
        /// Where it happened; may be empty.
        traceback: T,
        /// Whether to try again.
        retry: RetryHint,
    },
    /// It was not begun: stopped by an earlier one of its group, or recalled.
    NotRun,
}

/// How serious a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Level {
    Trace = 0,
    Debug = 1,
    Info = 2,
    Warn = 3,
    Error = 4,
}

/// True when a run of a fuzz target asked (environment variable `BGRP_MUTANT`) for the planted bug `name`.
#[cfg(not(fuzzing))]
#[inline(always)]
pub(crate) const fn mutant(_name: &str) -> bool {
    false
}
#[cfg(fuzzing)]
pub(crate) fn mutant(name: &str) -> bool {
    use std::sync::OnceLock;
    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    WANTED.get_or_init(|| std::env::var("BGRP_MUTANT").ok()).as_deref() == Some(name)
}
