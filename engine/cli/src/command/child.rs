//! One command from start to end.
//!
//! The command leads its own process group; output is read from two pipes together with its exit, on the
//! thread that waits for it. No code runs between fork and exec, so the cheap way to spawn is taken.
//!
//! | event | what follows |
//! |---|---|
//! | deadline | TERM to the group; KILL after the grace |
//! | exit | pipes held open by something that it left behind are waited for 200 ms, then closed |
//! | exit after we asked it to stop | KILL to what is left of its group, while its number is still its own |
//!
//! I1: a started command is always reaped, also when this code panics.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::running::{Running, Stage, send};
use bgrp_process::command::Capture;

/// How long pipes are read after the command's exit while something else holds them open.
const PIPE_LINGER: Duration = Duration::from_millis(200);
/// How often to look for the exit where the system cannot tell.
const TICK: Duration = Duration::from_millis(10);

/// What to run.
#[derive(Debug)]
pub struct Job {
    /// Program and arguments.
    pub args: Vec<Vec<u8>>,
    /// Added to our environment.
    pub env: Vec<(&'static str, OsString)>,
    /// Given on standard input.
    pub stdin: Option<Vec<u8>>,
}

/// How long a command may run.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// From start to TERM.
    pub timeout: Option<Duration>,
    /// From TERM to KILL.
    pub grace: Duration,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether the deadline stopped it.
    pub timed_out: bool,
    /// Whether it was running when a stop asked it to end.
    pub asked: bool,
    /// What it wrote to standard output.
    pub stdout: Capture,
    /// What it wrote to standard error.
    pub stderr: Capture,
    /// From start to exit.
    pub wall: Duration,
}

/// Why a command did not run, or its output is lost.
#[derive(Debug)]
pub enum RunError {
    /// The system is short of something; later it may work.
    Short(io::Error),
    /// It will never start.
    Never(io::Error),
    /// It ran, but its output could not be kept.
    Output(io::Error),
}

/// Runs `job` to its end.
///
/// # Errors
/// It did not start, or its output is lost.
pub fn run(job: &Job, deadline: Deadline, running: &Running) -> Result<Ended, RunError> {
    let mut command = Command::new(OsStr::from_bytes(&job.args[0]));
    command
        .args(job.args[1..].iter().map(|arg| OsStr::from_bytes(arg)))
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .stdin(if job.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let started = Instant::now();
    let mut leash = Leash::new(command.spawn().map_err(start_error)?, running);
    let mut pipes =
        Pipes::take(&mut leash.child, job.stdin.as_deref()).map_err(RunError::Output)?;
    let exit_fd = exit_fd(leash.leader);

    let mut term_at = deadline.timeout.map(|timeout| started + timeout);
    let mut kill_at = None;
    let mut timed_out = false;
    let mut exited: Option<Instant> = None;
    loop {
        let now = Instant::now();
        if exited.is_none() && leash.has_exited() {
            exited = Some(now);
            pipes.stdin = None;
        }
        let wake_at = if let Some(at) = exited {
            if pipes.drained() || now >= at + PIPE_LINGER {
                break;
            }
            Some(at + PIPE_LINGER)
        } else if kill_at.is_some_and(|at| now >= at) {
            send(leash.leader, Signal::KILL);
            kill_at = None;
            None
        } else if term_at.is_some_and(|at| now >= at) {
            timed_out = true;
            send(leash.leader, Signal::TERM);
            term_at = None;
            kill_at = Some(now + deadline.grace);
            kill_at
        } else {
            kill_at.or(term_at)
        };
        let wake_at = match (&exit_fd, exited) {
            (None, None) => Some(wake_at.unwrap_or(now + TICK).min(now + TICK)),
            _ => wake_at,
        };
        let exit_fd = exit_fd.as_ref().filter(|_| exited.is_none());
        pipes
            .wait(exit_fd.map(AsFd::as_fd), wake_at.map(|at| at.saturating_duration_since(now)))
            .map_err(RunError::Output)?;
    }
    let asked = running.stage() > Stage::Calm;
    if timed_out || asked {
        send(leash.leader, Signal::KILL);
    }
    let status = leash.reap().map_err(RunError::Output)?;
    let wall = exited.unwrap_or_else(Instant::now) - started;
    Ok(Ended { status, timed_out, asked, stdout: pipes.out.got, stderr: pipes.err.got, wall })
}

fn start_error(error: io::Error) -> RunError {
    let short = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
    match Errno::from_io_error(&error) {
        Some(errno) if short.contains(&errno) => RunError::Short(error),
        _ => RunError::Never(error),
    }
}

/// A descriptor that is readable once the process has exited, where there is such a thing.
#[cfg(target_os = "linux")]
fn exit_fd(leader: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(leader, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn exit_fd(_: Pid) -> Option<OwnedFd> {
    None
}

/// A started process that is not left behind.
struct Leash<'a> {
    child: Child,
    leader: Pid,
    running: &'a Running,
    reaped: bool,
}

impl<'a> Leash<'a> {
    fn new(child: Child, running: &'a Running) -> Self {
        let leader = Pid::from_child(&child);
        running.enter(leader);
        Self { child, leader, running, reaped: false }
    }

    /// Whether it has exited; it stays unreaped.
    fn has_exited(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.leader), look), Ok(None) | Err(Errno::INTR))
    }

    fn reap(&mut self) -> io::Result<ExitStatus> {
        self.running.leave(self.leader);
        self.reaped = true;
        self.child.wait()
    }
}

impl Drop for Leash<'_> {
    fn drop(&mut self) {
        if !self.reaped {
            send(self.leader, Signal::KILL);
            let _ = self.reap();
        }
    }
}

struct Stream {
    pipe: Option<OwnedFd>,
    got: Capture,
}

impl Stream {
    fn new(pipe: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { pipe, got: Capture::default() })
    }

    fn read(&mut self, chunk: &mut [u8]) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::read(pipe, &mut *chunk) {
            Ok(0) => self.pipe = None,
            Ok(count) => self.got.push(&chunk[..count])?,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// The three pipes of a command.
struct Pipes<'a> {
    stdin: Option<OwnedFd>,
    to_write: &'a [u8],
    out: Stream,
    err: Stream,
    chunk: Vec<u8>,
}

impl<'a> Pipes<'a> {
    fn take(child: &mut Child, to_write: Option<&'a [u8]>) -> io::Result<Self> {
        let stdin: Option<OwnedFd> = child.stdin.take().map(OwnedFd::from);
        if let Some(stdin) = &stdin {
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        Ok(Self {
            stdin,
            to_write: to_write.unwrap_or_default(),
            out: Stream::new(child.stdout.take().map(OwnedFd::from))?,
            err: Stream::new(child.stderr.take().map(OwnedFd::from))?,
            chunk: vec![0; 64 * 1024],
        })
    }

    fn drained(&self) -> bool {
        self.out.pipe.is_none() && self.err.pipe.is_none()
    }

    /// Waits until something is ready or `time` is over, and moves what is ready.
    fn wait(&mut self, exit: Option<BorrowedFd<'_>>, time: Option<Duration>) -> io::Result<()> {
        self.write();
        let mut fds = Vec::with_capacity(4);
        for (pipe, flag) in [
            (&self.stdin, PollFlags::OUT),
            (&self.out.pipe, PollFlags::IN),
            (&self.err.pipe, PollFlags::IN),
        ] {
            fds.extend(pipe.as_ref().map(|pipe| PollFd::new(pipe, flag)));
        }
        fds.extend(exit.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        drop(fds);
        self.out.read(&mut self.chunk)?;
        self.err.read(&mut self.chunk)
    }

    /// Writes what the command takes. One that closes its input early has had enough: no fault.
    fn write(&mut self) {
        while let Some(stdin) = &self.stdin {
            if self.to_write.is_empty() {
                self.stdin = None;
                return;
            }
            match rustix::io::write(stdin, self.to_write) {
                Ok(count) => self.to_write = &self.to_write[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.stdin = None,
            }
        }
    }
}

/// A status in words.
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
#[path = "child_test.rs"]
mod tests;
