//! Args and results: what they are made of on the wire.

use std::borrow::Cow;

/// An argument or a result, to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// JSON text, valid by the caller's word. In [`Encoding::Msgpack`](super::Encoding::Msgpack) it is transcoded where
    /// that changes no number, else it travels as text.
    Json(&'a str),
    /// Opaque bytes.
    Bytes(&'a [u8]),
    /// Path of a file with JSON text, which the receiver deletes.
    JsonFile(&'a str),
    /// Path of a file with opaque bytes, which the receiver deletes.
    BytesFile(&'a str),
}

/// As read: borrowed from the frame where its form allows that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadValue<'a> {
    /// Valid JSON text.
    Json(Cow<'a, str>),
    /// Opaque bytes.
    Bytes(Cow<'a, [u8]>),
    /// Path of a file with JSON text (not looked at): delete it after reading.
    JsonFile(Cow<'a, str>),
    /// Path of a file with opaque bytes: delete it after reading.
    BytesFile(Cow<'a, str>),
}

impl ReadValue<'_> {
    /// To be written again.
    pub fn as_value(&self) -> Value<'_> {
        match self {
            ReadValue::Json(text) => Value::Json(text),
            ReadValue::Bytes(bytes) => Value::Bytes(bytes),
            ReadValue::JsonFile(path) => Value::JsonFile(path),
            ReadValue::BytesFile(path) => Value::BytesFile(path),
        }
    }
}

/// Tags in front of a value.
pub(crate) mod tag {
    /// A value of the encoding itself.
    pub(crate) const VALUE: u64 = 0;
    /// Bytes: MessagePack bin; base64 in JSON.
    pub(crate) const BYTES: u64 = 1;
    /// Path of a file with JSON text.
    pub(crate) const JSON_FILE: u64 = 2;
    /// Path of a file with bytes.
    pub(crate) const BYTES_FILE: u64 = 3;
    /// JSON text in a string.
    pub(crate) const TEXT: u64 = 4;
}
