//! A thread pool with one queue, and a lock for each key taken by the worker: the classic first answer. The queue is
//! first in, first out, so to keep the order of a key the worker queues for the lock in order: a ticket per key.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use super::System;
use crate::{
    measure::{Timed, each_producer, timed},
    oracle::Table,
    workload::{Item, Stream, Workload},
};

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct LockPerKey;

struct Pool {
    queue: Mutex<(VecDeque<Item>, bool)>,
    changed: Condvar,
    room: Condvar,
    /// The number of the task whose turn it is, per key.
    turns: Box<[(Mutex<()>, AtomicU32)]>,
    table: Table,
}

const CAPACITY: usize = 1 << 16;

impl Pool {
    fn worker(&self, work: crate::workload::Work) {
        let mut batch = Vec::with_capacity(32);
        loop {
            {
                let mut queue = self.queue.lock().expect("no panic under it");
                while queue.0.is_empty() && !queue.1 {
                    queue = self.changed.wait(queue).expect("no panic under it");
                }
                if queue.0.is_empty() {
                    return;
                }
                let n = queue.0.len().min(32);
                batch.extend(queue.0.drain(..n));
                self.room.notify_all();
            }
            for item in batch.drain(..) {
                let (lock, turn) = &self.turns[item.key as usize];
                loop {
                    let guard = lock.lock().expect("no panic under it");
                    if turn.load(Ordering::Relaxed) == item.number {
                        self.table.run(item.key, item.number, work);
                        turn.store(item.number + 1, Ordering::Relaxed);
                        drop(guard);
                        break;
                    }
                    // Another worker has the task before; it took it earlier, so it will come to it.
                    drop(guard);
                    std::thread::yield_now();
                }
            }
        }
    }

    fn submit(&self, items: &[Item]) {
        let mut queue = self.queue.lock().expect("no panic under it");
        while queue.0.len() >= CAPACITY {
            queue = self.room.wait(queue).expect("no panic under it");
        }
        queue.0.extend(items);
        drop(queue);
        self.changed.notify_one();
    }
}

impl System for LockPerKey {
    fn name(&self) -> &'static str {
        "lock-per-key"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let pool = Arc::new(Pool {
            queue: Mutex::new((VecDeque::with_capacity(CAPACITY), false)),
            changed: Condvar::new(),
            room: Condvar::new(),
            turns: (0..workload.keys).map(|_| (Mutex::new(()), AtomicU32::new(0))).collect(),
            table: Table::new(workload.keys),
        });
        let workers: Vec<_> = (0..workload.workers)
            .map(|_| {
                let (pool, work) = (pool.clone(), workload.work);
                std::thread::spawn(move || pool.worker(work))
            })
            .collect();
        timed(|| {
            each_producer(streams, |stream| {
                stream.0.iter().for_each(|item| pool.submit(std::slice::from_ref(item)));
            });
            pool.queue.lock().expect("no panic under it").1 = true;
            pool.changed.notify_all();
            for worker in workers {
                worker.join().expect("a worker does not panic");
            }
        })
    }
}
