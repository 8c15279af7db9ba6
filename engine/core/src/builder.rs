//! How an engine is described, and how the description is checked.

use std::{fmt, hash::Hash, sync::Arc, time::Duration};

use ahash::RandomState;

use crate::{
    batch::Batch,
    core::{Core, Settings},
    engine::Engine,
    error::BuildError,
    flow::{
        adaptive::{self, InFlight},
        exhausted::OnExhausted,
        rate::Rate,
        retry::Retry,
        share::{Class, Shares},
    },
    front::{self, Front},
    handler::{EachBatch, EachTask, Work},
    ingress::ring::Ring,
    outcome::{IntoOutcomes, Outcome},
    ready::{Ready, deque::Deque, link::Unit, overflow::Overflow},
    sim::Sim,
    sync::sized,
    task::Task,
    time::clock::{Clock, MonotonicClock, VirtualClock},
    watch::WatchSettings,
    topology::{CpuList, MAX_WORKERS, Plan, Snapshot, Workers, memory::on_node_of},
    worker::{Worker, pool, steal::PATIENCE},
};

/// Settings of an engine, before its state and handler are known.
#[derive(Debug)]
pub(crate) struct Draft<K, T> {
    workers: Workers,
    batch_size: usize,
    flush_interval: Duration,
    time_budget: Duration,
    capacity: usize,
    group_capacity: usize,
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
    open: Box<dyn Fn(&K) -> S + Send + Sync>,
}

impl<K, T> Builder<K, T> {
    pub(crate) fn new() -> Self {
        let draft = Draft {
            workers: Workers::per_core(),
            batch_size: 64,
            flush_interval: Duration::ZERO,
            time_budget: Duration::from_micros(200),
            capacity: 1 << 20,
            group_capacity: 1 << 16,
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

    /// Tasks inside the engine, at most: those in groups and those in the ingress together, plus a slack of one
    /// chunk of 256 per worker. Also bounds the memory of the ingress. 64 to 2^30; default 2^20.
    pub fn capacity(mut self, tasks: usize) -> Self {
        self.draft.capacity = tasks;
        self
    }

    /// Tasks inside one group, at most. A group may exceed it by what is in the ingress of its shard when it fills up
    /// (at most 4,096 tasks, less with a small `capacity`). Submits by lane do not look at it. 1 to 2^30;
    /// default 65,536.
    pub fn group_capacity(mut self, tasks: usize) -> Self {
        self.draft.group_capacity = tasks;
        self
    }

    /// Groups that may exist before idle ones are reclaimed, with their state. Default 2^20.
    pub fn idle_groups(mut self, groups: usize) -> Self {
        self.draft.idle_groups = groups;
        self
    }

    /// How many dispatches (or tasks) may be in flight downstream, however many workers there are. A group that waits for a permit
    /// holds no worker; permits are given first come, first served. A plain number counts dispatches. Default: no limit. To change
    /// while running: [`Engine::set_in_flight`].
    pub fn in_flight(mut self, limit: impl Into<InFlight>) -> Self {
        self.draft.in_flight = Some(limit.into());
        self
    }

    /// How many tasks a second may be started, all groups together. Groups over the rate wait in order and hold no worker.
    /// Default: no limit. To change while running: [`Engine::set_rate`].
    pub fn rate(mut self, rate: Rate) -> Self {
        self.draft.rate = Some(rate);
        self
    }

    /// How many tasks a second each single group may start. A group over its rate slows no other. Default: no limit. To change while
    /// running: [`Engine::set_group_rate`].
    pub fn group_rate(mut self, rate: Rate) -> Self {
        self.draft.group_rate = Some(rate);
        self
    }

    /// Batches that a group may run in one round, one after the other, before it goes behind all that are ready: 1 (the default) to
    /// 1,000. Asked at each dispatch; a panic counts as 1.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// let engine = Engine::<String, u32>::builder()
    ///     .weight(|merchant: &String| if merchant.starts_with("premium") { 4 } else { 1 })
    ///     .task_handler(|_, _| ())
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn weight(mut self, weight: impl Fn(&K) -> u32 + Send + Sync + 'static) -> Self {
        self.draft.shares.set_weight(weight);
        self
    }

    /// Which groups go first, for workers and for permits. Bulk groups run when no interactive one is ready, and one time in eight in any
    /// case. Asked at each dispatch; a panic counts as interactive. Default: all are interactive.
    pub fn class(mut self, class: impl Fn(&K) -> Class + Send + Sync + 'static) -> Self {
        self.draft.shares.set_class(class);
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
    /// The handler gets one task at a time. It may return `()`, a `Result<(), E>` with an error that can be displayed,
    /// or an [`Outcome`].
    pub fn task_handler<F, R>(self, handler: F) -> Configured<K, T>
    where
        F: Fn(&mut S, &mut Task<'_, K, T>) -> R + Send + Sync + 'static,
        R: Into<Outcome> + 'static,
    {
        Configured::new(self.draft, EachTask::new(self.open, handler))
    }

    /// The handler gets up to `batch_size` tasks of one group at a time. It may return `()`, an [`Outcome`] or a
    /// `Result<(), E>` for all of them, or a `Vec<Outcome>` with one for each.
    pub fn handler<F, R>(self, handler: F) -> Configured<K, T>
    where
        F: Fn(&mut S, &mut Batch<'_, K, T>) -> R + Send + Sync + 'static,
        R: IntoOutcomes + 'static,
    {
        Configured::new(self.draft, EachBatch::new(self.open, handler))
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

/// Knows the kind of work; everything outside does not need to.
trait Assemble<K, T> {
    fn engine(self: Box<Self>, draft: Draft<K, T>) -> Result<Engine<K, T>, BuildError>;
    fn sim(self: Box<Self>, draft: Draft<K, T>, seed: u64) -> Sim<K, T>;
}

struct Kit<W>(W);

impl<K, T, W> Assemble<K, T> for Kit<W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn engine(self: Box<Self>, draft: Draft<K, T>) -> Result<Engine<K, T>, BuildError> {
        let name = draft.thread_name.clone();
        let clock = Arc::new(MonotonicClock::new());
        // Under shuttle a run is its seed, and nothing else.
        let hasher =
            if cfg!(shuttle) { RandomState::with_seeds(1, 2, 3, 4) } else { RandomState::new() };
        let seed = hasher.hash_one(0u64);
        let (core, workers) = draft.assemble(self.0, clock, hasher, seed, PATIENCE);
        let threads = pool::start(workers, &name)?;
        Ok(Engine::assemble(core.front.clone(), core, threads))
    }

    fn sim(self: Box<Self>, draft: Draft<K, T>, seed: u64) -> Sim<K, T> {
        let clock = VirtualClock::new();
        // The same keys in the same shards, run after run.
        let hasher = RandomState::with_seeds(seed, 1, 2, 3);
        let (core, workers) = draft.assemble(self.0, Arc::new(clock.clone()), hasher, seed, 0);
        Sim::new(core, workers, clock)
    }
}

/// Shards per worker that has a CPU of its own. Eight was 1.35 times as fast as four in a prototype: more shards, less
/// waiting for a claim and shorter delays behind a preempted producer.
const SHARDS_PER_CPU: usize = sized(8, 1);
/// Cells of a shard's ring; a quarter of it was 0.8 times as fast in a prototype.
const RING: usize = sized(4_096, 4);
/// Cells of one lane in one shard.
const LANE: usize = sized(4_096, 2);
/// Records per claim: 64 was 1.4 times as slow with tiny tasks in a prototype, 1,024 isolated worse.
const CHUNK: u32 = sized(256, 3) as u32;

type Assembled<K, T, W> = (Arc<Core<K, T, W>>, Vec<Worker<K, T, W>>);

impl<K, T> Draft<K, T> {
    fn check(&mut self) -> Result<(), BuildError> {
        let bound = |field, value: usize, least: usize, most: usize, bounds| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(BuildError::OutOfBounds { field, value: value.to_string(), bounds })
            }
        };
        if let Workers::Fixed(n) = self.workers {
            bound("workers", n, 1, MAX_WORKERS, "between 1 and 1024")?;
        }
        bound("batch_size", self.batch_size, 1, 1 << 16, "between 1 and 65536")?;
        bound("capacity", self.capacity, 64, 1 << 30, "between 64 and 1073741824")?;
        bound("group_capacity", self.group_capacity, 1, 1 << 30, "between 1 and 1073741824")?;
        if self.flush_interval > Duration::from_secs(3_600) {
            return Err(BuildError::OutOfBounds {
                field: "flush_interval",
                value: format!("{:?}", self.flush_interval),
                bounds: "at most one hour",
            });
        }
        if self.spin > Duration::from_secs(1) {
            return Err(BuildError::OutOfBounds {
                field: "spin",
                value: format!("{:?}", self.spin),
                bounds: "at most one second",
            });
        }
        if self.time_budget.is_zero() {
            return Err(BuildError::OutOfBounds {
                field: "time_budget",
                value: "zero".to_owned(),
                bounds: "more than zero",
            });
        }
        if self.retry.limit() == 0 {
            return Err(BuildError::OutOfBounds {
                field: "retry",
                value: "0 attempts".to_owned(),
                bounds: "at least 1 attempt (1 means no retry)",
            });
        }
        self.in_flight.map_or(Ok(()), adaptive::check)?;
        self.rate.map_or(Ok(()), |rate| rate.check("rate"))?;
        self.group_rate.map_or(Ok(()), |rate| rate.check("group_rate"))?;
        if let Some(cpus) = self.cpus.take() {
            let machine = self.machine.take().unwrap_or_else(Snapshot::read).restricted_to(&cpus);
            if machine.mask.is_empty() {
                return Err(BuildError::OutOfBounds {
                    field: "cpus",
                    value: CpuList(&cpus).to_string(),
                    bounds: "CPUs that are online and in the affinity mask of the process",
                });
            }
            self.machine = Some(machine);
        }
        Ok(())
    }

    fn assemble<W>(
        self,
        work: W,
        clock: Arc<dyn Clock>,
        hasher: RandomState,
        seed: u64,
        patience: u64,
    ) -> Assembled<K, T, W>
    where
        K: Hash + Eq + Send + Sync + 'static,
        T: Send + 'static,
        W: Work<K, T>,
    {
        let machine = self.machine.unwrap_or_else(Snapshot::read);
        let plan = Plan::new(&machine, self.workers);
        let plan = if self.pin { plan } else { plan.unpinned() };
        let workers = plan.workers.len();
        let busy = workers.min(plan.effective_cpus.max(1));
        let shards =
            (SHARDS_PER_CPU * busy).next_power_of_two().min(prev_power_of_two(self.capacity / 8));
        let ring = prev_power_of_two(self.capacity / 2 / shards).min(RING);
        let settings = Settings {
            batch: self.batch_size as u32,
            flush: self.flush_interval,
            budget: self.time_budget,
            chunk: CHUNK,
            // Where workers share processors one that stands has lost its own, probably.
            patience: if plan.spin { patience } else { 0 },
            spin: if plan.spin { self.spin.as_nanos() as u64 } else { 0 },
            room: sized(self.capacity - ring * shards, 8) as u64,
            group_capacity: self.group_capacity as u32,
            idle_groups: self.idle_groups as u64,
            lane: LANE.min(ring),
            retry: self.retry,
            on_exhausted: self.on_exhausted,
            in_flight: self.in_flight,
            rate: self.rate,
            group_rate: self.group_rate,
            shares: self.shares,
            watch: self.watch,
        };
        let deques: Vec<Deque<Unit>> = (0..workers).map(|_| Deque::new_fifo()).collect();
        let stealers = deques.iter().map(Deque::stealer).collect();
        let mut ready = Ready::new(stealers, clock);
        ready.idle.on_nodes(&plan);
        ready.bulk = settings.shares.has_classes().then(Overflow::new);
        let home = |shard| front::home(shard, workers);
        let rings = on_node_of(&plan, shards, home, || Ring::new(ring, 0));
        let front = Front::new(rings, workers, ready, hasher);
        let core = Arc::new(Core::new(front, work, settings, plan));
        let workers = deques
            .into_iter()
            .enumerate()
            .map(|(id, deque)| {
                let own = seed.wrapping_add((id as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                Worker::new(core.clone(), id, deque, own)
            })
            .collect();
        (core, workers)
    }
}

fn prev_power_of_two(n: usize) -> usize {
    1 << n.max(1).ilog2()
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
