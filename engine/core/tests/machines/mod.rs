//! Machines for the tests of row E8: trees of files as the kernel writes them, and snapshots made by hand.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use bgrp::topology::{Cpu, Node, Plan, Snapshot, Workers};

/// Core, package, last-level cache, node, capacity, online.
pub type Parts = (usize, usize, usize, usize, u32, bool);

/// CPUs as a strategy makes them, by their numbers.
pub fn cpus_of(parts: impl IntoIterator<Item = (usize, Parts)>) -> Vec<Cpu> {
    let cpu = |(id, (core, package, l3, node, capacity, online))| Cpu {
        id,
        core,
        package,
        l3,
        node,
        capacity,
        online,
    };
    parts.into_iter().map(cpu).collect()
}

/// A tree like `/sys` and `/proc`, written for one test and removed after it.
pub struct Tree(pub PathBuf);

impl Tree {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bgrp-topology-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A tree captured on some machine with `grep -r ''`: a path, a colon and a line of the file.
    pub fn captured(lines: &str) -> Self {
        let mut files: Vec<(&str, String)> = Vec::new();
        for line in lines.lines().filter(|line| !line.starts_with('#')) {
            let (path, text) = line.split_once(':').unwrap();
            match files.last_mut() {
                Some((last, so_far)) if *last == path => *so_far += &format!("{text}\n"),
                _ => files.push((path, format!("{text}\n"))),
            }
        }
        files.into_iter().fold(Self::new(), |tree, (path, text)| tree.with(path, text))
    }

    pub fn with(self, file: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub fn cpus(self, list: &str) -> Self {
        self.cpus_online(list).with("sys/devices/system/cpu/present", format!("{list}\n"))
    }

    pub fn cpus_online(self, list: &str) -> Self {
        self.with("sys/devices/system/cpu/online", format!("{list}\n"))
    }

    pub fn mask(self, list: &str) -> Self {
        let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\nMems:\t0\n");
        self.with("proc/self/status", status)
    }

    pub fn no_quota(self) -> Self {
        self.with("proc/self/cgroup", "0::/\n")
    }

    pub fn cpu(self, id: usize, package: usize, siblings: &str, l3: &str) -> Self {
        let dir = format!("sys/devices/system/cpu/cpu{id}");
        self.with(&format!("{dir}/topology/thread_siblings_list"), format!("{siblings}\n"))
            .with(&format!("{dir}/topology/physical_package_id"), format!("{package}\n"))
            .with(&format!("{dir}/cache/index0/level"), "1\n")
            .with(&format!("{dir}/cache/index0/shared_cpu_list"), format!("{siblings}\n"))
            .with(&format!("{dir}/cache/index3/level"), "3\n")
            .with(&format!("{dir}/cache/index3/shared_cpu_list"), format!("{l3}\n"))
    }

    pub fn nodes(self, list: &str) -> Self {
        self.with("sys/devices/system/node/online", format!("{list}\n"))
    }

    pub fn node(self, id: usize, cpus: &str, distance: &str) -> Self {
        let dir = format!("sys/devices/system/node/node{id}");
        self.with(&format!("{dir}/cpulist"), format!("{cpus}\n"))
            .with(&format!("{dir}/distance"), format!("{distance}\n"))
    }

    pub fn read(&self) -> Snapshot {
        let snapshot = Snapshot::read_from(&self.0);
        sane_snapshot(&snapshot);
        snapshot
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The invariants of a snapshot that was read or parsed, and the way through its text form.
pub fn sane_snapshot(machine: &Snapshot) {
    assert!(!machine.cpus.is_empty() && !machine.nodes.is_empty(), "I1");
    assert!(machine.cpus.is_sorted_by(|a, b| a.id < b.id), "I1");
    assert!(machine.nodes.is_sorted_by(|a, b| a.id < b.id), "I1");
    for cpu in &machine.cpus {
        assert!(machine.nodes.iter().any(|node| node.id == cpu.node), "I1: {cpu:?}");
    }
    assert!(machine.mask.is_sorted_by(|a, b| a < b), "I2");
    let count = machine.nodes.len();
    assert!(machine.nodes.iter().all(|node| [0, count].contains(&node.distance.len())), "I3");
    let text = machine.to_text();
    assert_eq!(text.parse::<Snapshot>().as_ref(), Ok(machine), "{text}");
}

/// The invariants I1 to I4 of a plan, for any machine.
pub fn sane_plan(machine: &Snapshot, workers: Workers) -> Plan {
    let plan = Plan::new(machine, workers);
    let count = plan.workers.len();
    assert!(plan.effective_cpus >= 1 && plan.nodes >= 1, "I1");
    match workers {
        Workers::PerCore => assert_eq!(count, plan.effective_cpus.min(1_024), "I1"),
        Workers::Fixed(n) => assert_eq!(count, n, "I1"),
    }
    let cpus: Vec<usize> = plan.workers.iter().filter_map(|w| w.cpu).collect();
    assert_eq!(cpus.len(), if plan.pinned { count } else { 0 }, "I2");
    assert_eq!(cpus.iter().collect::<BTreeSet<_>>().len(), cpus.len(), "I2: a CPU twice");
    for id in cpus {
        let cpu = machine.cpus.iter().find(|cpu| cpu.id == id).unwrap();
        assert!(cpu.online && machine.mask.contains(&id), "I2: {cpu:?}");
    }
    let mut nodes = BTreeSet::from([0]);
    for (number, worker) in plan.workers.iter().enumerate() {
        assert!(worker.steal.iter().all(|tier| !tier.workers.is_empty()), "I3");
        assert!(worker.steal.is_sorted_by(|a, b| a.near < b.near), "I3");
        assert!(plan.pinned || worker.steal.len() <= 1, "I3");
        let mut all: Vec<usize> = tiers(&plan, number).concat();
        all.push(number);
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>(), "I3");
        nodes.insert(worker.node);
    }
    assert_eq!(nodes, (0..plan.nodes).collect(), "I4");
    let tied = plan.pinned && count > 0;
    assert_eq!(plan.node_ids.len(), if tied { plan.nodes } else { 0 }, "I4");
    for worker in &plan.workers {
        let cpu = worker.cpu.map(|id| machine.cpus.iter().find(|cpu| cpu.id == id).unwrap());
        assert!(cpu.is_none_or(|cpu| cpu.node == plan.node_ids[worker.node]), "I4");
    }
    assert!(!plan.spin || count <= plan.effective_cpus && plan.effective_cpus > 1);
    assert!(plan.pinned != plan.notes.iter().any(|note| note.contains("not pinned")));
    assert!(!plan.to_string().is_empty() && !machine.to_string().is_empty());
    plan
}

/// The workers that `worker` steals from, tier by tier.
pub fn tiers(plan: &Plan, worker: usize) -> Vec<Vec<usize>> {
    plan.workers[worker].steal.iter().map(|tier| tier.workers.clone()).collect()
}

/// The CPUs of a pinned plan, by worker.
pub fn cpus(plan: &Plan) -> Vec<usize> {
    plan.workers.iter().map(|worker| worker.cpu.unwrap()).collect()
}

/// `nodes` x `caches` x `cores` x `threads`, numbered as kernels do: first threads of all cores
/// before second ones. Each node is a package; further along the ring it is further away.
pub fn machine(nodes: usize, caches: usize, cores: usize, threads: usize) -> Snapshot {
    let all = nodes * caches * cores;
    let cpu = |id: usize| {
        let core = id % all;
        let cache = core / cores;
        let node = cache / caches;
        let l3 = cache * cores;
        Cpu { id, core, package: node, l3, node, capacity: 1024, online: true }
    };
    let cpus: Vec<Cpu> = (0..all * threads).map(cpu).collect();
    let node = |id: usize| Node {
        id,
        cpus: cpus.iter().filter(|cpu| cpu.node == id).map(|cpu| cpu.id).collect(),
        distance: (0..nodes)
            .map(|to| 10 + 5 * id.abs_diff(to).min(nodes - id.abs_diff(to)) as u32)
            .collect(),
    };
    Snapshot {
        nodes: (0..nodes).map(node).collect(),
        known: true,
        mask: (0..cpus.len()).collect(),
        quota: None,
        notes: Vec::new(),
        cpus,
    }
}
