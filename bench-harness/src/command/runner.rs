//! `runner`: trivial tasks in worker processes, beside Python's own pools.
//!
//! The task gives its argument back. A worker of ours is this program itself, or a Python file on the SDK. Order per key is checked in
//! the results, and that each task has one.

use std::{
    collections::HashMap,
    error::Error,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use bgrp_process::{Ended, Program, Runner, Server, Task, Value};
use serde_json::json;

use crate::report::{Report, round};

/// What the command line asks for.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Share of the tasks of each row (a million, or 200,000 where they go one by one)
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Repetitions; the median counts
    #[arg(long, default_value_t = 3)]
    pub repetitions: usize,
    /// Only rows whose name contains this
    #[arg(long)]
    pub only: Option<String>,
    /// The folder of bgrp_worker.py
    #[arg(long, default_value = "engine/process/sdk")]
    pub sdk: PathBuf,
}

/// In a process that was started as a worker: serves, and ends it. To be called first in `main`.
pub fn serve_if_worker() {
    Server::new()
        .task("json", |_, value: u64| Ok::<_, String>(value))
        .raw_task("raw", |_, value| Ok(value))
        .run_if_worker();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    Python,
}

/// A row of ours.
struct Ours {
    name: &'static str,
    language: Language,
    task: &'static str,
    bytes: bool,
    frame: u32,
    window: u32,
    workers: usize,
    keys: u64,
}

const OURS: [Ours; 8] = {
    let base = Ours {
        name: "rust, batches",
        language: Language::Rust,
        task: "json",
        bytes: false,
        frame: 256,
        window: 2,
        workers: 1,
        keys: 200,
    };
    [
        Ours { name: "rust, one by one", frame: 1, window: 32, ..base },
        Ours { name: "rust, batches", ..base },
        Ours { name: "rust, batches of bytes", task: "raw", bytes: true, ..base },
        Ours { name: "rust, batches, 2 workers", workers: 2, ..base },
        Ours { name: "rust, batches, no keys", keys: 0, ..base },
        Ours {
            name: "python, one by one",
            language: Language::Python,
            frame: 1,
            window: 32,
            ..base
        },
        Ours { name: "python, batches", language: Language::Python, ..base },
        Ours { name: "python, batches, 2 workers", language: Language::Python, workers: 2, ..base },
    ]
};

/// Python's own: a pool, how many at a time, workers.
const PEERS: [(&str, &str, u32, usize); 5] = [
    ("ProcessPoolExecutor.map, one by one", "executor", 1, 1),
    ("ProcessPoolExecutor.map, chunks", "executor", 256, 1),
    ("multiprocessing.Pool.imap, one by one", "pool", 1, 1),
    ("multiprocessing.Pool.imap, chunks", "pool", 256, 1),
    ("multiprocessing.Pool.imap, chunks, 2 workers", "pool", 256, 2),
];

const PEER_SCRIPT: &str = r"
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Pool
def same(n): return n
if __name__ == '__main__':
    kind, chunk, workers, tasks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if kind == 'executor':
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(same, range(100)))
            begin = time.perf_counter()
            wrong = sum(a != b for a, b in enumerate(pool.map(same, range(tasks), chunksize=chunk)))
            took = time.perf_counter() - begin
    else:
        with Pool(workers) as pool:
            list(pool.imap(same, range(100)))
            begin = time.perf_counter()
            wrong = sum(a != b for a, b in enumerate(pool.imap(same, range(tasks), chunksize=chunk)))
            took = time.perf_counter() - begin
    print(took, wrong)
";

const PYTHON_WORKER: &str = "import bgrp_worker
@bgrp_worker.task('json')
def same(ctx, n): return n
bgrp_worker.run()
";

/// Runs it.
///
/// # Errors
/// A run that could not be, or in which a task failed.
pub fn run(args: &Args, json: bool) -> Result<(), Box<dyn Error>> {
    let mut report = Report::new(json);
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let python = Command::new("python3").arg("--version").output().is_ok();
    let sdk = std::path::absolute(&args.sdk)?;
    for row in OURS.iter().filter(|row| wanted(row.name)) {
        if row.language == Language::Python && !(python && sdk.join("bgrp_worker.py").exists()) {
            eprintln!("{}: skipped, python3 or {} is missing", row.name, sdk.display());
            continue;
        }
        let tasks = count(args, row.frame);
        let mut runs = Vec::new();
        let mut disordered = 0;
        for _ in 0..args.repetitions.max(1) {
            let (took, bad) = ours(row, tasks, &sdk)?;
            runs.push(took);
            disordered += bad;
        }
        add(&mut report, row.name, row.workers, row.keys, tasks, runs, disordered);
    }
    for (name, kind, chunk, workers) in PEERS.iter().filter(|peer| wanted(peer.0)) {
        if !python {
            eprintln!("{name}: skipped, python3 is missing");
            continue;
        }
        // One by one they take their time.
        let tasks = count(args, *chunk) / if *chunk == 1 { 5 } else { 1 };
        let (mut runs, mut disordered) = (Vec::new(), 0);
        for _ in 0..args.repetitions.max(1) {
            let output = Command::new("python3")
                .args(["-c", PEER_SCRIPT, kind, &chunk.to_string(), &workers.to_string()])
                .arg(tasks.to_string())
                .output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let (took, wrong) = text
                .trim()
                .split_once(' ')
                .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
            runs.push(Duration::from_secs_f64(took.parse()?));
            disordered += wrong.parse::<u64>()?;
        }
        add(&mut report, name, *workers, 0, tasks, runs, disordered);
    }
    report.finish();
    Ok(())
}

fn count(args: &Args, frame: u32) -> u64 {
    let full = if frame == 1 { 200_000.0 } else { 1_000_000.0 };
    (full * args.scale).max(100.0) as u64
}

fn add(
    report: &mut Report,
    name: &str,
    workers: usize,
    keys: u64,
    tasks: u64,
    mut runs: Vec<Duration>,
    disordered: u64,
) {
    runs.sort_unstable();
    let seconds = runs[runs.len() / 2].as_secs_f64();
    report.add(json!({
        "system": name,
        "workers": workers,
        "keys": keys,
        "tasks": tasks,
        "seconds": round(seconds, 3),
        "tasks_per_s": round(tasks as f64 / seconds, 0),
        "out_of_order": disordered,
    }));
}

/// From the first submit to the last result, with workers that are ready.
fn ours(row: &Ours, tasks: u64, sdk: &Path) -> Result<(Duration, u64), Box<dyn Error>> {
    let program = match row.language {
        Language::Rust => Program::this(),
        Language::Python => {
            Program::new("python3").arg("-c").arg(PYTHON_WORKER).env("PYTHONPATH", sdk.as_os_str())
        }
    };
    let runner = Runner::builder(program)
        .workers(row.workers)
        .frame_tasks(row.frame)
        .window(row.window)
        .results_capacity(1 << 20)
        .start()?;
    let mut results = runner.results();
    let task = |n: u64| -> Result<Task, Box<dyn Error + Send + Sync>> {
        let args = if row.bytes { Value::Bytes(n.to_le_bytes().into()) } else { Value::json(&n)? };
        let id = n.to_string();
        let task = if row.keys > 0 {
            Task::new(id, (n % row.keys).to_string(), args)
        } else {
            Task::alone(id, args)
        };
        Ok(task.named(row.task))
    };
    // The workers are there, and their pace is known.
    let warm = 2_000;
    for n in 0..warm {
        runner.submit(task(n).map_err(|error| error.to_string())?)?;
    }
    for _ in 0..warm {
        results.next().ok_or("no result")?;
    }
    let begin = Instant::now();
    let (took, disordered) = std::thread::scope(|scope| {
        let submitter = scope.spawn(|| -> Result<(), String> {
            for n in 0..tasks {
                let task = task(n).map_err(|error| error.to_string())?;
                runner.submit(task).map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        let mut last: HashMap<_, u64> = HashMap::new();
        let (mut seen, mut disordered) = (0, 0);
        while seen < tasks {
            let batch = results.next_batch();
            if batch.is_empty() {
                return Err("the results ended".to_owned());
            }
            for result in batch {
                let Ended::Ok(_) = result.ended else { return Err(result.ended.to_string()) };
                let n: u64 = result.id.parse().map_err(|_| "an id that is no number")?;
                if row.keys > 0 {
                    let before = last.insert(result.key, n);
                    disordered += u64::from(before.is_some_and(|before| before >= n));
                }
                seen += 1;
            }
        }
        let took = begin.elapsed();
        submitter.join().map_err(|_| "the submitter panicked")??;
        Ok((took, disordered))
    })?;
    let closed = runner.close(Duration::from_secs(60));
    if closed.ok != tasks + warm {
        return Err(format!(
            "{} of {} tasks are done: {:?}",
            closed.ok,
            tasks + warm,
            closed.error
        )
        .into());
    }
    Ok((took, disordered))
}
