//! May this wait begin, and can it still end? Asked under the graph's lock; a handler's wait is entered under the same lock.
//!
//! A handler's wait is refused when one of these holds, and no other event than a new wait can bring about the first two:
//!
//! * its task is in a group that (over any number of waits) waits for the handler's own group;
//! * no worker would be left that does not wait;
//! * every permit in flight would be held by a dispatch that waits, and none is free (a limit that is lowered can do that too);
//! * the task's group, or the engine, is halted.
//!
//! So a waiting handler looks again after each halt, each change of the limit, and ten times a second.
//!
//! A group runs one dispatch at a time, so it has one wait at a time, and the way through the graph is a chain. Tasks that
//! stand between the head of a group and the task waited for do not matter until one of them waits; then it is asked.
//!
//! Locks: the graph's, then a shard's claim (to find the group of a record that is still in the ring, and to read keys), or
//! that of admission. Nobody takes the graph's lock with any other in hand.

use std::{
    hash::Hash,
    panic::{AssertUnwindSafe, Location, catch_unwind},
    ptr::NonNull,
    sync::Arc,
};

use super::{
    cell::Cell,
    error::{Deadlock, WaitError},
    graph::{From, Graph, Waiting, Waits},
    picture::{Wait, WaitEdge, WaitGraph, WaitNode},
    seat,
};
use crate::{
    core::Core,
    flow::rate::Count,
    group::block::{Group, Place},
    handler::Work,
    ingress::records::Records,
    outcome::drop_quietly,
    sync::{Ordering, mutant},
};

/// What tickets need of an engine.
pub(crate) trait WaitHost: Send + Sync {
    /// Enters a wait. `future`: nobody blocks. The wait must leave again. Says whether the caller is a handler of the engine.
    fn enter(
        &self,
        cell: &Arc<Cell>,
        future: bool,
        at: &'static Location<'static>,
    ) -> Result<Entered, WaitError>;
    /// The wait of a handler can still end, or it leaves.
    fn look_again(&self, id: u64) -> Result<(), WaitError>;
    fn leave(&self, id: u64);
    fn wait_graph(&self) -> WaitGraph;
    /// Handlers that wait look again.
    fn poke_waits(&self);
}

/// A wait in the graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    pub(crate) id: u64,
    pub(crate) by_handler: bool,
}

/// What tickets need of an engine, with its types.
pub(crate) trait Waiters<K, T>: WaitHost {
    fn waits(&self) -> &Waits<K, T>;
}

impl<K, T, W> Waiters<K, T> for Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn waits(&self) -> &Waits<K, T> {
        &self.waits
    }
}

impl<K, T, W> WaitHost for Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn enter(
        &self,
        cell: &Arc<Cell>,
        future: bool,
        at: &'static Location<'static>,
    ) -> Result<Entered, WaitError> {
        let from = self.who_waits(future);
        let by_handler = matches!(from, From::Handler { .. });
        let mut graph = self.waits.lock();
        let id = graph.next_id();
        let waiting = Waiting { id, from, cell: cell.clone(), at };
        if mutant("wait-check-apart") {
            // Entered, and only then asked about: both sides of a cycle find each other.
            graph.waits.push(waiting);
            drop(graph);
            crate::sync::yield_now();
            let graph = self.waits.lock();
            let entered = graph.waits.iter().find(|waiting| waiting.id == id);
            let checked = entered.map_or(Ok(()), |waiting| self.check(&graph, waiting));
            drop(graph);
            crate::sync::yield_now();
            return checked.map(|()| Entered { id, by_handler }).inspect_err(|_| self.leave(id));
        }
        self.check(&graph, &waiting)?;
        graph.waits.push(waiting);
        Ok(Entered { id, by_handler })
    }

    fn look_again(&self, id: u64) -> Result<(), WaitError> {
        let mut graph = self.waits.lock();
        let Some(at) = graph.waits.iter().position(|waiting| waiting.id == id) else {
            return Ok(());
        };
        let waiting = graph.waits.remove(at);
        // Whoever is refused leaves under the same lock, so that of several only one is.
        self.check(&graph, &waiting)?;
        graph.waits.insert(at, waiting);
        Ok(())
    }

    fn leave(&self, id: u64) {
        self.waits.lock().remove(id);
    }

    fn wait_graph(&self) -> WaitGraph {
        self.draw(&self.waits.lock(), None)
    }

    fn poke_waits(&self) {
        let graph = self.waits.lock();
        let cells: Vec<_> = graph.waits.iter().map(|waiting| waiting.cell.clone()).collect();
        drop(graph);
        cells.iter().for_each(|cell| cell.poke());
    }
}

type Refusal = fn(Box<Deadlock>) -> WaitError;

impl<K, T, W> Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn who_waits(&self, future: bool) -> From<K, T> {
        let own = seat::hands(self.front.address());
        let worker = own.first().and_then(|own| {
            self.hands.iter().position(|hand| std::ptr::from_ref(&**hand).cast() == *own)
        });
        match worker {
            Some(worker) => From::Handler {
                worker,
                dispatch: self.dispatches(worker),
                groups: self.front.own_groups(),
            },
            None if future => From::Future,
            None => {
                From::Thread(std::thread::current().name().unwrap_or("without a name").to_owned())
            }
        }
    }

    /// The number of dispatches that a worker has ended.
    fn dispatches(&self, worker: usize) -> u64 {
        // ORDERING: Acquire pairs with the Release of `add`: a dispatch that is not counted still has its token in hand.
        self.front.ready.posts[worker].counters.turns.load(Ordering::Acquire)
    }

    /// The worker is still in the dispatch in which the wait began.
    fn is_current(&self, waiting: &Waiting<K, T>) -> bool {
        match waiting.from {
            From::Handler { worker, dispatch, .. } => self.dispatches(worker) == dispatch,
            _ => false,
        }
    }

    /// Waits of handlers that count.
    fn by_handlers<'g>(&self, graph: &'g Graph<K, T>) -> impl Iterator<Item = &'g Waiting<K, T>> {
        graph.waits.iter().filter(|waiting| !waiting.cell.is_over() && self.is_current(waiting))
    }

    /// `Err`: this wait must not begin, or go on. It is not in the graph.
    fn check(&self, graph: &Graph<K, T>, waiting: &Waiting<K, T>) -> Result<(), WaitError> {
        let From::Handler { worker, .. } = waiting.from else { return Ok(()) };
        if waiting.cell.is_over() {
            return Ok(());
        }
        if self.front.status.stops() {
            return Err(WaitError::EngineHalted);
        }
        let target = self.group_of(&waiting.cell);
        let cycle = self.chain(graph, waiting, target);
        if let Some(chain) = cycle {
            return Err(self.refuse_wait(graph, chain, waiting, WaitError::Cycle));
        }
        // SAFETY: blocks live as long as the engine.
        if target.is_some_and(|group| unsafe { group.as_ref() }.word.load().is_halted())
            && !waiting.cell.is_over()
        {
            return Err(WaitError::GroupHalted { key: self.text_of(&waiting.cell) });
        }
        let mut held_up: Vec<usize> = vec![worker];
        for other in self.by_handlers(graph) {
            if let From::Handler { worker, .. } = other.from {
                held_up.push(worker);
            }
        }
        held_up.sort_unstable();
        held_up.dedup();
        let at_work = self.hands.iter().filter(|hand| !hand.is_gone()).count();
        if held_up.len() >= at_work {
            let all = self.by_handlers(graph).collect();
            return Err(self.refuse_wait(graph, all, waiting, WaitError::AllWorkersWait));
        }
        if let Some((most, in_flight, unit)) = self.admission.pressure() {
            let permits = |worker: &usize| self.hands[*worker].permits.load(Ordering::Relaxed);
            let held: u32 = match unit {
                Count::Tasks => held_up.iter().map(permits).sum(),
                Count::Batches => {
                    held_up.iter().filter(|worker| permits(worker) > 0).count() as u32
                }
            };
            if held > 0 && held >= in_flight && in_flight >= most {
                let all = self.by_handlers(graph).collect();
                return Err(self.refuse_wait(graph, all, waiting, WaitError::AllPermitsWait));
            }
        }
        Ok(())
    }

    /// The waits from `target` on that lead back to a group of `waiting`, in order. `None`: they do not.
    fn chain<'g>(
        &self,
        graph: &'g Graph<K, T>,
        waiting: &Waiting<K, T>,
        target: Option<NonNull<Group<K, T>>>,
    ) -> Option<Vec<&'g Waiting<K, T>>> {
        let own = waiting.groups();
        let mut chain: Vec<&Waiting<K, T>> = Vec::new();
        let mut at = target;
        while let Some(group) = at {
            if own.contains(&group) && !mutant("wait-own-group") {
                // A group is the one that its ticket says for as long as the ticket is not over.
                let holds = !waiting.cell.is_over() && chain.iter().all(|w| !w.cell.is_over());
                return holds.then_some(chain);
            }
            let next = self.by_handlers(graph).find(|other| other.groups().contains(&group))?;
            if chain.iter().any(|known| known.id == next.id) {
                return None;
            }
            chain.push(next);
            at = self.group_of(&next.cell);
        }
        None
    }

    /// The group of a ticket's task. `None`: there is no such group yet, or the task is over.
    fn group_of(&self, cell: &Cell) -> Option<NonNull<Group<K, T>>> {
        if let Some(group) = cell.group() {
            return Some(group);
        }
        let back = self.backs[cell.way.shard].lock();
        // The claim holder may have taken the record a moment ago.
        cell.group().or_else(|| {
            let (position, ring) = (cell.way.position(), &self.front.doors[cell.way.shard].ring);
            if position < back.head || !ring.is_published(position) {
                return None;
            }
            // SAFETY: published, by key (or the group would be known), and not taken: we hold the claim.
            let key = unsafe { ring.key(position) };
            let found = catch_unwind(AssertUnwindSafe(|| back.find(cell.way.hash, key)));
            let index = found.map_err(drop_quietly).ok()??;
            Some(NonNull::from(back.group(index)))
        })
    }

    /// The key of a ticket's task, as text.
    fn text_of(&self, cell: &Cell) -> String {
        let back = self.backs[cell.way.shard].lock();
        let (position, ring) = (cell.way.position(), &self.front.doors[cell.way.shard].ring);
        if cell.is_over() {
            return "(over)".to_owned();
        }
        match cell.group::<K, T>() {
            // SAFETY: its task was not over just now, so the group was live, and nobody reclaims it while we hold the claim.
            Some(group) => self.waits.text(unsafe { group.as_ref().key() }, cell.way.hash),
            None if position >= back.head && ring.is_published(position) => {
                // SAFETY: as in `group_of`.
                self.waits.text(unsafe { ring.key(position) }, cell.way.hash)
            }
            None => "(unknown)".to_owned(),
        }
    }

    fn node_of(&self, waiting: &Waiting<K, T>) -> WaitNode {
        match &waiting.from {
            From::Thread(name) => WaitNode::Thread(name.clone()),
            From::Future => WaitNode::Future,
            From::Handler { worker, groups, .. } => match groups.first() {
                Some(group) => {
                    // SAFETY: blocks live as long as the engine, and stay in their shard.
                    let group = unsafe { group.as_ref() };
                    let hash = group.hash();
                    let _back = self.backs[self.front.shard_of(hash)].lock();
                    if self.is_current(waiting) {
                        // SAFETY: the worker is in the dispatch of this group, so the group was live, and nobody reclaims
                        // it while we hold the claim.
                        WaitNode::Group(self.waits.text(unsafe { group.key() }, hash))
                    } else {
                        WaitNode::Future
                    }
                }
                None => WaitNode::Thread(format!("worker {worker}")),
            },
        }
    }

    fn wait_of(&self, waiting: &Waiting<K, T>) -> Wait {
        Wait {
            waiter: self.node_of(waiting),
            waits_for: WaitNode::Group(self.text_of(&waiting.cell)),
            at: waiting.at,
        }
    }

    #[cold]
    fn refuse_wait(
        &self,
        graph: &Graph<K, T>,
        others: Vec<&Waiting<K, T>>,
        refused: &Waiting<K, T>,
        how: Refusal,
    ) -> WaitError {
        let waits = others.into_iter().chain([refused]).map(|waiting| self.wait_of(waiting));
        let waits = waits.collect();
        how(Box::new(Deadlock { waits, graph: self.draw(graph, Some(refused)) }))
    }

    /// All waits, with what holds up groups that wait for a permit.
    fn draw(&self, graph: &Graph<K, T>, refused: Option<&Waiting<K, T>>) -> WaitGraph {
        let mut edges = Vec::new();
        let mut permits = false;
        let waits = || graph.waits.iter().chain(refused);
        for waiting in waits().filter(|waiting| !waiting.cell.is_over()) {
            let Wait { waiter, waits_for, at } = self.wait_of(waiting);
            // SAFETY: blocks live as long as the engine.
            let rests = |group: NonNull<Group<K, T>>| unsafe { group.as_ref() }.place();
            if self.group_of(&waiting.cell).map(rests) == Some(Place::Admission) {
                permits = true;
                let edge = WaitEdge { from: waits_for.clone(), to: WaitNode::Permits, at: None };
                if !edges.contains(&edge) {
                    edges.push(edge);
                }
            }
            edges.push(WaitEdge { from: waiter, to: waits_for, at: Some(at) });
        }
        for waiting in waits().filter(|_| permits) {
            if let From::Handler { worker, .. } = waiting.from
                && self.hands[worker].permits.load(Ordering::Relaxed) > 0
            {
                let to = self.node_of(waiting);
                edges.push(WaitEdge { from: WaitNode::Permits, to, at: None });
            }
        }
        WaitGraph { edges }
    }
}
