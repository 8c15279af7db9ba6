//! The body of every task, and the check that is part of it.
//!
//! A task carries its number within its key. The body compares it with the number that is due, and mixes it into an
//! accumulator whose value depends on the order. At the end the accumulators of all keys must give the sum that one
//! thread gets when it runs the stream in order.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::workload::{Item, Stream, Work};

/// Per-key accumulator where the system hands the body a state of its own (`&mut`).
#[derive(Debug, Default)]
pub struct KeyState {
    next: u32,
    accumulator: u64,
}

/// What all keys of the current run came to. One run at a time.
#[derive(Debug, Default)]
struct Total {
    tasks: AtomicU64,
    sum: AtomicU64,
    violations: AtomicU64,
}

static TOTAL: Total =
    Total { tasks: AtomicU64::new(0), sum: AtomicU64::new(0), violations: AtomicU64::new(0) };

/// The sum of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Tasks that ran.
    pub tasks: u64,
    /// The order-dependent sum over all keys.
    pub sum: u64,
    /// Tasks that did not carry the number that was due.
    pub violations: u64,
}

/// Forgets the run before.
pub fn reset() {
    TOTAL.tasks.store(0, Relaxed);
    TOTAL.sum.store(0, Relaxed);
    TOTAL.violations.store(0, Relaxed);
}

/// Adds what tasks in another process came to.
pub fn add(verdict: Verdict) {
    TOTAL.tasks.fetch_add(verdict.tasks, Relaxed);
    TOTAL.sum.fetch_add(verdict.sum, Relaxed);
    TOTAL.violations.fetch_add(verdict.violations, Relaxed);
}

/// The verdict on the run; every state must be dropped, every table settled.
pub fn verdict() -> Verdict {
    Verdict {
        tasks: TOTAL.tasks.load(Relaxed),
        sum: TOTAL.sum.load(Relaxed),
        violations: TOTAL.violations.load(Relaxed),
    }
}

#[inline(always)]
fn mix(accumulator: u64, number: u32) -> u64 {
    (accumulator.rotate_left(5) ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cold]
fn violation() {
    TOTAL.violations.fetch_add(1, Relaxed);
}

impl KeyState {
    /// The body of a task.
    #[inline(always)]
    pub fn run(&mut self, number: u32, work: Work) {
        if number != self.next {
            violation();
        }
        self.next = number.wrapping_add(1);
        self.accumulator = mix(self.accumulator, number);
        work.spend();
    }
}

impl Drop for KeyState {
    fn drop(&mut self) {
        TOTAL.tasks.fetch_add(u64::from(self.next), Relaxed);
        TOTAL.sum.fetch_add(self.accumulator, Relaxed);
    }
}

/// Accumulators of all keys, for systems without a state per key. The system keeps the tasks of a key apart; loads and
/// stores are relaxed, so a system that does not is caught and not undefined.
#[derive(Debug)]
pub struct Table(Box<[(AtomicU32, AtomicU64)]>);

impl Table {
    /// A table for `keys` keys.
    pub fn new(keys: usize) -> Self {
        Self((0..keys).map(|_| (AtomicU32::new(0), AtomicU64::new(0))).collect())
    }

    /// The body of a task.
    #[inline(always)]
    pub fn run(&self, key: u32, number: u32, work: Work) {
        let (next, accumulator) = &self.0[key as usize];
        if number != next.load(Relaxed) {
            violation();
        }
        next.store(number.wrapping_add(1), Relaxed);
        accumulator.store(mix(accumulator.load(Relaxed), number), Relaxed);
        work.spend();
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for (next, accumulator) in &self.0 {
            drop(KeyState { next: next.load(Relaxed), accumulator: accumulator.load(Relaxed) });
        }
    }
}

/// The verdict that a run of these streams must get.
pub fn expected(streams: &[Stream], keys: usize) -> Verdict {
    let mut accumulators = vec![0u64; keys];
    let mut tasks = 0;
    for stream in streams {
        for &Item { key, number } in &stream.0 {
            let accumulator = &mut accumulators[key as usize];
            *accumulator = mix(*accumulator, number);
            tasks += 1;
        }
    }
    let sum = accumulators.iter().fold(0u64, |sum, one| sum.wrapping_add(*one));
    Verdict { tasks, sum, violations: 0 }
}
