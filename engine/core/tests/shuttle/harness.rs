//! Runs a scenario under many schedules, and says with which seed it failed.

use std::{
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    str::FromStr,
};

use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    scheduler::{PctScheduler, RandomScheduler},
};

/// Executions of one seed.
const BATCH: usize = 100;

fn from_env<V: FromStr>(name: &str) -> Option<V> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; it must be a number")))
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    // A seed says the same in one number.
    config.failure_persistence = FailurePersistence::None;
    // The longest runs take a tenth of it: beyond is a livelock.
    config.max_steps = MaxSteps::FailAfter(200_000);
    config.silence_warnings = true;
    config
}

/// Runs `scenario` under the schedules of the seeds from `BGRP_SHUTTLE_FROM` (1) on, `BGRP_SHUTTLE_SEEDS` (15) of them; or under
/// those of `BGRP_SHUTTLE_SEED` alone. Even seeds choose the next thread at random at each step, odd ones run by
/// priorities that change at 1 to 4 random points (PCT). With `BGRP_SHUTTLE_TELL` each seed is told as it begins, for runs
/// that end in a crash.
pub(crate) fn explore(name: &str, scenario: fn()) {
    let seeds = match from_env::<u64>("BGRP_SHUTTLE_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let from = from_env("BGRP_SHUTTLE_FROM").unwrap_or(1);
            from..from + from_env("BGRP_SHUTTLE_SEEDS").unwrap_or(15)
        }
    };
    let tell = std::env::var_os("BGRP_SHUTTLE_TELL").is_some();
    for seed in seeds.clone() {
        if tell {
            // Past the capture of the test harness: the next thing may be a crash.
            let _ = writeln!(std::io::stderr(), "{name}: seed {seed}");
        }
        let run = catch_unwind(AssertUnwindSafe(|| {
            if seed % 2 == 0 {
                Runner::new(RandomScheduler::new_from_seed(seed, BATCH), config()).run(scenario);
            } else {
                let depth = 2 + (seed / 2 % 4) as usize;
                let scheduler = PctScheduler::new_from_seed(seed, depth, BATCH);
                Runner::new(scheduler, config()).run(scenario);
            }
        }));
        if let Err(payload) = run {
            eprintln!(
                "\n{name} failed under a schedule of seed {seed}. The same again:\n  \
                 BGRP_SHUTTLE_SEED={seed} .ci/shuttle {name}\n"
            );
            resume_unwind(payload);
        }
    }
    println!("{name}: {} executions", seeds.count() * BATCH);
}

/// Runs `scenario` twice under each of some schedules: it must do the same, or a seed would not say which run failed.
pub(crate) fn repeats(scenario: fn()) {
    let inner = RandomScheduler::new_from_seed(1, BATCH);
    let scheduler = shuttle::scheduler::UncontrolledNondeterminismCheckScheduler::new(inner);
    Runner::new(scheduler, config()).run(scenario);
}
