//! What a command gets besides its arguments: environment, identity, standard input.
//!
//! | variable | value |
//! |---|---|
//! | `BGRP_KEY` | the key; empty without one; not set if it holds a NUL byte, which no variable can |
//! | `BGRP_SEQ` | the number of the record, of the first one of a batch |
//! | `BGRP_ATTEMPT` | the number of the attempt, from 1 |
//! | `BGRP_IDEMPOTENCY_KEY` | see [`identity`] |

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::key::Key;
use crate::record::Record;

/// What a command for `records` gets in its environment, but for the identity.
pub fn environment<'a>(
    key: &Key,
    mut records: impl Iterator<Item = &'a Record>,
) -> Vec<(&'static str, OsString)> {
    let mut env = Vec::with_capacity(4);
    if !key.bytes().contains(&0) {
        env.push(("BGRP_KEY", OsStr::from_bytes(key.bytes()).to_owned()));
    }
    if let Some(record) = records.next() {
        env.push(("BGRP_SEQ", record.seq.to_string().into()));
        env.push(("BGRP_ATTEMPT", (record.attempts + 1).to_string().into()));
    }
    env
}

/// A name for this piece of work that is the same in every attempt and in every run over the same input,
/// and that no other piece of work has: a hash of the command, the input's name, the place in it, the key
/// and the bytes.
pub fn identity<'a>(
    command: &[u8],
    key: &Key,
    records: impl Iterator<Item = &'a Record>,
) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    part(command);
    for record in records {
        part(record.source.name.as_bytes());
        part(&record.ordinal.to_le_bytes());
        part(key.bytes());
        part(&record.raw);
    }
    hasher.finalize().to_hex().as_str()[..32].to_owned()
}

/// One record as it is; several with the terminator of their input behind each.
pub fn standard_input<'a>(batched: bool, records: impl Iterator<Item = &'a Record>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        bytes.extend_from_slice(&record.raw);
        if batched {
            bytes.push(record.source.format.terminator());
        }
    }
    bytes
}
