//! The cell: a page that a worker shares with the runner. The worker writes into it which task it runs and since when; the runner
//! reads it for blame and deadlines.
//!
//! | offset | u64, little-endian | written |
//! |---|---|---|
//! | 0 | number of the task that runs, 0 for none | by the worker, before and after each task |
//! | 8 | CLOCK_MONOTONIC in ns when it began | by the worker, before the number |
//!
//! Cost: two stores a task. Whatever a worker writes here, it can only be believed or not: a number that was not sent is none.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

const SIZE: usize = 4_096;

/// See the module text.
#[derive(Debug)]
pub(super) struct Cell {
    page: NonNull<AtomicU64>,
}

// SAFETY: the page is owned by the cell and only read, by atomic loads.
unsafe impl Send for Cell {}

impl Cell {
    /// A cell, and the descriptor of its page for the worker.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create("bgrp-cell", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, SIZE as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a fresh mapping of a file of this size, which is sealed: no worker can cut it short, so reads cannot fault.
        let page = unsafe {
            mmap(std::ptr::null_mut(), SIZE, ProtFlags::READ, MapFlags::SHARED, fd.as_fd(), 0)
        }?;
        let page = NonNull::new(page.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok((Self { page }, fd))
    }

    /// The task that runs, and when it began.
    pub(super) fn read(&self) -> Option<(u64, u64)> {
        // SAFETY: the page holds 512 of them and is mapped as long as the cell lives.
        let (number, began) = unsafe { (self.page.as_ref(), self.page.add(1).as_ref()) };
        // A worker that changes it without an end is believed nothing.
        for _ in 0..100 {
            // ORDERING: Acquire, so that `began` is not older than the number; the worker wrote it before.
            let now = u64::from_le(number.load(Ordering::Acquire));
            if now == 0 {
                return None;
            }
            let since = u64::from_le(began.load(Ordering::Acquire));
            if u64::from_le(number.load(Ordering::Relaxed)) == now {
                return Some((now, since));
            }
        }
        None
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this size, and not used after this.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), SIZE) };
    }
}
