//! The bench-harness of Bgrp.

use std::process::ExitCode;

use bgrp_bench::{
    command::{
        compare, experiment, growth, isolation, latency, memory, model, runner, scale, throughput,
    },
    count_alloc::Counting,
};
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures Bgrp beside what a user would take instead: same work, same run, order checked
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// One JSON object per line instead of a table
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Tasks per second of each system on each workload
    Throughput(throughput::Args),
    /// From the intended send time to the start of the task, open loop
    Latency(latency::Args),
    /// What one bad key does to the others
    Isolation(isolation::Args),
    /// What known keys feel while the maps of all shards grow
    Growth(growth::Args),
    /// Bytes per idle group, and after reclaim
    Memory(memory::Args),
    /// Scaling past this machine, from counted line transfers and stated costs
    Model(model::Args),
    /// Throughput by number of workers
    Scale(scale::Args),
    /// Every system on every workload, with ratios
    Compare(compare::Args),
    /// The classic experiment: 100,000 calls of 200 groups at a downstream that takes 20 at a time
    Experiment(experiment::Args),
    /// Trivial tasks in worker processes, beside Python's own pools
    Runner(runner::Args),
}

fn main() -> ExitCode {
    // Its worker processes are this program again.
    runner::serve_if_worker();
    let Arguments { json, command } = Arguments::parse();
    let result = match &command {
        Command::Throughput(args) => throughput::run(args, json),
        Command::Latency(args) => latency::run(args, json),
        Command::Isolation(args) => isolation::run(args, json),
        Command::Growth(args) => growth::run(args, json),
        Command::Memory(args) => memory::run(args, json),
        Command::Model(args) => model::run(args, json),
        Command::Scale(args) => scale::run(args, json),
        Command::Compare(args) => compare::run(args, json),
        Command::Experiment(args) => experiment::run(args, json),
        Command::Runner(args) => runner::run(args, json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bgrp-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
