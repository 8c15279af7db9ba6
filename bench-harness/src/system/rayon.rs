//! Rayon with a queue and a scheduled flag for each key: the submitter pushes, and spawns a job when nobody has the key.
//!
//! Its queues have no bound of their own, so it submits within the same window of tasks under way as the other peers
//! without one; unbounded queues would measure memory, not hand-over.

use std::sync::Arc;

use super::{
    System,
    done::{Done, Kept, Opened, tasks},
    key_queue::{BATCH, Key},
};
use crate::{
    measure::{Timed, each_producer, timed},
    workload::{Stream, Work, Workload},
};

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct QueuePerKey;

fn run_key(key: Arc<Key>, work: Work, done: Arc<Done>) {
    let n = key.run(BATCH, work);
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
