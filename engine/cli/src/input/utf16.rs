//! UTF-16 to UTF-8, as a reader.
//!
//! Half a surrogate pair or half a code unit has no UTF-8. It becomes bytes that are never valid UTF-8,
//! so that the record that holds it is found out and refused, instead of a replacement character that
//! would pass as a value.

use std::io::{self, Read};

/// Never part of valid UTF-8.
const BROKEN: u8 = 0xFF;

/// Decodes what it reads.
pub struct Utf16<R> {
    source: R,
    big_endian: Option<bool>,
    /// An odd byte, from the last read.
    half: Option<u8>,
    high: Option<u16>,
    ready: Vec<u8>,
    given: usize,
    ended: bool,
}

impl<R: Read> Utf16<R> {
    /// Decodes `source`: by its byte order mark, little-endian without one.
    pub fn new(source: R) -> Self {
        Self {
            source,
            big_endian: None,
            half: None,
            high: None,
            ready: Vec::new(),
            given: 0,
            ended: false,
        }
    }

    fn unit(&mut self, pair: [u8; 2]) {
        let big = match self.big_endian {
            Some(big) => big,
            None => {
                self.big_endian = Some(pair == [0xFE, 0xFF]);
                if matches!(pair, [0xFE, 0xFF] | [0xFF, 0xFE]) {
                    return;
                }
                false
            }
        };
        let unit = if big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) };
        if let Some(high) = self.high.take() {
            if let Some(Ok(c)) = char::decode_utf16([high, unit]).next() {
                self.push(c);
                return;
            }
            self.ready.push(BROKEN);
        }
        match unit {
            0xD800..=0xDBFF => self.high = Some(unit),
            0xDC00..=0xDFFF => self.ready.push(BROKEN),
            _ => self.push(char::from_u32(u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }

    fn push(&mut self, c: char) {
        self.ready.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready.len() && !self.ended {
            self.ready.clear();
            self.given = 0;
            let mut raw = [0; 16 * 1024];
            let count = self.source.read(&mut raw)?;
            if count == 0 {
                self.ended = true;
                if self.high.take().is_some() || self.half.take().is_some() {
                    self.ready.push(BROKEN);
                }
            }
            for &byte in &raw[..count] {
                match self.half.take() {
                    Some(first) => self.unit([first, byte]),
                    None => self.half = Some(byte),
                }
            }
        }
        let count = out.len().min(self.ready.len() - self.given);
        out[..count].copy_from_slice(&self.ready[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Utf16::new(bytes).read_to_end(&mut out).unwrap();
        out
    }

    fn encode(text: &str, big: bool) -> Vec<u8> {
        text.encode_utf16()
            .flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() })
            .collect()
    }

    #[test]
    fn byte_order_mark_decides() {
        let text = "id,v\n1,日本 🦀\n";
        assert_eq!(decode(&encode(text, false)), text.as_bytes());
        assert_eq!(decode(&encode(&format!("\u{feff}{text}"), false)), text.as_bytes());
        assert_eq!(decode(&encode(&format!("\u{feff}{text}"), true)), text.as_bytes());
        assert_eq!(decode(b""), b"");
    }

    #[test]
    fn halves_are_never_valid_text() {
        for broken in [&[0x3D, 0xD8, b'a', 0][..], &[0, 0xDC], &[b'a', 0, b'b'], &[0x3D, 0xD8]] {
            assert!(std::str::from_utf8(&decode(broken)).is_err(), "{broken:?}");
        }
    }
}
