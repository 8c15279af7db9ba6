//! What the two forms of a body have in common when they are read.

use std::borrow::Cow;

use super::FrameError;

/// Where one is in an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seq {
    /// MessagePack: elements that are left.
    pub(crate) left: usize,
    /// JSON: no element was read yet.
    pub(crate) first: bool,
}

pub(crate) type Read<T> = Result<T, FrameError>;

/// A body that is read from its front.
pub(crate) trait Source<'a> {
    /// An array begins.
    fn open(&mut self) -> Read<Seq>;
    /// True when the array has another element, which must be read next; false when it ended.
    fn more(&mut self, seq: &mut Seq) -> Read<bool>;
    fn uint(&mut self) -> Read<u64>;
    fn int(&mut self) -> Read<i64>;
    fn boolean(&mut self) -> Read<bool>;
    fn text(&mut self) -> Read<Cow<'a, str>>;
    /// Text, or `None` for null.
    fn text_or_null(&mut self) -> Read<Option<Cow<'a, str>>>;
    /// Null, and true; or anything else, and false: nothing was read.
    fn null(&mut self) -> Read<bool>;
    fn bytes(&mut self) -> Read<Cow<'a, [u8]>>;
    /// Any value, as JSON text.
    fn json(&mut self) -> Read<Cow<'a, str>>;
    /// Any value, passed over.
    fn skip(&mut self) -> Read<()>;
    /// Nothing may follow.
    fn end(&mut self) -> Read<()>;
    fn offset(&self) -> usize;

    /// Another element, or an error that names what is missing.
    #[inline]
    fn need(&mut self, seq: &mut Seq, what: &str) -> Read<()> {
        if self.more(seq)? {
            Ok(())
        } else {
            Err(self.fault(format!("the array ends before {what}")))
        }
    }

    /// Fields that a later version added are passed over.
    #[inline]
    fn rest(&mut self, seq: &mut Seq) -> Read<()> {
        while self.more(seq)? {
            self.skip()?;
        }
        Ok(())
    }

    fn fault(&self, what: impl Into<String>) -> FrameError {
        FrameError::new(self.offset(), what)
    }
}
