//! Runs commands, so many at once, on the thread that asks for it.
//!
//! When the system is short of processes, memory or descriptors, a command goes back to the front and as many run at
//! once as were running then; one more is tried each time so many have ended. One that cannot start although
//! nothing else runs is tried again after a pause that doubles, [`TRIES`] times in all.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Command, Ended, RunError, Running, Stage, Stopper};
use crate::guardian::{Event, Guardian, Protections, SpawnError, StartError};

/// How often a command is tried while nothing else runs.
const TRIES: u32 = 8;
/// The pause after the first of them.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A guardian, and the commands that it runs for us.
#[derive(Debug)]
pub struct Commands {
    guardian: Guardian,
    at_once: usize,
    next_token: u64,
    stopper: Stopper,
}

/// What a run went through.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Commands that have ended or failed.
    pub done: u64,
    /// How many were to run at once.
    pub wanted: usize,
    /// The fewest that were allowed at once, because the system was short of something.
    pub fewest: usize,
    /// How often a command was put back.
    pub retries: u64,
    /// What the system said last when it was short.
    pub short: Option<SpawnError>,
}

impl Report {
    /// What to tell the user if not everything went as wanted.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        let short = self.short.as_ref()?;
        Some(format!(
            "ran down to {} at once instead of {} ({} starts were tried again): {short}; raise the limit (ulimit -u, \
             ulimit -n) or ask for fewer",
            self.fewest, self.wanted, self.retries
        ))
    }
}

/// A command with its place in the order of asking.
struct Job {
    index: u64,
    command: Command,
    /// Tries while nothing else ran.
    tries: u32,
}

/// One run.
struct Run<'a> {
    commands: &'a mut Commands,
    /// By token.
    running: HashMap<u64, (Running, u64, u32)>,
    /// Put back; before anything new.
    again: VecDeque<Job>,
    limit: usize,
    /// Ended since the limit was changed.
    good: usize,
    not_before: Option<Instant>,
    report: Report,
    chunk: Vec<u8>,
}

type Done<'a> = &'a mut dyn FnMut(u64, Result<Ended, RunError>);

impl Commands {
    /// Starts a guardian for `at_once` commands at a time, at least one.
    ///
    /// # Errors
    /// The guardian did not start.
    pub fn start(at_once: usize) -> Result<Self, StartError> {
        let stopper = Stopper::new().map_err(StartError::Spawn)?;
        let guardian = Guardian::start()?;
        Ok(Self { guardian, at_once: at_once.max(1), next_token: 0, stopper })
    }

    /// Which protections are active.
    #[must_use]
    pub fn protections(&self) -> Protections {
        self.guardian.protections()
    }

    /// What stops the run from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// The guardian's process.
    #[must_use]
    pub fn guardian_pid(&self) -> u32 {
        self.guardian.pid()
    }

    /// Runs what `next` gives until it gives nothing or the run is stopped, and tells `done` of each, with its number
    /// from 0.
    ///
    /// # Errors
    /// The guardian is gone; all that ran was told to `done` as failed.
    pub fn run(
        &mut self,
        mut next: impl FnMut() -> Option<Command>,
        mut done: impl FnMut(u64, Result<Ended, RunError>),
    ) -> io::Result<Report> {
        let limit = self.at_once;
        let mut run = Run {
            commands: self,
            running: HashMap::new(),
            again: VecDeque::new(),
            limit,
            good: 0,
            not_before: None,
            report: Report { wanted: limit, fewest: limit, ..Report::default() },
            chunk: vec![0; 64 << 10],
        };
        let mut asked = 0;
        let mut events = Vec::new();
        let mut more = true;
        loop {
            more &= run.obey(&mut done) == Stage::Calm;
            while more || !run.again.is_empty() {
                if run.running.len() >= run.limit || run.is_pausing() {
                    break;
                }
                let job = run.again.pop_front().or_else(|| {
                    let command = next()?;
                    asked += 1;
                    Some(Job { index: asked - 1, command, tries: 0 })
                });
                match job {
                    Some(job) => run.start(job, &mut done),
                    None => more = false,
                }
            }
            if run.running.is_empty() && run.again.is_empty() && !more {
                return Ok(run.report);
            }
            run.wait()?;
            if let Err(error) = run.commands.guardian.io(&mut events) {
                run.take(&mut events, &mut done);
                for (_, (_, index, _)) in run.running.drain() {
                    done(index, Err(RunError::Guardian(error.to_string())));
                }
                for job in run.again.drain(..) {
                    done(job.index, Err(RunError::Guardian(error.to_string())));
                }
                return Err(error);
            }
            run.take(&mut events, &mut done);
            run.finish(&mut done);
        }
    }
}

impl Run<'_> {
    fn is_pausing(&self) -> bool {
        self.not_before.is_some_and(|time| time > Instant::now())
    }

    /// Does what the stage asks for, of those too which started after it was raised.
    fn obey(&mut self, done: Done<'_>) -> Stage {
        let stage = self.commands.stopper.stage();
        if stage > Stage::Calm {
            for job in self.again.drain(..) {
                self.report.done += 1;
                done(job.index, Err(RunError::Stopped));
            }
        }
        for (running, ..) in self.running.values_mut() {
            match stage {
                Stage::Calm | Stage::Draining => break,
                Stage::Asked => running.stop(&mut self.commands.guardian),
                Stage::Killed => running.kill(&mut self.commands.guardian),
            }
        }
        stage
    }

    fn start(&mut self, job: Job, done: Done<'_>) {
        let token = self.commands.next_token;
        self.commands.next_token += 1;
        match Running::start(token, job.command, &mut self.commands.guardian) {
            Ok(running) => {
                self.running.insert(token, (running, job.index, job.tries));
            }
            Err((command, error)) => self.not_started(Job { command, ..job }, error, done),
        }
    }

    fn not_started(&mut self, job: Job, error: SpawnError, done: Done<'_>) {
        if !error.is_passing() {
            self.report.done += 1;
            return done(job.index, Err(RunError::NotStarted(error)));
        }
        self.report.short = Some(error);
        let running = self.running.len();
        let tries = job.tries + u32::from(running == 0);
        if tries >= TRIES {
            self.report.done += 1;
            return done(job.index, Err(RunError::Short { error, tries }));
        }
        self.report.retries += 1;
        self.limit = self.limit.min(running.max(1));
        self.report.fewest = self.report.fewest.min(self.limit);
        self.good = 0;
        // With others running, their end is what is waited for; without, only time can help.
        let pause = FIRST_PAUSE * 2u32.pow(tries.saturating_sub(1));
        self.not_before = Some(Instant::now() + pause);
        self.again.push_front(Job { tries, ..job });
    }

    /// Waits until something happens, and moves the output of whoever is ready.
    fn wait(&mut self) -> io::Result<()> {
        let guardian = &self.commands.guardian;
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, guardian.wants_write());
        let stopper = &self.commands.stopper;
        let mut fds = vec![
            PollFd::from_borrowed_fd(guardian.fd(), flags),
            PollFd::from_borrowed_fd(stopper.bell(), PollFlags::IN),
        ];
        let mut owners = Vec::with_capacity(self.running.len());
        let mut due = self.not_before.filter(|_| self.running.len() < self.limit);
        for (&token, (running, ..)) in &self.running {
            let from = fds.len();
            fds.extend(running.fds().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
            owners.push((token, from..fds.len()));
            due = due.into_iter().chain(running.next_time()).min();
        }
        let time = due.map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
        });
        match poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !ready[1].is_empty() {
            self.commands.stopper.hush();
        }
        for (token, range) in owners {
            let ready = &ready[range];
            if ready.iter().any(|flags| !flags.is_empty())
                && let Some((running, ..)) = self.running.get_mut(&token)
            {
                running.ready(ready, &mut self.chunk, &mut self.commands.guardian);
            }
        }
        Ok(())
    }

    fn take(&mut self, events: &mut Vec<Event>, done: Done<'_>) {
        for event in events.drain(..) {
            let (Event::Started { token, .. }
            | Event::NotStarted { token, .. }
            | Event::Exited { token, .. }
            | Event::Swept { token, .. }) = event;
            if let Event::NotStarted { error, .. } = event {
                if let Some((running, index, tries)) = self.running.remove(&token) {
                    let command = running.into_command();
                    self.not_started(Job { index, command, tries }, error, done);
                }
            } else if let Some((running, ..)) = self.running.get_mut(&token) {
                running.event(&event, &mut self.commands.guardian);
            }
        }
    }

    /// Does what is due, and tells of whoever has ended.
    fn finish(&mut self, done: Done<'_>) {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (&token, (running, ..)) in &mut self.running {
            running.time(now, &mut self.chunk, &mut self.commands.guardian);
            if running.has_ended() {
                ended.push(token);
            }
        }
        for token in ended {
            let Some((running, index, _)) = self.running.remove(&token) else { continue };
            self.report.done += 1;
            self.good += 1;
            self.not_before = None;
            if self.good >= self.limit && self.limit < self.report.wanted {
                self.limit += 1;
                self.good = 0;
            }
            done(index, running.end());
        }
    }
}
