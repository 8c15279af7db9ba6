//! Commands a second, beside `xargs` in the same run: `cargo run --release -p bgrp-process --example commands`.
//!
//! Rounds of both are interleaved, and medians are shown, since other work on the machine moves all of them.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command as Std, Stdio};
use std::time::{Duration, Instant};

use bgrp_process::command::{Command, Commands};
use bgrp_process::guardian::{Event, Guardian, Spawn};
use rustix::event::{PollFd, PollFlags, poll};

const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let count = numbers.next().transpose()?.unwrap_or(3000);
    let at_once = numbers.next().transpose()?.unwrap_or(2);
    let mut bgrp = Commands::start(at_once)?;
    println!("{count} x `/bin/true x`, {at_once} at once, {ROUNDS} rounds, commands/s");
    println!(
        "guardian: {} KiB resident, {} KiB of it its own",
        status(bgrp.guardian_pid(), "VmRSS"),
        status(bgrp.guardian_pid(), "RssAnon")
    );
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rates[0].push(rate(count, || with_bgrp(&mut bgrp, count)));
        rates[1].push(rate(count, || with_xargs(at_once, count)));
        rates[2].push(rate(count, || spawns_only(at_once, count)));
    }
    for (name, rates) in ["commands", "xargs -P", "guardian alone"].iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        println!("{name:<16} median {:>6.0}   {:.0?}", rates[ROUNDS / 2], rates);
    }
    println!(
        "guardian: {} KiB resident, {} KiB of it its own",
        status(bgrp.guardian_pid(), "VmRSS"),
        status(bgrp.guardian_pid(), "RssAnon")
    );
    Ok(())
}

fn rate(count: usize, run: impl FnOnce()) -> f64 {
    let from = Instant::now();
    run();
    count as f64 / from.elapsed().max(Duration::from_nanos(1)).as_secs_f64()
}

fn with_bgrp(commands: &mut Commands, count: usize) {
    let mut left = count;
    let next = || {
        left = left.checked_sub(1)?;
        Some(Command::new(["/bin/true", "x"]))
    };
    let mut good = 0;
    let run = commands
        .run(next, |_, ended| good += usize::from(ended.is_ok_and(|ended| ended.success())));
    assert_eq!((run.map(|report| report.done).ok(), good), (Some(count as u64), count));
}

fn with_xargs(at_once: usize, count: usize) {
    let jobs = format!("-P{at_once}");
    let child = Std::new("xargs").args([&jobs, "-n1", "/bin/true"]).stdin(Stdio::piped()).spawn();
    let mut child = child.expect("xargs is there");
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all("x\n".repeat(count).as_bytes()).expect("xargs reads");
    }
    assert!(child.wait().is_ok_and(|status| status.success()));
}

/// Without pipes: what the guardian itself can do.
fn spawns_only(at_once: usize, count: usize) {
    let mut guardian = Guardian::start().expect("a guardian");
    let (mut asked, mut running, mut ended, mut events) = (0, 0, 0, Vec::new());
    while ended < count {
        while asked < count && running < at_once {
            let mut spawn = Spawn::new(OsStr::new("/bin/true"));
            spawn.args.push(OsStr::new("x"));
            guardian.spawn(asked as u64, spawn).expect("no NUL");
            asked += 1;
            running += 1;
        }
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, guardian.wants_write());
        let _ = poll(&mut [PollFd::from_borrowed_fd(guardian.fd(), flags)], None);
        guardian.io(&mut events).expect("the guardian is there");
        for event in events.drain(..) {
            match event {
                Event::Exited { .. } => {
                    running -= 1;
                    ended += 1;
                }
                Event::NotStarted { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    }
}

/// A line of the process's status, in KiB.
fn status(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).unwrap_or("?").to_owned()
}
