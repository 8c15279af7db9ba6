//! The eight bytes before each body, and a stream of bytes cut into frames.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 3 | length of the body, little-endian; at most 16 MiB |
//! | 4 | type |
//! | 5 | flags: 0 |
//! | 6, 7 | 0 |

use std::fmt;

use super::LONGEST;

pub(super) const HEADER: usize = 8;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    Hello = 1,
    Init = 2,
    Ready = 3,
    Tasks = 4,
    Results = 5,
    Started = 6,
    Log = 7,
    Progress = 8,
    Heartbeat = 9,
    Cancel = 10,
    Recall = 11,
    Drain = 12,
    Bye = 13,
}

impl Type {
    const ALL: [Self; 13] = [
        Self::Hello,
        Self::Init,
        Self::Ready,
        Self::Tasks,
        Self::Results,
        Self::Started,
        Self::Log,
        Self::Progress,
        Self::Heartbeat,
        Self::Cancel,
        Self::Recall,
        Self::Drain,
        Self::Bye,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }
}

/// Bytes that are no frame. Nothing that follows can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    TooLong { at: u64, length: u32 },
    Type { at: u64, byte: u8 },
    Flags { at: u64, bytes: [u8; 3] },
    Body { at: u64, kind: Type, why: String },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { at, length } => write!(
                f,
                "byte {at}: a frame of {length} bytes; the longest is {LONGEST}, larger values go by file"
            ),
            Self::Type { at, byte } => write!(f, "byte {at}: {byte} is no type of a frame"),
            Self::Flags { at, bytes } => write!(f, "byte {at}: flags {bytes:?}, and all must be 0"),
            Self::Body { at, kind, why } => {
                write!(f, "byte {at}: the body of a {kind:?} frame: {why}")
            }
        }
    }
}

/// Begins a frame at the end of `out`; gives back where, for [`end`].
pub(crate) fn begin(out: &mut Vec<u8>, kind: Type) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
    at
}

/// Ends the frame that began at `at`. `false`: it is too long, and taken back.
pub(crate) fn end(out: &mut Vec<u8>, at: usize) -> bool {
    let length = out.len() - at - HEADER;
    if length > LONGEST {
        out.truncate(at);
        return false;
    }
    out[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
    true
}

/// A frame: its type, the byte of the stream at which it began, its body.
pub(crate) type Frame<'a> = (Type, u64, &'a [u8]);

/// A stream cut into frames. Holds no more than one frame and what was read with it.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    /// Of `bytes`, what is used: from here, to there.
    from: usize,
    to: usize,
    /// Bytes of the stream before `from`.
    passed: u64,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Room for at least so many more bytes. What of it is written to is told by [`Decoder::filled`].
    pub(crate) fn room(&mut self, least: usize) -> &mut [u8] {
        if self.from > 0 && (self.from == self.to || self.bytes.len() - self.to < least) {
            self.bytes.copy_within(self.from..self.to, 0);
            self.to -= self.from;
            self.from = 0;
        }
        if self.bytes.len() - self.to < least {
            self.bytes.resize(self.to + least, 0);
        }
        &mut self.bytes[self.to..]
    }

    /// So many bytes were written to the room.
    pub(crate) fn filled(&mut self, count: usize) {
        self.to = (self.to + count).min(self.bytes.len());
    }

    /// The next frame is there as a whole.
    pub(crate) fn has_frame(&self) -> Result<bool, FrameError> {
        Ok(self.look()?.is_some())
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let Some((kind, length)) = self.look()? else { return Ok(None) };
        let at = self.passed;
        let body = self.from + HEADER..self.from + HEADER + length;
        self.passed += (HEADER + length) as u64;
        self.from = body.end;
        Ok(Some((kind, at, &self.bytes[body])))
    }

    /// The type and the length of the next frame, if it is there as a whole.
    fn look(&self) -> Result<Option<(Type, usize)>, FrameError> {
        let at = self.passed;
        let there = &self.bytes[self.from..self.to];
        let Some((header, rest)) = there.split_at_checked(HEADER) else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        if length as usize > LONGEST {
            return Err(FrameError::TooLong { at, length });
        }
        let kind = Type::of(header[4]).ok_or(FrameError::Type { at: at + 4, byte: header[4] })?;
        if header[5..] != [0, 0, 0] {
            let bytes = [header[5], header[6], header[7]];
            return Err(FrameError::Flags { at: at + 5, bytes });
        }
        Ok((rest.len() >= length as usize).then_some((kind, length as usize)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, length) in [(Type::Tasks, 0), (Type::Bye, 3), (Type::Log, 70_000)] {
            let at = begin(&mut out, kind);
            out.resize(out.len() + length, kind as u8);
            assert!(end(&mut out, at));
        }
        out
    }

    #[test]
    fn whatever_the_pieces_the_frames_are_the_same() {
        let stream = stream();
        for size in [1, 7, 8, 9, 4_096, stream.len()] {
            let (mut decoder, mut got) = (Decoder::new(), Vec::new());
            for piece in stream.chunks(size) {
                decoder.room(piece.len())[..piece.len()].copy_from_slice(piece);
                decoder.filled(piece.len());
                while let Some((kind, at, body)) = decoder.next().expect("good frames") {
                    assert!(body.iter().all(|byte| *byte == kind as u8));
                    got.push((kind, at, body.len()));
                }
            }
            assert_eq!(got, [(Type::Tasks, 0, 0), (Type::Bye, 8, 3), (Type::Log, 19, 70_000)]);
        }
    }

    #[test]
    fn what_is_no_frame_is_said_with_its_place() {
        let said = |header: [u8; 8]| {
            let mut decoder = Decoder::new();
            decoder.room(8)[..8].copy_from_slice(&header);
            decoder.filled(8);
            decoder.next().expect_err("no frame").to_string()
        };
        assert!(said([1, 0, 0, 1, 4, 0, 0, 0]).contains("16777217 bytes"));
        assert!(said([0, 0, 0, 0, 14, 0, 0, 0]).starts_with("byte 4: 14 is no type"));
        assert!(said([0, 0, 0, 0, 0, 0, 0, 0]).starts_with("byte 4: 0 is no type"));
        assert!(said([0, 0, 0, 0, 4, 0, 0, 9]).starts_with("byte 5: flags [0, 0, 9]"));
        assert!(said(*b"Traceback"[..8].first_chunk().expect("eight")).contains("bytes"));
    }

    #[test]
    fn a_body_that_is_too_long_is_taken_back() {
        let mut out = vec![7];
        let at = begin(&mut out, Type::Results);
        out.resize(out.len() + LONGEST + 1, 0);
        assert!(!end(&mut out, at));
        assert_eq!(out, [7]);
    }
}
