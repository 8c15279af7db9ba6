//! Finds a value in a JSON record and leaves it as it stands: a number keeps its digits.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::fault::FaultKind;

/// What stands at a place of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Nothing.
    Missing,
    /// The literal `null`.
    Null,
    /// A string, without quotes and escapes.
    Text(Cow<'a, str>),
    /// A number, a truth value, an array or an object, as written.
    Raw(&'a str),
}

/// A place in a record: a member name, or the names along a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    steps: Vec<String>,
    shown: String,
}

impl Place {
    /// The place written `name`: with a leading slash a JSON pointer (RFC 6901), else a member.
    /// `None` if it is no UTF-8, or the pointer has a bad escape.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let shown = std::str::from_utf8(name).ok()?.to_owned();
        let steps = match shown.strip_prefix('/') {
            None => vec![shown.clone()],
            Some(rest) => rest.split('/').map(unescape).collect::<Option<_>>()?,
        };
        Some(Self { steps, shown })
    }
}

fn unescape(step: &str) -> Option<String> {
    let mut out = String::with_capacity(step.len());
    let mut chars = step.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.shown.starts_with('/') { "value at" } else { "member" };
        write!(f, "{kind} {:?}", self.shown)
    }
}

/// Checks that `line` is one JSON value.
///
/// # Errors
/// [`FaultKind::Torn`] if it ends too early and `last` says that it is the last line without an end of
/// line, else [`FaultKind::Json`].
pub fn check(line: &[u8], last: bool) -> Result<(), FaultKind> {
    match serde_json::from_slice::<&RawValue>(line) {
        Ok(_) => Ok(()),
        Err(error) if last && error.is_eof() => Err(FaultKind::Torn(cause(&error))),
        Err(error) => Err(FaultKind::Json(cause(&error))),
    }
}

/// The decoder's message without its line number, which is always 1 here.
fn cause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    format!("{text}, column {}", error.column())
}

/// What stands at `place` in `record`, which [`check`] has passed.
///
/// # Errors
/// A name on the way that stands twice, or a string that is no text.
pub fn find<'a>(record: &'a [u8], place: &Place) -> Result<Value<'a>, FaultKind> {
    let bad = |cause: String| FaultKind::BadText { name: place.to_string(), cause };
    let mut raw: &RawValue =
        serde_json::from_slice(record).map_err(|error| FaultKind::Json(cause(&error)))?;
    for step in &place.steps {
        let next = match raw.get().as_bytes().first() {
            Some(b'{') => {
                let members: Members<'_> =
                    serde_json::from_str(raw.get()).map_err(|error| bad(cause(&error)))?;
                let mut hits = members.0.into_iter().filter(|(name, _)| name.0 == *step);
                let hit = hits.next();
                if hits.next().is_some() {
                    return Err(FaultKind::TwiceMember(step.clone()));
                }
                hit.map(|(_, value)| value)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> =
                    serde_json::from_str(raw.get()).map_err(|error| bad(cause(&error)))?;
                index(step).and_then(|index| items.get(index).copied())
            }
            _ => None,
        };
        match next {
            Some(value) => raw = value,
            None => return Ok(Value::Missing),
        }
    }
    Ok(match raw.get().as_bytes().first() {
        Some(b'"') => {
            let text: Name<'_> =
                serde_json::from_str(raw.get()).map_err(|error| bad(cause(&error)))?;
            Value::Text(text.0)
        }
        Some(b'n') => Value::Null,
        _ => Value::Raw(raw.get()),
    })
}

/// An array index as RFC 6901 has it: digits without a leading zero.
fn index(step: &str) -> Option<usize> {
    let plain = step == "0" || (!step.starts_with('0') && step.bytes().all(|b| b.is_ascii_digit()));
    if plain { step.parse().ok() } else { None }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of an object in their order, also those that stand twice.
struct Members<'a>(Vec<(Name<'a>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(record: &'a str, name: &str) -> Value<'a> {
        check(record.as_bytes(), false).unwrap();
        find(record.as_bytes(), &Place::parse(name.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn values_stay_as_written() {
        let record = r#" {"id":50000000014435121,"f":1.50e+3,"s":"a\u00e9\"","n":null,"a":[{"x":[]}],"/p":1,"":2} "#;
        assert_eq!(at(record, "id"), Value::Raw("50000000014435121"));
        assert_eq!(at(record, "f"), Value::Raw("1.50e+3"));
        assert_eq!(at(record, "s"), Value::Text("aé\"".into()));
        assert_eq!(at(record, "n"), Value::Null);
        assert_eq!(at(record, "/a/0"), Value::Raw(r#"{"x":[]}"#));
        assert_eq!(at(record, "/a/0/x"), Value::Raw("[]"));
        assert_eq!(at(record, "/a/00"), Value::Missing);
        assert_eq!(at(record, "/a/1"), Value::Missing);
        assert_eq!(at(record, "/id/x"), Value::Missing);
        assert_eq!(at(record, "/~1p"), Value::Raw("1"));
        assert_eq!(at(record, "/"), Value::Raw("2"));
        assert_eq!(at("[1,2]", "/1"), Value::Raw("2"));
        assert_eq!(at("3", "x"), Value::Missing);
    }

    #[test]
    fn a_member_that_stands_twice_is_no_guess() {
        let place = Place::parse(b"k").unwrap();
        let got = find(br#"{"k":1,"\u006b":2}"#, &place);
        assert_eq!(got, Err(FaultKind::TwiceMember("k".into())));
        assert_eq!(find(br#"{"k":1,"v":2,"v":3}"#, &place), Ok(Value::Raw("1")));
    }

    #[test]
    fn torn_or_bad() {
        assert!(matches!(check(br#"{"k":"c","n":{"m""#, true), Err(FaultKind::Torn(_))));
        assert!(matches!(check(br#"{"k":"c","n":{"m""#, false), Err(FaultKind::Json(_))));
        assert!(matches!(check(b"{'k':1}", true), Err(FaultKind::Json(_))));
        assert!(matches!(check(b"1 2", true), Err(FaultKind::Json(_))));
        assert!(matches!(check(b"\"\xff\"", false), Err(FaultKind::Json(_))));
        let place = Place::parse(b"k").unwrap();
        assert!(matches!(find(br#"{"k":"\ud800"}"#, &place), Err(FaultKind::BadText { .. })));
    }

    #[test]
    fn bad_pointers() {
        assert_eq!(Place::parse(b"/a~2"), None);
        assert_eq!(Place::parse(b"/a~"), None);
        assert_eq!(Place::parse(b"\xff"), None);
    }
}
