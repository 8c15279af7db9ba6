//! What can be wrong with a piece of input: each fault says what, where, which value, and the way out.

use std::fmt;
use std::sync::Arc;

use bstr::ByteSlice;

use super::format::Format;

/// How many bytes of a bad record a message shows.
const EXCERPT: usize = 120;

/// One kind of fault of one record (or of a whole file, when its head is at fault).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The number of cells is not that of the header.
    #[error(
        "{found} cells, but {expected} expected ({header}); add or remove cells, or quote those that hold the delimiter"
    )]
    Ragged {
        /// Cells found.
        found: usize,
        /// Cells expected.
        expected: usize,
        /// Where the expectation comes from.
        header: String,
    },
    /// A quote opens on this line and no quote closes it.
    #[error(
        "the quote opened on this line is never closed; close it, or double a quote that belongs to the value; reading goes on with the next line"
    )]
    QuoteNeverClosed,
    /// Text follows a closing quote.
    #[error(
        "the quote opened on this line is closed on line {line} before the end of its cell; double a quote that belongs to the value; reading goes on with the next line"
    )]
    TextAfterQuote {
        /// The line of the text that follows.
        line: u64,
    },
    /// A line inside a broken quoted value cannot be told from the rest of that value.
    #[error("a quote stands inside this line, which follows a broken quote; mend that one first")]
    StrayQuote,
    /// Not JSON.
    #[error("not JSON: {0}; one whole JSON value a line is expected")]
    Json(String),
    /// JSON that ends too early in the last line of the file.
    #[error(
        "the last line is torn (JSON ends too early: {0}); complete it, or run again when the file is whole"
    )]
    Torn(String),
    /// A placeholder asks for a member that the record lacks.
    #[error("no {0}; add it, or take it out of the command")]
    NoMember(String),
    /// Two members of one object have the same name.
    #[error("member {0:?} stands twice in the record; keep one")]
    TwiceMember(String),
    /// A string of the record cannot be text.
    #[error("{name} is no valid text: {cause}")]
    BadText {
        /// The member.
        name: String,
        /// What the decoder says.
        cause: String,
    },
    /// A NUL byte in a value that is to be an argument.
    #[error("{0} holds a NUL byte and cannot be an argument; pass the record with --stdin")]
    Nul(String),
    /// The key is empty, null or missing.
    #[error("the key {0}; fill it in, or choose --empty-key own, shared or skip")]
    EmptyKey(&'static str),
    /// Two columns of the header have the same name.
    #[error(
        "column {name:?} stands twice in the header (columns {first} and {second}); rename one, or give the key by position: --key '#{first}'"
    )]
    TwiceColumn {
        /// The name.
        name: String,
        /// First position, from 1.
        first: usize,
        /// Second position, from 1.
        second: usize,
    },
    /// The file is UTF-16 and nobody said so.
    #[error("the input starts with a UTF-16 byte order mark; give --encoding utf-16")]
    Utf16,
    /// A half of a surrogate pair, or half a code unit, in UTF-16 input.
    #[error("the record is no valid UTF-16 (half a character); mend it, or leave out --encoding")]
    BadUtf16,
    /// Longer than a record may be.
    #[error("longer than {0} bytes, which is the most a record may have; is the format right?")]
    TooLong(usize),
    /// The operating system cannot read on.
    #[error("cannot read on: {0}; the rest of this input is left out")]
    Read(String),
}

/// A fault in its place.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Line on which the record starts, from 1 (for NUL-separated input: its number in the file).
    pub line: u64,
    /// The bytes of the record, or as much of it as is kept.
    pub raw: Vec<u8>,
    /// Whether `raw` is only the beginning.
    pub cut: bool,
}

impl Fault {
    /// A fault of the record `raw` that starts on `line`.
    #[must_use]
    pub fn new(kind: FaultKind, line: u64, raw: Vec<u8>) -> Self {
        Self { kind, line, raw, cut: false }
    }

    /// The fault as a message about the input called `source`.
    #[must_use]
    pub fn at<'a>(&'a self, source: &'a Arc<str>, format: Format) -> FaultAt<'a> {
        FaultAt { fault: self, source, format }
    }
}

/// A fault together with the name of its input, for display.
pub struct FaultAt<'a> {
    fault: &'a Fault,
    source: &'a Arc<str>,
    format: Format,
}

impl fmt::Display for FaultAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, line, raw, cut } = self.fault;
        write!(f, "{}, {} {line}: {kind}", self.source, self.format.unit())?;
        if !raw.is_empty() {
            write!(f, " [{}]", excerpt(raw, *cut))?;
        }
        Ok(())
    }
}

/// The beginning of `bytes` on one line, with bytes that are no text shown as escapes.
#[must_use]
pub fn excerpt(bytes: &[u8], cut: bool) -> String {
    let shown = &bytes[..bytes.len().min(EXCERPT)];
    let more = if cut || shown.len() < bytes.len() { "..." } else { "" };
    let text = shown.as_bstr().to_string();
    let mut line = String::with_capacity(text.len() + more.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_place_value_and_way_out() {
        let kind = FaultKind::Ragged { found: 2, expected: 3, header: "a, b, c".into() };
        let fault = Fault::new(kind, 2, b"1,2".to_vec());
        let text = fault.at(&"ragged.csv".into(), Format::Csv).to_string();
        assert!(
            text.starts_with("ragged.csv, line 2: 2 cells, but 3 expected (a, b, c)"),
            "{text}"
        );
        assert!(text.ends_with("[1,2]"), "{text}");
    }

    #[test]
    fn excerpt_is_one_line() {
        assert_eq!(excerpt(b"a\nb\0\x1b[31m", false), "a\\nb\\u{0}\\u{1b}[31m");
        assert!(excerpt(&[b'x'; 500], false).ends_with("x..."));
    }
}
