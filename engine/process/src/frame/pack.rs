//! Bodies in MessagePack, read.

use std::borrow::Cow;

use super::{
    FrameError, MAX_DEPTH,
    source::{Read, Seq, Source},
    transcode,
};

/// See the module text.
pub(crate) struct Pack<'a> {
    body: &'a [u8],
    at: usize,
}

/// The head of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Head {
    Uint(u64),
    /// Below zero.
    Int(i64),
    Float(f64),
    Nil,
    Bool(bool),
    Text(usize),
    Bin(usize),
    Array(usize),
    Map(usize),
}

impl<'a> Pack<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { body, at: 0 }
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Read<[u8; N]> {
        match self.body[self.at..].first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.fault("the body ends inside a value")),
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Read<&'a [u8]> {
        match self.body[self.at..].get(..n) {
            Some(bytes) => {
                self.at += n;
                Ok(bytes)
            }
            None => Err(self.fault(format!("{n} bytes are promised and are not there"))),
        }
    }

    #[inline]
    pub(crate) fn utf8(&mut self, n: usize) -> Read<&'a str> {
        let from = self.at;
        std::str::from_utf8(self.take(n)?)
            .map_err(|error| FrameError::new(from + error.valid_up_to(), "not UTF-8"))
    }

    #[inline]
    pub(crate) fn head(&mut self) -> Read<Head> {
        let [first] = self.fixed()?;
        Ok(match first {
            0..=0x7f => Head::Uint(first.into()),
            0x80..=0x8f => Head::Map((first & 15).into()),
            0x90..=0x9f => Head::Array((first & 15).into()),
            0xa0..=0xbf => Head::Text((first & 31).into()),
            0xc0 => Head::Nil,
            0xc2 | 0xc3 => Head::Bool(first == 0xc3),
            0xc4 | 0xd9 => {
                let n = usize::from(u8::from_be_bytes(self.fixed()?));
                if first == 0xc4 { Head::Bin(n) } else { Head::Text(n) }
            }
            0xc5 | 0xda | 0xdc | 0xde => {
                let n = usize::from(u16::from_be_bytes(self.fixed()?));
                match first {
                    0xc5 => Head::Bin(n),
                    0xda => Head::Text(n),
                    0xdc => Head::Array(n),
                    _ => Head::Map(n),
                }
            }
            0xc6 | 0xdb | 0xdd | 0xdf => {
                let n = u32::from_be_bytes(self.fixed()?) as usize;
                match first {
                    0xc6 => Head::Bin(n),
                    0xdb => Head::Text(n),
                    0xdd => Head::Array(n),
                    _ => Head::Map(n),
                }
            }
            0xca => Head::Float(f32::from_be_bytes(self.fixed()?).into()),
            0xcb => Head::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => Head::Uint(u8::from_be_bytes(self.fixed()?).into()),
            0xcd => Head::Uint(u16::from_be_bytes(self.fixed()?).into()),
            0xce => Head::Uint(u32::from_be_bytes(self.fixed()?).into()),
            0xcf => Head::Uint(u64::from_be_bytes(self.fixed()?)),
            0xd0 => signed(i8::from_be_bytes(self.fixed()?).into()),
            0xd1 => signed(i16::from_be_bytes(self.fixed()?).into()),
            0xd2 => signed(i32::from_be_bytes(self.fixed()?).into()),
            0xd3 => signed(i64::from_be_bytes(self.fixed()?)),
            0xe0..=0xff => Head::Int((first as i8).into()),
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => {
                self.at -= 1;
                return Err(self.fault(format!("byte {first:#04x}: extension types have no JSON")));
            }
        })
    }

    fn expected(&self, what: &str, found: Head) -> FrameError {
        self.fault(format!("expected {what}, found {found:?}"))
    }

    fn pass(&mut self, depth: usize) -> Read<()> {
        if depth == 0 {
            return Err(self.fault(format!("nested deeper than {MAX_DEPTH}")));
        }
        match self.head()? {
            Head::Text(n) => self.utf8(n).map(drop),
            Head::Bin(n) => self.take(n).map(drop),
            Head::Array(n) => (0..n).try_for_each(|_| self.pass(depth - 1)),
            Head::Map(n) => (0..2 * n).try_for_each(|_| self.pass(depth - 1)),
            _ => Ok(()),
        }
    }
}

fn signed(n: i64) -> Head {
    u64::try_from(n).map_or(Head::Int(n), Head::Uint)
}

impl<'a> Source<'a> for Pack<'a> {
    #[inline]
    fn open(&mut self) -> Read<Seq> {
        match self.head()? {
            Head::Array(left) => Ok(Seq { left, first: true }),
            found => Err(self.expected("an array", found)),
        }
    }

    #[inline]
    fn more(&mut self, seq: &mut Seq) -> Read<bool> {
        let more = seq.left > 0;
        seq.left -= usize::from(more);
        Ok(more)
    }

    #[inline]
    fn uint(&mut self) -> Read<u64> {
        match self.head()? {
            Head::Uint(n) => Ok(n),
            found => Err(self.expected("a number from 0", found)),
        }
    }

    #[inline]
    fn int(&mut self) -> Read<i64> {
        match self.head()? {
            Head::Int(n) => Ok(n),
            Head::Uint(n) if i64::try_from(n).is_ok() => Ok(n as i64),
            found => Err(self.expected("a whole number in range", found)),
        }
    }

    #[inline]
    fn boolean(&mut self) -> Read<bool> {
        match self.head()? {
            Head::Bool(is) => Ok(is),
            found => Err(self.expected("true or false", found)),
        }
    }

    #[inline]
    fn text(&mut self) -> Read<Cow<'a, str>> {
        match self.head()? {
            Head::Text(n) => self.utf8(n).map(Cow::Borrowed),
            found => Err(self.expected("a string", found)),
        }
    }

    #[inline]
    fn text_or_null(&mut self) -> Read<Option<Cow<'a, str>>> {
        if self.null()? { Ok(None) } else { self.text().map(Some) }
    }

    #[inline]
    fn null(&mut self) -> Read<bool> {
        let null = self.body.get(self.at) == Some(&0xc0);
        self.at += usize::from(null);
        Ok(null)
    }

    #[inline]
    fn bytes(&mut self) -> Read<Cow<'a, [u8]>> {
        match self.head()? {
            Head::Bin(n) => self.take(n).map(Cow::Borrowed),
            found => Err(self.expected("bytes", found)),
        }
    }

    fn json(&mut self) -> Read<Cow<'a, str>> {
        let mut text = String::new();
        transcode::to_json(self, MAX_DEPTH, &mut text)?;
        Ok(Cow::Owned(text))
    }

    fn skip(&mut self) -> Read<()> {
        self.pass(MAX_DEPTH)
    }

    fn end(&mut self) -> Read<()> {
        let left = self.body.len() - self.at;
        if left == 0 { Ok(()) } else { Err(self.fault(format!("{left} bytes after the end"))) }
    }

    #[inline]
    fn offset(&self) -> usize {
        self.at
    }
}
