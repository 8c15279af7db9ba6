//! Fast and wrong is wrong: no rate comes out of a run whose order or sum is not what it has to be.

use std::sync::Mutex;

use bgrp_bench::{
    measure::{Prepared, Timed, Wrong, timed},
    oracle::{KeyState, Table},
    system::System,
    workload::{self, Item, Stream, Workload},
};

/// What is done to the streams before they are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing.
    None,
    /// One task does not run: the last of its key, so that no later one of the key gives it away.
    DropsTheLastOfAKey,
    /// One task in the middle does not run.
    DropsOne,
    /// Two neighbours of a key run the wrong way round.
    SwapsTwo,
    /// One task runs twice.
    RunsOneTwice,
    /// The tasks of a key run last to first: the count is right.
    Reverses,
    /// One task of a key runs as one of another key.
    WrongKey,
}

struct Broken {
    fault: Fault,
    table: bool,
}

/// Positions of the tasks of key 0.
fn of_key_0(items: &[Item]) -> Vec<usize> {
    (0..items.len()).filter(|i| items[*i].key == 0).collect()
}

fn spoil(items: &mut Vec<Item>, fault: Fault) {
    let of_key = of_key_0(items);
    let middle = of_key[of_key.len() / 2];
    match fault {
        Fault::None => {}
        Fault::DropsTheLastOfAKey => drop(items.remove(of_key[of_key.len() - 1])),
        Fault::DropsOne => drop(items.remove(middle)),
        Fault::SwapsTwo => items.swap(middle, of_key[of_key.len() / 2 + 1]),
        Fault::RunsOneTwice => items.insert(middle, items[middle]),
        Fault::Reverses => {
            let numbers: Vec<Item> = of_key.iter().rev().map(|i| items[*i]).collect();
            of_key.iter().zip(numbers).for_each(|(i, item)| items[*i] = item);
        }
        Fault::WrongKey => items[middle].key = 1,
    }
}

impl System for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let mut items = streams[0].0.clone();
        spoil(&mut items, self.fault);
        let table = Table::new(if self.table { workload.keys } else { 0 });
        let mut states: Vec<KeyState> = Vec::new();
        if !self.table {
            states.resize_with(workload.keys, KeyState::default);
        }
        timed(|| {
            for item in &items {
                match states.get_mut(item.key as usize) {
                    Some(state) => state.run(item.number, workload.work),
                    None => table.run(item.key, item.number, workload.work),
                }
            }
        })
    }
}

/// The verdict is the process's: one run at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn run(fault: Fault, table: bool) -> Result<f64, Box<Wrong>> {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let prepared = Prepared::new(workload::all().swap_remove(0).scaled(0.001));
    prepared.run(&Broken { fault, table }).map(|checked| checked.rate())
}

#[test]
fn a_right_run_gets_a_rate() {
    for table in [false, true] {
        assert!(run(Fault::None, table).expect("in order") > 0.0);
    }
}

fn refused(fault: Fault) {
    for table in [false, true] {
        let wrong = run(fault, table).expect_err("the run was spoiled");
        assert_ne!(wrong.got, wrong.wanted);
        let text = wrong.to_string();
        assert!(text.contains("broken on uniform-200: no rate"), "{text}");
    }
}

#[test]
fn no_rate_when_the_last_task_of_a_key_is_dropped() {
    refused(Fault::DropsTheLastOfAKey);
}

#[test]
fn no_rate_when_a_task_is_dropped() {
    refused(Fault::DropsOne);
}

#[test]
fn no_rate_when_two_tasks_of_a_key_are_swapped() {
    refused(Fault::SwapsTwo);
}

#[test]
fn no_rate_when_a_task_runs_twice() {
    refused(Fault::RunsOneTwice);
}

#[test]
fn no_rate_when_a_key_runs_backwards() {
    refused(Fault::Reverses);
}

#[test]
fn no_rate_when_a_task_runs_for_another_key() {
    refused(Fault::WrongKey);
}

#[test]
fn the_wrong_order_alone_is_enough() {
    let wrong = run(Fault::SwapsTwo, false).expect_err("the run was spoiled");
    assert_eq!(wrong.got.tasks, wrong.wanted.tasks);
    assert!(wrong.got.violations > 0);
    assert_ne!(wrong.got.sum, wrong.wanted.sum, "the sum alone shows it, too");
}
