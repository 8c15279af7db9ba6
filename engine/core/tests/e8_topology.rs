//! E8: the machine is read into a plain value, and the plan is a pure function of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bgrp::topology::{Cpu, Node, Plan, Snapshot, Workers};
use proptest::prelude::*;

/// A tree like `/sys` and `/proc`, written for one test and removed after it.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bgrp-topology-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn with(self, file: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn cpus(self, list: &str) -> Self {
        self.with("sys/devices/system/cpu/online", format!("{list}\n"))
            .with("sys/devices/system/cpu/present", format!("{list}\n"))
    }

    fn cpus_online(self, list: &str) -> Self {
        self.with("sys/devices/system/cpu/online", list)
    }

    fn mask(self, list: &str) -> Self {
        let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\nMems:\t0\n");
        self.with("proc/self/status", status)
    }

    fn cpu(self, id: usize, package: usize, siblings: &str, l3: &str) -> Self {
        let dir = format!("sys/devices/system/cpu/cpu{id}");
        self.with(&format!("{dir}/topology/thread_siblings_list"), format!("{siblings}\n"))
            .with(&format!("{dir}/topology/physical_package_id"), format!("{package}\n"))
            .with(&format!("{dir}/cache/index0/level"), "1\n")
            .with(&format!("{dir}/cache/index0/shared_cpu_list"), format!("{siblings}\n"))
            .with(&format!("{dir}/cache/index3/level"), "3\n")
            .with(&format!("{dir}/cache/index3/shared_cpu_list"), format!("{l3}\n"))
    }

    fn node(self, id: usize, cpus: &str, distance: &str) -> Self {
        let dir = format!("sys/devices/system/node/node{id}");
        self.with(&format!("{dir}/cpulist"), format!("{cpus}\n"))
            .with(&format!("{dir}/distance"), format!("{distance}\n"))
    }

    fn read(&self) -> Snapshot {
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

/// Invariant I2 of the snapshot.
fn sane_snapshot(machine: &Snapshot) {
    assert!(!machine.cpus.is_empty() && !machine.nodes.is_empty());
    assert!(machine.cpus.is_sorted_by(|a, b| a.id < b.id));
    assert!(machine.nodes.is_sorted_by(|a, b| a.id < b.id));
    for cpu in &machine.cpus {
        assert!(machine.nodes.iter().any(|node| node.id == cpu.node), "{cpu:?}");
    }
}

/// Invariants I1 to I4 of the plan, for any machine.
fn sane_plan(machine: &Snapshot, workers: Workers) -> Plan {
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
        assert!(worker.steal.iter().all(|tier| !tier.is_empty()), "I3");
        assert!(plan.pinned || worker.steal.len() <= 1, "I3");
        let mut all: Vec<usize> = worker.steal.concat();
        all.push(number);
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>(), "I3");
        nodes.insert(worker.node);
    }
    assert_eq!(nodes, (0..plan.nodes).collect(), "I4");
    assert!(!plan.spin || count <= plan.effective_cpus && plan.effective_cpus > 1);
    assert!(plan.pinned != plan.notes.iter().any(|note| note.contains("not pinned")));
    assert!(!plan.to_string().is_empty() && !machine.to_string().is_empty());
    plan
}

/// `nodes` x `caches` x `cores` x `threads`, numbered as kernels do: first threads of all cores
/// before second ones.
fn machine(nodes: usize, caches: usize, cores: usize, threads: usize) -> Snapshot {
    let all = nodes * caches * cores;
    let cpu = |id: usize| {
        let core = id % all;
        let cache = core / cores;
        let node = cache / caches;
        Cpu { id, core, package: node, l3: cache * cores, node, online: true }
    };
    let cpus: Vec<Cpu> = (0..all * threads).map(cpu).collect();
    let node = |id: usize| Node {
        id,
        cpus: cpus.iter().filter(|cpu| cpu.node == id).map(|cpu| cpu.id).collect(),
        // A ring: further along it is further away.
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

#[test]
fn one_socket_with_smt() {
    let mut tree = Tree::new().cpus("0-7").mask("0-7").with("proc/self/cgroup", "0::/\n");
    tree = tree.with("sys/devices/system/node/online", "0\n").node(0, "0-7", "10");
    for id in 0..8 {
        tree = tree.cpu(id, 0, &format!("{},{}", id % 4, id % 4 + 4), "0-7");
    }
    let snapshot = tree.read();
    assert_eq!(snapshot, machine(1, 1, 4, 2));
    assert_eq!(
        snapshot.to_string(),
        "8 CPUs online, 4 cores, 1 level-3 caches, 1 packages, 1 nodes\n  mask: 0-7\n  \
         quota: none\n  node 0: CPUs 0-7"
    );

    let plan = sane_plan(&snapshot, Workers::per_core());
    assert!(plan.pinned && plan.spin && plan.nodes == 1);
    assert_eq!(plan.workers[1].cpu, Some(1));
    assert_eq!(plan.workers[1].steal, [vec![5], vec![2, 3, 4, 6, 7, 0]]);
    // Cores before siblings.
    let plan = sane_plan(&snapshot, Workers::fixed(5));
    let cpus: Vec<_> = plan.workers.iter().map(|w| w.cpu.unwrap()).collect();
    assert_eq!(cpus, [0, 1, 2, 3, 4]);
    assert_eq!(plan.workers[0].steal, [vec![4], vec![1, 2, 3]]);
}

#[test]
fn siblings_numbered_side_by_side_are_still_spread() {
    let mut one = machine(1, 1, 4, 2);
    for cpu in &mut one.cpus {
        cpu.core = cpu.id / 2 * 2;
    }
    let plan = sane_plan(&one, Workers::fixed(4));
    let cpus: Vec<_> = plan.workers.iter().map(|w| w.cpu.unwrap()).collect();
    assert_eq!(cpus, [0, 2, 4, 6]);
}

#[test]
fn two_sockets() {
    let mut tree = Tree::new().cpus("0-7").mask("0-7").with("proc/self/cgroup", "0::/\n");
    tree = tree.with("sys/devices/system/node/online", "0-1\n");
    tree = tree.node(0, "0,2,4,6", "10 21").node(1, "1,3,5,7", "21 10");
    for id in 0..8 {
        let (socket, l3) = if id % 2 == 0 { (0, "0,2,4,6") } else { (1, "1,3,5,7") };
        tree = tree.cpu(id, socket, &id.to_string(), l3);
    }
    let snapshot = tree.read();
    assert_eq!(snapshot.notes, [""; 0]);
    assert_eq!(snapshot.nodes[1].distance, [21, 10]);
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert!(plan.pinned && plan.nodes == 2);
    let places: Vec<_> = plan.workers.iter().map(|w| (w.cpu.unwrap(), w.node)).collect();
    let expected = [(0, 0), (2, 0), (4, 0), (6, 0), (1, 1), (3, 1), (5, 1), (7, 1)];
    assert_eq!(places, expected);
    assert_eq!(plan.workers[5].steal, [vec![6, 7, 4], vec![0, 1, 2, 3]]);
    // A few workers stay together.
    assert_eq!(sane_plan(&snapshot, Workers::fixed(4)).nodes, 1);
}

#[test]
fn four_nodes_steal_by_distance() {
    let plan = sane_plan(&machine(4, 2, 2, 2), Workers::per_core());
    assert!(plan.pinned && plan.nodes == 4 && plan.workers.len() == 32);
    for worker in &plan.workers {
        // Sibling; the other core of the cache; the other cache; two nodes next; the one opposite.
        let sizes: Vec<usize> = worker.steal.iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 2, 4, 16, 8]);
        let of = |tier: usize| worker.steal[tier].iter().map(|&v| plan.workers[v].node);
        assert!(of(2).all(|node| node == worker.node));
        assert!(of(4).all(|node| node == (worker.node + 2) % 4));
    }
}

#[test]
fn node_numbers_with_gaps_and_memory_without_cpus() {
    let mut tree = Tree::new().cpus("0-3").mask("0-3").with("proc/self/cgroup", "0::/\n");
    tree = tree.with("sys/devices/system/node/online", "0,2,8\n");
    tree = tree.node(0, "", "10 17 40").node(2, "0-1", "17 10 28").node(8, "2-3", "40 28 10");
    for id in 0..4 {
        tree = tree.cpu(id, id / 2, &id.to_string(), if id < 2 { "0-1" } else { "2-3" });
    }
    let snapshot = tree.read();
    assert_eq!(snapshot.nodes.len(), 3);
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!(plan.nodes, 2);
    assert_eq!(plan.workers.iter().map(|w| w.node).collect::<Vec<_>>(), [0, 0, 1, 1]);
}

/// S16: a mask with gaps.
#[test]
fn a_mask_with_gaps() {
    let tree = Tree::new().cpus("0-63").mask("5,9,40").with("proc/self/cgroup", "0::/\n");
    let snapshot = tree.read();
    assert_eq!(snapshot.mask, [5, 9, 40]);
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!((plan.workers.len(), plan.pinned, plan.spin), (3, false, true));
    assert_eq!(plan.workers[1].steal, [vec![2, 0]]);
    assert!(plan.notes[0].contains("leaves out 61 CPUs"), "{:?}", plan.notes);
    assert!(!sane_plan(&snapshot, Workers::fixed(4)).spin);
    assert_eq!(sane_plan(&snapshot, Workers::fixed(1)).workers[0].steal, [[0; 0]; 0]);
}

/// S16: the numbers of the machine itself have gaps, and the mask is all of them.
#[test]
fn a_machine_with_gaps_is_pinned_by_its_own_numbers() {
    let mut tree = Tree::new().cpus("5,9,40").mask("5,9,40").with("proc/self/cgroup", "0::/\n");
    for id in [5, 9, 40] {
        tree = tree.cpu(id, 0, &id.to_string(), "5,9,40");
    }
    let plan = sane_plan(&tree.read(), Workers::per_core());
    let cpus: Vec<_> = plan.workers.iter().map(|w| w.cpu).collect();
    assert_eq!(cpus, [Some(5), Some(9), Some(40)]);
}

/// S15: a quota of 2 on 64 CPUs, in either version of control groups, at any level.
#[test]
fn a_quota_of_two_of_sixty_four() {
    let v2 = |tree: Tree| {
        tree.with("proc/self/cgroup", "0::/pods/one/main\n")
            .with("sys/fs/cgroup/pods/one/main/cpu.max", "max 100000\n")
            .with("sys/fs/cgroup/pods/one/cpu.max", "200000 100000\n")
            .with("sys/fs/cgroup/pods/cpu.max", "3200000 100000\n")
    };
    let v1 = |tree: Tree| {
        tree.with("proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/a/b\n1:name=systemd:/\n0::/\n")
            .with("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n")
            .with("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n")
            .with("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "100000\n")
            .with("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n")
    };
    // A container sees its group at the mount point, under a name only the host knows.
    let container = |tree: Tree| {
        tree.with("proc/self/cgroup", "3:cpu:/docker/0123\n")
            .with("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n")
            .with("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    };
    let outside = |tree: Tree| {
        tree.with("proc/self/cgroup", "0::/../../x\n").with("sys/fs/cgroup/cpu.max", "200000\n")
    };
    let hybrid = |tree: Tree| {
        tree.with("proc/self/cgroup", "0::/x\n")
            .with("sys/fs/cgroup/unified/x/cpu.max", "20000 10000\n")
    };
    let makers: [&dyn Fn(Tree) -> Tree; 5] = [&v2, &v1, &container, &outside, &hybrid];
    for (n, make) in makers.into_iter().enumerate() {
        let snapshot = make(Tree::new().cpus("0-63").mask("0-63")).read();
        assert_eq!(snapshot.quota, Some(2.0), "case {n}: {snapshot}");
        let plan = sane_plan(&snapshot, Workers::per_core());
        assert_eq!((plan.workers.len(), plan.pinned, plan.spin), (2, false, true), "case {n}");
    }
}

#[test]
fn quotas_that_are_no_whole_number() {
    let with = |quota| Snapshot { quota: Some(quota), ..machine(1, 1, 4, 1) };
    for (quota, effective, pinned, spin) in [
        (0.5, 1, false, false),
        (1.5, 2, false, false),
        (2.0, 2, false, true),
        (3.9, 4, false, false),
        (4.0, 4, true, true),
        (1e300, 4, true, true),
        (0.0, 1, false, false),
        (-3.0, 1, false, false),
    ] {
        let plan = sane_plan(&with(quota), Workers::per_core());
        let got = (plan.effective_cpus, plan.pinned, plan.spin);
        assert_eq!(got, (effective, pinned, spin), "quota {quota}");
    }
    sane_plan(&with(f64::NAN), Workers::per_core());
}

/// S17: no `/sys`, and nothing at all.
#[test]
fn without_sys_there_is_one_node_and_no_pinning() {
    let snapshot = Tree::new().mask("5,9,40").read();
    assert_eq!(snapshot.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(), [5, 9, 40]);
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!((plan.workers.len(), plan.nodes, plan.pinned), (3, 1, false));

    let nothing = Snapshot::read_from(Path::new("/no/such/tree"));
    sane_snapshot(&nothing);
    assert!(!nothing.known && nothing.mask.is_empty() && nothing.notes.len() >= 3, "{nothing}");
    let here = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(sane_plan(&nothing, Workers::per_core()).workers.len(), here);
}

#[test]
fn offline_cpus_do_not_count() {
    let mut tree = Tree::new().mask("0-7").with("proc/self/cgroup", "0::/\n");
    tree = tree.with("sys/devices/system/cpu/present", "0-7").cpus_online("0-2,6");
    for id in [0, 1, 2, 6] {
        tree = tree.cpu(id, 0, &id.to_string(), "0-2,6");
    }
    let snapshot = tree.read();
    assert_eq!(snapshot.cpus.len(), 8);
    assert!(snapshot.to_string().starts_with("4 CPUs online (4 offline), 4 cores"), "{snapshot}");
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert!(plan.pinned, "the whole machine is what is online");
    assert_eq!(plan.workers.iter().map(|w| w.cpu.unwrap()).collect::<Vec<_>>(), [0, 1, 2, 6]);
}

#[test]
fn a_mask_of_which_nothing_is_online() {
    let snapshot = Snapshot { mask: vec![77], ..machine(1, 1, 4, 1) };
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!((plan.workers.len(), plan.pinned), (4, false));
}

#[test]
fn odd_files_cost_a_note_and_no_more() {
    let odd = ["", "\n", "x", "-", "3-1", "0-", "-1", "0,,1", "0-99999999999999999999", "\u{0}"];
    let huge = "0-4000000000";
    let bytes: &[u8] = &[0xff, 0xfe, b'0'];
    let files = [
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/present",
        "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
        "sys/devices/system/cpu/cpu1/topology/physical_package_id",
        "sys/devices/system/cpu/cpu1/cache/index3/shared_cpu_list",
        "sys/devices/system/node/online",
        "sys/devices/system/node/node1/cpulist",
        "sys/devices/system/node/node1/distance",
        "proc/self/status",
        "proc/self/cgroup",
        "sys/fs/cgroup/cpu.max",
    ];
    for file in files {
        let contents = odd.iter().map(|text| text.as_bytes()).chain([huge.as_bytes(), bytes]);
        for content in contents {
            let mut tree = Tree::new().cpus("0-3").mask("0-3").with("proc/self/cgroup", "0::/\n");
            tree = tree.with("sys/devices/system/node/online", "0-1\n");
            tree = tree.node(0, "0-1", "10 20").node(1, "2-3", "20 10");
            for id in 0..4 {
                tree = tree.cpu(id, 0, &id.to_string(), "0-3");
            }
            let snapshot = tree.with(file, content).read();
            let plan = sane_plan(&snapshot, Workers::per_core());
            assert!(plan.workers.len() <= 64, "{file}: {content:?} made {plan}");
        }
    }
}

#[test]
fn a_cpu_list_that_is_no_machine_costs_neither_memory_nor_time() {
    // Worker tiers grow with the square of the workers: 17,118 of them took more than 2 GB.
    for list in ["0-16383", "0-17117", "0-1048575"] {
        let snapshot = Tree::new().cpus(list).mask(list).read();
        let plan = sane_plan(&snapshot, Workers::per_core());
        assert!(plan.workers.len() <= 1_024, "{} workers", plan.workers.len());
    }
}

#[test]
fn odd_nodes_are_one_node() {
    let base =
        |tree: Tree| tree.cpus("0-3").mask("0-3").with("sys/devices/system/node/online", "0-1\n");
    // A CPU in two nodes; a CPU in none; a node without its files.
    let twice = base(Tree::new()).node(0, "0-2", "10 20").node(1, "2-3", "20 10");
    let none = base(Tree::new()).node(0, "0-1", "10 20").node(1, "2", "20 10");
    let missing = base(Tree::new()).node(0, "0-3", "10 20");
    for tree in [twice, none, missing] {
        let snapshot = tree.read();
        assert_eq!(snapshot.nodes.len(), 1);
        assert_eq!(snapshot.nodes[0].cpus, [0, 1, 2, 3]);
        assert!(snapshot.notes.iter().any(|n| n.starts_with("one NUMA node assumed")));
    }
    // Distances that do not fit the nodes are only left out.
    let snapshot = base(Tree::new()).node(0, "0-1", "10").node(1, "2-3", "far near").read();
    assert_eq!(snapshot.nodes.len(), 2);
    assert!(snapshot.nodes.iter().all(|node| node.distance.is_empty()));
    sane_plan(&snapshot, Workers::per_core());
}

#[test]
fn the_machine_at_hand() {
    let snapshot = Snapshot::read();
    sane_snapshot(&snapshot);
    println!("{snapshot}");
    for workers in [Workers::per_core(), 0.into(), 1.into(), 2.into(), 64.into()] {
        println!("{}", sane_plan(&snapshot, workers));
    }
    if cfg!(target_os = "linux") {
        assert!(!snapshot.mask.is_empty());
    }
}

proptest! {
    /// Machines nobody would build.
    #[test]
    fn any_machine_has_a_sane_plan(
        cpus in prop::collection::btree_map(
            0usize..200,
            (0usize..20, 0usize..3, 0usize..4, 0usize..5, any::<bool>()),
            0..40,
        ),
        mask in prop::collection::btree_set(0usize..200, 0..60),
        whole in any::<bool>(),
        known in prop::bool::weighted(0.8),
        quota in prop::option::of(0.0f64..50.0),
        distances in prop::collection::vec(prop::collection::vec(10u32..40, 0..6), 0..5),
        workers in prop_oneof![
            Just(Workers::PerCore),
            (0usize..100).prop_map(Workers::Fixed),
        ],
    ) {
        let cpus: Vec<Cpu> = cpus
            .into_iter()
            .map(|(id, (core, package, l3, node, online))| Cpu { id, core, package, l3, node, online })
            .collect();
        let nodes = distances
            .into_iter()
            .enumerate()
            .map(|(id, distance)| Node { id, cpus: Vec::new(), distance })
            .collect();
        let mask =
            if whole { cpus.iter().map(|c| c.id).collect() } else { mask.into_iter().collect() };
        sane_plan(&Snapshot { cpus, known, mask, quota, nodes, notes: Vec::new() }, workers);
    }
}
