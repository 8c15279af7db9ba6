//! Bgrp, by each of its ways in.

use std::{sync::Arc, time::Duration};

use bgrp::{Engine, Workers};

use super::System;
use crate::{
    measure::{Timed, each_producer, timed},
    oracle::{KeyState, Table},
    workload::{Stream, Workload},
};

const LONG: Duration = Duration::from_secs(600);

/// How tasks come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `submit(key, task)`.
    Key,
    /// Handles, taken before the clock starts.
    Handle,
    /// `submit_many`, 256 at a time.
    Many,
    /// A producer lane for each thread.
    Lane,
}

/// Bgrp with a state per group.
#[derive(Clone, Copy, Debug)]
pub struct Bgrp(pub Way);

fn workers(workload: &Workload) -> Workers {
    Workers::fixed(workload.workers)
}

/// A bound that no group reaches: the oracle's state lives in the group, so a reclaimed group is a wrong run. The engine
/// splits the bound over its shards and keys fall on them by chance, hence the generous floor where keys are few.
fn idle_groups(workload: &Workload) -> usize {
    (workload.keys * 2).max(1 << 16)
}

impl System for Bgrp {
    fn name(&self) -> &'static str {
        match self.0 {
            Way::Key => "bgrp-key",
            Way::Handle => "bgrp-handle",
            Way::Many => "bgrp-many",
            Way::Lane => "bgrp-lane",
        }
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let work = workload.work;
        let engine = Engine::<u64, u32>::builder()
            .workers(workers(workload))
            .group_capacity(1 << 24)
            .idle_groups(idle_groups(workload))
            .state(|_| KeyState::default())
            .task_handler(move |state: &mut KeyState, number| state.run(**number, work))
            .build()
            .expect("the settings are in bounds");
        let handles: Vec<_> = match self.0 {
            Way::Handle => (0..workload.keys as u64).map(|key| engine.group(key)).collect(),
            _ => Vec::new(),
        };
        let timed = timed(|| {
            each_producer(streams, |stream| match self.0 {
                Way::Key => {
                    for item in &stream.0 {
                        engine.submit(u64::from(item.key), item.number).expect("open");
                    }
                }
                Way::Handle => {
                    for item in &stream.0 {
                        handles[item.key as usize].submit(item.number).expect("open");
                    }
                }
                Way::Many => {
                    let mut batch = Vec::with_capacity(256);
                    for items in stream.0.chunks(256) {
                        batch.extend(items.iter().map(|i| (u64::from(i.key), i.number)));
                        engine.submit_many(&mut batch).expect("open");
                    }
                }
                Way::Lane => {
                    let mut lane = engine.producer();
                    for item in &stream.0 {
                        lane.submit(u64::from(item.key), item.number).expect("open");
                    }
                }
            });
            assert!(engine.wait_drain(LONG), "not drained in ten minutes");
        });
        drop(handles);
        engine.close(LONG);
        drop(engine);
        timed
    }
}

/// The closure form: string keys, a closure for each task.
#[derive(Clone, Copy, Debug)]
pub struct Closures;

impl System for Closures {
    fn name(&self) -> &'static str {
        "bgrp-closure"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let work = workload.work;
        let table = Arc::new(Table::new(workload.keys));
        let names: Vec<String> = (0..workload.keys).map(|key| format!("merchant_{key}")).collect();
        let bgrp = bgrp::Bgrp::new(workload.workers, 64, Duration::ZERO).expect("in bounds");
        let timed = timed(|| {
            each_producer(streams, |stream| {
                for item in &stream.0 {
                    let (key, number) = (item.key, item.number);
                    let table = Arc::as_ptr(&table).expose_provenance();
                    let body = move || {
                        // SAFETY: the table outlives the engine, which is drained below before the table goes.
                        let table = unsafe { &*std::ptr::with_exposed_provenance::<Table>(table) };
                        table.run(key, number, work);
                    };
                    bgrp.submit(&names[key as usize], body).expect("open");
                }
            });
            assert!(bgrp.wait_drain(LONG), "not drained in ten minutes");
        });
        bgrp.close(LONG);
        drop(bgrp);
        timed
    }
}
