//! Row E1: the state of a group is its own, from first use to reclaim; keys of any type, and of any hash, are kept apart.

mod common;

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use bgrp::{Engine, Workers};
use common::{LONG, Log, Rng, scale};

#[test]
fn the_state_of_a_group_needs_no_lock_and_sees_every_task_before() {
    struct State {
        key: u64,
        // Plain memory: a race between two tasks of the group would lose increments (and is one for sanitizers).
        sum: u64,
        count: u64,
        ended: Arc<AtomicU64>,
        sums: Arc<AtomicU64>,
    }
    impl Drop for State {
        fn drop(&mut self) {
            self.ended.fetch_add(self.count, SeqCst);
            self.sums.fetch_add(self.sum, SeqCst);
        }
    }
    let (ended, sums) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (e, s) = (ended.clone(), sums.clone());
    // Few idle groups: states come and go all the time.
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(4))
        .idle_groups(16)
        .state(move |key| State { key: *key, sum: 0, count: 0, ended: e.clone(), sums: s.clone() })
        .task_handler(|state, task| {
            assert_eq!(state.key, *task.key());
            state.sum += **task;
            state.count += 1;
        })
        .build()
        .expect("valid settings");
    let per_thread = scale(15_000, 150_000);
    thread::scope(|scope| {
        for t in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                let mut rng = Rng(t);
                for n in 0..per_thread {
                    engine.submit(rng.below(300), n).expect("open");
                }
            });
        }
    });
    let report = engine.close(LONG);
    assert!(report.is_complete());
    drop(engine);
    assert_eq!(
        ended.load(SeqCst),
        4 * per_thread,
        "states saw every task once, each was dropped once"
    );
    assert_eq!(sums.load(SeqCst), 4 * (per_thread * (per_thread - 1) / 2));
}

#[test]
fn a_state_is_opened_at_first_use_and_dropped_on_reclaim_or_at_the_end() {
    #[derive(Debug)]
    struct State(u32, Log<(u32, &'static str)>);
    impl Drop for State {
        fn drop(&mut self) {
            self.1.push((self.0, "closed"));
        }
    }
    let log: Log<(u32, &'static str)> = Log::new();
    let opens = log.clone();
    let mut sim = Engine::<u32, ()>::builder()
        .workers(Workers::fixed(1))
        .idle_groups(0)
        .state(move |key| {
            opens.push((*key, "opened"));
            State(*key, opens.clone())
        })
        .task_handler(|state: &mut State, task| state.1.push((*task.key(), "task")))
        .build_sim(1)
        .expect("valid settings");
    for round in 0..50 {
        // Eighty keys in turns: after the second round no chunk makes a group while all are there.
        for key in 0..40 {
            sim.submit(key + 40 * (round % 2), ()).expect("room");
        }
        assert_eq!(log.len() > 0, round > 0, "nothing opens before the first dispatch");
        sim.run();
    }
    drop(sim);
    let mut open = std::collections::HashSet::new();
    let events = log.take();
    for (key, what) in &events {
        match *what {
            "opened" => assert!(open.insert(key), "{key} has two states"),
            "closed" => assert!(open.remove(key), "{key} closed twice"),
            _ => assert!(open.contains(key), "task of {key} without a state"),
        }
    }
    assert!(open.is_empty(), "every state is dropped");
    let opened = events.iter().filter(|(_, what)| *what == "opened").count();
    assert!(opened > 800, "groups were reclaimed and made anew: {opened} states");
}

#[test]
fn no_group_is_reclaimed_at_or_below_the_bound_however_keys_fall_into_shards() {
    // As many groups as the bound allows: some shards hold more than an even share of them, and keep them all.
    let opened = Arc::new(AtomicU64::new(0));
    let seen = opened.clone();
    let groups = 200;
    let mut sim = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(2))
        .idle_groups(groups as usize)
        .state(move |_| seen.fetch_add(1, SeqCst))
        .task_handler(|_, _| ())
        .build_sim(7)
        .expect("valid settings");
    for round in 0..50 {
        for group in 0..groups {
            sim.submit(group, round).expect("room");
        }
        sim.run();
    }
    assert_eq!(opened.load(SeqCst), groups, "each state was opened once");
}

/// Every key has the same hash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Collides(String);

impl Hash for Collides {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(7);
    }
}

fn keys_are_apart<K: Hash + Eq + Clone + Send + Sync + std::fmt::Debug + 'static>(keys: &[K]) {
    let log = Log::new();
    let seen = log.clone();
    let engine = Engine::<K, u64>::builder()
        .workers(Workers::fixed(3))
        .idle_groups(keys.len() / 2)
        .state(|_| 0u64)
        .task_handler(move |_, task| seen.push((task.key().clone(), **task)))
        .build()
        .expect("valid settings");
    let handles: Vec<_> = keys.iter().step_by(3).map(|key| engine.group(key.clone())).collect();
    for n in 0..200 {
        for (i, key) in keys.iter().enumerate() {
            match n % 2 {
                1 if i % 3 == 0 => handles[i / 3].submit(n).expect("open"),
                _ => engine.submit(key.clone(), n).expect("open"),
            }
        }
    }
    assert!(engine.close(LONG).is_complete());
    let events = log.take();
    assert_eq!(events.len(), 200 * keys.len());
    for key in keys {
        let of_key = events.iter().filter(|(other, _)| other == key).map(|(_, n)| *n);
        assert!(of_key.eq(0..200), "{key:?}");
    }
}

#[test]
fn keys_of_many_types_keep_apart_and_in_order() {
    keys_are_apart::<String>(&(0..40).map(|n| format!("merchant_{n}")).collect::<Vec<_>>());
    keys_are_apart::<Box<[u8]>>(&(0..20u8).map(|n| vec![0; n as usize].into()).collect::<Vec<_>>());
    keys_are_apart::<(u8, Option<i64>)>(&[(0, None), (0, Some(0)), (1, Some(0)), (1, Some(-1))]);
    keys_are_apart::<[u64; 40]>(&(0..9).map(|n| [n; 40]).collect::<Vec<_>>());
    keys_are_apart::<()>(&[()]);
}

#[test]
fn keys_with_one_and_the_same_hash_keep_apart_and_in_order() {
    keys_are_apart::<Collides>(&(0..60).map(|n| Collides(format!("k{n}"))).collect::<Vec<_>>());
}
