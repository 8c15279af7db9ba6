//! From a fresh process to the guardian: descriptors, signals, and what this system can do.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getpid, getppid, pidfd_open};

use super::cgroup::Cgroups;
use super::env::BaseEnv;
use crate::guardian::channel::{Channel, MOST_FDS};
use crate::guardian::tree::Tree;
use crate::guardian::{Protections, RUN};

/// What the guardian starts with.
pub(super) struct Setup {
    pub(super) channel: Channel,
    /// Readable when a child has changed its state.
    pub(super) exits: OwnedFd,
    /// Readable when the runner's process has ended.
    pub(super) runner: Option<OwnedFd>,
    pub(super) run: String,
    pub(super) env: BaseEnv,
    pub(super) tree: Tree,
    pub(super) cgroups: Option<Cgroups>,
    pub(super) protections: Protections,
}

/// Takes this process over.
pub(super) fn take_over() -> Result<Setup, String> {
    let said = std::env::var(RUN).unwrap_or_default();
    let (run, runner) = said.split_once(':').ok_or_else(|| format!("{RUN} is not set"))?;
    rustix::net::sockopt::socket_type(rustix::stdio::stdin())
        .map_err(|errno| format!("standard input is no socket ({errno})"))?;
    let told = |what: &'static str| move |errno: Errno| format!("{what}: {errno}");
    close_from(3);
    let null = |number: i32| -> Result<OwnedFd, String> {
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(told("/dev/null"))?;
        if null.as_raw_fd() == number {
            Ok(null)
        } else {
            Err(format!("descriptor {number} was taken"))
        }
    };
    // Never dropped: 3 and 4 stay taken, so that what is received has higher numbers (I5).
    let null = [null(3)?, null(4)?].map(std::mem::ManuallyDrop::new);
    let least = i32::try_from(MOST_FDS).unwrap_or(i32::MAX);
    let socket = fcntl_dupfd_cloexec(rustix::stdio::stdin(), least).map_err(told("the socket"))?;
    rustix::stdio::dup2_stdin(null[0].as_fd()).map_err(told("standard input"))?;
    rustix::stdio::dup2_stdout(null[0].as_fd()).map_err(told("standard output"))?;
    rustix::stdio::dup2_stderr(null[0].as_fd()).map_err(told("standard error"))?;
    let exits = signals().map_err(told("signals"))?;

    // The socket does not tell of the runner's end as long as a fork of it holds its end too; its process does.
    let pid: Option<Pid> = runner.parse().ok().and_then(Pid::from_raw);
    let runner = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if pid.is_none() || getppid() != pid {
        return Err("the runner is gone".into());
    }
    let _ = rustix::thread::set_name(c"bgrp-guardian");
    let subreaper = rustix::process::set_child_subreaper(Some(getpid())).is_ok();
    // Soft only: who wants a dump can raise it again.
    let core = rustix::process::getrlimit(Resource::Core);
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), ..core });
    let tree = Tree::new();
    let cgroups = Cgroups::find(run);
    let protections = Protections {
        subreaper,
        descendants: tree.works(),
        pidfd: pidfd_open(getpid(), PidfdFlags::empty()).is_ok(),
        memory: cgroups.is_some(),
        cgroup_kill: cgroups.as_ref().is_some_and(Cgroups::can_kill),
    };
    Ok(Setup {
        channel: Channel::new(socket),
        exits,
        runner,
        run: run.to_owned(),
        env: BaseEnv::of_this_process(),
        tree,
        cgroups,
        protections,
    })
}

/// Closes all descriptors from `first` on: whatever the program had open without close-on-exec.
fn close_from(first: u32) {
    // SAFETY: no descriptor from `first` on is owned by anything in this process, which has just begun. A raw call
    // because rustix has none, and older C libraries neither.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if closed == 0 {
        return;
    }
    let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|&number| i64::from(number) >= i64::from(first)) {
        // SAFETY: as above; the one of the listing itself is closed by now, and closing it again does nothing.
        unsafe { libc::close(number) };
    }
}

/// Default actions, everything blocked, and exits of children as a descriptor. By libc: rustix leaves signal masks to
/// C libraries.
fn signals() -> Result<OwnedFd, Errno> {
    // What the system takes as an action, in which zero is the default one; larger than it is anywhere.
    let default = [0u64; 16];
    for signal in 1..=64 {
        // SAFETY: the action is valid for reads. A raw call, since the C library keeps two signals for itself, and they
        // may have been inherited as ignored. Those that have no action to set (KILL, STOP) refuse.
        unsafe {
            let old = std::ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), old, 8)
        };
    }
    let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
    // SAFETY: plain data, written by the calls below before it is read.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes, and the mask is that of the only thread.
    if unsafe {
        libc::sigfillset(&mut set) != 0
            || libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) != 0
    } {
        return Err(failed());
    }
    // SAFETY: as above; the descriptor that is made is owned by nobody else.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(failed()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}
