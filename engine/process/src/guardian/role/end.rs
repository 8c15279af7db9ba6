//! The end: everything is killed and reaped until there is no child, which proves that there is no descendant (I2).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::guardian::Usage;
use crate::guardian::tree::{self, Tree};

/// How long it is tried. What is left then has its KILL and cannot take it now, or runs as somebody whom we may not
/// signal.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills all descendants until there are none.
pub(super) fn kill_everything(tree: Tree) {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let until = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    while Instant::now() < until {
        let roots = tree.own_children();
        let descendants = tree.descendants(&roots);
        let family: HashSet<i32> = roots.iter().chain(&descendants).copied().collect();
        for &pid in &family {
            tree::signal_if(pid, Signal::KILL, |stat| {
                stat.parent == own || family.contains(&stat.parent)
            });
        }
        while reap_one().is_some() {}
        if no_child() {
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// Whether there is no child, not even one that has not ended.
fn no_child() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).is_err_and(|errno| errno == rustix::io::Errno::CHILD)
}

/// Reaps a child that has ended: its number, raw status, and what it used.
pub(super) fn reap_one() -> Option<(i32, i32, Usage)> {
    let mut status = 0;
    // SAFETY: plain data, written by the call.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid for writes. By libc: rustix has no wait that tells what was used.
    let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG, &mut used) };
    let time = |time: libc::timeval| {
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_usec).unwrap_or_default() * 1000,
        )
    };
    (pid > 0).then(|| {
        let usage = Usage {
            user: time(used.ru_utime),
            system: time(used.ru_stime),
            max_rss: u64::try_from(used.ru_maxrss).unwrap_or_default() * 1024,
            oom_killed: false,
        };
        (pid, status, usage)
    })
}
