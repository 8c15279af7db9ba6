//! What is left when the guardian itself was killed: processes which a task started, and which carry the mark of
//! the run. The tasks themselves die with the guardian.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::TOKEN;
use super::tree::{self, Mark};

/// How long it is tried.
const PATIENCE: Duration = Duration::from_millis(500);
/// So many looks in a row find nothing, since a process that just executes a program shows no mark for a moment.
const QUIET: u32 = 3;

/// Kills what carries the mark of the run, until there is nothing.
pub(super) fn kill_run(run: &str) {
    let mark = format!("{TOKEN}={run}-");
    let until = Instant::now() + PATIENCE;
    let mut quiet = 0;
    while quiet < QUIET && Instant::now() < until {
        quiet = if kill_marked(mark.as_bytes()) == 0 { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill_marked(mark: &[u8]) -> usize {
    let marked = |pid: i32| tree::mark(pid, mark) == Mark::Found;
    tree::all()
        .into_iter()
        .filter(|&pid| marked(pid) && tree::signal_if(pid, Signal::KILL, |_| marked(pid)))
        .count()
}
