//! The dead letter: one JSON object a line for each record that is not done, with all of its bytes.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::input::fault::Fault;
use crate::input::source::{Source, identity};
use crate::key::Key;
use crate::record::Record;

/// The dead letter file.
#[derive(Debug)]
pub struct DeadLetter {
    /// The file and where its last whole line ends.
    file: Mutex<(File, u64)>,
    identity: (u64, u64),
    seekable: bool,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Its last attempt failed.
    Failed,
    /// It could not be read.
    InputError,
    /// It was not finished.
    Left,
}

#[derive(Serialize)]
struct Letter<'a> {
    outcome: Fate,
    seq: u64,
    input: &'a str,
    line: u64,
    key: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record_base64: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    attempts: u32,
    reason: &'a str,
    exit: Option<i32>,
    signal: Option<i32>,
}

/// A key as JSON: a text, a JSON value as it was, base64 in an object if it is no text, or null.
#[must_use]
pub fn key_json(key: &Key) -> Option<Box<RawValue>> {
    match key {
        Key::Own(_) | Key::InTurn | Key::Shared => None,
        Key::Json(raw) => RawValue::from_string(raw.to_string()).ok(),
        Key::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => serde_json::value::to_raw_value(text).ok(),
            Err(_) => serde_json::value::to_raw_value(
                &serde_json::json!({ "base64": BASE64_STANDARD.encode(bytes) }),
            )
            .ok(),
        },
    }
}

impl DeadLetter {
    /// Opens `path` to add to it.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::options().create(true).append(true).open(path)?;
        let meta = file.metadata()?;
        let seekable = meta.is_file();
        let end = if seekable { file.seek(SeekFrom::End(0))? } else { 0 };
        Ok(Self { file: Mutex::new((file, end)), identity: identity(&meta), seekable })
    }

    /// Device and file number.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Adds a record that was read.
    ///
    /// # Errors
    /// The line could not be written; the file ends with its last whole line.
    pub fn record(&self, fate: Fate, key: &Key, record: &Record, reason: &str) -> io::Result<()> {
        let failure = record.failure.as_ref();
        self.write(
            &record.raw,
            Letter {
                outcome: fate,
                seq: record.seq,
                input: &record.source.name,
                line: record.line,
                key: key_json(key).map(Cow::Owned),
                record: None,
                record_base64: None,
                cut: false,
                attempts: record.attempts,
                reason,
                exit: failure.and_then(|failure| failure.exit),
                signal: failure.and_then(|failure| failure.signal),
            },
        )
    }

    /// Adds a record that could not be read.
    ///
    /// # Errors
    /// As [`DeadLetter::record`].
    pub fn fault(&self, seq: u64, source: &Source, fault: &Fault) -> io::Result<()> {
        self.write(
            &fault.raw,
            Letter {
                outcome: Fate::InputError,
                seq,
                input: &source.name,
                line: fault.line,
                key: None,
                record: None,
                record_base64: None,
                cut: fault.cut,
                attempts: 0,
                reason: &fault.kind.to_string(),
                exit: None,
                signal: None,
            },
        )
    }

    fn write<'a>(&self, raw: &'a [u8], mut letter: Letter<'a>) -> io::Result<()> {
        match std::str::from_utf8(raw) {
            Ok(text) => letter.record = Some(text),
            Err(_) => letter.record_base64 = Some(BASE64_STANDARD.encode(raw)),
        }
        let mut line = serde_json::to_vec(&letter)?;
        line.push(b'\n');
        let mut held = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, end) = &mut *held;
        if let Err(error) = file.write_all(&line) {
            if self.seekable {
                // Half a line would spoil the next one; if this fails too, the first error says enough.
                let _ = file.set_len(*end);
            }
            return Err(error);
        }
        *end += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_type_and_their_bytes() {
        let json = |key: Key| key_json(&key).map(|raw| raw.get().to_owned());
        assert_eq!(json(Key::Own(3)), None);
        assert_eq!(json(Key::Shared), None);
        let number = Key::Json("50000000014435121".into());
        assert_eq!(json(number).unwrap(), "50000000014435121");
        assert_eq!(json(Key::Text(b"007"[..].into())).unwrap(), "\"007\"");
        assert_eq!(json(Key::Text(b"caf\xe9"[..].into())).unwrap(), r#"{"base64":"Y2Fm6Q=="}"#);
    }
}
