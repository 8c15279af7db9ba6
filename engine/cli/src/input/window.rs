//! The bytes of an input that were read and not yet given away.
//!
//! A splitter looks at all of [`Window::data`], asks for more with [`Window::fill`], and consumes only
//! when it has decided what a piece is. So a quote that turns out to be broken at the end of the file
//! costs its own line, not the rest of the file.

use std::io::{self, Read};

const STEP: usize = 64 * 1024;

/// A growing look-ahead buffer over a byte source.
pub struct Window {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    at_end: bool,
}

impl Window {
    /// A window over `source`.
    #[must_use]
    pub fn new(source: Box<dyn Read + Send>) -> Self {
        Self { source, buffer: Vec::new(), start: 0, end: 0, at_end: false }
    }

    /// The bytes seen and not consumed.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether the source has no more than [`Window::data`].
    #[must_use]
    pub fn at_end(&self) -> bool {
        self.at_end
    }

    /// Reads more; after the last byte it sets [`Window::at_end`].
    ///
    /// # Errors
    /// What the source answers, except interruptions, which are tried again.
    pub fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() < self.end + STEP {
            self.buffer.resize(self.end + self.end.max(STEP), 0);
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.at_end = true;
                    return Ok(());
                }
                Ok(count) => {
                    self.end += count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives away the first `count` bytes of [`Window::data`].
    pub fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.start);
        self.start += count;
    }
}
