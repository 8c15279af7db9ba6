//! A global allocator that counts, over mimalloc for every system alike.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crossbeam_utils::CachePadded;
use mimalloc::MiMalloc;

/// Counts allocations (and growing reallocations) per thread slot, so that counting itself shares no line.
#[derive(Debug)]
pub struct Counting;

const SLOTS: usize = 64;
static COUNTS: [CachePadded<AtomicU64>; SLOTS] =
    [const { CachePadded::new(AtomicU64::new(0)) }; SLOTS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count() {
    let slot = SLOT.try_with(|slot| {
        if slot.get() == usize::MAX {
            slot.set(NEXT.fetch_add(1, Relaxed) % SLOTS);
        }
        slot.get()
    });
    COUNTS[slot.unwrap_or(0)].fetch_add(1, Relaxed);
}

/// Allocations of the process so far.
pub fn allocations() -> u64 {
    COUNTS.iter().map(|count| count.load(Relaxed)).sum()
}

// SAFETY: every call is passed on to mimalloc unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { MiMalloc.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}
