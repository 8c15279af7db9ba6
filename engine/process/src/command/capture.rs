//! What one command writes to one stream: in memory while small, else in a file that has no name.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// The most bytes of a stream that are kept in memory.
pub const IN_MEMORY: usize = 1024 * 1024;

/// The bytes of a stream.
#[derive(Debug, Default)]
pub struct Capture {
    memory: Vec<u8>,
    spool: Option<File>,
}

impl Capture {
    /// Adds bytes.
    ///
    /// # Errors
    /// The spool file cannot be made or written.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(spool) = &mut self.spool {
            return spool.write_all(bytes);
        }
        if self.memory.len() + bytes.len() <= IN_MEMORY {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let mut spool = tempfile::tempfile()?;
        spool.write_all(&self.memory)?;
        spool.write_all(bytes)?;
        self.memory = Vec::new();
        self.spool = Some(spool);
        Ok(())
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spool.is_none() && self.memory.is_empty()
    }

    /// Writes everything to `out`.
    ///
    /// # Errors
    /// What reading the spool or writing answers.
    pub fn write_to(&mut self, out: BorrowedFd<'_>) -> io::Result<()> {
        let Some(spool) = &mut self.spool else { return write_all(out, &self.memory) };
        spool.rewind()?;
        let mut chunk = vec![0; 256 * 1024];
        loop {
            match spool.read(&mut chunk)? {
                0 => return Ok(()),
                count => write_all(out, &chunk[..count])?,
            }
        }
    }
}

/// Writes all of `bytes`, also to a descriptor that somebody else made non-blocking.
fn write_all(out: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(out, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::from_borrowed_fd(out, PollFlags::OUT)];
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn small_or_spooled_the_bytes_are_the_same() {
        for size in [0, 1, IN_MEMORY, IN_MEMORY + 1, 3 * IN_MEMORY] {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let mut capture = Capture::default();
            for chunk in bytes.chunks(70_000) {
                capture.push(chunk).unwrap();
            }
            assert_eq!(capture.is_empty(), size == 0);
            assert_eq!(capture.spool.is_some(), size > IN_MEMORY);
            let mut out = tempfile::tempfile().unwrap();
            capture.write_to(out.as_fd()).unwrap();
            out.rewind().unwrap();
            let mut got = Vec::new();
            out.read_to_end(&mut got).unwrap();
            assert!(got == bytes, "{size}");
        }
    }
}
