//! Submit and step by hand on one thread, for profilers: `stepped [KEYS] [TASKS]`.

use bgrp::{Engine, Workers};
use bgrp_bench::{
    oracle::{self, KeyState},
    workload::{Random, Work},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let keys = arguments.next().transpose()?.unwrap_or(200);
    let tasks = arguments.next().transpose()?.unwrap_or(400_000);
    let mut sim = Engine::<u64, u32>::builder()
        .workers(Workers::fixed(1))
        .idle_groups(usize::try_from(keys)? * 2)
        .state(|_| KeyState::default())
        .task_handler(|state: &mut KeyState, number| state.run(**number, Work::Mix))
        .build_sim(1)?;
    let mut random = Random::new(1);
    let mut numbers = vec![0u32; usize::try_from(keys)?];
    for i in 0..tasks {
        let key = random.below(keys);
        let number = &mut numbers[usize::try_from(key)?];
        sim.submit(key, *number)?;
        *number += 1;
        if i % 2_048 == 2_047 {
            sim.run();
        }
    }
    sim.run();
    let done = sim.stats().done;
    drop(sim);
    let violations = oracle::verdict().violations;
    if done != tasks || violations > 0 {
        return Err(format!("{done} of {tasks} done, {violations} out of order").into());
    }
    Ok(())
}
