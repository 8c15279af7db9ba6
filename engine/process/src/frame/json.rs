//! Bodies in JSON, read.

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    FrameError, MAX_DEPTH,
    source::{Read, Seq, Source},
};

/// See the module text. The body is one JSON text.
pub(crate) struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Read<Self> {
        let text = std::str::from_utf8(body)
            .map_err(|error| FrameError::new(error.valid_up_to(), "not UTF-8"))?;
        Ok(Self { text, at: 0 })
    }

    pub(crate) fn over(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(self.at) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// The next byte that is no space, if it is this one.
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expected(&mut self, what: &str) -> FrameError {
        let found = match self.peek() {
            Some(byte) if byte.is_ascii_graphic() => format!("found '{}'", byte as char),
            Some(byte) => format!("found byte {byte}"),
            None => "the body ends".into(),
        };
        self.fault(format!("expected {what}, {found}"))
    }

    fn word(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += if found { word.len() } else { 0 };
        found
    }

    /// A number, as it stands.
    fn number(&mut self) -> Read<&'a str> {
        self.peek();
        let (from, bytes) = (self.at, self.text.as_bytes());
        let digits = |at: &mut usize| {
            let from = *at;
            while bytes.get(*at).is_some_and(u8::is_ascii_digit) {
                *at += 1;
            }
            *at > from
        };
        let mut at = from + usize::from(bytes.get(from) == Some(&b'-'));
        let zero = bytes.get(at) == Some(&b'0');
        let whole = at;
        let mut good = digits(&mut at) && !(zero && at > whole + 1);
        if good && bytes.get(at) == Some(&b'.') {
            at += 1;
            good = digits(&mut at);
        }
        if good && matches!(bytes.get(at), Some(b'e' | b'E')) {
            at += 1;
            at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
            good = digits(&mut at);
        }
        if !good {
            return Err(self.expected("a number"));
        }
        self.at = at;
        Ok(&self.text[from..at])
    }

    /// A string with its quotes, and whether it has escapes.
    fn string(&mut self) -> Read<(&'a str, bool)> {
        if !self.eat(b'"') {
            return Err(self.expected("a string"));
        }
        let (from, bytes) = (self.at - 1, self.text.as_bytes());
        let mut escapes = false;
        loop {
            match bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escapes = true;
                    self.at += 2;
                }
                Some(0..=31) => return Err(self.fault("a control character in a string")),
                Some(_) => self.at += 1,
                None => {
                    self.at = bytes.len();
                    return Err(self.fault("a string does not end"));
                }
            }
        }
        self.at += 1;
        let text = &self.text[from..self.at];
        if escapes && let Err(error) = serde_json::from_str::<String>(text) {
            return Err(FrameError::new(from, format!("a string: {error}")));
        }
        Ok((text, escapes))
    }

    fn unescaped((text, escapes): (&'a str, bool)) -> Cow<'a, str> {
        if escapes {
            // It was looked at by `string`.
            Cow::Owned(serde_json::from_str(text).unwrap_or_default())
        } else {
            Cow::Borrowed(&text[1..text.len() - 1])
        }
    }

    /// Any value. `visit` sees what it is made of.
    pub(crate) fn walk(&mut self, depth: usize, visit: &mut impl Visit) -> Read<()> {
        if depth == 0 {
            return Err(self.fault(format!("nested deeper than {MAX_DEPTH}")));
        }
        match self.peek() {
            Some(b'"') => {
                let text = Self::unescaped(self.string()?);
                visit.text(&text);
            }
            Some(b'-' | b'0'..=b'9') => visit.number(self.number()?),
            Some(b'[') => {
                let mark = visit.open(false);
                let (mut seq, mut count) = (self.open()?, 0);
                while self.more(&mut seq)? {
                    self.walk(depth - 1, visit)?;
                    count += 1;
                }
                visit.close(mark, count);
            }
            Some(b'{') => {
                self.at += 1;
                let (mark, mut count) = (visit.open(true), 0);
                while !self.eat(b'}') {
                    if count > 0 && !self.eat(b',') {
                        return Err(self.expected("',' or '}'"));
                    }
                    let key = Self::unescaped(self.string()?);
                    visit.text(&key);
                    if !self.eat(b':') {
                        return Err(self.expected("':'"));
                    }
                    self.walk(depth - 1, visit)?;
                    count += 1;
                }
                visit.close(mark, count);
            }
            _ if self.word("null") => visit.word(0xc0),
            _ if self.word("false") => visit.word(0xc2),
            _ if self.word("true") => visit.word(0xc3),
            _ => return Err(self.expected("a value")),
        }
        Ok(())
    }
}

/// What a value is made of. Words are given as their byte in MessagePack.
pub(crate) trait Visit {
    fn text(&mut self, text: &str);
    fn number(&mut self, number: &str);
    fn word(&mut self, byte: u8);
    fn open(&mut self, object: bool) -> usize;
    fn close(&mut self, mark: usize, count: usize);
}

/// Only that it is valid counts.
struct Nobody;

impl Visit for Nobody {
    fn text(&mut self, _: &str) {}
    fn number(&mut self, _: &str) {}
    fn word(&mut self, _: u8) {}
    fn open(&mut self, _: bool) -> usize {
        0
    }
    fn close(&mut self, _: usize, _: usize) {}
}

impl<'a> Source<'a> for Json<'a> {
    fn open(&mut self) -> Read<Seq> {
        if self.eat(b'[') {
            Ok(Seq { left: 0, first: true })
        } else {
            Err(self.expected("an array"))
        }
    }

    fn more(&mut self, seq: &mut Seq) -> Read<bool> {
        if self.eat(b']') {
            return Ok(false);
        }
        if !std::mem::take(&mut seq.first) && !self.eat(b',') {
            return Err(self.expected("',' or ']'"));
        }
        Ok(true)
    }

    fn uint(&mut self) -> Read<u64> {
        let number = self.number()?;
        number.parse().map_err(|_| self.fault(format!("{number} is not a number from 0 to 2^64-1")))
    }

    fn int(&mut self) -> Read<i64> {
        let number = self.number()?;
        number.parse().map_err(|_| self.fault(format!("{number} is not a whole number in range")))
    }

    fn boolean(&mut self) -> Read<bool> {
        if self.word("true") {
            Ok(true)
        } else if self.word("false") {
            Ok(false)
        } else {
            Err(self.expected("true or false"))
        }
    }

    fn text(&mut self) -> Read<Cow<'a, str>> {
        Ok(Self::unescaped(self.string()?))
    }

    fn text_or_null(&mut self) -> Read<Option<Cow<'a, str>>> {
        if self.word("null") { Ok(None) } else { self.text().map(Some) }
    }

    fn null(&mut self) -> Read<bool> {
        Ok(self.word("null"))
    }

    fn bytes(&mut self) -> Read<Cow<'a, [u8]>> {
        let text = self.text()?;
        let bytes = BASE64_STANDARD.decode(text.as_bytes());
        bytes.map(Cow::Owned).map_err(|error| self.fault(format!("base64: {error}")))
    }

    fn json(&mut self) -> Read<Cow<'a, str>> {
        self.peek();
        let from = self.at;
        self.skip()?;
        Ok(Cow::Borrowed(&self.text[from..self.at]))
    }

    fn skip(&mut self) -> Read<()> {
        self.walk(MAX_DEPTH, &mut Nobody)
    }

    fn end(&mut self) -> Read<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end")),
        }
    }

    fn offset(&self) -> usize {
        self.at.min(self.text.len())
    }
}
