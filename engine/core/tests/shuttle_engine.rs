//! The whole engine under shuttle: its threads, its locks, its parking and each of its atomics run under schedules that
//! a seed decides, with rings of four cells, chunks of three records and deques of two units. The oracle is that of rows
//! E1, E2 and F11: order per key in real time, each task once, close gives back the rest, and no schedule hangs.
//!
//! ```text
//! .ci/shuttle              every scenario under its first schedules
//! .ci/shuttle 60           for an hour
//! .ci/shuttle mutants      each mutant below must be found
//! ```
#![cfg(shuttle)]

#[path = "shuttle/exact.rs"]
mod exact;
#[path = "shuttle/harness.rs"]
mod harness;
#[path = "shuttle/leases.rs"]
mod leases;
#[path = "shuttle/oracle.rs"]
mod oracle;
#[path = "shuttle/world.rs"]
mod world;

use std::{
    sync::{Arc, Mutex as Plain},
    time::Duration,
};

use bgrp::{Ended, Engine, Ticket, Workers, topology::Snapshot};
use harness::{explore, repeats};
use oracle::{Item, Key, Oracle, Way};
use shuttle::{
    rand::Rng,
    sync::{Condvar, Mutex},
    thread,
};
use world::{End, Knobs, world};

/// Mutants of the engine, and the scenario that finds each. `.ci/shuttle mutants` reads this list.
#[rustfmt::skip]
#[allow(dead_code, reason = "read by .ci/shuttle")]
const MUTANTS: &[(&str, &str)] = &[
    ("activate-busy", "groups_fill_up_and_open_again"),
    ("call-by-load", "groups_are_called_while_they_run"),
    ("called-is-idle", "groups_are_called_while_they_run"),
    ("collect-leaves-gap", "a_halt_at_any_moment"),
    ("drain-no-number", "close_meets_submitters"),
    ("end-linger-no-cas", "failures_panics_and_linger"),
    ("exact-one-more", "exact_groups_fill_up"),
    ("exact-status-early", "exact_groups_fill_up_and_it_closes"),
    ("flag-no-second-look", "failures_panics_and_linger"),
    ("flag-ring-no-cas", "every_way_in_at_once"),
    ("free-by-store", "groups_are_called_while_they_run"),
    ("gate-no-lock", "the_last_owner_goes_at_any_moment"),
    ("halt-by-load", "a_halted_group_gives_back"),
    ("lease-late-forgotten", "leases_end_while_it_halts"),
    ("lease-no-notify", "leases_end_while_it_halts"),
    ("lease-taken-by-close", "leases_end_after_the_deadline"),
    ("lease-token-twice", "batches_are_leased"),
    ("line-keeps-waker", "exact_bytes_fill_up"),
    ("line-leave-no-wake", "exact_groups_fill_up"),
    ("line-no-second-look", "exact_groups_fill_up"),
    ("lines-told-unclaimed", "exact_groups_fill_up_and_it_halts"),
    ("publish-skips-rmw", "every_way_in_at_once"),
    ("reclaim-pinned", "groups_are_reclaimed_and_made_anew"),
    ("refill-no-wake", "a_long_task_holds_up_nobody"),
    ("ring-close-by-store", "close_meets_submitters"),
    ("room-leave-no-wake", "exact_bytes_fill_up"),
    ("sleep-no-recheck", "a_long_task_holds_up_nobody"),
    ("track-not-set", "tickets_are_told_whatever_comes_between"),
    ("unpin-at-once", "groups_are_reclaimed_and_made_anew"),
    ("wait-check-apart", "two_sides_close_a_cycle_at_once"),
    ("wake-no-unpark", "a_long_task_holds_up_nobody"),
];

#[test]
fn a_seed_decides_everything() {
    repeats(|| world(Knobs { failures: true, linger: true, ..Knobs::default() }));
}

#[test]
fn every_way_in_at_once() {
    explore("every_way_in_at_once", || world(Knobs::default()));
}

#[test]
fn failures_panics_and_linger() {
    explore("failures_panics_and_linger", || {
        world(Knobs { failures: true, linger: true, ..Knobs::default() });
    });
}

#[test]
fn close_meets_submitters() {
    explore("close_meets_submitters", || {
        world(Knobs { end: End::CloseMeanwhile, ..Knobs::default() });
    });
}

#[test]
fn a_deadline_passes() {
    explore("a_deadline_passes", || {
        world(Knobs { end: End::Deadline, failures: true, ..Knobs::default() });
    });
}

#[test]
fn a_halt_at_any_moment() {
    explore("a_halt_at_any_moment", || {
        world(Knobs { end: End::Halt, failures: true, ..Knobs::default() });
    });
}

#[test]
fn the_last_owner_goes_at_any_moment() {
    explore("the_last_owner_goes_at_any_moment", || {
        world(Knobs { end: End::Drop, ..Knobs::default() });
    });
}

#[test]
fn groups_are_reclaimed_and_made_anew() {
    explore("groups_are_reclaimed_and_made_anew", || {
        world(Knobs { idle_groups: 1, keys: 6, each: 5, ..Knobs::default() });
    });
}

#[test]
fn groups_fill_up_and_open_again() {
    explore("groups_fill_up_and_open_again", || {
        world(Knobs { group_capacity: 1, keys: 1, each: 6, no_lanes: true, ..Knobs::default() });
    });
}

#[test]
fn groups_are_called_while_they_run() {
    explore("groups_are_called_while_they_run", || {
        world(Knobs { calls: true, failures: true, ..Knobs::default() });
    });
}

#[test]
fn groups_are_called_and_the_engine_is_halted() {
    explore("groups_are_called_and_the_engine_is_halted", || {
        world(Knobs { calls: true, linger: true, end: End::Halt, ..Knobs::default() });
    });
}

#[test]
fn a_halted_group_gives_back() {
    explore("a_halted_group_gives_back", || {
        world(Knobs { halts_groups: true, failures: true, ..Knobs::default() });
    });
}

#[test]
fn batches_are_leased() {
    explore("batches_are_leased", || world(Knobs { leases: true, ..Knobs::default() }));
}

#[test]
fn leases_fail_and_are_dropped() {
    explore("leases_fail_and_are_dropped", || {
        world(Knobs { leases: true, failures: true, linger: true, ..Knobs::default() });
    });
}

#[test]
fn leases_end_after_the_deadline() {
    explore("leases_end_after_the_deadline", || {
        world(Knobs { leases: true, failures: true, end: End::Deadline, ..Knobs::default() });
    });
}

#[test]
fn leases_end_while_it_halts() {
    explore("leases_end_while_it_halts", || {
        world(Knobs { leases: true, failures: true, end: End::Halt, ..Knobs::default() });
    });
}

#[test]
fn the_last_owner_goes_while_leases_are_out() {
    explore("the_last_owner_goes_while_leases_are_out", || {
        world(Knobs { leases: true, end: End::Drop, ..Knobs::default() });
    });
}

#[test]
fn exact_groups_fill_up() {
    explore("exact_groups_fill_up", || {
        world(Knobs { exact: 2, each: 5, failures: true, ..Knobs::default() });
    });
}

#[test]
fn exact_groups_fill_up_and_it_closes() {
    explore("exact_groups_fill_up_and_it_closes", || {
        world(Knobs { exact: 2, end: End::CloseMeanwhile, ..Knobs::default() });
    });
}

#[test]
fn exact_groups_fill_up_and_it_halts() {
    explore("exact_groups_fill_up_and_it_halts", || {
        world(Knobs { exact: 2, end: End::Halt, ..Knobs::default() });
    });
}

#[test]
fn exact_groups_are_called() {
    explore("exact_groups_are_called", || {
        world(Knobs { exact: 2, bytes: Some(7), calls: true, ..Knobs::default() });
    });
}

#[test]
fn exact_groups_halt() {
    explore("exact_groups_halt", || {
        world(Knobs { exact: 2, halts_groups: true, failures: true, ..Knobs::default() });
    });
}

#[test]
fn exact_groups_lease() {
    explore("exact_groups_lease", || {
        world(Knobs { exact: 2, bytes: Some(6), leases: true, failures: true, ..Knobs::default() });
    });
}

#[test]
fn exact_bytes_fill_up() {
    explore("exact_bytes_fill_up", || {
        world(Knobs { exact: 3, bytes: Some(4), keys: 3, failures: true, ..Knobs::default() });
    });
}

#[test]
fn exact_bytes_fill_up_and_a_deadline_passes() {
    explore("exact_bytes_fill_up_and_a_deadline_passes", || {
        world(Knobs { exact: 3, bytes: Some(4), keys: 3, end: End::Deadline, ..Knobs::default() });
    });
}

#[test]
fn exact_bytes_fill_up_and_the_last_owner_goes() {
    explore("exact_bytes_fill_up_and_the_last_owner_goes", || {
        world(Knobs { exact: 3, bytes: Some(4), keys: 3, end: End::Drop, ..Knobs::default() });
    });
}

#[test]
fn exact_groups_and_the_engine_goes_before_its_handles() {
    explore("exact_groups_and_the_engine_goes_before_its_handles", exact::handles_outlive);
}

/// One task waits for tasks of other groups: they must not lie where nobody looks.
#[test]
fn a_long_task_holds_up_nobody() {
    fn scenario() {
        let others = 3;
        let ran = Arc::new((Mutex::new(0), Condvar::new()));
        let (count, oracle) = (ran.clone(), Oracle::new(others + 1));
        let engine = Engine::<Key, Item>::builder()
            .machine(Snapshot::one_node(shuttle::rand::thread_rng().gen_range(1..=2)))
            .workers(Workers::fixed(2))
            .pin(false)
            .capacity(64)
            .task_handler(move |_, task| {
                let (ran, changed) = &*count;
                let mut ran = ran.lock().expect("no panic under it");
                if *task.key() == 0 {
                    while *ran < others {
                        ran = changed.wait(ran).expect("no panic under it");
                    }
                } else {
                    *ran += 1;
                    changed.notify_all();
                }
            })
            .build()
            .expect("valid settings");
        let engine = Arc::new(engine);
        let (theirs, items) = (engine.clone(), oracle.clone());
        let submitter = thread::spawn(move || {
            for key in [1, 2] {
                theirs.submit(key, items.item(key as usize)).expect("open");
            }
        });
        for key in [0, 3] {
            engine.submit(key, oracle.item(key as usize)).expect("open");
        }
        submitter.join().expect("no panic");
        assert_eq!(engine.close(Duration::MAX).done, others as u64 + 1);
    }
    explore("a_long_task_holds_up_nobody", scenario);
}

/// S11: the last owner goes inside a task, while others submit by handle and by lane.
#[test]
fn the_last_owner_goes_inside_a_task() {
    type Owner = Arc<Plain<Option<Engine<Key, Owning>>>>;
    struct Owning(Item, Option<Owner>, Arc<(Mutex<usize>, Condvar)>);
    impl Drop for Owning {
        fn drop(&mut self) {
            let (dropped, changed) = &*self.2;
            *dropped.lock().expect("no panic under it") += 1;
            changed.notify_all();
        }
    }
    fn scenario() {
        let each = 3;
        let tasks = 2 * each + 1;
        let oracle = Oracle::new(tasks);
        let dropped = Arc::new((Mutex::new(0), Condvar::new()));
        let watched = oracle.clone();
        let engine = Engine::<Key, Owning>::builder()
            .machine(Snapshot::one_node(2))
            .workers(Workers::fixed(shuttle::rand::thread_rng().gen_range(1..=2)))
            .pin(false)
            .capacity(64)
            .task_handler(move |_, task| {
                watched.starts(*task.key(), task.0.id);
                if let Some(owner) = task.1.take() {
                    let engine = owner.lock().expect("no panic under it").take();
                    drop(engine);
                }
                watched.stops(*task.key(), task.0.id, true);
            })
            .build()
            .expect("valid settings");
        let handle = engine.group(1);
        let mut lane = engine.producer();
        let owner: Owner = Arc::default();
        let item = |id| oracle.item(id);
        oracle.begins(tasks - 1, Way::Key, 0, 7);
        let last = Owning(item(tasks - 1), Some(owner.clone()), dropped.clone());
        let front = engine.group(7);
        *owner.lock().expect("nobody else yet") = Some(engine);
        oracle.returned(tasks - 1, true);
        assert!(front.submit(last).is_ok(), "open");
        drop((front, owner));
        let submit = |source: usize, mut send: Box<dyn FnMut(Owning) -> bool + Send>, way| {
            let (oracle, dropped) = (oracle.clone(), dropped.clone());
            thread::spawn(move || {
                for n in 0..each {
                    let id = source * each + n;
                    oracle.begins(id, way, source, 1);
                    let took = send(Owning(oracle.item(id), None, dropped.clone()));
                    oracle.returned(id, took);
                }
            })
        };
        let by_handle = submit(0, Box::new(move |task| handle.submit(task).is_ok()), Way::Handle);
        let by_lane = submit(1, Box::new(move |task| lane.submit(1, task).is_ok()), Way::Lane);
        by_handle.join().expect("no panic");
        by_lane.join().expect("no panic");
        // Nobody closes: what was accepted runs all the same, and every task is dropped.
        let (count, changed) = &*dropped;
        let mut count = count.lock().expect("no panic under it");
        while *count < tasks {
            count = changed.wait(count).expect("no panic under it");
        }
        drop(count);
        while !oracle.all_dropped() {
            thread::yield_now();
        }
        oracle.check();
    }
    explore("the_last_owner_goes_inside_a_task", scenario);
}

/// Two groups whose tasks wait for each other, at the same moment: exactly one of the waits is refused, and the other ends.
#[test]
fn two_sides_close_a_cycle_at_once() {
    type Tickets = Arc<Plain<Vec<Option<Ticket>>>>;
    fn scenario() {
        let tickets: Tickets = Arc::new(Plain::new(vec![None, None]));
        let refused = Arc::new(Plain::new(Vec::new()));
        let (its, log) = (tickets.clone(), refused.clone());
        let engine = Engine::<Key, u32>::builder()
            .machine(Snapshot::one_node(2))
            .workers(Workers::fixed(3))
            .pin(false)
            .capacity(64)
            .task_handler(move |_, task| {
                if **task == 1 {
                    let other = 1 - *task.key() as usize;
                    // The submitter has both before long.
                    let ticket = loop {
                        let ticket = its.lock().expect("no panic under it")[other].clone();
                        match ticket {
                            Some(ticket) => break ticket,
                            None => thread::yield_now(),
                        }
                    };
                    let waited = ticket.wait();
                    log.lock().expect("no panic under it").push(waited.is_err());
                }
            })
            .build()
            .expect("valid settings");
        for key in [0, 1] {
            engine.submit(key, 1).expect("open");
        }
        for key in [0, 1] {
            let ticket = engine.submit_tracked(key, 2).expect("open");
            tickets.lock().expect("no panic under it")[key as usize] = Some(ticket);
        }
        assert_eq!(engine.close(Duration::MAX).done, 4);
        let refused = refused.lock().expect("no panic under it");
        let n = refused.iter().filter(|refused| **refused).count();
        assert!(refused.len() == 2 && n <= 1, "at most one side is refused: {refused:?}");
        // Both sides were at it only if no dispatch had taken both tasks of its group, and then one had to be.
        let both = tickets.lock().expect("no panic under it");
        assert!(both.iter().flatten().all(|ticket| ticket.ended() == Some(Ended::Done)));
    }
    explore("two_sides_close_a_cycle_at_once", scenario);
}

/// Tasks with and without tickets from two threads, some of which are tried twice, while the engine is closed or not: every
/// ticket is told, and rightly.
#[test]
fn tickets_are_told_whatever_comes_between() {
    fn scenario() {
        let mut rng = shuttle::rand::thread_rng();
        let builder = Engine::<Key, u32>::builder()
            .machine(Snapshot::one_node(2))
            .workers(Workers::fixed(rng.gen_range(1..=2)))
            .pin(false)
            .capacity(64)
            .batch_size(rng.gen_range(1..=3))
            .retry(bgrp::Retry::fixed(Duration::ZERO).attempts(2));
        let again = |task: u32, attempt: u32| attempt == 1 && task.is_multiple_of(3);
        let configured = if rng.gen_range(0..2) == 0 {
            builder.task_handler(move |_, task| {
                thread::yield_now();
                if again(**task, task.attempt()) { Err("again") } else { Ok(()) }
            })
        } else {
            builder.handler(move |_, batch| {
                thread::yield_now();
                (0..batch.len())
                    .map(|i| match batch.get(i) {
                        Some(task) if again(*task, batch.attempt(i)) => {
                            bgrp::Outcome::Retry(bgrp::Failure::new("again"))
                        }
                        _ => bgrp::Outcome::Done,
                    })
                    .collect::<Vec<_>>()
            })
        };
        let engine = Arc::new(configured.build().expect("valid settings"));
        let threads: Vec<_> = (0..2)
            .map(|source| {
                let engine = engine.clone();
                thread::spawn(move || {
                    let mut tickets = Vec::new();
                    for n in 0..4 {
                        if shuttle::rand::thread_rng().gen_range(0..2) == 0 {
                            tickets.extend(engine.submit_tracked(1, source + n).ok());
                        } else {
                            let _ = engine.submit(1, source + n);
                        }
                    }
                    tickets
                })
            })
            .collect();
        let early = rng.gen_range(0..2) == 0;
        let deadline = if rng.gen_range(0..2) == 0 { Duration::MAX } else { Duration::ZERO };
        let mut left = 0;
        if early {
            left += engine.close(deadline).left_tasks();
        }
        let tickets: Vec<Ticket> =
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        let n = tickets.len();
        left += engine.close(Duration::MAX).left_tasks();
        let ends: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait()).collect();
        let back = ends.iter().filter(|end| **end == Ok(Ended::GivenBack)).count();
        let done = ends.iter().filter(|end| **end == Ok(Ended::Done)).count();
        assert!(back <= left && back + done == n, "{left} left: {ends:?}");
    }
    explore("tickets_are_told_whatever_comes_between", scenario);
}
