//! Arguments and values. In a body each is an array of two: its kind, and what that says.
//!
//! | kind | in JSON | in MessagePack | means |
//! |---|---|---|---|
//! | 0 | the JSON itself | the text of the JSON, a string | a JSON value |
//! | 1 | base64, a string | bin | bytes |
//! | 2 | a path, a string | a path, a string | a JSON value, the whole of that file |
//! | 3 | a path, a string | a path, a string | bytes, the whole of that file |
//!
//! Who gets a path removes the file once it has read it.

use std::{borrow::Cow, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, SeqAccess, Visitor},
    ser::SerializeTuple,
};
use serde_json::value::RawValue;

use crate::task::Value;

/// See the module text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    Json(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    JsonFile(Cow<'a, str>),
    BytesFile(Cow<'a, str>),
}

impl Payload<'_> {
    /// What it says, read from its file where it is in one, which is removed then.
    pub(crate) fn into_value(self) -> Result<Value, String> {
        let read = |path: &str| {
            let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            let _ = std::fs::remove_file(path);
            Ok::<_, String>(bytes)
        };
        let json = |text: String| {
            let raw = RawValue::from_string(text);
            raw.map(Value::Json).map_err(|error| format!("no JSON: {error}"))
        };
        match self {
            Self::Json(text) => json(text.into_owned()),
            Self::Bytes(bytes) => Ok(Value::Bytes(bytes.into_owned().into())),
            Self::JsonFile(path) => {
                let text = String::from_utf8(read(&path)?);
                json(text.map_err(|error| format!("{path}: {error}"))?)
            }
            Self::BytesFile(path) => Ok(Value::Bytes(read(&path)?.into())),
        }
    }
}

/// Bytes, as a format of bytes has them.
struct Bin<'a>(&'a [u8]);

impl Serialize for Bin<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl Serialize for Payload<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = serializer.is_human_readable();
        let mut two = serializer.serialize_tuple(2)?;
        match self {
            Self::Json(json) if text => {
                two.serialize_element(&0)?;
                let raw: &RawValue =
                    serde_json::from_str(json).map_err(serde::ser::Error::custom)?;
                two.serialize_element(raw)?;
            }
            Self::Json(json) => {
                two.serialize_element(&0)?;
                two.serialize_element(&**json)?;
            }
            Self::Bytes(bytes) if text => {
                two.serialize_element(&1)?;
                two.serialize_element(&STANDARD.encode(bytes))?;
            }
            Self::Bytes(bytes) => {
                two.serialize_element(&1)?;
                two.serialize_element(&Bin(bytes))?;
            }
            Self::JsonFile(path) => {
                two.serialize_element(&2)?;
                two.serialize_element(&**path)?;
            }
            Self::BytesFile(path) => {
                two.serialize_element(&3)?;
                two.serialize_element(&**path)?;
            }
        }
        two.end()
    }
}

struct Seq {
    text: bool,
}

impl<'de> Visitor<'de> for Seq {
    type Value = Payload<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a kind from 0 to 3 and what it says")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let missing = || A::Error::custom("a value of one element; [kind, value] is wanted");
        let kind: u8 = seq.next_element()?.ok_or_else(missing)?;
        match kind {
            0 if self.text => {
                let raw: &RawValue = seq.next_element()?.ok_or_else(missing)?;
                Ok(Payload::Json(Cow::Borrowed(raw.get())))
            }
            1 if self.text => {
                let Text(text) = seq.next_element()?.ok_or_else(missing)?;
                let bytes = STANDARD.decode(&*text).map_err(A::Error::custom)?;
                Ok(Payload::Bytes(Cow::Owned(bytes)))
            }
            1 => {
                let bytes: &[u8] = seq.next_element()?.ok_or_else(missing)?;
                Ok(Payload::Bytes(Cow::Borrowed(bytes)))
            }
            0 | 2 | 3 => {
                let Text(text) = seq.next_element()?.ok_or_else(missing)?;
                Ok(match kind {
                    0 => Payload::Json(text),
                    2 => Payload::JsonFile(text),
                    _ => Payload::BytesFile(text),
                })
            }
            other => {
                Err(A::Error::custom(format_args!("{other} is no kind of a value; 0 to 3 are")))
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Payload<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.is_human_readable();
        deserializer.deserialize_tuple(2, Seq { text })
    }
}

/// Text that is borrowed where it stands as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

struct Str;

impl<'de> Visitor<'de> for Str {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Str)
    }
}
