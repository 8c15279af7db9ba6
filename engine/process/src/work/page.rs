//! The cell, from the side that writes: see `runner/cell.rs`.

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap};

const SIZE: usize = 4_096;

/// Mapped as long as the process lives.
pub(super) struct Page(NonNull<AtomicU64>);

impl Page {
    /// The page behind this descriptor.
    pub(super) fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: a fresh mapping; the runner has sealed the size of the file.
        let page = unsafe {
            mmap(
                std::ptr::null_mut(),
                SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        Ok(Self(NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: there are 512 in the page, which stays mapped; `at` is 0 or 1.
        unsafe { self.0.add(at).as_ref() }
    }

    /// This task runs from now on.
    pub(super) fn begin(&self, number: u64, now: u64) {
        self.word(1).store(now.to_le(), Ordering::Relaxed);
        // ORDERING: Release, so that who reads the number sees when it began; pairs with `Cell::read`.
        self.word(0).store(number.to_le(), Ordering::Release);
    }

    /// None runs.
    pub(super) fn end(&self) {
        // ORDERING: as in `begin`.
        self.word(0).store(0, Ordering::Release);
    }
}
