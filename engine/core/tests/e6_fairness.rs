//! Row E6: a group that is ready is dispatched before any other group is dispatched more than a few times. Measured in
//! dispatches, on the deterministic engine.

mod common;

use bgrp::{Engine, Sim, Workers, topology::Snapshot};
use common::{Log, Rng, scale};

const WORKERS: usize = 8;

fn engine(log: &Log<u32>) -> Sim<u32, ()> {
    let log = log.clone();
    Engine::<u32, ()>::builder()
        .machine(Snapshot::one_node(WORKERS))
        .workers(Workers::fixed(WORKERS))
        .batch_size(1)
        .task_handler(move |_, task| log.push(*task.key()))
        .build_sim(7)
        .expect("valid settings")
}

/// The largest number of dispatches that one group got between two dispatches of another one that was ready all the
/// time. `events` are the dispatches, each with one task; each group is watched from its first dispatch to its last.
fn passes(events: &[u32], groups: usize) -> usize {
    let mut times: Vec<Vec<usize>> = vec![Vec::new(); groups];
    for (at, group) in events.iter().enumerate() {
        times[*group as usize].push(at);
    }
    let longest = times.iter().map(Vec::len).max().unwrap_or(0);
    (1..longest)
        .take_while(|k| {
            // The shortest end of k + 1 dispatches of one group that begin at or after a place.
            let mut ends = vec![usize::MAX; events.len() + 1];
            for of_group in &times {
                for run in of_group.windows(*k) {
                    ends[run[0]] = ends[run[0]].min(run[k - 1]);
                }
            }
            for at in (0..events.len()).rev() {
                ends[at] = ends[at].min(ends[at + 1]);
            }
            times.iter().any(|t| t.windows(2).any(|gap| ends[gap[0] + 1] < gap[1]))
        })
        .last()
        .unwrap_or(0)
}

/// Which worker steps next.
type Schedule = fn(&mut Rng, usize) -> usize;

const SCHEDULES: [(&str, Schedule); 4] =
    [
        ("in turn", |_, step| step % WORKERS),
        ("at random", |rng, _| rng.below(WORKERS as u64) as usize),
        ("one of them seldom", |rng, step| {
            if step % 97 == 0 { 0 } else { 1 + rng.below(WORKERS as u64 - 1) as usize }
        }),
        ("one much more often", |rng, _| {
            if rng.below(3) > 0 { 0 } else { rng.below(WORKERS as u64) as usize }
        }),
    ];

fn drive(sim: &mut Sim<u32, ()>, schedule: Schedule, tasks: usize, log: &Log<u32>) {
    let mut rng = Rng(11);
    for step in 0.. {
        if log.len() == tasks {
            return;
        }
        assert!(step < tasks * 40 + 100_000, "no progress");
        sim.step(schedule(&mut rng, step));
    }
}

/// How often one group may pass another while more groups are ready than fit into the deques: they share one list then.
const BOUND: usize = 4;
/// The same with few groups, which all lie in deques: a worker with a short deque goes round faster, until it takes from
/// the worker with the long one. It takes half every 16 steps, and a deque of 64 is gone after six halvings.
const BOUND_IN_DEQUES: usize = 6 * 16;

#[test]
fn ten_thousand_groups_that_are_always_ready_take_turns() {
    // parallel-consumer #236: with many keys and few workers some keys were never served.
    let (groups, each) = (scale(4_000, 10_000) as usize, 12);
    for (name, schedule) in SCHEDULES {
        let log = Log::new();
        let mut sim = engine(&log);
        for _ in 0..each {
            for group in 0..groups {
                sim.submit(group as u32, ()).expect("room");
            }
        }
        drive(&mut sim, schedule, groups * each, &log);
        let events = log.take();
        let passes = passes(&events, groups);
        println!("{groups} groups, workers step {name}: passed at most {passes} times");
        assert!(passes <= BOUND, "{name}: {passes}");
    }
}

#[test]
fn few_groups_with_skewed_backlogs_take_turns() {
    // Group g starts with more tasks the higher its number: the long ones may not starve the short ones.
    let groups = 100;
    for (name, schedule) in SCHEDULES {
        let log = Log::new();
        let mut sim = engine(&log);
        let mut tasks = 0;
        for round in 0..200 {
            for group in 0..groups {
                if round < 2 + 2 * group {
                    sim.submit(group as u32, ()).expect("room");
                    tasks += 1;
                }
            }
        }
        drive(&mut sim, schedule, tasks, &log);
        let passes = passes(&log.take(), groups);
        println!("{groups} skewed groups, workers step {name}: passed at most {passes} times");
        assert!(passes <= BOUND_IN_DEQUES, "{name}: {passes}");
    }
}

#[test]
fn a_group_that_comes_late_joins_at_the_tail_and_is_served() {
    let groups = 2_000u32;
    let log = Log::new();
    let mut sim = engine(&log);
    for _ in 0..10 {
        for group in 0..groups {
            sim.submit(group, ()).expect("room");
        }
    }
    let mut rng = Rng(5);
    for step in 0..4_000 {
        sim.step(SCHEDULES[1].1(&mut rng, step));
    }
    let before = log.len();
    sim.submit(groups, ()).expect("room");
    let mut step = 0;
    while *log.take().last().unwrap_or(&0) != groups {
        sim.step(SCHEDULES[1].1(&mut rng, step));
        step += 1;
        // Twice through everything that was ready (the shard, then the group itself), and some steps at shards.
        assert!(step < 3 * groups as usize, "the late group waits too long ({before} before it)");
    }
    println!("a late group among {groups} ran after {step} steps");
}

/// A huge group keeps its worker's deque from ever being empty, so a shard that becomes ready meanwhile must not wait in
/// that worker's inbox until the huge group is done.
#[test]
fn a_group_that_comes_late_beside_a_few_huge_ones_waits_for_no_end_of_theirs() {
    for (workers, huge) in [(1, 1), (1, 5), (2, 2), (8, 16)] {
        let log: Log<u32> = Log::new();
        let in_task = log.clone();
        let mut sim = Engine::<u32, ()>::builder()
            .machine(Snapshot::one_node(workers))
            .workers(Workers::fixed(workers))
            .batch_size(1)
            .task_handler(move |_, task| in_task.push(*task.key()))
            .build_sim(7)
            .expect("valid settings");
        for _ in 0..2_000 {
            for group in 0..huge {
                // Two of them may share a shard, whose ring is full then.
                while sim.submit(group, ()).is_err() {
                    sim.step(0);
                }
            }
        }
        let mut worst = 0;
        for late in huge..huge + 50 {
            // All of the huge groups' records are sorted by now, or some are not: both must hold.
            for step in 0..20 * workers {
                sim.step(step % workers);
            }
            sim.submit(late, ()).expect("room");
            log.take();
            let mut others = Vec::new();
            while !others.contains(&late) {
                (0..workers).for_each(|worker| {
                    sim.step(worker);
                });
                others.append(&mut log.take());
                // All of the others' tasks, if need be: then the bound below is what fails.
                assert!(others.len() < 2_000 * huge as usize, "the late group was never served");
            }
            let passed = (0..huge).map(|g| others.iter().filter(|e| **e == g).count()).max();
            worst = worst.max(passed.unwrap_or(0));
        }
        println!(
            "{workers} workers, {huge} huge groups: a late one was passed at most {worst} times"
        );
        assert!(worst <= BOUND_IN_DEQUES, "{workers} workers, {huge} huge groups: {worst}");
    }
}
