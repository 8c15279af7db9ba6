//! Cases from public reports about machines, and row E10: few processors for many workers. What the plan makes of files
//! and masks is tested in e8_plan.rs and e8_snapshot.rs (S15 to S17); here engines run on such machines.
#![cfg(target_os = "linux")]

mod common;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bgrp::{
    Engine, Workers,
    topology::{Cpu, Node, Snapshot},
};
use common::{LONG, Order, cpu_time, in_own_process, scale, skipped, spin, watch};

/// Two threads submit to 100 keys; order, exclusion and number are checked.
fn keeps_order(what: &'static str, workers: Workers, machine: Option<Snapshot>, each: u64) -> u64 {
    let keys = 100;
    let order = Order::new(keys, 2);
    let watched = order.clone();
    let mut builder =
        Engine::<usize, (usize, u64)>::builder().workers(workers).batch_size(4).capacity(1 << 12);
    if let Some(machine) = machine {
        builder = builder.machine(machine);
    }
    let engine = builder
        .task_handler(move |_, task| {
            let (source, number) = **task;
            watched.task(*task.key(), source, number, || spin(number % 200));
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch(what, &engine);
    thread::scope(|scope| {
        for source in 0..2 {
            let engine = &engine;
            scope.spawn(move || {
                for n in 0..each {
                    let task = (source, n / keys as u64 + 1);
                    engine.submit(n as usize % keys, task).expect("open");
                }
            });
        }
    });
    assert!(engine.wait_drain(LONG));
    let start = Instant::now();
    let workers = loop {
        // All of them go to sleep, so this is their number.
        let sleeping = engine.stats().sleeping_workers;
        thread::sleep(Duration::from_millis(5));
        if sleeping > 0 && sleeping == engine.stats().sleeping_workers {
            break sleeping;
        }
        assert!(start.elapsed() < LONG, "{what}: workers do not sleep");
    };
    assert!(engine.close(LONG).is_complete());
    order.assert_clean(2 * each);
    workers
}

/// The machine with these CPUs, all online and in the mask.
fn machine_of(ids: &[usize]) -> Snapshot {
    let cpu = |id: &usize| Cpu {
        id: *id,
        core: *id,
        package: 0,
        l3: 0,
        node: 0,
        capacity: bgrp::topology::FULL_CAPACITY,
        online: true,
    };
    Snapshot {
        known: true,
        cpus: ids.iter().map(cpu).collect(),
        mask: ids.to_vec(),
        nodes: vec![Node { id: 0, cpus: ids.to_vec(), distance: vec![10] }],
        ..Snapshot::one_node(1)
    }
}

#[test]
fn onetbb_190_sixty_four_processors_and_a_quota_of_two_make_two_workers_that_sleep() {
    // Pools as large as the machine, inside a container with the quota of two: most of the time was spent being
    // throttled while spinning. golang #73193 asks for the same.
    if in_own_process(
        "onetbb_190_sixty_four_processors_and_a_quota_of_two_make_two_workers_that_sleep",
        |_| (),
    ) {
        return;
    }
    let machine = Snapshot { quota: Some(2.0), ..machine_of(&(0..64).collect::<Vec<_>>()) };
    let workers = keeps_order(
        "quota of two",
        Workers::per_core(),
        Some(machine.clone()),
        scale(4_000, 40_000),
    );
    assert_eq!(workers, 2);
    // Whoever asks for more than the quota gets them, and they must not spin against each other.
    for workers in [Workers::per_core(), Workers::fixed(64)] {
        let engine = Engine::<u64, u64>::builder()
            .workers(workers)
            .machine(machine.clone())
            .task_handler(|_, _| ())
            .build()
            .expect("valid settings");
        let count = if workers == Workers::per_core() { 2 } else { 64 };
        let asleep = || engine.stats().sleeping_workers == count;
        let start = Instant::now();
        while !asleep() {
            assert!(start.elapsed() < LONG, "{:?}", engine.stats());
            thread::sleep(Duration::from_millis(1));
        }
        // A task now and then, and the rest of the second nothing.
        let before = cpu_time();
        for n in 0..50 {
            engine.submit(n, n).expect("open");
            thread::sleep(Duration::from_millis(20));
        }
        let used = cpu_time() - before;
        println!("{count} workers, 50 tasks in 1 s: {used:?} of processor time");
        assert!(used < Duration::from_millis(500), "{count} workers spin: {used:?}");
        assert_eq!(engine.close(LONG).done, 50);
    }
}

#[test]
fn duckdb_20826_processors_that_cannot_be_had_leave_workers_unpinned_and_running() {
    // Threads were tied to the CPUs 0, 1, 2 of a process that may run on 5, 9 and 40 only; the call failed with EINVAL,
    // and so did the start. Here the plan names CPUs that this machine does not have.
    for ids in [vec![70_005, 70_009, 70_040], vec![65_535, 65_536], vec![usize::MAX >> 1]] {
        let machine = machine_of(&ids);
        let engine = Engine::<u64, u64>::builder()
            .machine(machine.clone())
            .task_handler(|_, _| ())
            .build()
            .expect("it starts");
        for n in 0..1_000 {
            engine.submit(n % 10, n).expect("open");
        }
        assert_eq!(engine.close(LONG).done, 1_000);
        let notes = engine.notes();
        for worker in 0..ids.len() {
            let note = format!("worker {worker} is not pinned");
            assert!(notes.iter().any(|text| text.starts_with(&note)), "{ids:?}: {notes:?}");
        }
        keeps_order("no such CPU", Workers::per_core(), Some(machine), scale(2_000, 20_000));
    }
    // And a mask with gaps inside a larger machine: pins stay inside the mask, and one that fails is only a note.
    let mut machine = machine_of(&(0..64).collect::<Vec<_>>());
    machine.mask = vec![5, 9, 40];
    let workers = keeps_order("mask", Workers::per_core(), Some(machine), scale(2_000, 20_000));
    assert_eq!(workers, 3);
}

/// Restricts this process to the first `n` CPUs of its mask, as `taskset` does. How many it has.
fn confine(n: usize) -> usize {
    let mask = Snapshot::read().mask;
    let mask = &mask[..n.min(mask.len())];
    let mut set = vec![0u64; mask.iter().max().expect("a CPU") / 64 + 1];
    for id in mask {
        set[id / 64] |= 1 << (id % 64);
    }
    // SAFETY: the kernel reads the set's bytes and keeps nothing.
    let done =
        unsafe { libc::sched_setaffinity(0, size_of_val(set.as_slice()), set.as_ptr().cast()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    mask.len()
}

#[test]
fn e10_many_workers_on_one_processor_keep_the_order_and_get_on() {
    if in_own_process("e10_many_workers_on_one_processor_keep_the_order_and_get_on", |_| ()) {
        return;
    }
    assert_eq!(confine(1), 1);
    let workers = keeps_order("one CPU", Workers::per_core(), None, scale(10_000, 100_000));
    assert_eq!(workers, 1, "the mask has one CPU");
    for workers in [2, 3, 64] {
        keeps_order("one CPU", Workers::fixed(workers), None, scale(5_000, 100_000));
    }
}

#[test]
fn e10_sixty_four_workers_on_two_processors_keep_the_order_and_get_on() {
    if in_own_process("e10_sixty_four_workers_on_two_processors_keep_the_order_and_get_on", |_| ())
    {
        return;
    }
    let cpus = confine(2);
    if cpus < 2 {
        skipped("64 workers on 2 processors", "this machine has one; 64 on one are tested instead");
    }
    for _ in 0..3 {
        keeps_order("two CPUs", Workers::fixed(64), None, scale(10_000, 100_000));
    }
}

/// A control group with half a CPU, removed again when it goes.
struct HalfACpu(PathBuf);

impl HalfACpu {
    fn new() -> Result<Self, String> {
        let name = format!("bgrp-test-{}", std::process::id());
        let mut tried = Vec::new();
        for (root, file, text) in [
            ("/sys/fs/cgroup", "cpu.max", "50000 100000"),
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000"),
            ("/sys/fs/cgroup/cpu,cpuacct", "cpu.cfs_quota_us", "50000"),
        ] {
            let group = Self(Path::new(root).join(&name));
            let made = std::fs::create_dir(&group.0)
                // Opened, not created: where the file is missing the controller is.
                .and_then(|()| std::fs::OpenOptions::new().write(true).open(group.0.join(file)))
                .and_then(|mut quota| std::io::Write::write_all(&mut quota, text.as_bytes()));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => tried.push(format!("{root}/{name}/{file}: {error}")),
            }
        }
        Err(format!(
            "no CPU quota could be set; it needs a control group with the cpu controller that may be written ({})",
            tried.join("; ")
        ))
    }
}

impl Drop for HalfACpu {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn e10_two_workers_in_half_a_processor_keep_the_order_and_get_on() {
    const NAME: &str = "e10_two_workers_in_half_a_processor_keep_the_order_and_get_on";
    const GROUP: &str = "BGRP_TEST_CGROUP";
    if std::env::var_os(GROUP).is_none() {
        match HalfACpu::new() {
            Err(missing) => skipped("2 workers in a quota of half a CPU", missing),
            Ok(group) => {
                let path = group.0.clone();
                in_own_process(NAME, |command| {
                    command.env(GROUP, path);
                });
            }
        }
        return;
    }
    let group = PathBuf::from(std::env::var_os(GROUP).expect("just seen"));
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        .expect("a process may join a group that it made");
    // The engine finds the quota by itself.
    let snapshot = Snapshot::read();
    assert_eq!(snapshot.quota, Some(0.5), "{snapshot}");
    let workers = keeps_order("half a CPU", Workers::per_core(), None, scale(4_000, 20_000));
    assert_eq!(workers, 1);
    keeps_order("half a CPU", Workers::fixed(2), None, scale(4_000, 40_000));
    keeps_order("half a CPU", Workers::fixed(16), None, scale(2_000, 20_000));
}
