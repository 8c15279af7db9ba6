//! How an engine is described: the settings and their defaults. Those of flow control are in builder/limits.rs, those
//! of backpressure in builder/capacity.rs.
//! builder/check.rs says their bounds, builder/assemble.rs puts the engine together.

mod assemble;
mod capacity;
mod check;
mod limits;

use std::{fmt, hash::Hash, time::Duration};

use self::assemble::{Assemble, Kit};
use crate::{
    batch::Batch,
    engine::Engine,
    error::BuildError,
    exact::Weigher,
    flow::{adaptive::InFlight, exhausted::OnExhausted, rate::Rate, retry::Retry, share::Shares},
    handler::{EachBatch, EachTask, Work},
    outcome::{IntoOutcomes, Outcome},
    sim::Sim,
    task::Task,
    topology::{Snapshot, Workers},
    watch::WatchSettings,
};

/// Settings of an engine, before its state and handler are known.
pub(crate) struct Draft<K, T> {
    workers: Workers,
    batch_size: usize,
    flush_interval: Duration,
    time_budget: Duration,
    capacity: usize,
    group_capacity: usize,
    exact_groups: bool,
    capacity_bytes: Option<usize>,
    weigher: Option<Weigher<K, T>>,
    wait_at_halted: bool,
    idle_groups: usize,
    retry: Retry,
    on_exhausted: OnExhausted<K, T>,
    thread_name: String,
    machine: Option<Snapshot>,
    pin: bool,
    spin: Duration,
    cpus: Option<Vec<usize>>,
    in_flight: Option<InFlight>,
    rate: Option<Rate>,
    group_rate: Option<Rate>,
    pub(crate) watch: WatchSettings<K>,
    shares: Shares<K>,
}

/// Describes an [`Engine`]. Every setting has a default; values are checked by `build`.
#[must_use]
pub struct Builder<K, T, S = ()> {
    pub(crate) draft: Draft<K, T>,
    open: Open<K, S>,
}

/// Opens the state of a group.
pub(crate) type Open<K, S> = Box<dyn Fn(&K) -> S + Send + Sync>;

impl<K, T> Builder<K, T> {
    pub(crate) fn new() -> Self {
        let draft = Draft {
            workers: Workers::per_core(),
            batch_size: 64,
            flush_interval: Duration::ZERO,
            time_budget: Duration::from_micros(200),
            capacity: 1 << 20,
            group_capacity: 1 << 16,
            exact_groups: false,
            capacity_bytes: None,
            weigher: None,
            wait_at_halted: false,
            idle_groups: 1 << 20,
            retry: Retry::none(),
            on_exhausted: OnExhausted::skip(),
            thread_name: "bgrp".to_owned(),
            machine: None,
            pin: true,
            spin: Duration::from_micros(20),
            cpus: None,
            in_flight: None,
            rate: None,
            group_rate: None,
            watch: WatchSettings::default(),
            shares: Shares::equal(),
        };
        Self { draft, open: Box::new(|_| ()) }
    }
}

impl<K, T, S> Builder<K, T, S> {
    /// How many workers: [`Workers::per_core`] (the default: one pinned worker for each CPU that the process may use)
    /// for handlers that compute, or a number for handlers that wait. 1 to 1,024.
    pub fn workers(mut self, workers: impl Into<Workers>) -> Self {
        self.draft.workers = workers.into();
        self
    }

    /// Tasks of one group per dispatch, at most. 1 to 65,536; default 64.
    pub fn batch_size(mut self, tasks: usize) -> Self {
        self.draft.batch_size = tasks;
        self
    }

    /// A group is dispatched when it holds a full batch or its oldest task has waited this long, whichever comes first.
    /// Zero, the default: at once. Up to one hour, in steps of 1 ms.
    pub fn flush_interval(mut self, interval: Duration) -> Self {
        self.draft.flush_interval = interval;
        self
    }

    /// A dispatch of a task handler ends after this time, whatever the batch size; the group goes to the tail of the
    /// ready list. Looked at after 4, 8, 16 and every 16 further tasks. Default 200 us.
    pub fn time_budget(mut self, budget: Duration) -> Self {
        self.draft.time_budget = budget;
        self
    }

    /// Groups that may exist before idle ones are reclaimed, with their state. Default 2^20.
    pub fn idle_groups(mut self, groups: usize) -> Self {
        self.draft.idle_groups = groups;
        self
    }

    /// When a failed task is tried again. Default: never.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.draft.retry = retry;
        self
    }

    /// What happens when the attempts of a task are used up. Default: the group goes on with the next task.
    pub fn on_exhausted(mut self, policy: OnExhausted<K, T>) -> Self {
        self.draft.on_exhausted = policy;
        self
    }

    /// The name of the worker threads, to which their number is added. Default `bgrp`.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.draft.thread_name = name.into();
        self
    }

    /// How long a worker without work looks for some before it parks. Up to one second; default 20 us. Zero saves processor
    /// time where tasks come seldom, and costs a wake by the system (some microseconds) for each that comes then; more than
    /// the usual gap between two tasks keeps latencies at one microsecond and a processor busy. Workers that share processors
    /// (more workers than CPUs, a quota) never spin. At most half of the workers do at a time.
    pub fn spin(mut self, time: Duration) -> Self {
        self.draft.spin = time;
        self
    }

    /// Whether workers may be pinned where that is safe. Default true. A handler that starts processes wants
    /// `false`: a child inherits the affinity of the thread that starts it.
    pub fn pin(mut self, pin: bool) -> Self {
        self.draft.pin = pin;
        self
    }

    /// The CPUs that this engine may use, by the kernel's numbers; those outside of the affinity mask are left out. For
    /// two engines on one machine, each on CPUs of its own. Default: all that the process may use.
    ///
    /// ```
    /// use bgrp::Engine;
    /// let engine = Engine::<u32, u32>::builder().cpus([0]).task_handler(|_, _| ()).build()?;
    /// # let nowhere = Engine::<u32, u32>::builder().cpus([1_000_000]).task_handler(|_, _| ()).build();
    /// # assert!(nowhere.unwrap_err().to_string().starts_with("cpus is 1000000"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        let mut cpus: Vec<usize> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        self.draft.cpus = Some(cpus);
        self
    }

    /// Plans for this machine instead of the one that the engine runs on. For tests and tools.
    pub fn machine(mut self, machine: Snapshot) -> Self {
        self.draft.machine = Some(machine);
        self
    }

    /// State that each group has for itself: opened by `open` at the group's first dispatch, handed to the handler as
    /// `&mut`, dropped when the group is reclaimed or the engine ends. No lock is needed: tasks of a group run one
    /// after another.
    pub fn state<S2>(self, open: impl Fn(&K) -> S2 + Send + Sync + 'static) -> Builder<K, T, S2> {
        Builder { draft: self.draft, open: Box::new(open) }
    }
}

impl<K, T, S> Builder<K, T, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    S: Send + 'static,
{
    /// The engine that runs what `make` makes of the function that opens states.
    pub(crate) fn with_work<W: Work<K, T>>(
        self,
        make: impl FnOnce(Open<K, S>) -> W,
    ) -> Configured<K, T> {
        Configured::new(self.draft, make(self.open))
    }

    /// The handler gets one task at a time. It may return `()`, a `Result<(), E>` with an error that can be displayed,
    /// or an [`Outcome`].
    pub fn task_handler<F, R>(self, handler: F) -> Configured<K, T>
    where
        F: Fn(&mut S, &mut Task<'_, K, T>) -> R + Send + Sync + 'static,
        R: Into<Outcome> + 'static,
    {
        self.with_work(|open| EachTask::new(open, handler))
    }

    /// The handler gets up to `batch_size` tasks of one group at a time. It may return `()`, an [`Outcome`] or a
    /// `Result<(), E>` for all of them, or a `Vec<Outcome>` with one for each.
    pub fn handler<F, R>(self, handler: F) -> Configured<K, T>
    where
        F: Fn(&mut S, &mut Batch<'_, K, T>) -> R + Send + Sync + 'static,
        R: IntoOutcomes + 'static,
    {
        self.with_work(|open| EachBatch::new(open, handler))
    }
}

/// An engine that is described in full. See [`Builder`].
#[must_use]
pub struct Configured<K, T> {
    draft: Draft<K, T>,
    work: Box<dyn Assemble<K, T>>,
}

impl<K, T> Configured<K, T>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
{
    fn new(draft: Draft<K, T>, work: impl Work<K, T>) -> Self {
        Self { draft, work: Box::new(Kit(work)) }
    }

    /// Starts the engine.
    ///
    /// ```
    /// use bgrp::Engine;
    /// let wrong = Engine::<u32, u32>::builder().batch_size(0).task_handler(|_, _| ()).build();
    /// assert_eq!(wrong.unwrap_err().to_string(), "batch_size is 0; it must be between 1 and 65536");
    /// ```
    ///
    /// # Errors
    /// A setting is out of its bounds (the error names it), or a thread could not be started.
    pub fn build(mut self) -> Result<Engine<K, T>, BuildError> {
        self.draft.check()?;
        self.work.engine(self.draft)
    }

    /// Makes the same engine without threads: virtual workers on a virtual clock, stepped by hand. See
    /// [`Sim`].
    ///
    /// # Errors
    /// A setting is out of its bounds (the error names it).
    pub fn build_sim(mut self, seed: u64) -> Result<Sim<K, T>, BuildError> {
        self.draft.check()?;
        Ok(self.work.sim(self.draft, seed))
    }
}

impl<K, T, S> fmt::Debug for Builder<K, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("workers", &self.draft.workers).finish_non_exhaustive()
    }
}

impl<K, T> fmt::Debug for Configured<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configured").field("workers", &self.draft.workers).finish_non_exhaustive()
    }
}
