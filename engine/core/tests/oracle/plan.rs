//! What a run does: settings, operations, and what the handler answers to which attempt.

use std::time::Duration;

use bgrp::{Failure, Outcome};
use proptest::prelude::*;

use crate::common::mix;

pub(crate) const LANES: usize = 3;
const ASKED: Duration = Duration::from_millis(3);

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Submit(u8),
    Handle(u8),
    DropHandle(u8),
    Many(Vec<u8>),
    Lane(u8, u8),
    DropLane(u8),
    Step(u8),
    Run,
    Advance(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    pub(crate) batched: bool,
    pub(crate) batch: usize,
    pub(crate) flush: u64,
    pub(crate) capacity: usize,
    pub(crate) group_capacity: usize,
    pub(crate) idle: usize,
    pub(crate) attempts: u32,
    pub(crate) exhausted: u8,
    /// Of 16 attempts, this many are not simply done.
    pub(crate) trouble: u64,
    pub(crate) finish: bool,
    pub(crate) ops: Vec<Op>,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u8..10;
    prop_oneof![
        4 => key.clone().prop_map(Op::Submit),
        2 => key.clone().prop_map(Op::Handle),
        1 => key.clone().prop_map(Op::DropHandle),
        2 => prop::collection::vec(key.clone(), 0..12).prop_map(Op::Many),
        2 => (0..LANES as u8, key).prop_map(|(lane, key)| Op::Lane(lane, key)),
        1 => (0..LANES as u8).prop_map(Op::DropLane),
        8 => (0u8..8).prop_map(Op::Step),
        1 => Just(Op::Run),
        2 => (0u8..12).prop_map(Op::Advance),
    ]
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    (
        (any::<u64>(), 1usize..5, any::<bool>(), 1usize..9, prop_oneof![Just(0u64), 1u64..20]),
        (64usize..400, prop_oneof![1usize..8, Just(1 << 16)], 0usize..12, 1u32..4, 0u8..4),
        (0u64..14, any::<bool>(), prop::collection::vec(op(), 1..250)),
    )
        .prop_map(
            |(
                (seed, workers, batched, batch, flush),
                (capacity, group_capacity, idle, attempts, exhausted),
                (trouble, finish, ops),
            )| Plan {
                seed,
                workers,
                batched,
                batch,
                flush,
                capacity,
                group_capacity,
                idle,
                attempts,
                exhausted,
                trouble,
                finish,
                ops,
            },
        )
}

pub(crate) fn draw(plan: &Plan, id: usize, attempt: u32) -> Outcome {
    let bits = mix(plan.seed ^ mix(id as u64 * 31 + u64::from(attempt)));
    if bits % 16 >= plan.trouble {
        return Outcome::Done;
    }
    match (bits >> 8) % 5 {
        0 | 1 => Outcome::Retry(Failure::new("again")),
        2 => Outcome::RetryAfter(ASKED, Failure::new("later")),
        _ => Outcome::Fail(Failure::new("never")),
    }
}

/// The handler panics over this task.
pub(crate) fn panics(plan: &Plan, id: usize, attempt: u32) -> bool {
    plan.trouble > 6 && mix(plan.seed ^ mix(id as u64 * 77 + u64::from(attempt))).is_multiple_of(20)
}
