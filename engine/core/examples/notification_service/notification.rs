//! What comes in: a notification, checked field by field, so that a refusal says which field is wrong, what it is and what to do.

use serde::Serialize;
use serde_json::{Map, Value};

/// A task of the engine. Its group is its merchant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Notification {
    /// The client's own name for it. The downstream gets it as the idempotency key, so it may come twice and count once.
    pub(crate) id: String,
    pub(crate) merchant: String,
    pub(crate) kind: String,
    pub(crate) title: String,
}

const FIELDS: [&str; 4] = ["id", "merchant", "kind", "title"];
const KINDS: [&str; 4] = ["paid", "refunded", "chargeback", "payout"];
const EXAMPLE: &str = r#"{"id":"1","merchant":"1001","kind":"paid","title":"12 EUR from Ada"}"#;

/// Why a notification was not understood.
#[derive(Debug, PartialEq)]
pub(crate) struct Invalid {
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Invalid {
    fn new(field: &str, message: String) -> Self {
        Self { field: field.to_owned(), message }
    }
}

impl Notification {
    /// Reads one JSON object.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, Invalid> {
        let mut fields: Map<String, Value> = serde_json::from_slice(json).map_err(|error| {
            let shown = shorten(&String::from_utf8_lossy(json));
            let message =
                format!("the body is {shown:?}, no JSON object ({error}); send {EXAMPLE}");
            Invalid::new("body", message)
        })?;
        let notification = Self {
            id: text(&mut fields, "id", 64)?,
            merchant: text(&mut fields, "merchant", 64)?,
            kind: text(&mut fields, "kind", 64)?,
            title: text(&mut fields, "title", 200)?,
        };
        if !KINDS.contains(&notification.kind.as_str()) {
            let message =
                format!("kind is {:?}; give one of {}", notification.kind, KINDS.join(", "));
            return Err(Invalid::new("kind", message));
        }
        match fields.into_iter().next() {
            // More often a slip of the pen than something that may be ignored.
            Some((name, value)) => {
                let fields = FIELDS.join(", ");
                let message =
                    format!("{name} is {value}, and no known field; the fields are {fields}");
                Err(Invalid::new(&name, message))
            }
            None => Ok(notification),
        }
    }

    /// One line of JSON, as [`Notification::parse`] reads it.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("four texts")
    }
}

/// Takes a text of 1 to `most` characters out of `fields`.
fn text(fields: &mut Map<String, Value>, name: &str, most: usize) -> Result<String, Invalid> {
    let wrong = match fields.remove(name) {
        Some(Value::String(text)) => match text.chars().count() {
            n if (1..=most).contains(&n) => return Ok(text),
            n => format!("{name} is {:?}, {n} characters", shorten(&text)),
        },
        Some(other) => format!("{name} is {}, no text", shorten(&other.to_string())),
        None => format!("{name} is missing"),
    };
    Err(Invalid::new(name, format!("{wrong}; give a text of 1 to {most} characters")))
}

/// As much of a text as an error message shows.
fn shorten(text: &str) -> String {
    const MOST: usize = 40;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
