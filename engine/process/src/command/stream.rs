//! One stream of a command: a pipe, and what becomes of its bytes.

use std::io::{self, PipeReader};

use rustix::io::Errno;

use super::{Capture, Output, StdStream};

/// The longest line that is given away whole.
const LONGEST_LINE: usize = 16 << 20;
/// The most that is read from a pipe which something still holds open when it is closed: what the largest pipe of
/// an ordinary user holds.
const LAST_READ: usize = 1 << 20;

/// One stream of a command.
#[derive(Debug)]
pub(super) struct Stream {
    which: StdStream,
    pub(super) pipe: Option<PipeReader>,
    pub(super) kept: Capture,
    /// A line that has not ended yet.
    line: Vec<u8>,
}

impl Stream {
    pub(super) fn new(which: StdStream, pipe: PipeReader) -> Self {
        Self { which, pipe: Some(pipe), kept: Capture::default(), line: Vec::new() }
    }

    pub(super) fn read(&mut self, output: &mut Output, chunk: &mut [u8]) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::read(pipe, &mut *chunk) {
            Ok(0) => {
                self.close(output);
                Ok(())
            }
            Ok(count) => self.take(output, &chunk[..count]),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, output: &mut Output, mut bytes: &[u8]) -> io::Result<()> {
        let Output::Lines(sink) = output else { return self.kept.push(bytes) };
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end + 1);
            if self.line.is_empty() {
                sink(self.which, line);
            } else {
                self.line.extend_from_slice(line);
                sink(self.which, &self.line);
                self.line.clear();
            }
            bytes = rest;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() >= LONGEST_LINE {
            sink(self.which, &self.line);
            self.line.clear();
        }
        Ok(())
    }

    /// Closes the pipe; what is left of a line is a line.
    fn close(&mut self, output: &mut Output) {
        self.pipe = None;
        if let Output::Lines(sink) = output
            && !self.line.is_empty()
        {
            sink(self.which, &self.line);
            self.line = Vec::new();
        }
    }

    /// Reads what is there without waiting for more, and closes.
    pub(super) fn finish(&mut self, output: &mut Output, chunk: &mut [u8]) -> io::Result<()> {
        if let Some(pipe) = &self.pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        let mut left = LAST_READ;
        while let Some(pipe) = &self.pipe {
            match rustix::io::read(pipe, &mut *chunk) {
                Ok(count) if count > 0 && left > 0 => {
                    left = left.saturating_sub(count);
                    self.take(output, &chunk[..count])?;
                }
                Err(Errno::INTR) => {}
                _ => self.close(output),
            }
        }
        Ok(())
    }
}
