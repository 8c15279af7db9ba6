//! The bodies. Positional arrays, but for HELLO, INIT and READY, which are JSON objects whatever was agreed on: new names can
//! come into them, and unknown ones are passed over.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, IgnoredAny, SeqAccess, Visitor},
    ser::SerializeTuple,
};

use super::{Encoding, FrameError, Payload, Type, header::begin, header::end, payload::Text};

/// A worker says who it is.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Hello {
    pub(crate) versions: Vec<u32>,
    pub(crate) encodings: Vec<String>,
    #[serde(default)]
    pub(crate) sdk: String,
}

/// The runner answers.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Init {
    pub(crate) version: u32,
    pub(crate) encoding: String,
    pub(crate) run: String,
    pub(crate) worker: u32,
    pub(crate) heartbeat_ms: u64,
    pub(crate) flush_ms: u64,
}

/// A worker takes tasks from now on.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Ready {
    /// The tasks that it knows; empty: any.
    #[serde(default)]
    pub(crate) tasks: Vec<String>,
    /// It keeps the cell.
    #[serde(default)]
    pub(crate) cell: bool,
    /// It takes more than one task at a time.
    #[serde(default)]
    pub(crate) batch: bool,
}

/// TASKS.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Tasks<'a>(#[serde(borrow)] pub(crate) Vec<Group<'a>>);

/// Tasks of one key: the key, whether a failure stops those behind it, the tasks in order.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Group<'a>(
    #[serde(borrow)] pub(crate) Option<Text<'a>>,
    pub(crate) bool,
    pub(crate) Vec<Parcel<'a>>,
);

/// A task: number, id, name, attempt, milliseconds that it may run (0: as it likes), arguments.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Parcel<'a>(
    pub(crate) u64,
    #[serde(borrow)] pub(crate) Text<'a>,
    pub(crate) Option<Text<'a>>,
    pub(crate) u32,
    pub(crate) u64,
    pub(crate) Payload<'a>,
);

/// RESULTS.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Results<'a>(#[serde(borrow)] pub(crate) Vec<Reply<'a>>);

/// What became of a task: its number, 0 and a value, 1 and an error, or 2 and null.
#[derive(Debug, PartialEq)]
pub(crate) struct Reply<'a> {
    pub(crate) number: u64,
    pub(crate) body: ReplyBody<'a>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum ReplyBody<'a> {
    Ok(Payload<'a>),
    Error(Failed<'a>),
    NotRun,
}

/// An error: its class, in words, where, and what the worker says of another attempt.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Failed<'a>(
    #[serde(borrow)] pub(crate) Text<'a>,
    pub(crate) Text<'a>,
    pub(crate) Text<'a>,
    pub(crate) Retry,
);

/// -1: as the policy says; -2: never; else after so many milliseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Retry(pub(crate) i64);

impl Retry {
    pub(crate) const POLICY: Self = Self(-1);
    pub(crate) const NEVER: Self = Self(-2);
}

impl Default for Retry {
    fn default() -> Self {
        Self::POLICY
    }
}

/// LOG: level, text, the number of the task or 0.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Logged<'a>(
    #[serde(borrow)] pub(crate) Text<'a>,
    pub(crate) Text<'a>,
    pub(crate) u64,
);

impl Serialize for Reply<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut three = serializer.serialize_tuple(3)?;
        three.serialize_element(&self.number)?;
        match &self.body {
            ReplyBody::Ok(value) => {
                three.serialize_element(&0)?;
                three.serialize_element(value)?;
            }
            ReplyBody::Error(failed) => {
                three.serialize_element(&1)?;
                three.serialize_element(failed)?;
            }
            ReplyBody::NotRun => {
                three.serialize_element(&2)?;
                three.serialize_element(&())?;
            }
        }
        three.end()
    }
}

struct Three;

impl<'de> Visitor<'de> for Three {
    type Value = Reply<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("number, status from 0 to 2, and what it says")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let missing =
            || A::Error::custom("a result that is cut short; [number, status, value] is wanted");
        let number = seq.next_element()?.ok_or_else(missing)?;
        let status: u8 = seq.next_element()?.ok_or_else(missing)?;
        let body = match status {
            0 => ReplyBody::Ok(seq.next_element()?.ok_or_else(missing)?),
            1 => ReplyBody::Error(seq.next_element()?.ok_or_else(missing)?),
            2 => {
                let _: Option<IgnoredAny> = seq.next_element()?;
                ReplyBody::NotRun
            }
            other => {
                return Err(A::Error::custom(format_args!("{other} is no status; 0 to 2 are")));
            }
        };
        Ok(Reply { number, body })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Reply<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(3, Three)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

/// Writes a frame to the end of `out`. `false`: its body would be too long, and nothing was written.
pub(crate) fn write<T: Serialize>(
    out: &mut Vec<u8>,
    kind: Type,
    encoding: Encoding,
    body: &T,
) -> bool {
    let at = begin(out, kind);
    let wrote = match encoding {
        Encoding::Json => serde_json::to_writer(&mut *out, body).is_ok(),
        Encoding::MessagePack => rmp_serde::encode::write(&mut *out, body).is_ok(),
    };
    if !wrote {
        out.truncate(at);
        return false;
    }
    end(out, at)
}

/// Reads the body of a frame that began at byte `at` of its stream.
pub(crate) fn read<'a, T: Deserialize<'a>>(
    kind: Type,
    encoding: Encoding,
    at: u64,
    body: &'a [u8],
) -> Result<T, FrameError> {
    let bad = |why: String| FrameError::Body { at, kind, why };
    match encoding {
        Encoding::Json => serde_json::from_slice(body).map_err(|error| bad(error.to_string())),
        Encoding::MessagePack => from_message_pack(body).map_err(bad),
    }
}

/// A value from MessagePack, and nothing behind it: bytes that go on are another thing than they were taken for.
pub(crate) fn from_message_pack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    let value = T::deserialize(&mut reader).map_err(|error| error.to_string())?;
    match IgnoredAny::deserialize(&mut reader) {
        Err(rmp_serde::decode::Error::InvalidMarkerRead(end))
            if end.kind() == std::io::ErrorKind::UnexpectedEof =>
        {
            Ok(value)
        }
        _ => Err("bytes behind its end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: [Encoding; 2] = [Encoding::Json, Encoding::MessagePack];

    fn text(text: &str) -> Text<'_> {
        Text::from(text)
    }

    fn payload() -> impl Strategy<Value = Payload<'static>> {
        let json = prop_oneof![
            Just("null".to_owned()),
            Just("12345678901234567890123456789.5".to_owned()),
            "[a-z\u{e4}\u{1F600}\"\\\\]{0,9}"
                .prop_map(|text| serde_json::to_string(&[text]).expect("text")),
        ];
        prop_oneof![
            json.prop_map(|json| Payload::Json(json.into())),
            any::<Vec<u8>>().prop_map(|bytes| Payload::Bytes(bytes.into())),
            "/[a-z ]{1,9}".prop_map(|path| Payload::JsonFile(path.into())),
            "/[a-z ]{1,9}".prop_map(|path| Payload::BytesFile(path.into())),
        ]
    }

    fn round(results: &Results<'_>, encoding: Encoding) {
        let mut out = Vec::new();
        assert!(write(&mut out, Type::Results, encoding, results));
        let body = &out[8..];
        let again: Results<'_> = read(Type::Results, encoding, 0, body).expect("as written");
        assert_eq!(again.0, results.0);
        // Cut short it is an error, never another value.
        for cut in 0..body.len() {
            assert!(read::<Results<'_>>(Type::Results, encoding, 0, &body[..cut]).is_err());
        }
    }

    proptest! {
        #[test]
        fn results_come_back_as_they_were(values in proptest::collection::vec((any::<u64>(), 0..3u8, payload(), any::<String>(), any::<i64>()), 0..4)) {
            let body = |(number, status, payload, words, retry): &(u64, u8, Payload<'static>, String, i64)| Reply {
                number: *number,
                body: match status {
                    0 => ReplyBody::Ok(payload.clone()),
                    1 => ReplyBody::Error(Failed(Text("E".into()), Text(words.clone().into()), Text::default(), Retry(*retry))),
                    _ => ReplyBody::NotRun,
                },
            };
            for encoding in BOTH {
                round(&Results(values.iter().map(body).collect()), encoding);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in any::<Vec<u8>>()) {
            for encoding in BOTH {
                let _ = read::<Results<'_>>(Type::Results, encoding, 0, &bytes);
                let _ = read::<Tasks<'_>>(Type::Tasks, encoding, 0, &bytes);
            }
        }
    }

    #[test]
    fn tasks_look_as_the_page_says() {
        let parcel =
            |number| Parcel(number, text("n-1"), None, 2, 0, Payload::Json("[1, 2]".into()));
        let tasks =
            Tasks(vec![Group(Some(text("a")), true, vec![parcel(7)]), Group(None, false, vec![])]);
        let mut out = Vec::new();
        assert!(write(&mut out, Type::Tasks, Encoding::Json, &tasks));
        let want = r#"[["a",true,[[7,"n-1",null,2,0,[0,[1, 2]]]]],[null,false,[]]]"#;
        assert_eq!(String::from_utf8_lossy(&out[8..]), want);
        let read: Tasks<'_> = read(Type::Tasks, Encoding::Json, 0, &out[8..]).expect("as written");
        assert_eq!(read.0[0].2[0].5, Payload::Json("[1, 2]".into()));
    }

    #[test]
    fn bytes_behind_the_end_are_an_error() {
        for encoding in BOTH {
            let mut out = Vec::new();
            assert!(write(&mut out, Type::Results, encoding, &Results(vec![])));
            for more in [&b"\xc0"[..], b"0", b"[]", &[0xC1]] {
                let body = [&out[8..], more].concat();
                let read = read::<Results<'_>>(Type::Results, encoding, 0, &body);
                assert!(read.is_err(), "{encoding:?} {more:?}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |body: &[u8]| {
            let read = read::<Results<'_>>(Type::Results, Encoding::Json, 40, body);
            read.expect_err("wrong").to_string()
        };
        assert!(
            said(b"[[1,3,null]]").contains("byte 40: the body of a Results frame: 3 is no status")
        );
        assert!(said(b"[[1,0,[9,1]]]").contains("9 is no kind"));
        assert!(said(b"[[1,0]]").contains("cut short"));
        assert!(said(b"[[1,0,[1,\"*\"]]]").contains("Invalid"));
        assert!(said(&[b'['; 3_000]).contains("Results frame"));
        assert!(said(b"\xff").contains("Results frame"));
    }
}
