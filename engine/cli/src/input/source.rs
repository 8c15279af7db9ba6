//! Where bytes come from: files and standard input, read with patience until the run stops.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};

use crate::control::Control;

/// An input by name, shared by its records.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// What it is called in messages.
    pub name: Arc<str>,
    /// Its format.
    pub format: super::format::Format,
}

/// An opened byte source.
pub struct Opened {
    /// What it is called in messages.
    pub name: Arc<str>,
    /// Its size, for regular files.
    pub size: Option<u64>,
    /// Device and file number, for regular files.
    pub identity: Option<(u64, u64)>,
    file: OwnedFd,
}

/// Opens `path`; `-` is standard input.
///
/// # Errors
/// The operating system's answer.
pub fn open(path: &Path) -> io::Result<Opened> {
    let (name, file): (Arc<str>, OwnedFd) = if path == Path::new("-") {
        ("standard input".into(), io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        (path.to_string_lossy().into(), File::open(path)?.into())
    };
    let file = File::from(file);
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let regular = meta.is_file().then_some(());
    let identity = regular.map(|()| identity(&meta));
    Ok(Opened { name, size: regular.map(|()| meta.len()), identity, file: file.into() })
}

/// Device and file number.
#[must_use]
pub fn identity(meta: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

impl Opened {
    /// A reader that ends when the source does, or when `control` stops the run, and counts what it
    /// reads in `read`.
    #[must_use]
    pub fn patient(self, control: Arc<Control>, read: Arc<AtomicU64>) -> Patient {
        Patient { file: self.file, control, read }
    }
}

/// A reader that a stop wakes.
pub struct Patient {
    file: OwnedFd,
    control: Arc<Control>,
    read: Arc<AtomicU64>,
}

impl Read for Patient {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut fds = [
                PollFd::new(&self.file, PollFlags::IN),
                PollFd::from_borrowed_fd(self.control.wake_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            if self.control.stopped() {
                return Ok(0);
            }
            match rustix::io::read(&self.file, &mut *out) {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
                Ok(count) => {
                    self.read.fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(count);
                }
            }
        }
    }
}
