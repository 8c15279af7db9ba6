//! Wall time of the hot paths, by criterion: submit by each way and the end of all tasks, on real threads. The order
//! oracle is inside the task, and a run that it does not confirm panics instead of being timed.
#![allow(missing_docs)]

use std::time::Duration;

use bgrp_bench::{
    measure::Prepared,
    system::{
        System,
        bgrp::{Bgrp, Closures, Way},
    },
    workload,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn ways(c: &mut Criterion) {
    for name in ["uniform-200", "zipf-100k"] {
        let workload = workload::all().into_iter().find(|w| w.name == name).expect("it exists");
        let prepared = Prepared::new(workload.scaled(0.05));
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(prepared.workload.tasks as u64));
        group.sample_size(10).measurement_time(Duration::from_secs(3));
        let systems: [Box<dyn System>; 5] = [
            Box::new(Bgrp(Way::Key)),
            Box::new(Bgrp(Way::Handle)),
            Box::new(Bgrp(Way::Many)),
            Box::new(Bgrp(Way::Lane)),
            Box::new(Closures),
        ];
        for system in systems {
            group.bench_function(system.name(), |b| {
                b.iter_custom(|n| {
                    (0..n)
                        .map(|_| {
                            let run = prepared.run(&*system).expect("the oracle agrees");
                            Duration::from_secs_f64(run.seconds())
                        })
                        .sum()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, ways);
criterion_main!(benches);
