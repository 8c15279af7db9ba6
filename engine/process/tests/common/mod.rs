//! For all tests with real processes: one at a time, bounded in time, and nothing is left of it.
#![allow(dead_code, unreachable_pub)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bgrp_process::guardian::{Event, Guardian};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long anything may take that takes milliseconds on an idle machine.
pub const LONG: Duration = Duration::from_secs(30);

static ALONE: Mutex<()> = Mutex::new(());

/// One test at a time; at its end there is no process, zombie or descriptor that was not there before.
pub struct Alone {
    _lock: MutexGuard<'static, ()>,
    fds: Vec<String>,
    children: Vec<i32>,
    /// Dropped at the end, which tells the watchdog.
    _done: mpsc::Sender<()>,
}

impl Alone {
    pub fn new() -> Self {
        let lock = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(120)) == Err(mpsc::RecvTimeoutError::Timeout)
            {
                eprintln!("a test of processes does not end");
                std::process::abort();
            }
        });
        Self { _lock: lock, fds: fds(), children: children(), _done: done }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        eventually("children of the test are left", || {
            let left: Vec<_> =
                children().into_iter().filter(|pid| !self.children.contains(pid)).collect();
            left.is_empty().then_some(()).ok_or(format!("{left:?}"))
        });
        eventually("descriptors are left", || {
            let now = fds();
            (now.len() <= self.fds.len()).then_some(()).ok_or(format!("{:?} {now:?}", self.fds))
        });
    }
}

/// Where the open descriptors lead to.
pub fn fds() -> Vec<String> {
    fds_of(std::process::id())
}

pub fn fds_of(pid: u32) -> Vec<String> {
    let mut fds: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| {
            let to = fs::read_link(fd.path()).ok()?;
            Some(format!("{} {}", fd.file_name().display(), to.display()))
        })
        .collect();
    fds.sort();
    fds
}

/// The children of this process, zombies too.
pub fn children() -> Vec<i32> {
    children_of(std::process::id())
}

pub fn children_of(pid: u32) -> Vec<i32> {
    processes().into_iter().filter(|(_, parent, _)| *parent == pid).map(|(pid, ..)| pid).collect()
}

/// Number, parent and state of all processes.
pub fn processes() -> Vec<(i32, u32, u8)> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
            let after = stat.iter().rposition(|&byte| byte == b')')? + 2;
            let text = std::str::from_utf8(&stat[after..]).ok()?;
            let mut fields = text.split(' ');
            let state = fields.next()?.as_bytes()[0];
            Some((pid, fields.next()?.parse().ok()?, state))
        })
        .collect()
}

/// Processes whose command line or environment holds this text, and which are not zombies.
pub fn with_text(text: &str) -> Vec<i32> {
    let holds = |path: String| {
        fs::read(path)
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    let own = i32::try_from(std::process::id()).unwrap();
    processes()
        .into_iter()
        .filter(|&(pid, _, state)| pid != own && !matches!(state, b'Z' | b'X'))
        .map(|(pid, ..)| pid)
        .filter(|pid| {
            holds(format!("/proc/{pid}/cmdline")) || holds(format!("/proc/{pid}/environ"))
        })
        .collect()
}

/// Whether there is such a process, and it is no zombie.
pub fn is_alive(pid: i32) -> bool {
    processes().iter().any(|&(number, _, state)| number == pid && !matches!(state, b'Z' | b'X'))
}

/// Looks again and again until it is so.
pub fn eventually<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    within(LONG, what, look)
}

pub fn within<T>(time: Duration, what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + time;
    loop {
        match look() {
            Ok(got) => return got,
            Err(error) => assert!(Instant::now() < until, "{what}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Text that no other run of a test has, to find processes by.
pub fn unique(name: &str) -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    format!("{name}-{:016x}", RandomState::new().build_hasher().finish())
}

pub fn os(text: &str) -> &OsStr {
    OsStr::from_bytes(text.as_bytes())
}

/// Waits for events until one answers.
pub fn wait_for<T>(
    guardian: &mut Guardian,
    what: &str,
    mut pick: impl FnMut(&Event) -> Option<T>,
) -> T {
    let until = Instant::now() + LONG;
    let mut events = Vec::new();
    loop {
        guardian.io(&mut events).unwrap();
        for event in events.drain(..) {
            if let Some(got) = pick(&event) {
                return got;
            }
        }
        assert!(Instant::now() < until, "no {what}");
        pause(guardian);
    }
}

/// Waits until the guardian has something to say, a second at most.
pub fn pause(guardian: &Guardian) {
    let mut flags = PollFlags::IN;
    flags.set(PollFlags::OUT, guardian.wants_write());
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(guardian.fd(), flags)];
    let _ = poll(&mut fds, Some(&second));
}

/// This test binary again, as a process of its own that runs the ignored test `helper` in this role. Its lines that
/// begin with `@` are what it tells.
pub fn helper(role: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "helper", "--ignored", "--nocapture"]).env(ROLE, role);
    command
}

/// What a helper is to do; `None` if this is no helper.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

const ROLE: &str = "BGRP_TEST_HELPER";

/// Reads lines until so many were told.
pub fn told(out: &mut impl std::io::BufRead, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    let mut line = String::new();
    while told.len() < count {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the helper ended after {told:?}");
        // The harness writes the name of the test without a line's end.
        if let Some((_, text)) = line.trim_end().split_once('@') {
            told.push(text.to_owned());
        }
    }
    told
}

/// Kills a process, whoever's it is.
pub fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The environment of this process carries this text.
pub fn carries(pid: u32, text: &str) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.windows(text.len()).any(|window| window == text.as_bytes())
}
