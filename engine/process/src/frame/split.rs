//! A stream cut into frames.

use super::{FrameError, HEADER, Kind, MAX_BODY, mutant};

/// A frame: its body is borrowed from the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: Kind,
    /// What is in it.
    pub body: &'a [u8],
}

/// Takes bytes in any pieces and gives frames. Holds what it was fed and has not given yet; memory is taken as bytes
/// come, not as a header promises.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    broken: Option<FrameError>,
}

/// A buffer larger than this is given back when it is empty.
const KEEP: usize = 1 << 20;

impl Decoder {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes in.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.space(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.filled(bytes.len());
    }

    /// At least `n` bytes to read into; [`filled`](Self::filled) says how many were read.
    pub fn space(&mut self, n: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > KEEP {
                self.buffer = Vec::new();
            }
        }
        if self.buffer.len() - self.end < n && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() - self.end < n {
            let size = (self.end + n).max(self.buffer.len() * 2).min(self.end + n + MAX_BODY);
            self.buffer.resize(size, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes of the space are real.
    ///
    /// # Panics
    /// When there is not so much space.
    pub fn filled(&mut self, n: usize) {
        assert!(n <= self.buffer.len() - self.end, "more bytes than there was space for");
        self.end += n;
    }

    /// Bytes that are held and belong to no frame given so far.
    pub fn pending(&self) -> usize {
        self.end - self.start
    }

    /// Bytes of memory that it has.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next whole frame. After an error there is only that error: the stream cannot be trusted any more.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let held = &self.buffer[self.start..self.end];
        let Some((header, rest)) = held.split_first_chunk::<HEADER>() else { return Ok(None) };
        let (kind, length) = match parse_header(header) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.broken = Some(error.clone());
                return Err(error);
            }
        };
        // The planted bug takes a frame for whole that lacks its last byte, where another piece has yet to come.
        let enough = if mutant("frames-cut-short") { length.saturating_sub(1) } else { length };
        if rest.len() < enough {
            return Ok(None);
        }
        let length = length.min(rest.len());
        let from = self.start + HEADER;
        self.start = from + length;
        Ok(Some(Frame { kind, body: &self.buffer[from..from + length] }))
    }
}

fn parse_header(header: &[u8; HEADER]) -> Result<(Kind, usize), FrameError> {
    let [a, b, c, d, kind, flags, zero_a, zero_b] = *header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let Some(kind) = Kind::from_byte(kind) else {
        return Err(FrameError::new(4, format!("there is no frame type {kind}")));
    };
    let fault = |offset, what: String| Err(FrameError::new(offset, what).within(kind));
    if length > MAX_BODY {
        return fault(0, format!("a body of {length} bytes; the most is {MAX_BODY}"));
    }
    if flags != 0 {
        return fault(5, format!("flags {flags}; there are none yet"));
    }
    if (zero_a, zero_b) != (0, 0) {
        return fault(6, "bytes that must be zero are not".into());
    }
    Ok((kind, length))
}
