//! Rows of one input, one by one, each with the line on which it starts.

use std::fmt;
use std::io::Read;

use bstr::ByteSlice;

use super::csv::{self, Broken, Cells, Scan};
use super::fault::{Fault, FaultKind};
use super::format::{Encoding, Format};
use super::json;
use super::lines::{self, Piece};
use super::utf16::Utf16;
use super::window::Window;

/// The most bytes that one record may have.
pub const RECORD_LIMIT: usize = 16 * 1024 * 1024;

/// How an input is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The format.
    pub format: Format,
    /// The encoding.
    pub encoding: Encoding,
    /// Whether the first line of CSV or TSV names the columns.
    pub header: bool,
    /// The most bytes of a record.
    pub limit: usize,
}

/// The columns of a CSV or TSV input.
#[derive(Clone, Debug)]
pub struct Header {
    names: Option<Cells>,
    width: usize,
}

impl Header {
    /// How many columns there are.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first two columns with this name, from 0.
    #[must_use]
    pub fn columns_called(&self, name: &[u8]) -> (Option<usize>, Option<usize>) {
        let Some(names) = &self.names else { return (None, None) };
        let mut hits =
            names.iter().enumerate().filter(|(_, column)| *column == name).map(|(index, _)| index);
        (hits.next(), hits.next())
    }

    /// The first name that stands twice, as the fault that it is.
    #[must_use]
    pub fn twice(&self) -> Option<FaultKind> {
        self.names.as_ref()?.iter().find_map(|name| match self.columns_called(name) {
            (Some(first), Some(second)) => Some(FaultKind::TwiceColumn {
                name: name.to_str_lossy().into(),
                first: first + 1,
                second: second + 1,
            }),
            _ => None,
        })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(names) = &self.names else {
            return write!(f, "#1 to #{}, as the first record has them", self.width);
        };
        for (index, name) in names.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}", name.to_str_lossy())?;
        }
        Ok(())
    }
}

/// A record as it was read.
#[derive(Debug)]
pub struct Row {
    /// The line on which it starts, from 1 (for NUL-separated input: its number).
    pub line: u64,
    /// Its bytes without the terminator.
    pub raw: Vec<u8>,
    /// Its cells, where it has some.
    pub body: Body,
}

/// What is known of the inside of a row.
#[derive(Debug)]
pub enum Body {
    /// Nothing.
    Opaque,
    /// The cells of CSV or TSV.
    Cells(Cells),
    /// `raw` is one valid JSON value.
    Json,
}

/// Reads rows from a byte source.
pub struct Reader {
    window: Window,
    settings: Settings,
    header: Option<Header>,
    held: Option<Row>,
    line: u64,
    consumed: u64,
    /// Up to here lines may be the inside of a broken quoted value, and are read strictly.
    strict_until: u64,
    ended: bool,
}

impl Reader {
    /// Opens `source`: looks at its byte order mark and reads its header, if it has one.
    ///
    /// # Errors
    /// A fault of the whole input.
    pub fn open(source: Box<dyn Read + Send>, settings: Settings) -> Result<Self, Fault> {
        let source: Box<dyn Read + Send> = match settings.encoding {
            Encoding::Utf8 => source,
            Encoding::Utf16 => Box::new(Utf16::new(source)),
        };
        let mut reader = Self {
            window: Window::new(source),
            settings,
            header: None,
            held: None,
            line: 1,
            consumed: 0,
            strict_until: 0,
            ended: false,
        };
        reader.byte_order_mark()?;
        if settings.format.delimiter().is_some()
            && let Some(row) = reader.next()
        {
            let row = row?;
            if let Body::Cells(cells) = &row.body {
                let names = settings.header.then(|| cells.clone());
                reader.header = Some(Header { names, width: cells.len() });
            }
            reader.held = (!settings.header).then_some(row);
        }
        Ok(reader)
    }

    /// The columns, for CSV and TSV inputs that are not empty.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    fn byte_order_mark(&mut self) -> Result<(), Fault> {
        if self.settings.format == Format::Nul {
            return Ok(());
        }
        // No byte more than needed: whoever types or pipes records slowly waits for the first one's end.
        const MARKS: [&[u8]; 3] = [&[0xEF, 0xBB, 0xBF], &[0xFF, 0xFE], &[0xFE, 0xFF]];
        let may_grow = |data: &[u8]| {
            MARKS.iter().any(|mark| data.len() < mark.len() && mark.starts_with(data))
        };
        while !self.window.at_end() && may_grow(self.window.data()) {
            if let Err(error) = self.window.fill() {
                return Err(self.unreadable(&error));
            }
        }
        match self.window.data() {
            [0xEF, 0xBB, 0xBF, ..] => self.window.consume(3),
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] if self.settings.encoding == Encoding::Utf8 => {
                return Err(Fault::new(FaultKind::Utf16, 1, Vec::new()));
            }
            _ => {}
        }
        Ok(())
    }

    fn unreadable(&mut self, error: &std::io::Error) -> Fault {
        self.ended = true;
        Fault::new(FaultKind::Read(error.to_string()), self.line, Vec::new())
    }

    fn row_of_lines(&mut self) -> Option<Result<Row, Fault>> {
        loop {
            let terminator = self.settings.format.terminator();
            let piece = match lines::next(&mut self.window, terminator, self.settings.limit) {
                Ok(piece) => piece?,
                Err(error) => return Some(Err(self.unreadable(&error))),
            };
            let line = self.line;
            self.line += 1;
            let (mut raw, last) = match piece {
                Piece::Whole(raw) => (raw, false),
                Piece::Last(raw) => (raw, true),
                Piece::TooLong(head) => {
                    let kind = FaultKind::TooLong(self.settings.limit);
                    return Some(Err(Fault { kind, line, raw: head, cut: true }));
                }
            };
            if self.settings.format != Format::Jsonl {
                return Some(Ok(Row { line, raw, body: Body::Opaque }));
            }
            if raw.last() == Some(&b'\r') {
                raw.pop();
            }
            if raw.trim_ascii().is_empty() {
                continue;
            }
            return Some(match json::check(&raw, last) {
                Ok(()) => Ok(Row { line, raw, body: Body::Json }),
                Err(kind) => Err(Fault::new(kind, line, raw)),
            });
        }
    }

    fn row_of_cells(&mut self, delimiter: u8) -> Option<Result<Row, Fault>> {
        let limit = self.settings.limit;
        loop {
            let data = self.window.data();
            let at_end = self.window.at_end();
            match data {
                [] if at_end => return None,
                [b'\n', ..] => {
                    self.pass(1, 1);
                    continue;
                }
                [b'\r', b'\n', ..] => {
                    self.pass(2, 1);
                    continue;
                }
                [b'\r'] if at_end => {
                    self.pass(1, 1);
                    continue;
                }
                _ => {}
            }
            let full = data.len() > limit;
            let strict = self.consumed < self.strict_until;
            match csv::scan(data, delimiter, at_end || full, strict) {
                Scan::More => {
                    if let Err(error) = self.window.fill() {
                        return Some(Err(self.unreadable(&error)));
                    }
                }
                // A line without end, or a whole record over the limit.
                Scan::Record { length, .. } | Scan::Broken { length, .. } if length > limit => {
                    let piece = lines::next(&mut self.window, b'\n', limit);
                    let line = self.line;
                    self.line += 1;
                    return Some(Err(match piece {
                        Ok(Some(Piece::TooLong(head) | Piece::Whole(head) | Piece::Last(head))) => {
                            let kind = FaultKind::TooLong(limit);
                            Fault { kind, line, raw: head, cut: true }
                        }
                        Ok(None) => return None,
                        Err(error) => self.unreadable(&error),
                    }));
                }
                Scan::Record { cells, length, consume, lines } => {
                    let raw = data[..length].to_vec();
                    let line = self.line;
                    self.pass(consume, lines);
                    return Some(self.with_width(Row { line, raw, body: Body::Cells(cells) }));
                }
                Scan::Broken { why, opened, length, consume, seen } => {
                    let raw = data[..length].to_vec();
                    let line = self.line + opened;
                    let kind = match why {
                        Broken::NeverClosed => FaultKind::QuoteNeverClosed,
                        Broken::TextAfter(lines) => {
                            FaultKind::TextAfterQuote { line: self.line + lines }
                        }
                        Broken::Stray => FaultKind::StrayQuote,
                    };
                    self.strict_until = self.strict_until.max(self.consumed + seen as u64);
                    self.pass(consume, opened + 1);
                    return Some(Err(Fault::new(kind, line, raw)));
                }
            }
        }
    }

    fn pass(&mut self, bytes: usize, lines: u64) {
        self.window.consume(bytes);
        self.consumed += bytes as u64;
        self.line += lines;
    }

    fn with_width(&self, row: Row) -> Result<Row, Fault> {
        let (Some(header), Body::Cells(cells)) = (&self.header, &row.body) else { return Ok(row) };
        if cells.len() == header.width {
            return Ok(row);
        }
        let kind = FaultKind::Ragged {
            found: cells.len(),
            expected: header.width,
            header: header.to_string(),
        };
        Err(Fault::new(kind, row.line, row.raw))
    }
}

impl Iterator for Reader {
    type Item = Result<Row, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(row) = self.held.take() {
            return Some(Ok(row));
        }
        if self.ended {
            return None;
        }
        let row = match self.settings.format.delimiter() {
            Some(delimiter) => self.row_of_cells(delimiter),
            None => self.row_of_lines(),
        };
        match row {
            Some(Ok(row)) if self.settings.encoding == Encoding::Utf16 && !row.raw.is_utf8() => {
                Some(Err(Fault::new(FaultKind::BadUtf16, row.line, row.raw)))
            }
            row => row,
        }
    }
}

#[cfg(test)]
#[path = "reader_test.rs"]
mod tests;
