//! What a field name of the command line stands for in one input.
//!
//! | name | CSV, TSV | JSON Lines | lines, NUL |
//! |---|---|---|---|
//! | `title` | the column of this name | the top-level member | unknown |
//! | `#2` | the second column | unknown | unknown |
//! | `/a/b` | the column of this name | the value at this JSON pointer | unknown |
//! | `dir`, `base`, `stem`, `ext` | the column | the member | that part of the record as a path |

use std::borrow::Cow;

use bstr::ByteSlice;

use super::fault::FaultKind;
use super::format::Format;
use super::json::{self, Place, Value};
use super::path::{self, PathPart};
use super::reader::{Body, Header, Row};

/// A field of the records of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// A column, from 0.
    Column(usize),
    /// A place in a JSON value.
    Place(Place),
    /// A part of a path.
    Part(PathPart),
}

/// Why a name stands for nothing in an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// No such field.
    #[error("{name:?} is unknown there; known: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// What would be known.
        known: String,
    },
    /// Two columns have the name.
    #[error(
        "{name:?} stands twice in the header (columns {first} and {second}); use the position: #{first} or #{second}"
    )]
    Twice {
        /// The name.
        name: String,
        /// First position, from 1.
        first: usize,
        /// Second position, from 1.
        second: usize,
    },
}

/// The position that a name like `#2` stands for, from 0.
#[must_use]
pub fn position(name: &[u8]) -> Option<usize> {
    let digits = name.strip_prefix(b"#")?;
    let number: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    number.checked_sub(1)
}

/// What `name` stands for in an input of this format and header.
///
/// # Errors
/// [`BindError`], with the names that are known.
pub fn bind(name: &[u8], format: Format, header: Option<&Header>) -> Result<Field, BindError> {
    let unknown = |known: String| BindError::Unknown { name: name.to_str_lossy().into(), known };
    match format {
        Format::Csv | Format::Tsv => {
            // An input without a header line has no records: any name will do.
            let Some(header) = header else { return Ok(Field::Column(0)) };
            match header.columns_called(name) {
                (Some(first), None) => Ok(Field::Column(first)),
                (Some(first), Some(second)) => Err(BindError::Twice {
                    name: name.to_str_lossy().into(),
                    first: first + 1,
                    second: second + 1,
                }),
                (None, _) => position(name)
                    .filter(|&index| index < header.width())
                    .map(Field::Column)
                    .ok_or_else(|| unknown(header.to_string())),
            }
        }
        Format::Jsonl => {
            let place = Place::parse(name).filter(|_| position(name).is_none());
            place.map(Field::Place).ok_or_else(|| {
                unknown("names of members and JSON pointers such as /customer/id".into())
            })
        }
        Format::Lines | Format::Nul => PathPart::of_name(name)
            .map(Field::Part)
            .ok_or_else(|| unknown(format!("{{}} and, for paths, {}", path::NAMES))),
    }
}

impl Field {
    /// The bytes of this field in `row`; a JSON string without quotes, any other JSON value as written.
    ///
    /// # Errors
    /// The field is missing, or no text.
    pub fn of<'a>(&self, row: &'a Row) -> Result<Cow<'a, [u8]>, FaultKind> {
        match (self, &row.body) {
            (Self::Column(index), Body::Cells(cells)) => {
                // The reader gives only rows of the header's width.
                Ok(Cow::Borrowed(cells.get(*index).unwrap_or_default()))
            }
            (Self::Place(place), _) => match json::find(&row.raw, place)? {
                Value::Missing => Err(FaultKind::NoMember(place.to_string())),
                Value::Null => Ok(Cow::Borrowed(b"null")),
                Value::Raw(raw) => Ok(Cow::Borrowed(raw.as_bytes())),
                Value::Text(Cow::Borrowed(text)) => Ok(Cow::Borrowed(text.as_bytes())),
                Value::Text(Cow::Owned(text)) => Ok(Cow::Owned(text.into_bytes())),
            },
            (Self::Part(part), _) => Ok(Cow::Borrowed(part.of(&row.raw))),
            (Self::Column(_), _) => Ok(Cow::Borrowed(b"")),
        }
    }
}
