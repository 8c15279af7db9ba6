//! The same engine, driven by hand: virtual workers, a virtual clock, one thread, a seed.
//!
//! Nothing here decides anything: a step is a step of a worker, with the code that worker threads run. What a
//! schedule is made of (which worker steps next, when the clock moves, when a task is submitted) is the caller's.

use std::{fmt, hash::Hash, sync::Arc, time::Duration};

use crate::{
    core::Core,
    engine::{Control, Engine},
    error::{SubmitError, SubmitManyError},
    group_handle::GroupHandle,
    handler::Work,
    lifecycle::close::CloseReport,
    producer::Producer,
    sync::Ordering,
    time::clock::VirtualClock,
    watch::stats::Stats,
    worker::Worker,
};

/// An engine without threads, from [`Configured::build_sim`](crate::Configured::build_sim): test handlers, retries and
/// limits without sleeping.
///
/// ```
/// use std::time::Duration;
/// use bgrp::{Engine, Retry, Workers};
/// let mut sim = Engine::<&str, u32>::builder()
///     .workers(Workers::fixed(2))
///     .retry(Retry::fixed(Duration::from_secs(3600)).attempts(3))
///     .task_handler(|_, task| if task.attempt() < 3 { Err("not yet") } else { Ok(()) })
///     .build_sim(1)?;
/// sim.submit("a", 1)?;
/// sim.run();
/// assert_eq!(sim.stats().done, 0, "in back-off");
/// sim.advance(Duration::from_secs(3600));
/// sim.run();
/// sim.advance(Duration::from_secs(3600));
/// sim.run();
/// assert_eq!(sim.stats().done, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sim<K, T> {
    engine: Engine<K, T>,
    pub(crate) workers: Vec<Box<dyn Step>>,
    clock: VirtualClock,
    #[cfg(fuzzing)]
    pub(crate) lives: Vec<crate::fuzzing::Life>,
}

/// A worker, whatever its work.
pub(crate) trait Step {
    fn step(&mut self) -> bool;

    /// As a worker thread would go on, with its sleep. See `crate::fuzzing`.
    #[cfg(fuzzing)]
    fn live(&mut self, life: &mut crate::fuzzing::Life) -> bool;
}

impl<K, T, W> Step for Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn step(&mut self) -> bool {
        let _adopted = self.core().front.adopt_thread(self.hand());
        Worker::step(self)
    }

    #[cfg(fuzzing)]
    fn live(&mut self, life: &mut crate::fuzzing::Life) -> bool {
        let _adopted = self.core().front.adopt_thread(self.hand());
        Worker::live(self, life)
    }
}

impl<K, T> Sim<K, T>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
{
    pub(crate) fn new<W: Work<K, T>>(
        core: Arc<Core<K, T, W>>,
        workers: Vec<Worker<K, T, W>>,
        clock: VirtualClock,
    ) -> Self {
        for hand in &core.hands {
            // No thread has to be waited for.
            // ORDERING: SeqCst, as in worker/pool.rs; there is one thread here.
            hand.gone.store(true, Ordering::SeqCst);
        }
        let front = core.front.clone();
        let control: Arc<dyn Control<K, T>> = core;
        let workers: Vec<_> =
            workers.into_iter().map(|worker| Box::new(worker) as Box<dyn Step>).collect();
        Self {
            engine: Engine::assemble(front, control, Vec::new()),
            #[cfg(fuzzing)]
            lives: workers.iter().map(|_| Default::default()).collect(),
            workers,
            clock,
        }
    }

    /// The number of virtual workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Lets one worker do one thing: look at a shard, or run one dispatch of a group. `false`: it found nothing.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn step(&mut self, worker: usize) -> bool {
        self.workers[worker].step()
    }

    /// Lets the workers step in turn until none finds anything. The clock stands still.
    pub fn run(&mut self) {
        while (0..self.workers.len()).fold(false, |any, worker| self.step(worker) | any) {}
    }

    /// The clock: a handler that moves it takes so long.
    pub fn clock(&self) -> VirtualClock {
        self.clock.clone()
    }

    /// Moves the clock.
    pub fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
    }

    /// Submits a task, without waiting: nobody could make room meanwhile.
    ///
    /// # Errors
    /// Gives key and task back with the reason.
    pub fn submit(&self, key: K, task: T) -> Result<(), SubmitError<K, T>> {
        self.engine.try_submit(key, task)
    }

    /// As [`Engine::try_submit_many`].
    ///
    /// # Errors
    /// What was not accepted stays in the vector.
    pub fn submit_many(&self, tasks: &mut Vec<(K, T)>) -> Result<(), SubmitManyError> {
        self.engine.try_submit_many(tasks)
    }

    /// As [`Engine::group`]. Use `try_submit` of the handle.
    pub fn group(&self, key: K) -> GroupHandle<K, T> {
        self.engine.group(key)
    }

    /// As [`Engine::producer`]. Use `try_submit` of the producer.
    pub fn producer(&self) -> Producer<K, T> {
        self.engine.producer()
    }

    /// As [`Engine::stats`].
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The engine, for everything that does not wait: limits and the like.
    pub fn engine(&self) -> &Engine<K, T> {
        &self.engine
    }

    /// As [`Engine::halt`].
    pub fn halt(&self) {
        self.engine.halt();
    }

    /// Refuses new tasks and ends every linger, as the first step of a close.
    pub fn refuse(&self) {
        self.engine.shared.control.refuse();
    }

    /// Runs what can run without the clock moving, then closes: what waits for a time is given back.
    pub fn close(&mut self) -> CloseReport<K, T> {
        self.refuse();
        self.run();
        self.engine.shared.control.stop(Some(crate::sync::instant()))
    }
}

impl<K, T> fmt::Debug for Sim<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}
