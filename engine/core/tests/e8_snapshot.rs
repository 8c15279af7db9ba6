//! E8: the machine is read into a plain value, and no file that is missing or odd stops it.

mod machines;

use std::path::Path;

use bgrp::topology::{Limits, Near, Snapshot, Workers};
use machines::{Tree, machine, sane_plan, sane_snapshot, tiers};

#[test]
fn one_socket_with_smt() {
    let mut tree = Tree::new().cpus("0-7").mask("0-7").no_quota().nodes("0").node(0, "0-7", "10");
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
}

#[test]
fn two_sockets_numbered_alternately() {
    let mut tree = Tree::new().cpus("0-7").mask("0-7").no_quota().nodes("0-1");
    tree = tree.node(0, "0,2,4,6", "10 21").node(1, "1,3,5,7", "21 10");
    for id in 0..8 {
        let (socket, l3) = if id % 2 == 0 { (0, "0,2,4,6") } else { (1, "1,3,5,7") };
        tree = tree.cpu(id, socket, &id.to_string(), l3);
    }
    let snapshot = tree.read();
    assert_eq!(snapshot.notes, [""; 0]);
    assert_eq!((snapshot.distance(1, 0), snapshot.distance(1, 7)), (Some(21), None));
    let plan = sane_plan(&snapshot, Workers::per_core());
    let places: Vec<_> = plan.workers.iter().map(|w| (w.cpu.unwrap(), w.node)).collect();
    let expected = [(0, 0), (2, 0), (4, 0), (6, 0), (1, 1), (3, 1), (5, 1), (7, 1)];
    assert_eq!(places, expected);
    assert_eq!(tiers(&plan, 5), [vec![6, 7, 4], vec![0, 1, 2, 3]]);
}

#[test]
fn node_numbers_with_gaps_and_memory_without_cpus() {
    let mut tree = Tree::new().cpus("0-3").mask("0-3").no_quota().nodes("0,3,8");
    tree = tree.node(0, "", "10 17 40").node(3, "0-1", "17 10 28").node(8, "2-3", "40 28 10");
    for id in 0..4 {
        tree = tree.cpu(id, id / 2, &id.to_string(), if id < 2 { "0-1" } else { "2-3" });
    }
    let snapshot = tree.read();
    assert_eq!(snapshot.nodes.len(), 3);
    assert!(snapshot.to_string().contains("node 0: memory only, distances [10, 17, 40]"));
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!(plan.node_ids, [3, 8], "nobody works on node 0");
    assert_eq!(plan.workers.iter().map(|w| w.node).collect::<Vec<_>>(), [0, 0, 1, 1]);
    assert_eq!(plan.workers[0].steal[1].near.to_string(), "distance 28");
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
fn offline_cpus_do_not_count() {
    let mut tree = Tree::new().mask("0-7").no_quota();
    tree = tree.with("sys/devices/system/cpu/present", "0-7").cpus_online("0-2,6");
    for id in [0, 1, 2, 6] {
        tree = tree.cpu(id, 0, &id.to_string(), "0-2,6");
    }
    let snapshot = tree.read();
    assert_eq!(snapshot.cpus.len(), 8);
    assert!(snapshot.to_string().starts_with("4 CPUs online (4 offline), 4 cores"), "{snapshot}");
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert!(plan.pinned, "the whole machine is what is online");
    assert_eq!(machines::cpus(&plan), [0, 1, 2, 6]);
}

/// Both ways in which kernels tell the cores of a hybrid processor apart.
#[test]
fn hybrid_cores() {
    let base = || {
        let mut tree =
            Tree::new().cpus("0-7").mask("0-7").no_quota().nodes("0").node(0, "0-7", "10");
        for id in 0..8 {
            // Two strong cores with two threads each, four weak ones.
            let siblings =
                if id < 4 { format!("{}-{}", id / 2 * 2, id / 2 * 2 + 1) } else { id.to_string() };
            tree = tree.cpu(id, 0, &siblings, "0-7");
        }
        tree
    };
    let units = base()
        .with("sys/devices/cpu_core/cpus", "0-3\n")
        .with("sys/devices/cpu_atom/cpus", "4-7\n");
    let snapshot = units.read();
    let strength: Vec<u32> = snapshot.cpus.iter().map(|cpu| cpu.capacity).collect();
    assert_eq!(strength, [1024, 1024, 1024, 1024, 512, 512, 512, 512]);
    assert!(snapshot.to_string().contains("weaker CPUs: 4-7"), "{snapshot}");
    assert!(snapshot.notes[0].contains("half assumed"));

    let figures = (0..8).fold(base(), |tree, id| {
        let text = if id < 4 { "1024\n" } else { "446\n" };
        tree.with(&format!("sys/devices/system/cpu/cpu{id}/cpu_capacity"), text)
    });
    assert_eq!(figures.read().cpus[7].capacity, 446);
    assert_eq!(figures.read().notes, [""; 0]);

    // A figure that one CPU lacks compares nothing.
    let torn = base().with("sys/devices/system/cpu/cpu0/cpu_capacity", "446\n");
    assert!(torn.read().cpus.iter().all(|cpu| cpu.capacity == 1024));
    // Nor is a machine of small cores only a hybrid.
    let small = base().with("sys/devices/cpu_atom/cpus", "0-7\n");
    assert!(small.read().cpus.iter().all(|cpu| cpu.capacity == 1024));
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
fn limits_of_memory_and_processes_in_both_versions_of_control_groups() {
    let v2 = Tree::new()
        .with("proc/self/cgroup", "0::/a/b\n")
        .with("sys/fs/cgroup/a/b/memory.max", "max\n")
        .with("sys/fs/cgroup/a/memory.max", "1073741824\n")
        .with("sys/fs/cgroup/a/b/pids.max", "512\n")
        .with("sys/fs/cgroup/a/pids.max", "4096\n");
    let limits = Limits::read_from(&v2.0);
    assert_eq!((limits.memory, limits.processes), (Some(1 << 30), Some(512)));
    let v1 = Tree::new()
        .with("proc/self/cgroup", "6:pids:/x\n5:memory:/x\n4:cpu:/\n")
        .with("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "268435456\n")
        .with("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        .with("sys/fs/cgroup/pids/x/pids.max", "max\n");
    let limits = Limits::read_from(&v1.0);
    assert_eq!((limits.memory, limits.processes), (Some(1 << 28), None));
    assert_eq!(limits.notes, [""; 0]);
    // No files are no limits; odd ones are none and a note.
    assert_eq!(Limits::read_from("/no/such/tree").memory, None);
    let odd = Tree::new().no_quota().with("sys/fs/cgroup/memory.max", "much\n");
    let limits = Limits::read_from(&odd.0);
    assert_eq!(limits.memory, None);
    assert!(limits.notes[0].contains("memory.max") && limits.notes[0].contains("much"));
}

/// S17: no `/sys`, and nothing at all.
#[test]
fn without_sys_there_is_one_node_and_no_pinning() {
    let snapshot = Tree::new().mask("5,9,40").read();
    assert_eq!(snapshot.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(), [5, 9, 40]);
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!((plan.workers.len(), plan.nodes, plan.pinned), (3, 1, false));
    assert_eq!(plan.workers[0].steal[0].near, Near::Unknown);

    let nothing = Snapshot::read_from(Path::new("/no/such/tree"));
    sane_snapshot(&nothing);
    assert!(!nothing.known && nothing.mask.is_empty() && nothing.notes.len() >= 3, "{nothing}");
    let here = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(sane_plan(&nothing, Workers::per_core()).workers.len(), here);
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
        "sys/devices/system/cpu/cpu1/cpu_capacity",
        "sys/devices/cpu_atom/cpus",
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
            let mut tree = Tree::new().cpus("0-3").mask("0-3").no_quota().nodes("0-1");
            tree = tree.node(0, "0-1", "10 20").node(1, "2-3", "20 10");
            tree = tree.with("sys/devices/cpu_core/cpus", "0-3");
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
fn odd_nodes_are_one_node() {
    let base = |tree: Tree| tree.cpus("0-3").mask("0-3").nodes("0-1");
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
