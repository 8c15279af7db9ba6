//! E8: a machine goes into a file and comes back from it; captured machines are planned for.

mod machines;

use bgrp::topology::{Node, Snapshot, Workers};
use machines::{Tree, cpus_of, machine, sane_plan, sane_snapshot};
use proptest::prelude::*;

#[test]
fn the_text_form_by_example() {
    let text = "\
bgrp-machine 1
cpu 0 core 0 package 0 l3 0 node 0
cpu 2 core 0 package 0 l3 0 node 0 capacity 446
cpu 7 core 7 package 1 l3 7 node 3 offline
node 0 cpus 0,2 distance 10 21
node 3 cpus - distance 21 10
mask 0,2
quota 2.5
note a line\\nand a \\\\ more
";
    let machine: Snapshot = text.parse().unwrap();
    assert_eq!(machine.cpus.len(), 3);
    assert_eq!(machine.cpus[1].capacity, 446);
    assert!(machine.known && !machine.cpus[2].online);
    assert_eq!(machine.nodes[1], Node { id: 3, cpus: Vec::new(), distance: vec![21, 10] });
    assert_eq!((machine.mask.as_slice(), machine.quota), (&[0, 2][..], Some(2.5)));
    assert_eq!(machine.notes, ["a line\nand a \\ more"]);
    assert_eq!(machine.to_text(), text);
}

#[test]
fn written_by_hand_it_may_be_short_and_in_any_order() {
    let text = "\n# two cores\r\n bgrp-machine 1 \nmask 0-1\ncpu 1 core 1 package 0 l3 0 node 0\n\n\
                cpu 0 core 0 package 0 l3 0 node 0\n";
    let machine: Snapshot = text.parse().unwrap();
    sane_snapshot(&machine);
    assert_eq!(machine.nodes, [Node { id: 0, cpus: vec![0, 1], distance: vec![10] }]);
    assert!(sane_plan(&machine, Workers::per_core()).pinned);
}

#[test]
fn what_is_no_machine_is_refused_with_its_line() {
    let with = |lines: &str| {
        let text = format!("bgrp-machine 1\ncpu 0 core 0 package 0 l3 0 node 0\n{lines}");
        text.parse::<Snapshot>().unwrap_err().to_string()
    };
    for (lines, says) in [
        ("cpus 1", "line 3: \"cpus\" is no kind of line"),
        ("cpu x core 0", "line 3: \"x\" is no value for cpu"),
        ("cpu 1 core 1 package 0 l3 0", "line 3: \"node\" is missing"),
        ("cpu 1 package 1", "line 3: \"package\" stands where \"core\" belongs"),
        ("cpu 1 core 1 package 0 l3 0 node 0 turbo", "line 3: \"turbo\" is nothing that a CPU has"),
        ("cpu 0 core 0 package 0 l3 0 node 0", "CPU 0 stands there twice"),
        ("cpu 1 core 1 package 0 l3 0 node 9", "CPU 1 is on node 9, which is not there"),
        ("mask 0-1\nmask 0", "line 4: a second mask"),
        ("mask 3-1", "line 3: \"3-1\" is no CPU or range of CPUs"),
        ("mask 0 1", "line 3: \"1\" is one word too many"),
        ("quota 0", "line 3: a quota of 0 CPUs runs nothing"),
        ("quota NaN", "line 3: a quota of NaN"),
        ("quota", "line 3: quota has no value"),
        ("node 0 cpus 0 distance 10 x", "line 3: \"x\" is no distance"),
        ("node 0 cpus 0 distance 10 20", "node 0 has 2 distances to 1 nodes"),
        ("node 0 cpus 0\nnode 0 cpus -", "node 0 stands there twice"),
        ("guessed indeed", "line 3: \"indeed\" is one word too many"),
    ] {
        let error = with(lines);
        assert!(error.contains(says), "{lines:?}: {error}");
    }
    for text in ["", "\n# nothing\n", "bgrp-machine 2\n", "cpu 0 core 0 package 0 l3 0 node 0"] {
        let error = text.parse::<Snapshot>().unwrap_err().to_string();
        assert!(error.contains("it must begin with `bgrp-machine 1`"), "{text:?}: {error}");
    }
    assert!("bgrp-machine 1".parse::<Snapshot>().unwrap_err().to_string().contains("no CPU"));
}

/// Machines that exist, as their kernels describe them (some are emulated; each file says which).
#[test]
fn captured_machines() {
    let plan_of = |tree: &str| {
        let machine = Tree::captured(tree).read();
        (sane_plan(&machine, Workers::per_core()), machine)
    };
    let (plan, machine) = plan_of(include_str!("machines/virtual_two_cpus.txt"));
    assert_eq!((machine.cpus.len(), plan.nodes, plan.pinned), (2, 1, true));

    let (plan, machine) = plan_of(include_str!("machines/emulated_two_nodes.txt"));
    assert_eq!(machine.distance(0, 1), Some(21));
    assert_eq!((plan.workers.len(), plan.node_ids.as_slice()), (8, &[0, 1][..]));
    assert!(plan.workers.iter().all(|worker| worker.node == worker.cpu.unwrap() / 4));

    let (plan, machine) = plan_of(include_str!("machines/emulated_four_nodes.txt"));
    assert_eq!((machine.distance(0, 1), machine.distance(0, 3)), (Some(12), Some(21)));
    assert_eq!((plan.workers.len(), plan.nodes), (8, 4));
    for worker in &plan.workers {
        let near: Vec<String> = worker.steal.iter().map(|tier| tier.near.to_string()).collect();
        assert_eq!(near.last().map(String::as_str), Some("distance 21"));
    }
}

fn sane_machine() -> impl Strategy<Value = Snapshot> {
    (
        prop::collection::btree_map(
            0usize..2_000,
            (0usize..20, 0usize..3, 0usize..4, 0usize..4, 0u32..2_000, any::<bool>()),
            1..40,
        ),
        prop::collection::btree_set(0usize..200, 0..60),
        any::<bool>(),
        prop::option::of(prop::num::f64::POSITIVE),
        prop::option::of(prop::collection::vec(any::<u32>(), 4..5)),
        prop::collection::vec("\\PC*|[ -~\\\\\n\r]*", 0..4),
    )
        .prop_map(|(cpus, mask, known, quota, distance, notes)| {
            let mut cpus = cpus_of(cpus);
            cpus.iter_mut().for_each(|cpu| cpu.node = cpu.node * 2 + 1);
            let node = |at: usize| Node {
                id: at * 2 + 1,
                cpus: cpus.iter().filter(|cpu| cpu.node == at * 2 + 1).map(|cpu| cpu.id).collect(),
                distance: distance.clone().unwrap_or_default(),
            };
            let nodes = (0..4).map(node).collect();
            // A number that is only almost 0 is a quota.
            let quota = quota.filter(|quota| *quota > 0.0);
            Snapshot { cpus, known, mask: mask.into_iter().collect(), quota, nodes, notes }
        })
}

proptest! {
    #[test]
    fn every_machine_comes_back_from_its_text(machine in sane_machine()) {
        sane_snapshot(&machine);
    }

    /// Text that somebody else wrote is a machine or an error, and never more than it says.
    #[test]
    fn any_text_is_a_machine_or_an_error(text in "(bgrp-machine 1\n)?((cpu|core|node|mask|quota|note|offline|-|[0-9]{1,3}|0-9|x| |\n)){0,60}") {
        if let Ok(machine) = text.parse::<Snapshot>() {
            sane_snapshot(&machine);
            sane_plan(&machine, Workers::per_core());
        }
    }

    #[test]
    fn the_invented_machines_come_back_too(nodes in 1usize..5, cores in 1usize..5, threads in 1usize..3) {
        sane_snapshot(&machine(nodes, 1, cores, threads));
    }
}
