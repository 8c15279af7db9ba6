//! A queue and a scheduled flag for each key, as rayon and tokio are given them: who pushes to an idle key starts whatever runs
//! it.

use std::{collections::VecDeque, sync::Mutex};

use crate::{oracle::KeyState, workload::Work};

/// Tasks that a key runs before others get their turn.
pub const BATCH: usize = 64;

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<u32>,
    scheduled: bool,
}

/// See the module text.
#[derive(Debug, Default)]
pub struct Key {
    queue: Mutex<Queue>,
    /// Never contended: one task per key at a time.
    state: Mutex<KeyState>,
}

impl Key {
    /// True when the key was idle, and the caller has to spawn its task.
    pub fn push(&self, number: u32) -> bool {
        let mut queue = self.queue.lock().expect("no panic under it");
        queue.waiting.push_back(number);
        !std::mem::replace(&mut queue.scheduled, true)
    }

    /// Runs up to `most` tasks; 0 when there was none, and then the key is idle.
    pub fn run(&self, most: usize, work: Work) -> usize {
        let mut batch = [0u32; BATCH];
        let n = {
            let mut queue = self.queue.lock().expect("no panic under it");
            let n = queue.waiting.len().min(most);
            queue.scheduled = n > 0;
            for (slot, number) in batch.iter_mut().zip(queue.waiting.drain(..n)) {
                *slot = number;
            }
            n
        };
        if n > 0 {
            let mut state = self.state.lock().expect("no panic under it");
            batch[..n].iter().for_each(|number| state.run(*number, work));
        }
        n
    }

    /// Gives the key up unless more is waiting; `true`: it is kept, and the caller has to run it again.
    pub fn keep_if_waiting(&self) -> bool {
        let mut queue = self.queue.lock().expect("no panic under it");
        queue.scheduled = !queue.waiting.is_empty();
        queue.scheduled
    }
}
