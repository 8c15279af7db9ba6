//! The runner: tasks go in, results come out, processes do the work.

mod builder;
mod cell;
mod ends;
mod hand;
mod item;
mod lines;
mod memory;
mod pace;
mod reactor;
mod results;
mod starts;
mod take_in;
mod wake;
mod watch;
mod wire;
mod worker;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bgrp::{Engine, Exhausted, InFlight, Lease, OnExhausted, SubmitReason, Verdict};

pub use self::{
    builder::{Builder, OnFailure, Program, StartError, Workers},
    results::Results,
    watch::{Progress, Running},
};
use self::{
    hand::Judge,
    item::{Item, Key},
    reactor::{Post, Reactor},
    results::Outlet,
    wake::Wake,
    watch::Asked,
};
use crate::{
    guardian::Guardian,
    result::{Ended, TaskResult},
    task::Task,
};

/// The largest arguments of a task, in bytes: with base64 they fit into a frame, behind what is in it already.
const LARGEST: usize = 8 << 20;
/// How often a submit that waits looks whether the run has failed, or whether nobody takes its results.
const LOOK: Duration = Duration::from_millis(50);
/// How long what is with workers may take to come back once they are stopped, beside their grace.
const COME_BACK: Duration = Duration::from_secs(8);

/// A run of worker processes. See the [crate].
///
/// Every task that was accepted gets exactly one [`TaskResult`], whatever happens to workers. Dropped, it stops its workers; tasks that
/// did not end are [cancelled](Ended::Cancelled), and their results can still be taken.
pub struct Runner {
    engine: Arc<Engine<Key, Item>>,
    post: Arc<Post>,
    outlet: Arc<Outlet>,
    reactor: Option<JoinHandle<()>>,
    grace: Duration,
    halts: bool,
    alone: AtomicU64,
    run: String,
}

/// A task that was not accepted.
#[derive(Debug)]
pub struct SubmitError {
    /// The task, as it was.
    pub task: Box<Task>,
    /// Why.
    pub reason: Refused,
}

/// Why a task was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// There is no room now.
    Full,
    /// There was no room in time.
    TimedOut,
    /// Its arguments have so many bytes: more than go to a worker. Put them into a file, and its path into the arguments.
    TooLarge(usize),
    /// The runner is closed, or a failure has halted it.
    Closed,
    /// So many results wait that nothing is run any more, and nobody has asked for one: [`Runner::results`], on another thread.
    NobodyTakesResults,
    /// The run has failed, in words.
    Failed(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("there is no room now; wait (submit), or raise capacity"),
            Self::TimedOut => f.write_str("there was no room in time"),
            Self::TooLarge(bytes) => write!(
                f,
                "its arguments have {bytes} bytes, and at most {LARGEST} go to a worker; put them into a file, and its path into the arguments"
            ),
            Self::Closed => f.write_str("the runner is closed"),
            Self::NobodyTakesResults => f.write_str(
                "results_capacity results wait and nobody takes them; take Runner::results on another thread, or raise it",
            ),
            Self::Failed(why) => write!(f, "the run has failed: {why}"),
        }
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} was not accepted: {}", self.task.id, self.reason)
    }
}

impl std::error::Error for SubmitError {}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Tasks that ended ok.
    pub ok: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Attempts that were followed by another one.
    pub retries: u64,
    /// Tasks that were accepted and did not end: [cancelled](Ended::Cancelled), or [skipped](Ended::Skipped) where a failure has halted them.
    pub left: u64,
    /// Why the run could not go on, if so.
    pub error: Option<String>,
}

impl Runner {
    /// Settings for workers of this program.
    pub fn builder(program: Program) -> Builder {
        Builder::new(program)
    }

    fn start(settings: Builder) -> Result<Self, StartError> {
        let guardian =
            Guardian::start().map_err(|error| StartError::Guardian(error.to_string()))?;
        let post = Arc::new(Post::new(Wake::new().map_err(StartError::System)?));
        let outlet = Outlet::new(settings.results, {
            let post = post.clone();
            move || post.wake.call()
        });
        let halts = settings.on_failure != OnFailure::Skip;
        let judge = Judge {
            stops: settings.retry.delay(1).is_some() || halts,
            retry: settings.retry.clone(),
            crashes: settings.crashes,
        };
        let engine = Arc::new(engine(&settings, &post, &outlet)?);
        let grace = settings.grace;
        let run = guardian.run().to_owned();
        let reactor =
            Reactor::new(settings, judge, post.clone(), outlet.clone(), guardian, engine.clone());
        let reactor = std::thread::Builder::new()
            .name("bgrp-runner".to_owned())
            .spawn(move || reactor.run())
            .map_err(StartError::System)?;
        let (reactor, alone) = (Some(reactor), AtomicU64::new(0));
        Ok(Self { engine, post, outlet, reactor, grace, halts, alone, run })
    }

    /// Hands a task over; waits while there is no room.
    ///
    /// # Errors
    /// The task, and why it can never be accepted.
    pub fn submit(&self, task: Task) -> Result<(), SubmitError> {
        self.submit_until(task, None)
    }

    /// As [`submit`](Self::submit), for so long at most.
    ///
    /// # Errors
    /// The task, and why it was not accepted.
    pub fn submit_timeout(&self, task: Task, timeout: Duration) -> Result<(), SubmitError> {
        self.submit_until(task, Instant::now().checked_add(timeout))
    }

    /// As [`submit`](Self::submit), without waiting.
    ///
    /// # Errors
    /// The task, and why it was not accepted.
    pub fn try_submit(&self, task: Task) -> Result<(), SubmitError> {
        let task = fits(task)?;
        let (key, item) = self.item(task);
        self.engine.try_submit(key, item).map_err(|error| {
            let reason = self.refused(&error.reason);
            SubmitError { task: Box::new(error.task.into_task(error.key)), reason }
        })
    }

    fn submit_until(&self, task: Task, until: Option<Instant>) -> Result<(), SubmitError> {
        let task = fits(task)?;
        let (mut key, mut item) = self.item(task);
        loop {
            // In steps: whether the run fails, or its results are taken, the engine does not know.
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let step = left.map_or(LOOK, |left| left.min(LOOK));
            let Err(error) = self.engine.submit_timeout(key, item, step) else { return Ok(()) };
            let waits = matches!(error.reason, SubmitReason::TimedOut(_));
            let reason = self.refused(&error.reason);
            (key, item) = (error.key, error.task);
            let over = left.is_some_and(|left| left <= step);
            if !waits || over || reason != Refused::TimedOut {
                return Err(SubmitError { task: Box::new(item.into_task(key)), reason });
            }
        }
    }

    fn item(&self, task: Task) -> (Key, Item) {
        Item::new(task, || self.alone.fetch_add(1, Ordering::Relaxed))
    }

    fn refused(&self, reason: &SubmitReason) -> Refused {
        if let Some(why) = self.post.orders().failed {
            return Refused::Failed(why);
        }
        match reason {
            SubmitReason::Closed => Refused::Closed,
            _ if self.outlet.is_stuck() => Refused::NobodyTakesResults,
            SubmitReason::TimedOut(_) => Refused::TimedOut,
            _ => Refused::Full,
        }
    }

    /// The name of this run. Every process of it, and whatever they start, has `BGRP_TOKEN=<run>-<worker>` in its environment.
    pub fn run_id(&self) -> &str {
        &self.run
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let stats = self.engine.stats();
        let left = stats.accepted.saturating_sub(stats.done + stats.failed);
        let running = u64::from(self.engine.limits().in_flight).min(left);
        Progress {
            total: stats.accepted,
            ok: stats.done,
            failed: stats.failed,
            running,
            waiting: left - running,
            retries: stats.retries,
        }
    }

    /// The workers, and what each does now. Asks the runner's thread; empty once it has ended.
    pub fn running(&self) -> Vec<Running> {
        let (asked, answer) = Asked::new();
        self.post.ask(asked);
        answer.recv_timeout(COME_BACK).unwrap_or_default()
    }

    /// The results, as they come.
    pub fn results(&self) -> Results {
        Results::new(self.outlet.clone())
    }

    /// Takes no more tasks, runs what was accepted, for so long at most, and ends all workers. What did not end in time is cancelled.
    /// Results can be taken on afterwards, and end.
    pub fn close(mut self, timeout: Duration) -> Report {
        self.finish(timeout)
    }

    fn finish(&mut self, timeout: Duration) -> Report {
        let Some(reactor) = self.reactor.take() else { return Report::default() };
        let mut closed = self.engine.close(timeout);
        if closed.leased > 0 {
            self.post.order(|orders| orders.stop = true);
            let left = closed.left;
            closed = self.engine.close(self.grace + COME_BACK);
            closed.left.extend(left);
        }
        let skipped = self.halts && closed.failed > 0;
        let mut left = 0;
        for group in closed.left {
            let key = group.key.name();
            let end = |mut item: Item| {
                let ended = if skipped { Ended::Skipped } else { Ended::Cancelled };
                item.end(key.clone(), ended, 0)
            };
            let results: Vec<TaskResult> = group.tasks.into_iter().map(end).collect();
            left += results.len() as u64;
            self.outlet.push(results);
        }
        self.post.order(|orders| orders.end = true);
        let ended = reactor.join();
        self.outlet.end();
        let error = self.post.orders().failed;
        let error =
            error.or_else(|| ended.err().map(|_| "the runner's thread panicked".to_owned()));
        Report { ok: closed.done, failed: closed.failed, retries: closed.retries, left, error }
    }
}

fn fits(task: Task) -> Result<Task, SubmitError> {
    let bytes = task.args.len() + task.id.len() + task.key.as_ref().map_or(0, |key| key.len());
    if bytes <= LARGEST {
        return Ok(task);
    }
    Err(SubmitError { task: Box::new(task), reason: Refused::TooLarge(bytes) })
}

fn engine(
    settings: &Builder,
    post: &Arc<Post>,
    outlet: &Arc<Outlet>,
) -> Result<Engine<Key, Item>, StartError> {
    let (desk, results, on_failure) = (post.clone(), outlet.clone(), settings.on_failure);
    // Enough for every worker's window, and as much again that waits in line: the rest waits in its groups.
    let most = settings.workers.end() * settings.window as usize * settings.frame as usize;
    let mut builder = Engine::<Key, Item>::builder()
        .workers(bgrp::Workers::fixed(1))
        .pin(false)
        .capacity(settings.capacity)
        .group_capacity(settings.capacity)
        .batch_size(settings.frame as usize)
        .in_flight(InFlight::tasks((2 * most).min(1 << 20) as u32))
        .retry(settings.retry.clone())
        .on_exhausted(OnExhausted::with(move |failed: Exhausted<'_, Key, Item>| {
            // Where the policy is the caller's own function, it may say so only here.
            if let Some(fault) = failed.task.fault.take() {
                results.push(vec![failed.task.end(failed.key.name(), *fault, failed.attempts)]);
            }
            match on_failure {
                OnFailure::Skip => Verdict::Skip,
                OnFailure::HaltGroup => Verdict::HaltGroup,
                OnFailure::Halt => Verdict::HaltEngine,
            }
        }));
    if let Some(rate) = settings.rate {
        builder = builder.rate(rate);
    }
    builder
        .lease_handler(move |lease: Lease<Key, Item>| desk.lease(lease))
        .build()
        .map_err(|error| StartError::Setting { name: "engine", why: error.to_string() })
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.finish(Duration::ZERO);
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("stats", &self.engine.stats()).finish_non_exhaustive()
    }
}
