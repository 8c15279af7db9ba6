//! The face of the engine: submit from any thread, watch, close.

use std::{
    fmt,
    hash::Hash,
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    builder::Builder,
    core::Core,
    error::{BuildError, SubmitError, SubmitManyError},
    flow::{
        adaptive::{self, InFlight},
        admission::LimitStats,
        rate::Rate,
    },
    front::{Front, Patience},
    group::block::Group,
    group_control::GroupControl,
    group_handle::GroupHandle,
    handler::Work,
    ingress::lane::Lane,
    lifecycle::close::CloseReport,
    producer::Producer,
    ready::link::Chain,
    split::Splits,
    sync::{Mutex, Ordering, mutant, thread::JoinHandle},
    topology::Plan,
    wait::check::{WaitHost, Waiters},
    watch::{Watched, stats::Stats},
};

/// An engine for tasks of type `T` in groups with keys of type `K`.
///
/// Tasks of one group run one after another, in the order in which they were submitted; groups run in parallel. If a
/// submit returned before another one of the same key began, on whatever thread, it runs first.
///
/// Share it by reference or in an [`Arc`]. Dropping the last owner finishes all accepted work first, like
/// [`Engine::close`] without a deadline; from inside a handler, where nobody can wait for the handler itself, it
/// lets the workers finish on their own. So it does, with the feature `tokio`, on a thread of a tokio runtime while batches are leased
/// out: they may need that thread to come to their end.
///
/// ```
/// use std::{sync::{Arc, Mutex}, time::Duration};
/// use bgrp::{Engine, Workers};
///
/// let sent = Arc::new(Mutex::new(Vec::new()));
/// let log = sent.clone();
/// let engine = Engine::<&str, u32>::builder()
///     .workers(Workers::fixed(2))
///     .task_handler(move |_, task| log.lock().unwrap().push((*task.key(), **task)))
///     .build()?;
/// for n in 0..3 {
///     engine.submit("merchant_1001", n)?;
/// }
/// let report = engine.close(Duration::from_secs(10));
/// assert_eq!(report.done, 3);
/// assert_eq!(*sent.lock().unwrap(), [("merchant_1001", 0), ("merchant_1001", 1), ("merchant_1001", 2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<K, T> {
    pub(crate) front: Arc<Front<K, T>>,
    pub(crate) shared: Arc<Shared<K, T>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the engine and its handles share: one pointer in each handle.
pub(crate) struct Shared<K, T> {
    pub(crate) front: Arc<Front<K, T>>,
    /// Keeps the groups alive.
    pub(crate) control: Arc<dyn Control<K, T>>,
}

/// What the face needs of the core, whatever its handler.
pub(crate) trait Control<K, T>:
    GroupControl<K, T> + Waiters<K, T> + Splits<K, T> + Watched<K, T> + Send + Sync
{
    /// Finds or makes the group and pins it.
    fn pin(&self, hash: u32, key: K) -> u32;
    /// The block of a pinned group.
    fn block(&self, hash: u32, index: u32) -> NonNull<Group<K, T>>;
    fn unpin(&self, hash: u32, index: u32);
    /// A new lane in each shard.
    fn add_lanes(&self) -> Vec<Arc<Lane<K, T>>>;
    fn stats(&self) -> Stats;
    fn notes(&self) -> Vec<String>;
    fn plan(&self) -> &Plan;
    fn refuse(&self);
    fn wait_drained(&self, deadline: Option<Instant>) -> bool;
    fn halt(&self);
    fn stop(&self, deadline: Option<Instant>) -> CloseReport<K, T>;
    /// Nobody will close it.
    fn orphan(&self);
    fn set_in_flight(&self, limit: Option<InFlight>);
    fn set_rate(&self, rate: Option<Rate>);
    fn set_group_rate(&self, rate: Option<Rate>);
    fn limits(&self) -> LimitStats;
}

impl<K, T, W> Control<K, T> for Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn pin(&self, hash: u32, key: K) -> u32 {
        let mut back = self.backs[self.front.shard_of(hash)].lock();
        let (index, spare) = match back.find(hash, &key) {
            Some(index) => (index, Some(key)),
            None => (back.make(hash, key), None),
        };
        back.pin(index);
        self.census(&mut back);
        drop(back);
        // The drop of a key is user code: not under the claim.
        drop(spare);
        index
    }

    fn block(&self, hash: u32, index: u32) -> NonNull<Group<K, T>> {
        NonNull::from(self.backs[self.front.shard_of(hash)].lock().group(index))
    }

    fn unpin(&self, hash: u32, index: u32) {
        let shard = self.front.shard_of(hash);
        let mut back = self.backs[shard].lock();
        // Records that name the group by its block may still lie in the ring, all before its tail of this moment.
        let tail = self.front.doors[shard].ring.tail().0;
        if back.head == tail || mutant("unpin-at-once") {
            back.unpin(index);
        } else {
            back.unpins.push_back((tail, index));
        }
    }

    fn add_lanes(&self) -> Vec<Arc<Lane<K, T>>> {
        if self.settings.exact {
            return Vec::new();
        }
        self.backs
            .iter()
            .map(|back| {
                let lane = Arc::new(Lane::new(self.settings.lane));
                // Before it can have records.
                self.lanes.add(lane.clone());
                let mut back = back.lock();
                // A look does it too, but nobody looks at a shard to which nothing is submitted.
                back.remove_spent_lanes();
                let gone = std::mem::take(&mut back.gone_lanes);
                back.lanes.push(lane.clone());
                drop(back);
                self.lanes.retire(gone);
                lane
            })
            .collect()
    }

    fn stats(&self) -> Stats {
        self.read_stats()
    }

    fn notes(&self) -> Vec<String> {
        Core::notes(self)
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn refuse(&self) {
        Core::refuse(self);
    }

    fn wait_drained(&self, deadline: Option<Instant>) -> bool {
        self.watch.wait_until(deadline, || self.is_drained() || self.front.status.stops())
            && self.is_drained()
    }

    fn halt(&self) {
        Core::halt(self);
        self.poke_waits();
    }

    fn stop(&self, deadline: Option<Instant>) -> CloseReport<K, T> {
        Core::stop(self, deadline)
    }

    fn orphan(&self) {
        // ORDERING: SeqCst: this, the fence of `notify` in `Worker::lie_down`, what is settled; pairs with the load there.
        self.orphaned.store(true, Ordering::SeqCst);
        self.front.ready.idle.wake_all(0);
    }

    fn set_in_flight(&self, limit: Option<InFlight>) {
        self.change_limits(|now, ready| self.admission.set_in_flight(limit, now, ready));
        self.poke_waits();
    }

    fn set_rate(&self, rate: Option<Rate>) {
        self.change_limits(|now, ready| self.admission.set_rate(rate, now, ready));
    }

    fn set_group_rate(&self, rate: Option<Rate>) {
        self.group_rates.set(rate);
        let mut ready = Chain::default();
        self.timers.end_rates(&mut ready);
        self.front.ready.spill(&mut ready);
    }

    fn limits(&self) -> LimitStats {
        self.admission.stats()
    }
}

impl<K, T> Engine<K, T> {
    /// Starts to describe an engine.
    pub fn builder() -> Builder<K, T> {
        Builder::new()
    }

    pub(crate) fn assemble(
        front: Arc<Front<K, T>>,
        control: Arc<dyn Control<K, T>>,
        threads: Vec<JoinHandle<()>>,
    ) -> Self {
        let shared = Arc::new(Shared { front: front.clone(), control });
        Self { front, shared, threads: Mutex::new(threads) }
    }

    /// Figures of this moment. Takes no lock of a shard, so that a scrape disturbs nobody: a sum over the counters of the workers and
    /// the rings of the shards, some microseconds; meant for once a second, not once a task.
    pub fn stats(&self) -> Stats {
        self.shared.control.stats()
    }

    /// What the engine found worth telling about the machine: no pinning and why, missing files, and the like.
    pub fn notes(&self) -> Vec<String> {
        self.shared.control.notes()
    }

    /// Where the workers are, and who steals from whom.
    pub fn plan(&self) -> &Plan {
        self.shared.control.plan()
    }

    /// Waits until every accepted task has ended or waits in a halted group, without refusing new ones. `false`: the
    /// time was up first, or the engine was halted before. From inside a handler of this engine, whose own task cannot
    /// end meanwhile, it is `false` at once.
    pub fn wait_drain(&self, timeout: Duration) -> bool {
        if self.front.is_own_worker() {
            return false;
        }
        self.shared.control.wait_drained(crate::sync::instant().checked_add(timeout))
    }

    /// Changes the limit in flight while the engine runs; `None` lifts it. A lower limit interrupts nothing: no dispatch starts until enough
    /// have come back.
    ///
    /// ```
    /// # use bgrp::{Engine, InFlight};
    /// # let engine = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build()?;
    /// engine.set_in_flight(Some(20.into()))?;
    /// engine.set_in_flight(Some(InFlight::adaptive(1, 100)))?;
    /// assert!(engine.set_in_flight(Some(0.into())).is_err());
    /// engine.set_in_flight(None)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit is zero, or its bounds are the wrong way round: the old one stays.
    pub fn set_in_flight(&self, limit: Option<InFlight>) -> Result<(), BuildError> {
        limit.map_or(Ok(()), adaptive::check)?;
        self.shared.control.set_in_flight(limit);
        Ok(())
    }

    /// Changes the rate of the whole engine; `None` lifts it. The new bucket starts full.
    ///
    /// # Errors
    /// The rate is out of its bounds: the old one stays.
    pub fn set_rate(&self, rate: Option<Rate>) -> Result<(), BuildError> {
        rate.map_or(Ok(()), |rate| rate.check("rate"))?;
        self.shared.control.set_rate(rate);
        Ok(())
    }

    /// Changes the rate of each group; `None` lifts it. Groups that wait for the old one ask again.
    ///
    /// # Errors
    /// The rate is out of its bounds: the old one stays.
    pub fn set_group_rate(&self, rate: Option<Rate>) -> Result<(), BuildError> {
        rate.map_or(Ok(()), |rate| rate.check("group_rate"))?;
        self.shared.control.set_group_rate(rate);
        Ok(())
    }

    /// The limit in flight, what is in flight, what waits for it, and how many dispatches a downstream throttled.
    pub fn limits(&self) -> LimitStats {
        self.shared.control.limits()
    }

    /// Stops at once: no task starts any more, submits are refused. A task that runs is not interrupted. Call
    /// [`Engine::close`] to get back what did not run.
    pub fn halt(&self) {
        self.shared.control.halt();
    }

    /// The engine was halted, by [`Engine::halt`] or by a [`Verdict::HaltEngine`](crate::Verdict::HaltEngine).
    pub fn is_halted(&self) -> bool {
        self.front.status.stops()
    }

    /// Closes the engine: new tasks are refused, everything accepted is run, retries in back-off are waited for.
    /// After `timeout` no further task is started. The report gives back every accepted task that did not
    /// end, in order; no handler starts after the return.
    ///
    /// A handler that is still running at the deadline is counted in [`CloseReport::running`] (after a grace of 20 ms);
    /// its group is not in the report. Call close again to wait for it and to get the rest.
    ///
    /// From inside a handler of this engine nothing can be waited for: then it only refuses new tasks and returns
    /// the figures so far, with at least one group running.
    pub fn close(&self, timeout: Duration) -> CloseReport<K, T> {
        // A time that is too far to add is no deadline.
        self.close_by(crate::sync::instant().checked_add(timeout))
    }

    fn close_by(&self, deadline: Option<Instant>) -> CloseReport<K, T> {
        self.shared.control.refuse();
        if self.front.is_own_worker() {
            let stats = self.shared.control.stats();
            return CloseReport {
                done: stats.done,
                failed: stats.failed,
                retries: stats.retries,
                left: Vec::new(),
                running: 1,
                leased: stats.leased as usize,
            };
        }
        self.shared.control.wait_drained(deadline);
        let report = self.shared.control.stop(deadline);
        if report.running == 0 {
            for thread in self.threads.lock().drain(..) {
                // The thread's main function catches its panics: a failed join has nothing to tell.
                let _ = thread.join();
            }
        }
        report
    }
}

impl<K: Hash + Eq, T> Engine<K, T> {
    /// Submits a task; waits while its group or the engine is full.
    ///
    /// Lock-free while there is room: one read-modify-write, no allocation, no map.
    ///
    /// # Errors
    /// Gives key and task back when the engine is closed, or when a handler of this engine would have to wait.
    #[inline]
    pub fn submit(&self, key: K, task: T) -> Result<(), SubmitError<K, T>> {
        self.front.submit(key, task, Patience::Forever)
    }

    /// Submits a task if there is room now.
    ///
    /// # Errors
    /// Gives key and task back with the reason.
    #[inline]
    pub fn try_submit(&self, key: K, task: T) -> Result<(), SubmitError<K, T>> {
        self.front.submit(key, task, Patience::None)
    }

    /// Submits a task; waits at most `timeout` for room.
    ///
    /// # Errors
    /// Gives key and task back with the reason.
    pub fn submit_timeout(
        &self,
        key: K,
        task: T,
        timeout: Duration,
    ) -> Result<(), SubmitError<K, T>> {
        self.front.submit(key, task, until(timeout))
    }

    /// Submits all tasks of `tasks` and leaves it empty, with one reservation per shard and window of 256 tasks. The order per key is that of the
    /// vector. Waits for room.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// # let engine = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build()?;
    /// let mut tasks: Vec<(u64, u64)> = (0..1_000).map(|n| (n % 10, n)).collect();
    /// engine.submit_many(&mut tasks)?;
    /// assert!(tasks.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What was not accepted stays in the vector, in order.
    pub fn submit_many(&self, tasks: &mut Vec<(K, T)>) -> Result<(), SubmitManyError> {
        self.front.submit_many(tasks, Patience::Forever)
    }

    /// As [`Engine::submit_many`], without waiting.
    ///
    /// # Errors
    /// What was not accepted stays in the vector. Order per key holds: once a task was refused, no later one is
    /// accepted.
    pub fn try_submit_many(&self, tasks: &mut Vec<(K, T)>) -> Result<(), SubmitManyError> {
        self.front.submit_many(tasks, Patience::None)
    }

    /// A handle to one group: submits through it neither hash the key nor look it up. The group stays in memory
    /// while a handle lives.
    pub fn group(&self, key: K) -> GroupHandle<K, T> {
        let (_, hash) = self.front.hash(&key);
        GroupHandle::new(self.shared.clone(), hash, self.shared.control.pin(hash, key))
    }

    /// The home of a group: the worker that takes its tasks in as long as nobody steals, by its number in the
    /// [`plan`](Engine::plan). Memory of the group, its state included, lies on the node of that worker.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// # let engine = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build()?;
    /// let home = &engine.plan().workers[engine.home(&1001)];
    /// println!("group 1001 is at home on node {}", home.node);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn home(&self, key: &K) -> usize {
        self.front.home(self.front.hash(key).0)
    }

    /// A private lane into the engine for one thread: the fastest way in, with order per lane only. Between a lane
    /// and any other way in there is no order, not even for one key.
    pub fn producer(&self) -> Producer<K, T> {
        Producer::new(&self.shared, self.shared.control.add_lanes())
    }
}

pub(crate) fn until(timeout: Duration) -> Patience {
    match crate::sync::instant().checked_add(timeout) {
        Some(end) => Patience::Until(end, timeout),
        None => Patience::Forever,
    }
}

impl<K, T> Engine<K, T> {
    /// Batches are leased out that may need this very thread.
    fn waits_for_own_leases(&self) -> bool {
        crate::lease::must_not_block() && self.shared.control.stats().leased > 0
    }
}

impl<K, T> Drop for Engine<K, T> {
    fn drop(&mut self) {
        if self.threads.lock().is_empty() {
            return;
        }
        if self.front.is_own_worker() || self.waits_for_own_leases() {
            self.shared.control.refuse();
            self.shared.control.orphan();
            return;
        }
        let report = self.close_by(None);
        let left = report.left_tasks();
        if left > 0 {
            eprintln!(
                "bgrp: {left} accepted tasks were left when their engine was dropped; call Engine::close to get them back"
            );
        }
        crate::outcome::drop_quietly(report);
    }
}

impl<K, T> fmt::Debug for Engine<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
