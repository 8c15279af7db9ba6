//! Rayon with a queue and a scheduled flag for each key: the submitter pushes, and spawns a job when nobody has the key.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::System;
use crate::{
    measure::{Timed, each_producer, timed},
    oracle::KeyState,
    workload::{Stream, Work, Workload},
};

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct QueuePerKey;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<u32>,
    scheduled: bool,
}

#[derive(Default)]
struct Key {
    queue: Mutex<Queue>,
    state: Mutex<KeyState>,
}

const BATCH: usize = 64;

fn run_key(
    keys: &Arc<Box<[Key]>>,
    pool: &Arc<rayon::ThreadPool>,
    key: usize,
    work: Work,
    done: &Arc<AtomicU64>,
) {
    let mut batch = [0u32; BATCH];
    let n = {
        let mut queue = keys[key].queue.lock().expect("no panic under it");
        let n = queue.waiting.len().min(BATCH);
        for (slot, number) in batch.iter_mut().zip(queue.waiting.drain(..n)) {
            *slot = number;
        }
        n
    };
    {
        // Never contended: one job per key at a time.
        let mut state = keys[key].state.lock().expect("no panic under it");
        for number in &batch[..n] {
            state.run(*number, work);
        }
    }
    done.fetch_add(n as u64, Ordering::Release);
    let more = {
        let mut queue = keys[key].queue.lock().expect("no panic under it");
        queue.scheduled = !queue.waiting.is_empty();
        queue.scheduled
    };
    if more {
        spawn(keys, pool, key, work, done);
    }
}

fn spawn(
    keys: &Arc<Box<[Key]>>,
    pool: &Arc<rayon::ThreadPool>,
    key: usize,
    work: Work,
    done: &Arc<AtomicU64>,
) {
    let (keys, own, done) = (keys.clone(), pool.clone(), done.clone());
    pool.spawn_fifo(move || run_key(&keys, &own, key, work, &done));
}

impl System for QueuePerKey {
    fn name(&self) -> &'static str {
        "rayon-queue-per-key"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let keys: Arc<Box<[Key]>> = Arc::new((0..workload.keys).map(|_| Key::default()).collect());
        let pool = Arc::new(
            rayon::ThreadPoolBuilder::new()
                .num_threads(workload.workers)
                .build()
                .expect("threads start"),
        );
        let done = Arc::new(AtomicU64::new(0));
        let all: u64 = streams.iter().map(|stream| stream.0.len() as u64).sum();
        let timed = timed(|| {
            each_producer(streams, |stream| {
                for item in &stream.0 {
                    let first = {
                        let mut queue =
                            keys[item.key as usize].queue.lock().expect("no panic under it");
                        queue.waiting.push_back(item.number);
                        !std::mem::replace(&mut queue.scheduled, true)
                    };
                    if first {
                        spawn(&keys, &pool, item.key as usize, workload.work, &done);
                    }
                }
            });
            while done.load(Ordering::Acquire) < all {
                std::thread::yield_now();
            }
        });
        // The pool's last share may be in a job that is just ending: wait for it before the states are counted.
        while Arc::strong_count(&keys) > 1 {
            std::thread::yield_now();
        }
        timed
    }
}
