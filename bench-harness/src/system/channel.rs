//! A bounded channel for each worker, chosen by the hash of the key. It keeps order but isolates nothing: a slow key holds
//! up every key of its channel, and idle workers cannot help. An upper bound rather than an equal; batched by hand it
//! also delays tasks without limit.

use super::System;
use crate::{
    measure::{Timed, each_producer, timed},
    oracle::Table,
    workload::{Item, Stream, Workload},
};

/// See the module text. `batch` tasks go into one message.
#[derive(Clone, Copy, Debug)]
pub struct Sharded {
    /// Tasks per message.
    pub batch: usize,
}

const CAPACITY: usize = 1 << 14;

fn lane_of(key: u32, lanes: usize) -> usize {
    ((u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize * lanes) >> 32
}

impl System for Sharded {
    fn name(&self) -> &'static str {
        if self.batch == 1 { "channel-sharded" } else { "channel-sharded-batched" }
    }

    fn isolates(&self) -> bool {
        false
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let table = Table::new(workload.keys);
        let lanes = workload.workers;
        let work = workload.work;
        if self.batch == 1 {
            std::thread::scope(|scope| {
                let (senders, receivers): (Vec<_>, Vec<_>) =
                    (0..lanes).map(|_| crossbeam_channel::bounded::<Item>(CAPACITY)).unzip();
                let workers: Vec<_> = receivers
                    .into_iter()
                    .map(|receiver| {
                        let table = &table;
                        scope.spawn(move || {
                            for item in receiver {
                                table.run(item.key, item.number, work);
                            }
                        })
                    })
                    .collect();
                timed(|| {
                    each_producer(streams, |stream| {
                        for item in &stream.0 {
                            senders[lane_of(item.key, lanes)].send(*item).expect("open");
                        }
                    });
                    drop(senders);
                    for worker in workers {
                        worker.join().expect("a worker does not panic");
                    }
                })
            })
        } else {
            std::thread::scope(|scope| {
                let (senders, receivers): (Vec<_>, Vec<_>) = (0..lanes)
                    .map(|_| crossbeam_channel::bounded::<Vec<Item>>(CAPACITY / self.batch))
                    .unzip();
                let workers: Vec<_> = receivers
                    .into_iter()
                    .map(|receiver| {
                        let table = &table;
                        scope.spawn(move || {
                            for items in receiver {
                                for item in items {
                                    table.run(item.key, item.number, work);
                                }
                            }
                        })
                    })
                    .collect();
                timed(|| {
                    each_producer(streams, |stream| {
                        let mut open: Vec<Vec<Item>> =
                            (0..lanes).map(|_| Vec::with_capacity(self.batch)).collect();
                        for item in &stream.0 {
                            let lane = lane_of(item.key, lanes);
                            open[lane].push(*item);
                            if open[lane].len() == self.batch {
                                let full = std::mem::replace(
                                    &mut open[lane],
                                    Vec::with_capacity(self.batch),
                                );
                                senders[lane].send(full).expect("open");
                            }
                        }
                        for (lane, rest) in open.into_iter().enumerate() {
                            senders[lane].send(rest).expect("open");
                        }
                    });
                    drop(senders);
                    for worker in workers {
                        worker.join().expect("a worker does not panic");
                    }
                })
            })
        }
    }
}
