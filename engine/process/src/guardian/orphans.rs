//! What is left when the guardian itself was killed: processes which a task started, and which carry the mark of
//! the run. The tasks themselves die with the guardian.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{TOKEN, tree};

/// How long it is tried.
const PATIENCE: Duration = Duration::from_millis(500);

/// Kills what carries the mark of the run, until a look finds nothing.
pub(super) fn kill_run(run: &str) {
    let mark = format!("{TOKEN}={run}-");
    let until = Instant::now() + PATIENCE;
    while kill_marked(mark.as_bytes()) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill_marked(mark: &[u8]) -> usize {
    let marked = |pid: i32| tree::carries(pid, mark);
    tree::all()
        .into_iter()
        .filter(|&pid| marked(pid) && tree::signal_if(pid, Signal::KILL, |_| marked(pid)))
        .count()
}
