//! The group that a record belongs to.
//!
//! Keys are bytes and compared byte by byte. A JSON number and a JSON string with the same digits are
//! different keys, and so are `1` and `1.0`; `--unify-keys` compares the text alone.
//!
//! | value | key |
//! |---|---|
//! | `0`, `" "`, the text `null` in CSV, `false` | yes |
//! | empty text, JSON `null`, member missing | no: `--empty-key` decides |

use std::fmt;

use bstr::ByteSlice;

use crate::input::bind::Field;
use crate::input::fault::FaultKind;
use crate::input::json::{self, Value};
use crate::input::reader::Row;
use crate::template::Segment;
use crate::template::render::{self, Filling, Values};

/// The key of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The group of this record alone.
    Own(u64),
    /// Every record its own group, but one after another in the order of the input: no key, one job.
    InTurn,
    /// The group that all records without a key share.
    Shared,
    /// A text.
    Text(Box<[u8]>),
    /// A JSON value that is no string, as written.
    Json(Box<str>),
}

impl Key {
    /// The bytes for `{key}` and `BGRP_KEY`; empty for groups without a key.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(_) | Self::InTurn | Self::Shared => b"",
            Self::Text(text) => text,
            Self::Json(raw) => raw.as_bytes(),
        }
    }

    /// Bytes of memory behind the key.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.bytes().len()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(seq) => write!(f, "record {seq} alone"),
            Self::InTurn | Self::Shared => f.write_str("no key"),
            Self::Text(text) => f.write_str(&text.to_str_lossy()),
            Self::Json(raw) => f.write_str(raw),
        }
    }
}

/// What becomes of a record without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EmptyKey {
    /// An input error
    Error,
    /// A group of its own
    Own,
    /// One group for all of them
    Shared,
    /// It is counted as skipped and not run
    Skip,
}

/// Where the key of a record comes from, for one input.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// Nowhere: every record is its own group.
    None,
    /// A field.
    Field(Field),
    /// A template with these fields.
    Template(Vec<Segment>, Vec<Field>),
}

/// The rules for keys of a run.
#[derive(Clone, Copy, Debug)]
pub struct KeyRules {
    /// What becomes of records without a key.
    pub empty: EmptyKey,
    /// Whether JSON values of different types with the same text are one key.
    pub unify: bool,
    /// Whether there is one job, so that records without any key can keep the order of the input.
    pub one_job: bool,
}

impl KeyRules {
    /// The key of `row`, or `None` if the record is to be skipped.
    ///
    /// # Errors
    /// No key, where that is an error; a field that is no text.
    pub fn key(&self, source: &KeySource, row: &Row, seq: u64) -> Result<Option<Key>, FaultKind> {
        let text = |bytes: &[u8]| Key::Text(bytes.into());
        let missing = match source {
            KeySource::None if self.one_job => return Ok(Some(Key::InTurn)),
            KeySource::None => return Ok(Some(Key::Own(seq))),
            KeySource::Field(Field::Place(place)) => match json::find(&row.raw, place)? {
                Value::Missing => "is missing",
                Value::Null => "is null",
                Value::Text(found) if found.is_empty() => "is empty",
                Value::Text(found) => return Ok(Some(text(found.as_bytes()))),
                Value::Raw(raw) if self.unify => return Ok(Some(text(raw.as_bytes()))),
                Value::Raw(raw) => return Ok(Some(Key::Json(raw.into()))),
            },
            KeySource::Field(field) => match field.of(row)? {
                found if found.is_empty() => "is empty",
                found => return Ok(Some(text(&found))),
            },
            KeySource::Template(segments, fields) => {
                let values =
                    fields.iter().map(|field| field.of(row)).collect::<Result<Vec<_>, _>>()?;
                let values = Values::new(&values);
                let filling =
                    Filling { whole: &row.raw, values: &values, key: b"", seq, attempt: 1 };
                match render::argument(segments, &filling) {
                    found if found.is_empty() => "is empty",
                    found => return Ok(Some(text(&found))),
                }
            }
        };
        match self.empty {
            EmptyKey::Error => Err(FaultKind::EmptyKey(missing)),
            EmptyKey::Own => Ok(Some(Key::Own(seq))),
            EmptyKey::Shared => Ok(Some(Key::Shared)),
            EmptyKey::Skip => Ok(None),
        }
    }
}
