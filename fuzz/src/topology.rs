//! The machine as the kernel's files tell it, whatever is in them, and the plan for it: nothing panics, nothing takes
//! long, and the plan keeps its invariants. The second half of the inputs invents machines that no file could tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use bgrp::{
    fuzzing::set_files,
    topology::{Cpu, FULL_CAPACITY, Limits, Node, Plan, Snapshot, Workers},
};

use crate::bytes::Bytes;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let workers = match bytes.u8() {
        n @ 0..=99 => Workers::fixed(n.into()),
        _ => Workers::per_core(),
    };
    let machine = if bytes.below(2) == 0 { told(&mut bytes) } else { invented(&mut bytes) };
    plan(&machine, workers);
    plan(&machine, Workers::per_core());
}

/// A machine that is read from files.
fn told(bytes: &mut Bytes<'_>) -> Snapshot {
    let mut files = BTreeMap::new();
    while !bytes.is_empty() {
        let path = path(bytes.u8(), bytes.u8());
        let mut text = Vec::new();
        for _ in 0..bytes.below(4) + 1 {
            piece(bytes, &mut text);
        }
        files.insert(PathBuf::from("/").join(path), text);
    }
    set_files(files);
    let machine = Snapshot::read_from("/");
    // Read beside it, from the same odd files.
    let limits = Limits::read_from("/");
    set_files(BTreeMap::new());
    assert!(limits.memory.is_none_or(|bytes| bytes < 1 << 62), "{limits:?}");
    let ids: Vec<usize> = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let nodes: Vec<usize> = machine.nodes.iter().map(|node| node.id).collect();
    assert!(!ids.is_empty() && ids.is_sorted_by(|a, b| a < b), "CPUs {ids:?}");
    assert!(!nodes.is_empty() && nodes.is_sorted_by(|a, b| a < b), "nodes {nodes:?}");
    assert!(machine.cpus.iter().all(|cpu| nodes.binary_search(&cpu.node).is_ok()), "{machine}");
    assert!(machine.cpus.iter().any(|cpu| cpu.online), "{machine}");
    assert!(machine.mask.is_sorted_by(|a, b| a < b), "{machine}");
    assert!(machine.quota.is_none_or(|cpus| cpus > 0.0 && cpus.is_finite()), "{machine}");
    let mut of_nodes = BTreeSet::new();
    for node in &machine.nodes {
        assert!(node.cpus.iter().all(|cpu| of_nodes.insert(*cpu)), "twice in {machine}");
        assert!(node.distance.is_empty() || node.distance.len() == nodes.len(), "{machine}");
    }
    machine
}

fn path(which: u8, n: u8) -> String {
    let (cpu, cache, node) = (n % 16, n / 16 % 4, n % 6);
    let cpu = format!("sys/devices/system/cpu/cpu{cpu}");
    match which % 24 {
        0 | 1 => "sys/devices/system/cpu/online".to_owned(),
        2 => "sys/devices/system/cpu/present".to_owned(),
        3 => "proc/self/status".to_owned(),
        4 | 5 => "proc/self/cgroup".to_owned(),
        6 => "sys/fs/cgroup/cpu.max".to_owned(),
        7 => "sys/fs/cgroup/a/cpu.max".to_owned(),
        8 => "sys/fs/cgroup/a/b/cpu.max".to_owned(),
        9 => "sys/fs/cgroup/unified/a/cpu.max".to_owned(),
        10 => "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us".to_owned(),
        11 => "sys/fs/cgroup/cpu/a/cpu.cfs_period_us".to_owned(),
        12 => "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us".to_owned(),
        13 => "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us".to_owned(),
        14 => "sys/devices/system/node/online".to_owned(),
        15 | 16 => format!("sys/devices/system/node/node{node}/cpulist"),
        17 => format!("sys/devices/system/node/node{node}/distance"),
        18 => format!("{cpu}/topology/core_cpus_list"),
        19 => format!("{cpu}/topology/thread_siblings_list"),
        20 => format!("{cpu}/topology/physical_package_id"),
        21 => format!("{cpu}/cache/index{cache}/level"),
        22 => format!("{cpu}/cache/index{cache}/shared_cpu_list"),
        _ => match n / 16 % 8 {
            0 => "sys/fs/cgroup/a/memory.max".to_owned(),
            1 => "sys/fs/cgroup/a/pids.max".to_owned(),
            2 => "sys/devices/cpu_atom/cpus".to_owned(),
            _ => format!("{cpu}/cpu_capacity"),
        },
    }
}

/// A part of a file: what kernels write, with odd numbers, or bytes as they come.
fn piece(bytes: &mut Bytes<'_>, text: &mut Vec<u8>) {
    const WORDS: [&str; 18] = [
        ",",
        "\n",
        " ",
        "max ",
        "100000",
        "-1",
        "0::/a/b\n",
        "4:cpu,cpuacct:/\n",
        "2:cpu:/a\n",
        "3",
        "0-3",
        "Cpus_allowed_list:\t",
        "10 20 20\n",
        "18446744073709551615",
        "0::/../a\n",
        "\0",
        " 0",
        "0",
    ];
    match bytes.below(6) {
        0 | 1 => text.extend(bytes.pick(&WORDS).bytes()),
        2 => text.extend(bytes.u8().to_string().bytes()),
        3 => {
            let first = bytes.below(16);
            text.extend(format!("{first}-{}", first + bytes.below(20)).bytes());
        }
        4 => text.extend(bytes.magnitude().to_string().bytes()),
        _ => {
            let n = usize::from(bytes.below(40));
            text.extend(bytes.take(n));
        }
    }
}

/// A machine that nobody would build.
fn invented(bytes: &mut Bytes<'_>) -> Snapshot {
    let flags = bytes.u8();
    let ids: BTreeSet<usize> = (0..bytes.u8() % 70).map(|_| usize::from(bytes.u8())).collect();
    let cpus: Vec<Cpu> = ids
        .into_iter()
        .map(|id| {
            let (a, b) = (bytes.u8(), bytes.u8());
            let (core, package) = (usize::from(a & 31), usize::from(a >> 6));
            let (l3, node) = (usize::from(b & 3), usize::from(b >> 2 & 7));
            let capacity = if b & 32 != 0 { FULL_CAPACITY } else { u32::from(a) };
            Cpu { id, core, package, l3, node, capacity, online: b >> 5 != 0 }
        })
        .collect();
    let mask = match flags & 3 {
        0 => Vec::new(),
        1 => (0..bytes.u8() % 40).map(|_| usize::from(bytes.u8())).collect(),
        _ => cpus.iter().filter(|cpu| cpu.online || flags & 64 != 0).map(|cpu| cpu.id).collect(),
    };
    let quota = match flags >> 2 & 3 {
        0 => Some(f64::from_bits(bytes.u64())),
        1 => Some(f64::from(bytes.u8()) / 4.0),
        _ => None,
    };
    let nodes = (0..flags >> 4 & 3).map(|id| {
        let distance = (0..bytes.u8() % 6).map(|_| u32::from(bytes.u8())).collect();
        Node { id: usize::from(id) * 2, cpus: Vec::new(), distance }
    });
    Snapshot { nodes: nodes.collect(), known: flags < 224, cpus, mask, quota, notes: Vec::new() }
}

/// The plan's invariants, I1 to I4 of topology/plan.rs.
fn plan(machine: &Snapshot, workers: Workers) {
    let plan = Plan::new(machine, workers);
    let count = plan.workers.len();
    assert!(plan.effective_cpus >= 1 && plan.nodes >= 1, "I1: {plan}");
    match workers {
        Workers::Fixed(n) => assert_eq!(count, n, "I1"),
        Workers::PerCore => assert!((1..=plan.effective_cpus).contains(&count), "I1: {plan}"),
    }
    let online: BTreeSet<usize> =
        machine.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect();
    let mask: BTreeSet<usize> = machine.mask.iter().copied().collect();
    let cpus: BTreeSet<usize> = plan.workers.iter().filter_map(|worker| worker.cpu).collect();
    assert_eq!(cpus.len(), if plan.pinned { count } else { 0 }, "I2: a CPU twice: {plan}");
    assert!(cpus.is_subset(&online) && cpus.is_subset(&mask), "I2: {plan} on {machine}");
    let usable = if mask.is_empty() { online.len() } else { online.intersection(&mask).count() };
    assert!(plan.effective_cpus <= usable.max(online.len()).max(1), "I1: {plan} on {machine}");
    if usable > 0 {
        assert!(plan.effective_cpus <= usable, "I1: {plan} on {machine}");
    }
    if let Some(quota) = machine.quota.filter(|quota| *quota >= 0.0) {
        assert!(plan.effective_cpus as f64 <= quota.ceil().max(1.0), "I1: {plan} on {machine}");
        assert!(!plan.spin || count as f64 <= quota, "spins over its quota: {plan}");
    }
    let of_cpu: BTreeMap<usize, &Cpu> = machine.cpus.iter().map(|cpu| (cpu.id, cpu)).collect();
    let mut nodes = BTreeSet::new();
    for (number, worker) in plan.workers.iter().enumerate() {
        nodes.insert(worker.node);
        assert!(worker.steal.iter().all(|tier| !tier.is_empty()), "I3: {plan}");
        assert!(plan.pinned || worker.steal.len() <= 1, "I3: {plan}");
        let mut all: Vec<usize> = worker.steal.iter().flatten().copied().collect();
        all.push(number);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..count), "I3: {plan}");
        let near = |other: &usize| {
            let (a, b) = (of_cpu[&worker.cpu?], of_cpu[&plan.workers[*other].cpu?]);
            // A cache that reaches over several nodes is no tier.
            Some(match (a.core == b.core, a.node == b.node, a.l3 == b.l3) {
                (true, ..) => 0,
                (_, true, true) => 1,
                (_, true, false) => 2,
                (_, false, _) => 3,
            })
        };
        let nearness: Vec<_> = worker.steal.iter().flatten().map(near).collect();
        assert!(nearness.is_sorted(), "I3: {nearness:?} in {plan}");
    }
    let in_a_row: BTreeSet<usize> = (0..plan.nodes).collect();
    assert!(count == 0 || nodes == in_a_row, "I4: {plan}");
    let loose = plan.clone().unpinned();
    assert!(!loose.pinned && !loose.spin && loose.workers.len() == count);
    assert!(loose.workers.iter().all(|worker| worker.cpu.is_none()));
    assert!(!format!("{machine}{plan}{loose}").is_empty());
}
