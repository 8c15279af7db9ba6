//! A whole engine of one shard, with a ring of four cells and chunks of one record, whose worker the model steps by hand:
//! for protocols that run through demux, turn and close.

use std::sync::Arc;

use crate::{
    Outcome, Retry, Workers,
    core::{Core, Settings},
    flow::{exhausted::OnExhausted, share::Shares},
    front::{Front, Manners},
    handler::EachTask,
    ingress::ring::Ring,
    ready::{Ready, deque::Deque},
    sync::Ordering,
    task::Task,
    time::clock::VirtualClock,
    topology::{Plan, Snapshot},
    watch::WatchSettings,
    worker::Worker,
};

type Handler = Box<dyn Fn(&mut (), &mut Task<'_, u32, u32>) -> Outcome + Send + Sync>;
type Work = EachTask<u32, u32, (), fn(&u32), Handler>;
pub(super) type TinyCore = Core<u32, u32, Work>;

/// What ran: key and task. Not seen by loom: it orders nothing.
pub(super) type Log = Arc<std::sync::Mutex<Vec<(u32, u32)>>>;

/// The engine, its worker, and what will have run.
pub(super) fn tiny(idle_groups: u64) -> (Arc<TinyCore>, Worker<u32, u32, Work>, Log) {
    let log = Log::default();
    let runs = log.clone();
    let handler: Handler = Box::new(move |(), task| {
        runs.lock().unwrap().push((*task.key(), **task));
        Outcome::Done
    });
    let settings = Settings {
        batch: 4,
        flush: std::time::Duration::ZERO,
        budget: std::time::Duration::from_secs(1),
        chunk: 1,
        patience: 0,
        spin: 0,
        room: 8,
        group_capacity: 8,
        exact: false,
        bytes: u64::MAX,
        weigher: None,
        idle_groups,
        lane: 2,
        retry: Retry::none(),
        on_exhausted: OnExhausted::skip(),
        in_flight: None,
        rate: None,
        group_rate: None,
        shares: Shares::equal(),
        watch: WatchSettings::default(),
    };
    let deque = Deque::new_fifo();
    let ready = Ready::new(vec![deque.stealer()], Arc::new(VirtualClock::new()));
    let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
    let front = Front::new(vec![Ring::new(4, 0)], 1, ready, hasher, Manners::default());
    let plan = Plan::new(&Snapshot::one_node(1), Workers::fixed(1));
    let work: Work = EachTask::new(|_| (), handler);
    let core = Arc::new(Core::new(front, work, settings, plan));
    // No thread has to be waited for.
    core.hands[0].gone.store(true, Ordering::Relaxed);
    let worker = Worker::new(core.clone(), 0, deque, 1);
    (core, worker, log)
}
