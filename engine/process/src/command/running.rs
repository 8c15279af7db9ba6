//! The state of one command, driven from outside: by readiness of its descriptors, events of the guardian, and time.
//!
//! | state | `stop` | `exit` | leaves when |
//! |---|---|---|---|
//! | starting, running | `No` | - | exit; deadline or stop: asked |
//! | asked | `Asked(until)` | - | exit, or grace over: sweeping |
//! | sweeping | `Sweeping` | either | swept |
//! | lingering | any but `Sweeping` | yes | both pipes at their end, or 200 ms over |
//!
//! It has ended when it has exited or survived, no sweep is under way, and both pipes are closed.
//!
//! I1: nothing here blocks: pipes are read when they have something, and written without blocking.
//!
//! I2: every state but that of a command without deadline has a time at which it goes on by itself.

use std::ffi::OsStr;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use super::{Capture, Command, Ended, Output, RunError, StdStream};
use crate::guardian::{Event, Fds, Guardian, Spawn, SpawnError, Stage, Usage};

/// How long pipes are read after the exit while something else holds them open.
const LINGER: Duration = Duration::from_millis(200);
/// The longest line that is given away whole.
const LONGEST_LINE: usize = 16 << 20;
/// The most that is read from a pipe which something still holds open when it is closed: what the largest pipe of
/// an ordinary user holds.
const LAST_READ: usize = 1 << 20;

/// Whether the command was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    No,
    Asked(Instant),
    Sweeping,
    Swept,
}

/// One command that was asked for.
#[derive(Debug)]
pub struct Running {
    token: u64,
    command: Command,
    stdin: Option<PipeWriter>,
    written: usize,
    out: Stream,
    err: Stream,
    started: Instant,
    deadline: Option<Instant>,
    stop: Stop,
    exit: Option<Exit>,
    timed_out: bool,
    asked: bool,
    survivors: Vec<u32>,
    failed: Option<RunError>,
}

#[derive(Debug)]
struct Exit {
    status: Option<ExitStatus>,
    usage: Usage,
    wall: Duration,
    pipes_until: Instant,
}

/// One stream of a command.
#[derive(Debug)]
struct Stream {
    which: StdStream,
    pipe: Option<PipeReader>,
    kept: Capture,
    /// A line that has not ended yet.
    line: Vec<u8>,
}

impl Stream {
    fn read(&mut self, output: &mut Output, chunk: &mut [u8]) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::read(pipe, &mut *chunk) {
            Ok(0) => {
                self.close(output);
                Ok(())
            }
            Ok(count) => self.take(output, &chunk[..count]),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, output: &mut Output, mut bytes: &[u8]) -> io::Result<()> {
        let Output::Lines(sink) = output else { return self.kept.push(bytes) };
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end + 1);
            if self.line.is_empty() {
                sink(self.which, line);
            } else {
                self.line.extend_from_slice(line);
                sink(self.which, &self.line);
                self.line.clear();
            }
            bytes = rest;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() >= LONGEST_LINE {
            sink(self.which, &self.line);
            self.line.clear();
        }
        Ok(())
    }

    /// Closes the pipe; what is left of a line is a line.
    fn close(&mut self, output: &mut Output) {
        self.pipe = None;
        if let Output::Lines(sink) = output
            && !self.line.is_empty()
        {
            sink(self.which, &self.line);
            self.line = Vec::new();
        }
    }

    /// Reads what is there without waiting for more, and closes.
    fn finish(&mut self, output: &mut Output, chunk: &mut [u8]) -> io::Result<()> {
        if let Some(pipe) = &self.pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        let mut left = LAST_READ;
        while let Some(pipe) = &self.pipe {
            match rustix::io::read(pipe, &mut *chunk) {
                Ok(count) if count > 0 && left > 0 => {
                    left = left.saturating_sub(count);
                    self.take(output, &chunk[..count])?;
                }
                Err(Errno::INTR) => {}
                _ => self.close(output),
            }
        }
        Ok(())
    }
}

/// A pipe; what fails is told as what it would be told as further on.
fn pipe() -> Result<(PipeReader, PipeWriter), SpawnError> {
    io::pipe().map_err(|error| SpawnError {
        stage: Stage::Transfer,
        errno: error.raw_os_error().unwrap_or(Errno::MFILE.raw_os_error()),
    })
}

impl Running {
    /// Asks the guardian for the command, under a token that was not used before.
    ///
    /// # Errors
    /// It was not asked for; the command comes back.
    #[expect(
        clippy::result_large_err,
        reason = "the command is given back, as everything is that is not taken"
    )]
    pub fn start(
        token: u64,
        command: Command,
        guardian: &mut Guardian,
    ) -> Result<Self, (Command, SpawnError)> {
        match Self::ask(token, &command, guardian) {
            Ok((stdin, out, err)) => {
                let stream = |which, pipe| Stream {
                    which,
                    pipe,
                    kept: Capture::default(),
                    line: Vec::new(),
                };
                Ok(Self {
                    token,
                    command,
                    stdin,
                    written: 0,
                    out: stream(StdStream::Out, Some(out)),
                    err: stream(StdStream::Err, Some(err)),
                    started: Instant::now(),
                    deadline: None,
                    stop: Stop::No,
                    exit: None,
                    timed_out: false,
                    asked: false,
                    survivors: Vec::new(),
                    failed: None,
                })
            }
            Err(error) => Err((command, error)),
        }
    }

    fn ask(
        token: u64,
        command: &Command,
        guardian: &mut Guardian,
    ) -> Result<(Option<PipeWriter>, PipeReader, PipeReader), SpawnError> {
        let (out, child_out) = pipe()?;
        let (err, child_err) = pipe()?;
        let (stdin, child_stdin) = match &command.stdin {
            None => (None, None),
            Some(_) => {
                let (read, write) = pipe()?;
                rustix::io::ioctl_fionbio(&write, true)
                    .map_err(|errno| SpawnError::new(Stage::Transfer, errno))?;
                (Some(write), Some(read))
            }
        };
        let mut spawn = Spawn::new(command.program());
        spawn.args = command.args.iter().skip(1).map(|arg| OsStr::from_bytes(arg)).collect();
        spawn.env =
            command.env.iter().map(|(name, value)| (name.as_os_str(), value.as_deref())).collect();
        spawn.cwd = command.cwd.as_deref();
        spawn.nice = command.nice;
        spawn.memory = command.memory;
        spawn.address_space = command.address_space;
        spawn.fds = Fds {
            stdin: child_stdin.map(OwnedFd::from),
            stdout: Some(child_out.into()),
            stderr: Some(child_err.into()),
            ..Fds::default()
        };
        guardian.spawn(token, spawn)?;
        Ok((stdin, out, err))
    }

    /// Its token.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Gives the command back, for another try.
    pub(super) fn into_command(self) -> Command {
        self.command
    }

    /// What to poll for.
    pub fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let out = [&self.out, &self.err].into_iter().filter_map(|stream| stream.pipe.as_ref());
        let out = out.map(|pipe| (pipe.as_fd(), PollFlags::IN));
        out.chain(self.stdin.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::OUT)))
    }

    /// Moves what can be moved; `ready` are the answers to [`Self::fds`], in the same order. `chunk` is room to read
    /// into, which commands share.
    pub fn ready(&mut self, ready: &[PollFlags], chunk: &mut [u8], guardian: &mut Guardian) {
        let mut ready = ready.iter();
        let output = &mut self.command.output;
        let mut read = Ok(());
        for stream in [&mut self.out, &mut self.err] {
            if stream.pipe.is_some() && ready.next().is_some_and(|flags| !flags.is_empty()) {
                read = read.and(stream.read(output, chunk));
            }
        }
        if self.stdin.is_some() && ready.next().is_some_and(|flags| !flags.is_empty()) {
            self.write();
        }
        self.check(read, guardian);
    }

    /// Output that cannot be kept ends the command.
    fn check(&mut self, result: io::Result<()>, guardian: &mut Guardian) {
        if let Err(error) = result {
            self.out.pipe = None;
            self.err.pipe = None;
            self.failed.get_or_insert(RunError::Output(error));
            self.kill(guardian);
        }
    }

    /// Writes what the command takes. One that closes its input early has had enough: no fault.
    fn write(&mut self) {
        let bytes = self.command.stdin.as_deref().unwrap_or_default();
        while let Some(stdin) = &self.stdin {
            match rustix::io::write(stdin, &bytes[self.written..]) {
                _ if self.written == bytes.len() => self.stdin = None,
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.stdin = None,
            }
        }
    }

    /// Takes an event of its own token, other than `NotStarted`.
    pub fn event(&mut self, event: &Event, guardian: &mut Guardian) {
        match event {
            Event::Started { .. } => {
                self.started = Instant::now();
                self.deadline =
                    self.command.timeout.and_then(|time| self.started.checked_add(time));
            }
            Event::Exited { status, usage, .. } => {
                self.exited(Some(*status), *usage);
                if self.stop != Stop::Sweeping && (self.stop != Stop::No || self.command.clean) {
                    self.kill(guardian);
                }
            }
            Event::Swept { survivors, .. } => {
                self.stop = Stop::Swept;
                self.survivors.clone_from(survivors);
                if self.exit.is_none() {
                    self.exited(None, Usage::default());
                }
            }
            Event::NotStarted { .. } => {}
        }
    }

    fn exited(&mut self, status: Option<ExitStatus>, usage: Usage) {
        let now = Instant::now();
        self.stdin = None;
        self.exit =
            Some(Exit { status, usage, wall: now - self.started, pipes_until: now + LINGER });
    }

    /// Asks it to end: TERM now, KILL after its grace.
    pub fn stop(&mut self, guardian: &mut Guardian) {
        if self.exit.is_none() {
            self.asked = true;
            self.term(guardian);
        }
    }

    fn term(&mut self, guardian: &mut Guardian) {
        if self.stop == Stop::No {
            guardian.signal(self.token, Signal::TERM);
            self.stop = Stop::Asked(Instant::now() + self.command.grace);
        }
    }

    /// Kills it and all that it started.
    pub fn kill(&mut self, guardian: &mut Guardian) {
        self.asked |= self.exit.is_none() && !self.timed_out;
        if !matches!(self.stop, Stop::Sweeping | Stop::Swept) {
            guardian.sweep(self.token);
            self.stop = Stop::Sweeping;
        }
    }

    /// When something is due.
    #[must_use]
    pub fn next_time(&self) -> Option<Instant> {
        match (&self.exit, self.stop) {
            (Some(exit), _) => self.has_pipes().then_some(exit.pipes_until),
            (None, Stop::No) => self.deadline,
            (None, Stop::Asked(until)) => Some(until),
            (None, _) => None,
        }
    }

    fn has_pipes(&self) -> bool {
        self.out.pipe.is_some() || self.err.pipe.is_some()
    }

    /// Does what is due.
    pub fn time(&mut self, now: Instant, chunk: &mut [u8], guardian: &mut Guardian) {
        if self.next_time().is_none_or(|next| next > now) {
            return;
        }
        if self.exit.is_some() {
            let output = &mut self.command.output;
            let out = self.out.finish(output, chunk);
            let err = self.err.finish(output, chunk);
            self.check(out.and(err), guardian);
        } else if self.stop == Stop::No {
            self.timed_out = true;
            self.term(guardian);
        } else {
            self.kill(guardian);
        }
    }

    /// Whether there is nothing more to wait for.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.exit.is_some() && !self.has_pipes() && self.stop != Stop::Sweeping
    }

    /// How it ended; to be asked for when it has.
    ///
    /// # Errors
    /// Its output could not be kept.
    pub fn end(self) -> Result<Ended, RunError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let exit = self.exit;
        Ok(Ended {
            status: exit.as_ref().and_then(|exit| exit.status),
            usage: exit.as_ref().map(|exit| exit.usage).unwrap_or_default(),
            timed_out: self.timed_out,
            asked: self.asked,
            survivors: self.survivors,
            wall: exit.map_or_else(|| self.started.elapsed(), |exit| exit.wall),
            stdout: self.out.kept,
            stderr: self.err.kept,
        })
    }
}
