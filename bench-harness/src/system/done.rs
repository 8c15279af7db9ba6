//! What the peers share: an exact count of what has run, a window of tasks under way for those without a bound of their
//! own, and what a producer has opened per key.

use std::{
    cell::Cell,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use crossbeam_utils::CachePadded;

use crate::workload::{Item, Stream};

const SLOTS: usize = 16;
/// The most tasks under way at a time, where a peer's own queues have no bound.
pub const WINDOW: u64 = 1 << 16;
const STRIDE: usize = 256;
const NAP: Duration = Duration::from_micros(50);

/// Counts tasks that have run: each thread on a line of its own, so that counting is not what is measured.
///
/// It says when the clock stops, not who sees what: the states are read after the threads have been joined.
#[derive(Debug, Default)]
pub struct Done {
    counts: [CachePadded<AtomicU64>; SLOTS],
    sent: CachePadded<AtomicU64>,
}

fn slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static SLOT: Cell<usize> = const { Cell::new(usize::MAX) }; }
    SLOT.with(|slot| {
        if slot.get() == usize::MAX {
            slot.set(NEXT.fetch_add(1, Relaxed) % SLOTS);
        }
        slot.get()
    })
}

impl Done {
    /// `n` more have run.
    #[inline]
    pub fn add(&self, n: u64) {
        self.counts[slot()].fetch_add(n, Relaxed);
    }

    fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Waits until `all` have run; the end is seen at most one nap late.
    pub fn wait(&self, all: u64) {
        while self.count() < all {
            std::thread::sleep(NAP);
        }
    }

    /// Waits until the tasks under way leave room in the window, and books `n` more.
    fn admit(&self, n: u64) {
        let sent = self.sent.fetch_add(n, Relaxed) + n;
        if sent.saturating_sub(self.count()) > WINDOW {
            // Down to three quarters, so that a full window does not mean a nap for every stride.
            while self.sent.load(Relaxed).saturating_sub(self.count()) > WINDOW / 4 * 3 {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Calls `send` for each item, with at most [`WINDOW`] under way (and one stride for each producer).
    pub fn within_window(&self, stream: &Stream, mut send: impl FnMut(&Item)) {
        for items in stream.0.chunks(STRIDE) {
            self.admit(items.len() as u64);
            items.iter().for_each(&mut send);
        }
    }
}

/// What one producer holds per key (a channel's sender, an actor's address), made on first use.
///
/// Each key has one producer, so the table is the producer's own: no hash, no lock. This is the best that a user of the
/// peer could do, and spares it the map that Bgrp looks keys up in.
#[derive(Debug)]
pub struct Opened<X>(Vec<Option<X>>);

impl<X> Opened<X> {
    /// A table for `keys` keys.
    pub fn new(keys: usize) -> Self {
        Self((0..keys).map(|_| None).collect())
    }

    /// What is held for `key`.
    #[inline]
    pub fn of(&mut self, key: u32, open: impl FnOnce() -> X) -> &X {
        self.0[key as usize].get_or_insert_with(open)
    }
}

/// Holds what the producers have opened until the clock has stopped: closing it is not part of the work.
#[derive(Debug)]
pub struct Kept<X>(Mutex<Vec<Opened<X>>>);

impl<X> Default for Kept<X> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<X> Kept<X> {
    /// Keeps a producer's table.
    pub fn keep(&self, opened: Opened<X>) {
        self.0.lock().expect("no panic under it").push(opened);
    }
}

/// Tasks of all streams.
pub fn tasks(streams: &[Stream]) -> u64 {
    streams.iter().map(|stream| stream.0.len() as u64).sum()
}
