//! Dead letters in a file: JSON Lines, appended, never half a line.
//!
//! ```text
//! {"time":"2026-11-30T20:42:00.123Z","key":"merchant_1001","attempts":5,"kind":"reported","reason":"503","payload":{...}}
//! ```

use std::{
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use super::{DeadLetterSink, Json, json};
use crate::{flow::exhausted::Exhausted, outcome::FailureKind};

/// When a dead letter counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// When the operating system has it: it outlives the process, and not a power cut.
    #[default]
    System,
    /// When the disk has it: each record is followed by an fsync, milliseconds on most disks, with the worker waiting.
    Disk,
}

type Of<V> = Box<dyn Fn(&V) -> Json + Send + Sync>;

/// Appends each dead letter to a file as one line of JSON.
///
/// A record that cannot be written in full is taken back: the file ends with its last whole line, and the task is held. One
/// sink writes to a file at a time.
///
/// ```no_run
/// use std::time::Duration;
/// use bgrp::{Durability, Engine, FileSink, Json, OnExhausted};
/// let sink = FileSink::open("dead.jsonl", |key: &String| Json::text(key), |task: &u64| Json::number(*task))?
///     .durability(Durability::Disk);
/// let engine = Engine::<String, u64>::builder()
///     .on_exhausted(OnExhausted::dead_letter_to(Duration::from_secs(1), sink))
///     .task_handler(|_, task| if **task == 0 { Err("nothing to do") } else { Ok(()) })
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileSink<K, T> {
    key: Of<K>,
    payload: Of<T>,
    durability: Durability,
    target: Mutex<Target>,
}

/// The file, and what is known of it.
#[derive(Debug)]
struct Target {
    file: File,
    /// Where the last whole record ends; `None` for pipes and the like, which have no end to go back to.
    end: Option<u64>,
    /// There may be part of a record behind it.
    torn: bool,
}

/// How a record of ours begins.
const START: &[u8] = b"{\"time\":\"";

impl<K, T> FileSink<K, T> {
    /// Opens (or makes) the file at `path`, to append to it. `key` and `payload` say what a record shows of key and task.
    ///
    /// A record that an earlier process did not finish (a power cut) is cut off at the end of the file.
    ///
    /// # Errors
    /// The operating system's answer; `InvalidData` where the file ends in half a line that is no record of a sink.
    pub fn open(
        path: impl AsRef<Path>,
        key: impl Fn(&K) -> Json + Send + Sync + 'static,
        payload: impl Fn(&T) -> Json + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let mut file = File::options().read(true).append(true).create(true).open(path)?;
        let end = if file.metadata()?.is_file() { Some(cut_torn_end(&mut file)?) } else { None };
        Ok(Self {
            key: Box::new(key),
            payload: Box::new(payload),
            durability: Durability::default(),
            target: Mutex::new(Target { file, end, torn: false }),
        })
    }

    /// When a record counts as written.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    fn line(&self, failed: &Exhausted<'_, K, T>) -> String {
        let kind = match failed.failure.kind() {
            FailureKind::Reported => "reported",
            FailureKind::Panicked => "panicked",
            FailureKind::StatePanicked => "state_panicked",
            FailureKind::WrongCount => "wrong_count",
            FailureKind::Abandoned => "abandoned",
            FailureKind::TimedOut => "timed_out",
        };
        format!(
            "{{\"time\":\"{}\",\"key\":{},\"attempts\":{},\"kind\":\"{kind}\",\"reason\":{},\"payload\":{}}}\n",
            json::time(SystemTime::now()),
            (self.key)(failed.key).as_str(),
            failed.attempts,
            Json::text(failed.failure.reason()).as_str(),
            (self.payload)(failed.task).as_str(),
        )
    }
}

impl Target {
    fn append(&mut self, line: &[u8], durability: Durability) -> io::Result<()> {
        self.mend()?;
        let mut written = self.file.write_all(line);
        if written.is_ok() && durability == Durability::Disk {
            written = self.file.sync_data();
        }
        match written {
            Ok(()) => self.end = self.end.map(|end| end + line.len() as u64),
            Err(_) => {
                self.torn = true;
                // Where it cannot be taken back now, the next record tries again before it writes.
                let _ = self.mend();
            }
        }
        written
    }

    /// Takes back what is behind the last whole record.
    fn mend(&mut self) -> io::Result<()> {
        if let Some(end) = self.end.filter(|_| self.torn) {
            self.file.set_len(end)?;
        }
        self.torn = false;
        Ok(())
    }
}

/// Returns where the last whole line ends, and cuts off what is behind it.
fn cut_torn_end(file: &mut File) -> io::Result<u64> {
    let len = file.seek(SeekFrom::End(0))?;
    let (mut end, mut tail) = (len, Vec::new());
    while end > 0 {
        let from = end.saturating_sub(4_096);
        let mut part = vec![0; (end - from) as usize];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            tail.splice(..0, part.drain(at + 1..));
            end = from + at as u64 + 1;
            break;
        }
        tail.splice(..0, part);
        end = from;
    }
    let shown = tail.len().min(START.len());
    if tail[..shown] != START[..shown] {
        let text = "the file does not end with a whole line, nor with part of a dead letter; is it the right one?";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    if end < len {
        file.set_len(end)?;
    }
    Ok(end)
}

impl<K, T> DeadLetterSink<K, T> for FileSink<K, T> {
    type Error = io::Error;

    fn put(&self, failed: Exhausted<'_, K, T>) -> io::Result<()> {
        let line = self.line(&failed);
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.append(line.as_bytes(), self.durability)
    }
}

impl<K, T> fmt::Debug for FileSink<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSink").field("target", &self.target).finish_non_exhaustive()
    }
}
