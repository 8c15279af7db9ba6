//! The settings of a run.

use std::{ffi::OsString, fmt, ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use bgrp::{Rate, Retry};

use super::Runner;
use crate::log::Log;

/// The program that serves tasks: it speaks the frames of `docs/reference/frames.md` on descriptor 3.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) directory: Option<PathBuf>,
}

impl Program {
    /// This program, found as a shell would, without arguments.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { argv: vec![program.into()], env: Vec::new(), directory: None }
    }

    /// The program that runs now, again, as a worker: it must call [`Server::run_if_worker`](crate::Server::run_if_worker)
    /// first thing in `main`.
    #[must_use]
    pub fn this() -> Self {
        Self::new("/proc/self/exe").env("BGRP_ROLE", "worker")
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.argv.push(arg.into());
        self
    }

    /// One more variable of the environment, beside those of this process.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Where it runs.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }
}

/// What follows a task that failed for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The next one of its group.
    #[default]
    Skip,
    /// Nothing of its group any more: the rest of it is [skipped](crate::Ended::Skipped).
    HaltGroup,
    /// Nothing any more.
    Halt,
}

/// A setting that cannot be, or a run that cannot begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// This setting.
    Setting {
        /// Its name.
        name: &'static str,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// The guardian, which is to be the parent of all workers, could not be started.
    Guardian(String),
    /// The system refused something else that the runner needs.
    System(std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { name, why } => write!(f, "{name}: {why}"),
            Self::Guardian(why) => write!(f, "the guardian of the worker processes: {why}"),
            Self::System(error) => write!(f, "the system refuses what a run needs: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Settings of a [`Runner`], from [`Runner::builder`].
pub struct Builder {
    pub(super) program: Program,
    pub(super) workers: RangeInclusive<usize>,
    pub(super) retry: Retry,
    pub(super) timeout: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) crashes: u32,
    pub(super) on_failure: OnFailure,
    pub(super) capacity: usize,
    pub(super) results: usize,
    pub(super) frame: u32,
    pub(super) window: u32,
    pub(super) start_timeout: Duration,
    pub(super) starts: u32,
    pub(super) recycle: Option<u64>,
    pub(super) memory: Option<u64>,
    pub(super) rate: Option<Rate>,
    pub(super) on_log: Option<Arc<dyn Fn(Log) + Send + Sync>>,
}

impl Builder {
    pub(super) fn new(program: Program) -> Self {
        Self {
            program,
            workers: 1..=1,
            retry: Retry::none(),
            timeout: None,
            grace: Duration::from_secs(2),
            crashes: 3,
            on_failure: OnFailure::Skip,
            capacity: 1 << 16,
            results: 1 << 16,
            frame: 256,
            window: 2,
            start_timeout: Duration::from_secs(10),
            starts: 5,
            recycle: None,
            memory: None,
            rate: None,
            on_log: None,
        }
    }

    /// Worker processes: as many as the upper bound while there is work for them, and never less than the lower one. 1 to 1,024; default 1.
    #[must_use]
    pub fn workers(mut self, workers: impl Into<Workers>) -> Self {
        self.workers = workers.into().0;
        self
    }

    /// What follows a failed attempt: error, timeout, or the crash of the worker. Default: nothing, one attempt.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// How long one attempt of a task may run, where the task says nothing else. Its worker is asked to stop then, terminated, and after
    /// [`kill_grace`](Self::kill_grace) killed, with all that it has started. Default: as long as it likes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Between TERM and KILL. Default 2 s.
    #[must_use]
    pub fn kill_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// A task that has ended so many workers is not tried again, whatever its attempts. At least 1; default 3.
    #[must_use]
    pub fn crash_limit(mut self, crashes: u32) -> Self {
        self.crashes = crashes;
        self
    }

    /// What follows a task that failed for good. Default: the next one.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Tasks inside, at most, those with workers included: [`submit`](Runner::submit) waits for room. 64 to 2^30; default 65,536.
    #[must_use]
    pub fn capacity(mut self, tasks: usize) -> Self {
        self.capacity = tasks;
        self
    }

    /// Results that wait to be taken: when there are more, workers get nothing to do until half of them are. At least 1; default 65,536.
    #[must_use]
    pub fn results_capacity(mut self, results: usize) -> Self {
        self.results = results;
        self
    }

    /// Tasks that are sent to a worker at a time, at most. They are fewer where tasks take longer. 1 to 4,096; default 256.
    #[must_use]
    pub fn frame_tasks(mut self, tasks: u32) -> Self {
        self.frame = tasks;
        self
    }

    /// Frames of tasks that a worker has at a time, at most: with two, the next one lies ready when it has done the first. 1 to 64;
    /// default 2.
    #[must_use]
    pub fn window(mut self, frames: u32) -> Self {
        self.window = frames;
        self
    }

    /// How long a worker may take to say that it is ready. Default 10 s.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// So many starts may fail in a row before the run ends. At least 1; default 5.
    #[must_use]
    pub fn start_attempts(mut self, attempts: u32) -> Self {
        self.starts = attempts;
        self
    }

    /// A worker is replaced after so many tasks. Default: never.
    #[must_use]
    pub fn recycle_after(mut self, tasks: u64) -> Self {
        self.recycle = Some(tasks);
        self
    }

    /// The most memory, in bytes, that a worker may use together with what it starts: the system ends it when it goes over. Where the
    /// system offers no such limit ([`Protections`](crate::guardian::Protections)), nothing is limited. Default: none.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Tasks that are started in a second, at most.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Gets what workers print and log, in order for each worker, on the runner's own thread: it must be quick.
    #[must_use]
    pub fn on_log(mut self, on_log: impl Fn(Log) + Send + Sync + 'static) -> Self {
        self.on_log = Some(Arc::new(on_log));
        self
    }

    /// Starts the guardian and the runner. Workers start when there are tasks.
    ///
    /// # Errors
    /// A setting out of its bounds, by its name; or what the system refuses.
    pub fn start(self) -> Result<Runner, StartError> {
        self.check()?;
        Runner::start(self)
    }

    fn check(&self) -> Result<(), StartError> {
        let bad = |name, why: String| Err(StartError::Setting { name, why });
        let (least, most) = (*self.workers.start(), *self.workers.end());
        if least > most || !(1..=1_024).contains(&most) {
            return bad(
                "workers",
                format!("{least}..={most}; 1 to 1,024, the smaller number first"),
            );
        }
        for (name, value, bounds) in [
            ("capacity", self.capacity as u64, 64..=1 << 30),
            ("results_capacity", self.results as u64, 1..=1 << 30),
            ("frame_tasks", self.frame.into(), 1..=4_096),
            ("window", self.window.into(), 1..=64),
            ("crash_limit", self.crashes.into(), 1..=u64::from(u32::MAX)),
            ("start_attempts", self.starts.into(), 1..=u64::from(u32::MAX)),
            ("recycle_after", self.recycle.unwrap_or(1), 1..=u64::MAX),
        ] {
            if !bounds.contains(&value) {
                return bad(name, format!("{value}; {} to {}", bounds.start(), bounds.end()));
            }
        }
        for (name, time) in [("timeout", self.timeout), ("start_timeout", Some(self.start_timeout))]
        {
            if time.is_some_and(|time| time.is_zero()) {
                return bad(name, "zero; leave it out for none".to_owned());
            }
        }
        Ok(())
    }
}

/// A number of workers, or a range of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers(RangeInclusive<usize>);

impl From<usize> for Workers {
    fn from(workers: usize) -> Self {
        Self(workers..=workers)
    }
}

impl From<RangeInclusive<usize>> for Workers {
    fn from(workers: RangeInclusive<usize>) -> Self {
        Self(workers)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("program", &self.program)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}
