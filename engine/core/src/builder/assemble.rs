//! An engine is put together: machine, plan, sizes, rings, workers.

use std::{hash::Hash, sync::Arc};

use ahash::RandomState;

use super::Draft;
use crate::{
    core::{Core, Settings},
    engine::Engine,
    error::BuildError,
    front::{self, Front, Manners},
    handler::Work,
    ingress::ring::Ring,
    ready::{Ready, deque::Deque, link::Unit, overflow::Overflow},
    sim::Sim,
    sync::sized,
    time::clock::{Clock, MonotonicClock, VirtualClock},
    topology::{Plan, Snapshot, memory::on_node_of},
    worker::{Worker, pool, steal::PATIENCE},
};

/// Shards per worker that has a CPU of its own. Eight was 1.35 times as fast as four in a prototype: more shards, less
/// waiting for a claim and shorter delays behind a preempted producer.
const SHARDS_PER_CPU: usize = sized(8, 1);
/// Cells of a shard's ring; a quarter of it was 0.8 times as fast in a prototype.
const RING: usize = sized(4_096, 4);
/// Cells of one lane in one shard.
const LANE: usize = sized(4_096, 2);
/// Records per claim, at first (worker/chunk.rs).
const CHUNK: u32 = sized(256, 3) as u32;

type Assembled<K, T, W> = (Arc<Core<K, T, W>>, Vec<Worker<K, T, W>>);

/// Knows the kind of work; everything outside does not need to.
pub(super) trait Assemble<K, T> {
    fn engine(self: Box<Self>, draft: Draft<K, T>) -> Result<Engine<K, T>, BuildError>;
    fn sim(self: Box<Self>, draft: Draft<K, T>, seed: u64) -> Sim<K, T>;
}

pub(super) struct Kit<W>(pub(super) W);

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

impl<K, T> Draft<K, T> {
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
        let exact = self.exact_groups || self.weigher.is_some();
        // Where submitters go to the groups themselves, rings are never used.
        let ring = if exact { 1 } else { prev_power_of_two(self.capacity / 2 / shards).min(RING) };
        let settings = Settings {
            batch: self.batch_size as u32,
            flush: self.flush_interval,
            budget: self.time_budget,
            chunk: CHUNK,
            // Where workers share processors one that stands has lost its own, probably.
            patience: if plan.spin { patience } else { 0 },
            spin: if plan.spin { self.spin.as_nanos() as u64 } else { 0 },
            room: if exact {
                self.capacity as u64
            } else {
                sized(self.capacity - ring * shards, 8) as u64
            },
            group_capacity: self.group_capacity as u32,
            exact,
            bytes: self.capacity_bytes.map_or(u64::MAX, |bytes| bytes as u64),
            weigher: self.weigher,
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
        let manners = Manners { exact, wait_at_halted: self.wait_at_halted };
        let front = Front::new(rings, workers, ready, hasher, manners);
        let core = Arc::new(Core::new(front, work, settings, plan));
        if exact {
            core.front.link(&*core);
        }
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
