//! Instructions of the hot paths, by callgrind: one thread, the same engine stepped by hand, so the counts are exact.
//!
//! `cargo bench -p bgrp-bench --bench instructions`; the gate is `.ci/instructions`. Needs valgrind and
//! `iai-callgrind-runner` of the version in the workspace table.
#![allow(missing_docs)]

use std::hint::black_box;

use bgrp::{Builder, Engine, GroupHandle, Producer, Sim, Workers};
use bgrp_bench::workload::Random;
use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};

/// Tasks of one benchmark.
const TASKS: u64 = 1_000;

#[derive(Default)]
struct State {
    sum: u64,
    next: u64,
}

fn sim(keys: u64) -> Sim<u64, u64> {
    warm(keys, Engine::<u64, u64>::builder())
}

/// Capacities are exact, and tasks are weighed.
fn exact_sim(keys: u64) -> Sim<u64, u64> {
    let builder = Engine::<u64, u64>::builder().exact_group_capacity(1_000);
    warm(keys, builder.weigh(|_, _| 64).capacity_bytes(1 << 30))
}

fn warm(keys: u64, builder: Builder<u64, u64>) -> Sim<u64, u64> {
    let mut sim = builder
        .workers(Workers::fixed(1))
        .state(|_| State::default())
        .task_handler(|state: &mut State, task| {
            state.sum = state.sum.rotate_left(5) ^ **task;
            state.next += 1;
        })
        .build_sim(1)
        .expect("the settings are in bounds");
    // Warm: every group exists, segments and buffers are there.
    for _ in 0..2 {
        for key in 0..keys {
            sim.submit(key, 0).expect("room");
            if key % 1_000 == 999 {
                sim.run();
            }
        }
        sim.run();
    }
    sim
}

fn keys_of(keys: u64) -> Vec<u64> {
    let mut random = Random::new(5);
    (0..TASKS).map(|_| random.below(keys)).collect()
}

struct ByKey(Sim<u64, u64>, Vec<u64>);
/// The engine is kept alive beside its handles.
struct ByHandle(#[expect(dead_code)] Sim<u64, u64>, Vec<GroupHandle<u64, u64>>, Vec<u64>);
struct ByLane(#[expect(dead_code)] Sim<u64, u64>, Producer<u64, u64>, Vec<u64>);
struct Many(Sim<u64, u64>, Vec<(u64, u64)>);

fn by_key(keys: u64) -> ByKey {
    ByKey(sim(keys), keys_of(keys))
}

fn by_handle(keys: u64) -> ByHandle {
    let sim = sim(keys);
    let handles = (0..keys).map(|key| sim.group(key)).collect();
    ByHandle(sim, handles, keys_of(keys))
}

fn by_lane(keys: u64) -> ByLane {
    let sim = sim(keys);
    let lane = sim.producer();
    ByLane(sim, lane, keys_of(keys))
}

fn many(keys: u64) -> Many {
    Many(sim(keys), keys_of(keys).into_iter().map(|key| (key, 1)).collect())
}

/// Everything is submitted, nothing has run: what is left is demux and turns.
fn submitted(keys: u64) -> ByKey {
    let ready = by_key(keys);
    for key in &ready.1 {
        ready.0.submit(*key, 1).expect("room");
    }
    ready
}

fn exact_by_key(keys: u64) -> ByKey {
    ByKey(exact_sim(keys), keys_of(keys))
}

fn exact_by_handle(keys: u64) -> ByHandle {
    let sim = exact_sim(keys);
    let handles = (0..keys).map(|key| sim.group(key)).collect();
    ByHandle(sim, handles, keys_of(keys))
}

/// Everything is in its group, nothing has run: what is left is turns.
fn exact_submitted(keys: u64) -> ByKey {
    let ready = exact_by_key(keys);
    for key in &ready.1 {
        ready.0.submit(*key, 1).expect("room");
    }
    ready
}

#[library_benchmark]
#[bench::keys_200(by_key(200))]
#[bench::keys_100k(by_key(100_000))]
fn submit(ready: ByKey) -> ByKey {
    for key in &ready.1 {
        let _ = black_box(ready.0.submit(*key, 1));
    }
    ready
}

#[library_benchmark]
#[bench::keys_200(by_handle(200))]
fn submit_by_handle(ready: ByHandle) -> ByHandle {
    for key in &ready.2 {
        let _ = black_box(ready.1[*key as usize].try_submit(1));
    }
    ready
}

#[library_benchmark]
#[bench::keys_200(by_lane(200))]
fn submit_by_lane(mut ready: ByLane) -> ByLane {
    for key in &ready.2 {
        let _ = black_box(ready.1.try_submit(*key, 1));
    }
    ready
}

#[library_benchmark]
#[bench::keys_200(many(200))]
fn submit_many(mut ready: Many) -> Many {
    let _ = black_box(ready.0.submit_many(&mut ready.1));
    ready
}

#[library_benchmark]
#[bench::keys_200(submitted(200))]
#[bench::keys_100k(submitted(100_000))]
fn demux_and_turns(mut ready: ByKey) -> ByKey {
    ready.0.run();
    ready
}

#[library_benchmark]
#[bench::keys_200(exact_by_key(200))]
#[bench::keys_100k(exact_by_key(100_000))]
fn exact_submit(ready: ByKey) -> ByKey {
    for key in &ready.1 {
        let _ = black_box(ready.0.submit(*key, 1));
    }
    ready
}

#[library_benchmark]
#[bench::keys_200(exact_by_handle(200))]
fn exact_submit_by_handle(ready: ByHandle) -> ByHandle {
    for key in &ready.2 {
        let _ = black_box(ready.1[*key as usize].try_submit(1));
    }
    ready
}

#[library_benchmark]
#[bench::keys_200(exact_submitted(200))]
#[bench::keys_100k(exact_submitted(100_000))]
fn exact_turns(mut ready: ByKey) -> ByKey {
    ready.0.run();
    ready
}

library_benchmark_group!(
    name = hot_paths;
    benchmarks = submit, submit_by_handle, submit_by_lane, submit_many, demux_and_turns, exact_submit, exact_submit_by_handle, exact_turns
);
main!(
    config = LibraryBenchmarkConfig::default();
    library_benchmark_groups = hot_paths
);
