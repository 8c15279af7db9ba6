//! No limited, failing, slow, paused or full group slows another (rows E4, F1, F3, F5, F10; recipes R28 and R29).
//!
//! Counted in steps of virtual workers on a virtual clock, never in time: the same load of healthy keys, with the same number of steps,
//! with and without keys that are not well. What those cost is their own turns, and a group that may not run has none.

mod common;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use bgrp::{Engine, Failure, Lease, Outcome, Rate, Retry, Sim, SubmitReason, Workers};
use common::{MS, lock};

/// Healthy keys.
const KEYS: u32 = 100;
/// Keys from here on are not well.
const BAD: u32 = 1_000;
/// Tasks that a group may hold.
const RING: usize = 32;
const ROUNDS: u32 = 60;

/// What is wrong with the bad keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Their first task fails each time.
    BackOff,
    /// Their downstream says each time: again in 50 ms.
    ComeAgain,
    /// Their first task runs all the time: the worker that has it takes no more step.
    Blocked,
    /// They have ten times their rate.
    RateLimited,
    Paused,
    /// Their leases are kept, and their permits, of eight.
    Leased,
}

/// What the run of the healthy keys was like.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    done: u64,
    /// The most steps between the submit of a task and its dispatch.
    longest: u64,
    /// The most steps of a round after which every healthy task had been dispatched.
    steps: u64,
    /// Tasks of bad keys that were refused, because ten times their ring came.
    refused: u64,
}

#[derive(Clone, Copy)]
struct Job {
    round: u32,
    /// The step before which it was submitted.
    at: u64,
}

/// What the handler knows and tells.
#[derive(Default)]
struct Shared {
    step: AtomicU64,
    run: Mutex<Run>,
    /// Due rounds of the healthy keys.
    due: Mutex<Vec<u32>>,
    kept: Mutex<Vec<Lease<u32, Job>>>,
}

impl Shared {
    fn handle(&self, trouble: Trouble, lease: Lease<u32, Job>) {
        let key = *lease.key();
        if key < BAD {
            for job in lease.iter() {
                let mut run = lock(&self.run);
                let due = &mut lock(&self.due)[key as usize];
                assert_eq!(*due, job.round, "order of key {key}");
                *due += 1;
                run.done += 1;
                run.longest = run.longest.max(self.step.load(SeqCst) - job.at);
            }
            lease.complete(());
            return;
        }
        match trouble {
            Trouble::BackOff => lease.complete(Err("for ever")),
            Trouble::ComeAgain => {
                lease.complete(Outcome::RetryAfter(50 * MS, Failure::new("busy")));
            }
            Trouble::Blocked | Trouble::Leased => lock(&self.kept).push(lease),
            Trouble::RateLimited => lease.complete(()),
            Trouble::Paused => unreachable!("key {key} is paused"),
        }
    }
}

/// Rounds of 1 ms: one task to each healthy key, five to each bad one, and so many steps of the workers that can take one. With no
/// number of steps: until every healthy task of the round has been dispatched.
fn run(trouble: Trouble, bad: u32, steps: Option<u64>) -> Run {
    let shared = Arc::new(Shared::default());
    lock(&shared.due).resize(KEYS as usize, 0);
    let mut builder = Engine::<u32, Job>::builder()
        .workers(Workers::fixed(2))
        .group_capacity(RING)
        .retry(Retry::fixed(20 * MS).attempts(u32::MAX))
        .in_flight(8);
    if trouble == Trouble::RateLimited {
        // The healthy keys have less than half of that.
        builder = builder.group_rate(Rate::per_second(2_500).burst(5));
    }
    let handles = shared.clone();
    let mut sim = builder
        .lease_handler(move |lease| handles.handle(trouble, lease))
        .build_sim(1)
        .expect("valid settings");
    if trouble == Trouble::Paused {
        (0..bad).for_each(|key| sim.engine().pause_group(BAD + key));
    }
    let per_round = if trouble == Trouble::RateLimited { 25 } else { 5 };
    // The workers that take steps.
    let mut workers = vec![0, 1];
    let mut most = 0;
    for round in 0..ROUNDS {
        let job = Job { round, at: shared.step.load(SeqCst) };
        for key in (BAD..BAD + bad).cycle().take((bad * per_round) as usize) {
            if let Err(error) = sim.submit(key, job) {
                assert_eq!(error.reason, SubmitReason::GroupFull);
                lock(&shared.run).refused += 1;
            }
        }
        (0..KEYS).for_each(|key| sim.submit(key, job).expect("a healthy key has room"));
        let all = u64::from(KEYS * (round + 1));
        let mut taken = 0;
        while steps.map_or(lock(&shared.run).done < all, |steps| taken < steps) {
            assert!(taken < 10_000, "a healthy task is not dispatched");
            let worker = workers[taken as usize % workers.len()];
            taken += 1;
            shared.step.fetch_add(1, SeqCst);
            let before = lock(&shared.kept).len();
            sim.step(worker);
            if trouble == Trouble::Blocked && lock(&shared.kept).len() > before {
                // It is inside the handler from now on.
                workers.retain(|other| *other != worker);
            }
        }
        most = most.max(taken);
        sim.advance(MS);
    }
    let run = Run { steps: most, ..*lock(&shared.run) };
    finish(sim, &shared);
    run
}

/// Nothing is lost: what the bad keys have left comes back.
fn finish(mut sim: Sim<u32, Job>, shared: &Shared) {
    // A worker that was inside a handler is back.
    let mut left = sim.close().left_tasks();
    std::mem::take(&mut *lock(&shared.kept)).into_iter().for_each(|lease| lease.complete(()));
    left += sim.close().left_tasks();
    let stats = sim.stats();
    assert_eq!(stats.backlog(), left as u64, "lost or run twice: {stats:?}");
    assert_eq!(sim.engine().limits().in_flight, 0, "a permit is missing");
}

/// With the steps that the healthy keys need alone, how they fare beside the bad ones: nine tenths of their tasks at least, and none
/// later than `later` per cent of the steps.
fn compare(trouble: Trouble, bad: u32, later: u64) {
    let enough = run(trouble, 0, None).steps;
    let alone = run(trouble, 0, Some(enough));
    let beside = run(trouble, bad, Some(enough));
    assert_eq!(alone.done, u64::from(KEYS * ROUNDS), "enough steps for all");
    assert!(beside.refused > 0, "{trouble:?}: the bad keys are full");
    assert!(10 * beside.done >= 9 * alone.done, "{trouble:?}: {beside:?}, alone {alone:?}");
    let most = alone.longest * later / 100;
    assert!(beside.longest <= most, "{trouble:?}: {beside:?}, alone {alone:?}");
}

#[test]
fn r28_five_percent_of_keys_that_fail_for_ever_leave_the_healthy_ones_ninety_percent() {
    compare(Trouble::BackOff, KEYS / 20, 110);
}

#[test]
fn r29_a_blocked_key_with_ten_times_its_ring_costs_a_worker_and_nothing_else() {
    compare(Trouble::Blocked, 1, 110);
}

#[test]
fn a_key_far_over_its_rate_does_not_slow_the_others() {
    compare(Trouble::RateLimited, 1, 110);
}

#[test]
fn a_key_whose_downstream_says_come_again_does_not_slow_the_others() {
    compare(Trouble::ComeAgain, 1, 110);
}

#[test]
fn full_keys_that_are_paused_do_not_slow_the_others() {
    compare(Trouble::Paused, 5, 110);
}

#[test]
fn a_full_key_in_back_off_does_not_slow_the_others() {
    compare(Trouble::BackOff, 1, 110);
}

#[test]
fn a_full_key_whose_lease_is_kept_does_not_slow_the_others() {
    compare(Trouble::Leased, 1, 110);
}

/// What "no later" means when a permit is held for ever: one is left, and it goes round.
#[test]
fn permits_that_are_kept_leave_the_rest_of_them_to_the_others() {
    compare(Trouble::Leased, 7, 200);
}
