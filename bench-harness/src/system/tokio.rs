//! Tokio, in the ways in which its users run keyed tasks.
//!
//! * `tokio-channel`: a task and a bounded channel for each key. The channel's bound is [`BOUND`] tasks per key; the task
//!   takes up to [`BATCH`] at a time (`recv_many`).
//! * `tokio-channel-inside`: the same with the producers as tasks of the runtime, which spares the waking of threads. Note
//!   that they share the workers then.
//! * `tokio-queue`: a queue and a scheduled flag for each key, a task spawned when the key was idle, up to [`BATCH`] tasks
//!   per poll. The queues have no bound; the window of [`super::done::WINDOW`] tasks under way stands in for it.

use std::sync::Arc;

use ::tokio::{
    runtime::Runtime,
    sync::mpsc::{self, error::TrySendError},
    task::yield_now,
};

use super::{
    System,
    done::{Done, Kept, Opened, tasks},
    key_queue::{BATCH, Key},
};
use crate::{
    measure::{Timed, each_producer, timed},
    oracle::KeyState,
    workload::{Stream, Work, Workload},
};

/// Tasks that wait in the channel of a key before the producer blocks.
pub const BOUND: usize = 1_024;

/// A runtime with as many threads as the workload has workers.
pub(super) fn runtime(workload: &Workload) -> Runtime {
    ::tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workload.workers)
        .build()
        .expect("threads start")
}

/// A task and a bounded channel for each key.
#[derive(Clone, Copy, Debug)]
pub struct ChannelPerKey;

async fn run_channel(mut receiver: mpsc::Receiver<u32>, work: Work, done: Arc<Done>) {
    let mut state = KeyState::default();
    let mut batch = Vec::new();
    loop {
        let n = receiver.recv_many(&mut batch, BATCH).await;
        if n == 0 {
            return;
        }
        batch.drain(..).for_each(|number| state.run(number, work));
        done.add(n as u64);
    }
}

impl System for ChannelPerKey {
    fn name(&self) -> &'static str {
        "tokio-channel"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let runtime = runtime(workload);
        let (done, kept) = (Arc::new(Done::default()), Kept::default());
        let timed = timed(|| {
            each_producer(streams, |stream| {
                let mut senders = Opened::new(workload.keys);
                for item in &stream.0 {
                    let sender = senders.of(item.key, || {
                        let (sender, receiver) = mpsc::channel(BOUND);
                        runtime.spawn(run_channel(receiver, workload.work, done.clone()));
                        sender
                    });
                    // Blocking has its price even where there is room, so it is for when there is none.
                    match sender.try_send(item.number) {
                        Ok(()) => {}
                        Err(TrySendError::Full(number)) => {
                            sender.blocking_send(number).expect("open");
                        }
                        Err(TrySendError::Closed(_)) => panic!("a task of a key ended early"),
                    }
                }
                kept.keep(senders);
            });
            done.wait(tasks(streams));
        });
        drop(kept);
        // Joins the threads and drops the tasks, and with them the states.
        drop(runtime);
        timed
    }
}

/// A queue and a scheduled flag for each key, a task when it is not idle.
#[derive(Clone, Copy, Debug)]
pub struct QueuePerKey;

async fn run_key(key: Arc<Key>, work: Work, done: Arc<Done>) {
    let mut left = BATCH;
    loop {
        let n = key.run(left, work);
        if n == 0 {
            return;
        }
        done.add(n as u64);
        left -= n;
        if left == 0 {
            yield_now().await;
            left = BATCH;
        }
    }
}

impl System for QueuePerKey {
    fn name(&self) -> &'static str {
        "tokio-queue"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let runtime = runtime(workload);
        let (done, kept) = (Arc::new(Done::default()), Kept::default());
        let timed = timed(|| {
            each_producer(streams, |stream| {
                let mut keys = Opened::new(workload.keys);
                done.within_window(stream, |item| {
                    let key: &Arc<Key> = keys.of(item.key, Arc::default);
                    if key.push(item.number) {
                        runtime.spawn(run_key(key.clone(), workload.work, done.clone()));
                    }
                });
                kept.keep(keys);
            });
            done.wait(tasks(streams));
        });
        drop(kept);
        // Joins the threads and drops the tasks, and with them the states.
        drop(runtime);
        timed
    }
}

/// As [`ChannelPerKey`], with the producers as tasks of the runtime: a key's task is woken on the thread of its producer, and
/// no thread has to be roused for it.
#[derive(Clone, Copy, Debug)]
pub struct ChannelPerKeyInside;

/// Sends a producer's stream; the senders come back to be dropped when the clock has stopped.
async fn produce(
    stream: &Stream,
    keys: usize,
    work: Work,
    done: Arc<Done>,
) -> Opened<mpsc::Sender<u32>> {
    let mut senders = Opened::new(keys);
    for item in &stream.0 {
        let sender = senders.of(item.key, || {
            let (sender, receiver) = mpsc::channel(BOUND);
            ::tokio::spawn(run_channel(receiver, work, done.clone()));
            sender
        });
        match sender.try_send(item.number) {
            Ok(()) => {}
            Err(TrySendError::Full(number)) => sender.send(number).await.expect("open"),
            Err(TrySendError::Closed(_)) => panic!("a task of a key ended early"),
        }
    }
    senders
}

impl System for ChannelPerKeyInside {
    fn name(&self) -> &'static str {
        "tokio-channel-inside"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let runtime = runtime(workload);
        let done = Arc::new(Done::default());
        let mut producers = Vec::new();
        let timed = timed(|| {
            for stream in streams {
                // SAFETY: only tasks of the runtime see it, and the runtime goes before this function returns, also in a
                // panic: its drop joins the threads and drops all tasks.
                let stream: &'static Stream = unsafe { &*std::ptr::from_ref(stream) };
                let producer = produce(stream, workload.keys, workload.work, done.clone());
                producers.push(runtime.spawn(producer));
            }
            done.wait(tasks(streams));
        });
        // The handles hold the senders; then come the threads and the tasks, and with them the states.
        drop(producers);
        drop(runtime);
        timed
    }
}
