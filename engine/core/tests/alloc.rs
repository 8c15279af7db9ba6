//! The allocation gate: once warm, a task costs no allocation, whichever way it comes in (rows E3, B3).
//!
//! A counting allocator counts every allocation of the process while tasks go through real threads; the test is alone in
//! its binary for that.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use bgrp::{Engine, GroupHandle, Producer, Workers};
use common::{LONG, Rng, watch};

/// Counts while it is told to.
struct Counting;

static COUNT: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn note() {
    if COUNT.load(SeqCst) {
        ALLOCATIONS.fetch_add(1, SeqCst);
    }
}

// SAFETY: every call goes to the system allocator as it came; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a window may allocate at most. Nothing is needed per task or per dispatch. What remains after the warm-up are
/// segments of group queues (1 to 8 KiB here): each worker keeps up to 64 of each size for itself, so another one that
/// finds none makes a new one. They are never freed; their number follows workers and sizes, not tasks.
const ALLOWED: u64 = 64;
/// Windows are measured until one is without any allocation; among so many there must be one with at most two.
const WINDOWS: usize = 40;
/// Handlers take longer than submits.
static SLOW: AtomicBool = AtomicBool::new(false);
/// Tasks that the engine holds at most.
const CAPACITY: usize = 1 << 14;
const TASKS: u64 = common::scale(100_000, 200_000);
const KEYS: u64 = 500;

type Plain = [u64; 4];

/// A task that has something to do when it is dropped.
struct Dropped(Plain, &'static AtomicU64);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.1.fetch_add(self.0[1], SeqCst);
    }
}

struct Ways<T> {
    engine: Arc<Engine<u64, T>>,
    handles: Vec<GroupHandle<u64, T>>,
    many: Vec<(u64, T)>,
    lane: Producer<u64, T>,
}

static SUM: AtomicU64 = AtomicU64::new(0);

/// What a handler does with a task.
fn work(n: u64) {
    SUM.fetch_add(n, SeqCst);
    if SLOW.load(SeqCst) {
        common::spin(common::scale(100, 2_000));
    }
}

/// One pass of [`TASKS`] tasks by one way, with all of them ended afterwards.
fn pass<T>(ways: &mut Ways<T>, way: usize, rng: &mut Rng, make: fn(Plain) -> T) {
    for n in 0..TASKS {
        let key = rng.below(KEYS);
        let task = make([n, key, 0, 0]);
        match way {
            0 => ways.engine.submit(key, task).expect("open"),
            1 => ways.handles[key as usize].submit(task).expect("open"),
            2 => {
                ways.many.push((key, task));
                if ways.many.len() == 1_000 {
                    ways.engine.submit_many(&mut ways.many).expect("open");
                }
            }
            _ => ways.lane.submit(key, task).expect("open"),
        }
    }
    assert!(ways.engine.wait_drain(LONG));
}

fn measure<T: Send + 'static>(name: &str, engine: Engine<u64, T>, make: fn(Plain) -> T) {
    let engine = Arc::new(engine);
    let _watch = watch("allocations", &engine);
    let mut ways = Ways {
        handles: (0..KEYS).map(|key| engine.group(key)).collect(),
        many: Vec::with_capacity(1_000),
        lane: engine.producer(),
        engine,
    };
    let mut rng = Rng(1);
    // Segments are never freed, so what is needed at the largest backlog is there afterwards. With slow handlers the
    // backlog is what the engine holds at most; the measured windows stay below.
    for slow in [true, false, false, false] {
        SLOW.store(slow, SeqCst);
        (0..4).for_each(|way| pass(&mut ways, way, &mut rng, make));
    }
    for (way, label) in ["by key", "by handle", "many at once", "by lane"].into_iter().enumerate() {
        let windows: Vec<u64> = (0..WINDOWS)
            .map(|_| {
                ALLOCATIONS.store(0, SeqCst);
                COUNT.store(true, SeqCst);
                pass(&mut ways, way, &mut rng, make);
                COUNT.store(false, SeqCst);
                ALLOCATIONS.load(SeqCst)
            })
            .scan(false, |over, count| (!std::mem::replace(over, count == 0)).then_some(count))
            .collect();
        println!("{name}, {label}: allocations in windows of {TASKS} tasks: {windows:?}");
        assert!(windows.iter().all(|count| *count <= ALLOWED), "{name}, {label}: {windows:?}");
        let least = windows.iter().min();
        assert!(least <= Some(&2), "{name}, {label}: no window (nearly) without: {windows:?}");
    }
}

#[test]
fn a_task_costs_no_allocation_once_the_engine_is_warm() {
    for workers in [1, 2] {
        let per_task = Engine::<u64, Plain>::builder()
            .workers(Workers::fixed(workers))
            .capacity(CAPACITY)
            .state(|_| 0u64)
            .task_handler(|state, task| {
                *state += 1;
                work(task[0]);
            })
            .build();
        let name = format!("{workers} workers, tasks");
        measure(&name, per_task.expect("valid settings"), |plain| plain);
        let batched = Engine::<u64, Plain>::builder()
            .workers(Workers::fixed(workers))
            .capacity(CAPACITY)
            .handler(|(), batch| batch.iter().for_each(|task| work(task[0])))
            .build();
        let name = format!("{workers} workers, batches");
        measure(&name, batched.expect("valid settings"), |plain| plain);
        let dropped = Engine::<u64, Dropped>::builder()
            .workers(Workers::fixed(workers))
            .capacity(CAPACITY)
            .handler(|(), batch| batch.iter().for_each(|task| work(task.0[0])))
            .build();
        let name = format!("{workers} workers, batches of tasks with a drop");
        measure(&name, dropped.expect("valid settings"), |plain| Dropped(plain, &SUM));
        // Neither bound is met: who waits allocates his place in the line. Weights and room are kept all the same.
        let exact = Engine::<u64, Plain>::builder()
            .workers(Workers::fixed(workers))
            .capacity(TASKS as usize)
            .exact_group_capacity(TASKS as usize)
            .weigh(|_, task| 1 + task[0] as usize % 100)
            .capacity_bytes(100 * TASKS as usize)
            .task_handler(|(), task| work(task[0]))
            .build();
        let name = format!("{workers} workers, exact with bytes");
        measure(&name, exact.expect("valid settings"), |plain| plain);
    }
    assert!(SUM.load(SeqCst) > 0);
}
