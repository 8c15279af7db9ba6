//! The strict scan of one CSV or TSV record (RFC 4180).
//!
//! Well-kept CSV parsers read on over a quote that is never closed and give the rest of the file as one
//! cell. This scan is a pure function over the bytes seen so far. It gives a record, a fault, or asks for
//! more bytes, and consumes nothing, so that the caller can go on behind the broken line.
//!
//! | cell starts with | ends at | a quote inside |
//! |---|---|---|
//! | a quote | the next single quote, which must stand before a delimiter or the end of the line | doubled |
//! | anything else | delimiter or end of line (LF or CR LF) | stands for itself, unless `strict` |

use memchr::{memchr, memchr_iter, memchr2};

/// The cells of one record, unquoted, back to back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Cells {
    /// How many cells there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no cell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Cell number `index`, from 0.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.text[start..end])
    }

    /// All cells in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    fn close(&mut self) {
        self.ends.push(self.text.len());
    }
}

/// What the bytes seen so far begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Scan {
    /// The record is not whole yet.
    More,
    /// A record.
    Record {
        /// Its cells.
        cells: Cells,
        /// Bytes of the record without its end of line.
        length: usize,
        /// Bytes to consume.
        consume: usize,
        /// Lines that it spans.
        lines: u64,
    },
    /// A broken quote.
    Broken {
        /// What is wrong.
        why: Broken,
        /// Lines between the start of the record and the line of the opening quote.
        opened: u64,
        /// Bytes up to the end of the opening quote's line, without the end of line.
        length: usize,
        /// Bytes to consume to go on with the line after the opening quote's line.
        consume: usize,
        /// Bytes up to the place where the fault shows.
        seen: usize,
    },
}

/// Why a quote is broken.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// No quote closes it.
    NeverClosed,
    /// Text follows the closing quote, so many lines after the start of the record.
    TextAfter(u64),
    /// A quote inside a cell without quotes, where only a strict reading is safe.
    Stray,
}

/// Scans the record at the start of `data`; `at_end` says that no byte follows `data`.
#[must_use]
pub fn scan(data: &[u8], delimiter: u8, at_end: bool, strict: bool) -> Scan {
    let mut cells = Cells::default();
    let mut at = 0;
    let mut lines = 0;
    loop {
        if data.get(at) == Some(&b'"') {
            let quote = Quote { at, opened: lines };
            at += 1;
            loop {
                let Some(offset) = memchr(b'"', &data[at..]) else {
                    return if at_end {
                        quote.broken(Broken::NeverClosed, data, data.len(), at_end)
                    } else {
                        Scan::More
                    };
                };
                let part = &data[at..at + offset];
                lines += newlines(part);
                cells.text.extend_from_slice(part);
                at += offset + 1;
                match data.get(at) {
                    Some(b'"') => {
                        cells.text.push(b'"');
                        at += 1;
                    }
                    None if !at_end => return Scan::More,
                    _ => break,
                }
            }
            cells.close();
            match data[at..] {
                [] | [b'\n', ..] | [b'\r', b'\n', ..] => {}
                [b'\r'] if !at_end => return Scan::More,
                [b'\r'] => {}
                [byte, ..] if byte == delimiter => {
                    at += 1;
                    continue;
                }
                _ => return quote.broken(Broken::TextAfter(lines), data, at, at_end),
            }
        } else {
            let (length, found) = match memchr2(delimiter, b'\n', &data[at..]) {
                Some(length) => (length, data.get(at + length)),
                None if at_end => (data.len() - at, None),
                None => return Scan::More,
            };
            let mut cell = &data[at..at + length];
            if found == Some(&b'\n') || found.is_none() {
                cell = cell.strip_suffix(b"\r").unwrap_or(cell);
            }
            if strict && let Some(stray) = memchr(b'"', cell) {
                let quote = Quote { at: at + stray, opened: lines };
                return quote.broken(Broken::Stray, data, at + stray, at_end);
            }
            cells.text.extend_from_slice(cell);
            cells.close();
            at += cell.len();
            if found == Some(&delimiter) {
                at += 1;
                continue;
            }
        }
        let end = match data[at..] {
            [b'\r', b'\n', ..] => 2,
            [b'\r' | b'\n', ..] => 1,
            _ => 0,
        };
        return Scan::Record { cells, length: at, consume: at + end, lines: lines + 1 };
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

struct Quote {
    at: usize,
    opened: u64,
}

impl Quote {
    /// The fault, once the end of the opening quote's line is in sight.
    fn broken(self, why: Broken, data: &[u8], seen: usize, at_end: bool) -> Scan {
        let newline = memchr(b'\n', &data[self.at..]).map(|offset| self.at + offset);
        if newline.is_none() && !at_end {
            return Scan::More;
        }
        let consume = newline.map_or(data.len(), |at| at + 1);
        let line = &data[..newline.unwrap_or(data.len())];
        let length = line.strip_suffix(b"\r").unwrap_or(line).len();
        Scan::Broken { why, opened: self.opened, length, consume, seen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(text: &str) -> Vec<String> {
        match scan(text.as_bytes(), b',', true, false) {
            Scan::Record { cells, .. } => {
                cells.iter().map(|cell| String::from_utf8(cell.to_vec()).unwrap()).collect()
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn cells_of_one_record() {
        for (text, want) in [
            ("a,b\n", &["a", "b"][..]),
            ("a,b", &["a", "b"]),
            ("a,b\r\n", &["a", "b"]),
            ("a,b\r", &["a", "b"]),
            ("a\r,b\n", &["a\r", "b"]),
            (",\n", &["", ""]),
            ("\"\"\n", &[""]),
            ("\"a,\"\"b\"\"\nc\",d\n", &["a,\"b\"\nc", "d"]),
            ("\"a\r\nb\"\r\n", &["a\r\nb"]),
            ("12\" screen,x\n", &["12\" screen", "x"]),
            ("x,\"y\"", &["x", "y"]),
            ("x,\"y\"\r", &["x", "y"]),
        ] {
            assert_eq!(cells(text), want, "{text:?}");
        }
    }

    #[test]
    fn nothing_is_decided_before_it_is_seen() {
        let whole = b"1,\"a\"\"\r\nb\"\r\n2,x\n";
        let Scan::Record { length, consume, lines, .. } = scan(whole, b',', false, false) else {
            panic!()
        };
        assert_eq!((length, consume, lines), (10, 12, 2));
        for cut in 0..consume {
            assert_eq!(scan(&whole[..cut], b',', false, false), Scan::More, "{cut}");
        }
    }

    #[test]
    fn a_broken_quote_costs_its_line() {
        let data = b"1,\"x\n2,y\n3,z\n";
        assert_eq!(scan(data, b',', false, false), Scan::More);
        let got = scan(data, b',', true, false);
        let want = Scan::Broken {
            why: Broken::NeverClosed,
            opened: 0,
            length: 4,
            consume: 5,
            seen: data.len(),
        };
        assert_eq!(got, want);
        let Scan::Broken { why, opened, .. } = scan(b"\"a\n\",\"b\nc\" d\n", b',', false, false)
        else {
            panic!()
        };
        assert_eq!((why, opened), (Broken::TextAfter(2), 1));
    }
}
