//! The hand on the guardian: what the runner holds.
//!
//! Used from one thread with level-triggered polling. Only [`Guardian::start`] and the drop wait for something.
//!
//! I1: a spawn is answered by exactly one `Started` or `NotStarted`, or by the error of [`Guardian::io`].
//!
//! I2: at most [`SENT`] spawns are unanswered; the rest waits here, with its descriptors. More descriptors on
//! their way than the limit of open files are refused by the system, and the guardian would run out of its own.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;

use super::channel::Channel;
use super::wire::{self, Answer};
use super::{Event, Protections, Spawn, SpawnError, Stage};

/// How long the guardian may take to say hello.
const HELLO: Duration = Duration::from_secs(5);
/// How long the drop waits for the guardian to kill what there is.
const FAREWELL: Duration = Duration::from_secs(3);
/// Spawns that are on their way at the same time.
const SENT: usize = 8;

/// The guardian of this run: the parent of all its processes. Dropping it kills them.
pub struct Guardian {
    channel: Channel,
    process: Child,
    run: String,
    protections: Protections,
    /// Spawns that wait for an answer to an earlier one, and what was asked after them.
    waiting: VecDeque<Waiting>,
    /// Spawns on their way.
    sent: usize,
    /// Answers that were known without asking.
    known: Vec<Event>,
    /// Whether the guardian is gone, and its descendants were swept from here.
    gone: bool,
}

/// A request that waits here.
struct Waiting {
    frame: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Whose spawn it is.
    spawn: Option<u64>,
}

/// Why there is no guardian.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This process was executed as a guardian and runs the program instead: the library was loaded after the start
    /// of the program (a plug-in), so that its constructor cannot take over. To go on would start processes without
    /// end.
    #[error(
        "this program was executed again as guardian but did not become one: bgrp-process must be linked into it"
    )]
    NotLinked,
    /// The program could not be executed again.
    #[error("the program could not be executed again as guardian (/proc/self/exe): {0}")]
    Spawn(#[source] io::Error),
    /// It ended instead of saying hello.
    #[error(
        "the guardian ended before it was ready ({0}); is bgrp-process linked into this program?"
    )]
    Ended(ExitStatus),
    /// It said why it cannot.
    #[error("the guardian cannot start: {0}")]
    Fault(String),
    /// It did not say hello in time.
    #[error("the guardian was not ready within {} s", HELLO.as_secs())]
    Silent,
}

impl Guardian {
    /// Executes the program again as guardian, and waits until it is ready, at most 5 s.
    ///
    /// Working directory, environment and limits of everything that is started later are those of this moment.
    ///
    /// # Errors
    /// It did not get ready; nothing is left of it.
    pub fn start() -> Result<Self, StartError> {
        if std::env::var_os(super::ROLE).is_some_and(|role| role == super::GUARDIAN) {
            return Err(StartError::NotLinked);
        }
        let run = super::new_run();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| StartError::Spawn(errno.into()))?;
        // The linker keeps the constructor only where something of its file is used.
        std::hint::black_box(super::role::enter as fn());
        let process = Command::new("/proc/self/exe")
            .arg0("bgrp-guardian")
            .env(super::ROLE, super::GUARDIAN)
            .env(super::RUN, format!("{run}:{}", std::process::id()))
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // So that what the terminal sends does not reach it, from its first moment on.
            .process_group(0)
            .spawn()
            .map_err(StartError::Spawn)?;
        let mut guardian = Self {
            channel: Channel::new(ours),
            process,
            run,
            protections: Protections::default(),
            waiting: VecDeque::new(),
            sent: 0,
            known: Vec::new(),
            gone: false,
        };
        match guardian.hello() {
            Ok(()) => Ok(guardian),
            Err(error) => {
                let _ = guardian.process.kill();
                let status = guardian.process.wait();
                guardian.gone = true;
                Err(match (error, status) {
                    (StartError::Ended(_), Ok(status)) => StartError::Ended(status),
                    (error, _) => error,
                })
            }
        }
    }

    fn hello(&mut self) -> Result<(), StartError> {
        let until = Instant::now() + HELLO;
        loop {
            let open = self.channel.fill().unwrap_or(false);
            if let Some(frame) = self.channel.next() {
                match wire::read_answer(frame) {
                    Some(Answer::Hello { protections }) => {
                        self.protections = protections;
                        return Ok(());
                    }
                    Some(Answer::Fault(text)) => return Err(StartError::Fault(text)),
                    _ => return Err(StartError::Fault("it does not speak like one".into())),
                }
            }
            if !open {
                return Err(StartError::Ended(ExitStatus::default()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StartError::Silent);
            }
            let mut fds = [PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN)];
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }

    /// To be polled for reading always, and for writing while [`Self::wants_write`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Whether something waits to be written.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.channel.wants_write() || !self.known.is_empty()
    }

    /// The name of this run. Everything that it starts has `BGRP_TOKEN=<run>-<token>` in its environment.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// The number of the guardian's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Which protections are active.
    #[must_use]
    pub fn protections(&self) -> Protections {
        self.protections
    }

    /// Asks for a process. The token is its name from here on; none is used twice.
    ///
    /// # Errors
    /// It was not even asked for: there is a NUL byte where none can be, or there is too much. No event follows.
    pub fn spawn(&mut self, token: u64, spawn: Spawn<'_>) -> Result<(), SpawnError> {
        let mut spawn = spawn;
        let fds = std::mem::take(&mut spawn.fds).into_array();
        let frame = wire::spawn(token, &spawn, fds.each_ref().map(Option::is_some))?;
        let fds = fds.into_iter().flatten().collect();
        self.ask(Waiting { frame, fds, spawn: Some(token) });
        Ok(())
    }

    /// Sends a signal to the group of a process that has not ended. Nothing happens if it has.
    pub fn signal(&mut self, token: u64, signal: Signal) {
        let frame = wire::signal(token, signal.as_raw());
        self.ask(Waiting { frame, fds: Vec::new(), spawn: None });
    }

    /// Kills the group of a process and whatever it started, wherever it went; `Swept` follows. Also after its end.
    pub fn sweep(&mut self, token: u64) {
        let frame = wire::sweep(token);
        self.ask(Waiting { frame, fds: Vec::new(), spawn: None });
    }

    fn ask(&mut self, request: Waiting) {
        self.waiting.push_back(request);
        self.send();
    }

    /// Hands on what waits, in order, while few enough spawns are on their way, and writes it.
    fn send(&mut self) {
        while let Some(next) = self.waiting.front() {
            if next.spawn.is_some() && self.sent >= SENT {
                break;
            }
            self.sent += usize::from(next.spawn.is_some());
            if let Some(next) = self.waiting.pop_front() {
                self.channel.push(&next.frame, next.fds, next.spawn.unwrap_or_default());
            }
        }
        // A guardian that is gone is found by the next read.
        while let Ok(Some(refused)) = self.channel.flush() {
            self.sent -= 1;
            let error = SpawnError::new(Stage::Transfer, refused.errno);
            self.known.push(Event::NotStarted { token: refused.token, error });
        }
    }

    /// Writes what is queued, and adds what there is to `events`.
    ///
    /// # Errors
    /// The guardian is gone, and with it every process that it had started; no further event comes.
    pub fn io(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let open = self.channel.fill();
        let mut fault = None;
        while let Some(frame) = self.channel.next() {
            match wire::read_answer(frame) {
                Some(Answer::Event(event)) => {
                    if matches!(event, Event::Started { .. } | Event::NotStarted { .. }) {
                        self.sent -= 1;
                    }
                    events.push(event);
                }
                Some(Answer::Fault(text)) => fault = Some(text),
                Some(Answer::Hello { .. }) | None => {
                    fault = Some("it does not speak like one".into());
                }
            }
        }
        self.send();
        events.append(&mut self.known);
        if fault.is_none() && matches!(open, Ok(true)) {
            return Ok(());
        }
        self.mourn();
        Err(io::Error::new(
            io::ErrorKind::BrokenPipe,
            fault.map_or_else(
                || "the guardian is gone (was it killed?)".to_owned(),
                |text| format!("the guardian gave up: {text}"),
            ),
        ))
    }

    /// The guardian is gone. What it started itself dies with it; what those started, and carries the mark of the
    /// run, is killed from here, once.
    fn mourn(&mut self) {
        if !std::mem::replace(&mut self.gone, true) {
            self.waiting.clear();
            let _ = self.process.kill();
            let _ = self.process.wait();
            super::orphans::kill_run(&self.run);
        }
    }
}

impl fmt::Debug for Guardian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guardian")
            .field("run", &self.run)
            .field("pid", &self.process.id())
            .field("protections", &self.protections)
            .finish_non_exhaustive()
    }
}

impl Drop for Guardian {
    /// Ends everything that it has started, and waits for that, at most 3 s; mostly it takes a millisecond.
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        // It takes the end of our side as the sign.
        let _ = rustix::net::shutdown(self.channel.fd(), rustix::net::Shutdown::Both);
        let until = Instant::now() + FAREWELL;
        let mut nap = Duration::from_micros(200);
        // An error means that the program reaps children which are not its own: then it is gone as well.
        while let Ok(None) = self.process.try_wait() {
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(10));
        }
    }
}
