//! Rayon with a queue and a scheduled flag for each key: the submitter pushes, and spawns a job when nobody has the key.
//!
//! Its queues have no bound of their own, so it submits within the same window of tasks under way as the other peers
//! without one; unbounded queues would measure memory, not hand-over.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use super::{
    System,
    done::{Done, Kept, Opened, tasks},
};
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

impl Key {
    /// True when nobody had the key, so that the caller has to spawn its job.
    fn push(&self, number: u32) -> bool {
        let mut queue = self.queue.lock().expect("no panic under it");
        queue.waiting.push_back(number);
        !std::mem::replace(&mut queue.scheduled, true)
    }

    fn take(&self, batch: &mut [u32; BATCH]) -> usize {
        let mut queue = self.queue.lock().expect("no panic under it");
        let n = queue.waiting.len().min(BATCH);
        for (slot, number) in batch.iter_mut().zip(queue.waiting.drain(..n)) {
            *slot = number;
        }
        n
    }

    /// Gives the key up unless more is waiting.
    fn keep_if_waiting(&self) -> bool {
        let mut queue = self.queue.lock().expect("no panic under it");
        queue.scheduled = !queue.waiting.is_empty();
        queue.scheduled
    }
}

fn run_key(key: Arc<Key>, work: Work, done: Arc<Done>) {
    let mut batch = [0u32; BATCH];
    let n = key.take(&mut batch);
    {
        // Never contended: one job per key at a time.
        let mut state = key.state.lock().expect("no panic under it");
        for number in &batch[..n] {
            state.run(*number, work);
        }
    }
    done.add(n as u64);
    if key.keep_if_waiting() {
        rayon::spawn_fifo(move || run_key(key, work, done));
    }
}

impl System for QueuePerKey {
    fn name(&self) -> &'static str {
        "rayon-queue-per-key"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(workload.workers)
            .build()
            .expect("threads start");
        let done = Arc::new(Done::default());
        let kept = Kept::default();
        let work = workload.work;
        let timed = timed(|| {
            each_producer(streams, |stream| {
                let mut keys = Opened::new(workload.keys);
                done.within_window(stream, |item| {
                    let key: &Arc<Key> = keys.of(item.key, Arc::default);
                    if key.push(item.number) {
                        let (key, done) = (key.clone(), done.clone());
                        pool.spawn_fifo(move || run_key(key, work, done));
                    }
                });
                kept.keep(keys);
            });
            done.wait(tasks(streams));
        });
        // A worker gets to this when the job that counted the last task has ended, so no job holds a key any more.
        pool.broadcast(|_| ());
        timed
    }
}
