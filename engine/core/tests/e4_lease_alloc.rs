//! Row E4: what a lease allocates. Alone in its binary, for its counting allocator.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use bgrp::{Engine, Lease, Workers};
use common::lock;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator as it came; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        BYTES.fetch_add(layout.size() as u64, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_lease_allocates_once_however_many_tasks_it_has() {
    const KEYS: u32 = 50;
    for tasks in [1, 32] {
        let out = std::sync::Arc::new(Mutex::new(Vec::<Lease<u32, u32>>::with_capacity(64)));
        let taken = out.clone();
        let mut sim = Engine::<u32, u32>::builder()
            .workers(Workers::fixed(1))
            .batch_size(tasks)
            .lease_handler(move |lease| lock(&taken).push(lease))
            .build_sim(1)
            .expect("valid settings");
        let mut spare = Vec::with_capacity(64);
        let mut ended = 0;
        let mut round = |sim: &mut bgrp::Sim<u32, u32>| {
            for task in 0..tasks as u32 {
                (0..KEYS).for_each(|key| sim.submit(key, task).expect("room"));
            }
            while sim.stats().backlog() > 0 {
                sim.run();
                std::mem::swap(&mut *lock(&out), &mut spare);
                ended += spare.len() as u64;
                spare.drain(..).for_each(|lease| lease.complete(()));
            }
        };
        (0..50).for_each(|_| round(&mut sim));
        let before = (ALLOCATIONS.load(SeqCst), BYTES.load(SeqCst), sim.stats().dispatches);
        (0..50).for_each(|_| round(&mut sim));
        let leases = sim.stats().dispatches - before.2;
        let (times, bytes) = (ALLOCATIONS.load(SeqCst) - before.0, BYTES.load(SeqCst) - before.1);
        println!("{leases} leases, {times} allocations, {bytes} bytes");
        assert!(leases >= 50 * u64::from(KEYS));
        assert_eq!(times, leases, "one each, none for {tasks} tasks");
        assert!(bytes <= 128 * leases, "small: {bytes} bytes for {leases} leases");
    }
}
