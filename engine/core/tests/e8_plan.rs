//! E8: the plan is a pure function of the machine and the number of workers.

mod machines;

use bgrp::topology::{Distance, FULL_CAPACITY, Near, Node, Plan, Snapshot, Workers};
use machines::{cpus, cpus_of, machine, sane_plan, tiers};
use proptest::prelude::*;

#[test]
fn one_cpu() {
    let plan = sane_plan(&machine(1, 1, 1, 1), Workers::per_core());
    assert_eq!((plan.workers.len(), plan.pinned, plan.spin), (1, true, false));
    assert_eq!(tiers(&plan, 0), [[0; 0]; 0]);
    let plan = sane_plan(&machine(1, 1, 1, 1), Workers::fixed(64));
    assert_eq!((plan.workers.len(), plan.effective_cpus, plan.pinned), (64, 1, false));
}

#[test]
fn one_socket_with_smt() {
    let plan = sane_plan(&machine(1, 1, 4, 2), Workers::per_core());
    assert!(plan.pinned && plan.spin && plan.nodes == 1);
    assert_eq!(plan.workers[1].cpu, Some(1));
    assert_eq!(tiers(&plan, 1), [vec![5], vec![2, 3, 4, 6, 7, 0]]);
    assert_eq!(plan.workers[1].steal[0].near, Near::Core);
    // Cores before siblings.
    let plan = sane_plan(&machine(1, 1, 4, 2), Workers::fixed(5));
    assert_eq!(cpus(&plan), [0, 1, 2, 3, 4]);
    assert_eq!(tiers(&plan, 0), [vec![4], vec![1, 2, 3]]);
}

#[test]
fn siblings_numbered_side_by_side_are_still_spread() {
    let mut one = machine(1, 1, 4, 2);
    for cpu in &mut one.cpus {
        cpu.core = cpu.id / 2 * 2;
    }
    assert_eq!(cpus(&sane_plan(&one, Workers::fixed(4))), [0, 2, 4, 6]);
}

#[test]
fn a_few_workers_stay_on_one_node_of_two() {
    let two = machine(2, 1, 4, 1);
    assert_eq!(sane_plan(&two, Workers::fixed(4)).nodes, 1);
    let plan = sane_plan(&two, Workers::fixed(5));
    assert_eq!((plan.nodes, plan.node_ids.as_slice()), (2, &[0, 1][..]));
}

#[test]
fn four_nodes_steal_by_distance() {
    let plan = sane_plan(&machine(4, 2, 2, 2), Workers::per_core());
    assert!(plan.pinned && plan.nodes == 4 && plan.workers.len() == 32);
    for worker in &plan.workers {
        // Sibling; the other core of the cache; the other cache; two nodes next; the one opposite.
        let sizes: Vec<usize> = worker.steal.iter().map(|tier| tier.workers.len()).collect();
        assert_eq!(sizes, [1, 2, 4, 16, 8]);
        let of = |tier: usize| worker.steal[tier].workers.iter().map(|&v| plan.workers[v].node);
        assert!(of(2).all(|node| node == worker.node));
        assert!(of(4).all(|node| node == (worker.node + 2) % 4));
        let far = Near::Remote { distance: Distance::Known(20), other_package: true };
        assert_eq!(worker.steal[4].near, far);
    }
}

/// Two sockets, cut into two clusters each, with one level-3 cache a socket, as some kernels list it.
fn sub_numa_clusters() -> Snapshot {
    let mut snapshot = machine(4, 1, 2, 1);
    for cpu in &mut snapshot.cpus {
        cpu.package = cpu.node / 2;
        cpu.l3 = cpu.package * 4;
    }
    for node in &mut snapshot.nodes {
        let near = [[10, 12, 21, 21], [12, 10, 21, 21], [21, 21, 10, 12], [21, 21, 12, 10]];
        node.distance = near[node.id].to_vec();
    }
    snapshot
}

#[test]
fn sub_numa_clusters_are_nearer_than_the_other_socket() {
    let plan = sane_plan(&sub_numa_clusters(), Workers::per_core());
    // The cluster first, although the cache reaches over two of them.
    assert_eq!(tiers(&plan, 0), [vec![1], vec![2, 3], vec![4, 5, 6, 7]]);
    assert_eq!(plan.workers[0].steal[1].near.to_string(), "distance 12");
    assert_eq!(tiers(&plan, 7), [vec![6], vec![4, 5], vec![0, 1, 2, 3]]);
    // Without distances the package tells them apart.
    let mut silent = sub_numa_clusters();
    silent.nodes.iter_mut().for_each(|node| node.distance.clear());
    let plan = sane_plan(&silent, Workers::per_core());
    assert_eq!(tiers(&plan, 0), [vec![1], vec![2, 3], vec![4, 5, 6, 7]]);
}

#[test]
fn strong_cores_before_weak_ones_and_both_before_second_threads() {
    let mut hybrid = machine(1, 1, 8, 1);
    for cpu in &mut hybrid.cpus {
        // Weak cores 0 to 3; two strong ones with two threads each.
        if cpu.id < 4 {
            cpu.capacity = 446;
        } else {
            cpu.core = cpu.id / 2 * 2;
        }
    }
    assert_eq!(cpus(&sane_plan(&hybrid, Workers::fixed(2))), [4, 6]);
    assert_eq!(cpus(&sane_plan(&hybrid, Workers::fixed(6))), [4, 6, 0, 1, 2, 3]);
    assert_eq!(cpus(&sane_plan(&hybrid, Workers::per_core())), [4, 6, 0, 1, 2, 3, 5, 7]);
}

/// S16: a mask with gaps. Workers are pinned, and inside the mask.
#[test]
fn a_mask_with_gaps() {
    let snapshot = Snapshot { mask: vec![5, 9, 40], ..machine(1, 1, 64, 1) };
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!((cpus(&plan), plan.pinned, plan.spin), (vec![5, 9, 40], true, true));
    assert_eq!(tiers(&plan, 1), [vec![2, 0]]);
    let plan = sane_plan(&snapshot, Workers::fixed(4));
    assert!(!plan.spin && !plan.pinned);
    assert!(plan.notes[0].contains("4 workers are more than 3 CPUs"), "{:?}", plan.notes);
    // A part of a mask that is offline is no part of it.
    let mut gone = snapshot;
    gone.cpus[9].online = false;
    assert_eq!(cpus(&sane_plan(&gone, Workers::per_core())), [5, 40]);
}

/// S16: the numbers of the machine itself have gaps, and the mask is all of them.
#[test]
fn a_machine_with_gaps_is_pinned_by_its_own_numbers() {
    let text = "bgrp-machine 1\ncpu 5 core 5 package 0 l3 5 node 0\ncpu 9 core 9 package 0 l3 5 node 0\n\
                cpu 40 core 40 package 0 l3 5 node 0\nmask 5,9,40\n";
    let plan = sane_plan(&text.parse().unwrap(), Workers::per_core());
    assert_eq!(cpus(&plan), [5, 9, 40]);
}

#[test]
fn a_mask_over_two_of_four_nodes_uses_those_two() {
    let half = machine(4, 1, 2, 1).restricted_to(&[4, 5, 6, 7]);
    let plan = sane_plan(&half, Workers::per_core());
    assert_eq!((cpus(&plan), plan.node_ids.as_slice()), (vec![4, 5, 6, 7], &[2, 3][..]));
    assert_eq!(plan.workers[3].node, 1);
    // A part of what is not there is nothing.
    assert!(machine(4, 1, 2, 1).restricted_to(&[99]).mask.is_empty());
}

#[test]
fn a_mask_of_which_nothing_is_online() {
    let snapshot = Snapshot { mask: vec![77], ..machine(1, 1, 4, 1) };
    let plan = sane_plan(&snapshot, Workers::per_core());
    assert_eq!((plan.workers.len(), plan.pinned), (4, false));
}

/// S15, and quotas that are no whole number: they are rounded up.
#[test]
fn quotas() {
    let plan = |cpus, quota| {
        let machine = Snapshot { quota: Some(quota), ..machine(1, 1, cpus, 1) };
        let plan = sane_plan(&machine, Workers::per_core());
        (plan.effective_cpus, plan.pinned, plan.spin)
    };
    for (cpus, quota, effective, pinned, spin) in [
        (64, 2.0, 2, false, true),
        (64, 2.5, 3, false, false),
        (64, 0.5, 1, false, false),
        (4, 0.001, 1, false, false),
        (4, 1.5, 2, false, false),
        (4, 3.9, 4, false, false),
        (4, 4.0, 4, true, true),
        (4, 1e300, 4, true, true),
        (4, 0.0, 1, false, false),
        (4, -3.0, 1, false, false),
    ] {
        assert_eq!(plan(cpus, quota), (effective, pinned, spin), "quota {quota} of {cpus}");
    }
    plan(4, f64::NAN);
    // Two workers in a quota of 2.5 never exceed it, so they may spin.
    let machine = Snapshot { quota: Some(2.5), ..machine(1, 1, 64, 1) };
    assert!(sane_plan(&machine, Workers::fixed(2)).spin);
}

#[test]
fn a_plan_that_nobody_wants_pinned() {
    let plan = Plan::new(&machine(2, 1, 2, 1), Workers::per_core()).unpinned();
    assert!(!plan.pinned && !plan.spin && plan.nodes == 1 && plan.node_ids.is_empty());
    assert!(plan.workers.iter().all(|worker| worker.cpu.is_none() && worker.steal.len() == 1));
    assert_eq!(plan.notes, ["workers are not pinned: not wanted"]);
}

#[test]
fn a_plan_in_words() {
    let plan = Plan::new(&machine(2, 1, 1, 2), Workers::per_core());
    let text = "4 workers on 4 CPUs, 2 nodes, pinned, spin before they sleep\n  \
                worker 0: CPU 0, node 0, steals from [2] (same core), [1, 3] (distance 15)";
    assert!(plan.to_string().starts_with(text), "{plan}");
}

/// Any machine, also one that nobody would build.
fn any_machine() -> impl Strategy<Value = Snapshot> {
    let cpu = (0usize..20, 0usize..3, 0usize..4, 0usize..5, 0u32..=FULL_CAPACITY, any::<bool>());
    (
        prop::collection::btree_map(0usize..200, cpu, 0..40),
        prop::collection::btree_set(0usize..200, 0..60),
        any::<bool>(),
        prop::bool::weighted(0.8),
        prop::option::of(0.0f64..50.0),
        prop::collection::vec(prop::collection::vec(10u32..40, 0..6), 0..5),
    )
        .prop_map(|(cpus, mask, whole, known, quota, distances)| {
            let cpus = cpus_of(cpus);
            let nodes = distances
                .into_iter()
                .enumerate()
                .map(|(id, distance)| Node { id, cpus: Vec::new(), distance })
                .collect();
            let mask = if whole {
                cpus.iter().map(|c| c.id).collect()
            } else {
                mask.into_iter().collect()
            };
            Snapshot { cpus, known, mask, quota, nodes, notes: Vec::new() }
        })
}

fn any_workers() -> impl Strategy<Value = Workers> {
    prop_oneof![Just(Workers::PerCore), (0usize..100).prop_map(Workers::Fixed)]
}

proptest! {
    #[test]
    fn any_machine_has_a_sane_plan(machine in any_machine(), workers in any_workers()) {
        sane_plan(&machine, workers);
    }

    /// The same machine, the same plan, whatever the order in which its CPUs stand.
    #[test]
    fn the_order_of_the_cpus_does_not_matter(machine in any_machine(), workers in any_workers()) {
        let mut turned = machine.clone();
        turned.cpus.reverse();
        prop_assert_eq!(Plan::new(&machine, workers), Plan::new(&turned, workers));
    }

    /// No CPU of a worker is passed over for a weaker one, a second thread, or a farther node.
    #[test]
    fn fewer_workers_have_the_first_places_of_more(machine in any_machine(), few in 1usize..20) {
        let (few, more) = (Plan::new(&machine, few.into()), Plan::new(&machine, (few + 1).into()));
        if more.pinned {
            prop_assert_eq!(cpus(&few), &cpus(&more)[..few.workers.len()]);
        }
    }

    /// Whoever is nearer to a worker by the machine is in no later tier.
    #[test]
    fn tiers_follow_the_distances(nodes in 1usize..6, caches in 1usize..3, cores in 1usize..4, threads in 1usize..3) {
        let machine = machine(nodes, caches, cores, threads);
        let plan = sane_plan(&machine, Workers::per_core());
        for worker in &plan.workers {
            let steps = worker.steal.iter().flat_map(|tier| &tier.workers);
            let nodes: Vec<u32> = steps
                .map(|&other| machine.distance(worker.node, plan.workers[other].node).unwrap())
                .collect();
            prop_assert!(nodes.is_sorted(), "{:?}", nodes);
        }
    }
}
