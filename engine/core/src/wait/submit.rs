//! Tracked submits: the slow way in, which hands out a ticket.

use std::{
    fmt::Debug,
    hash::Hash,
    panic::Location,
    ptr::NonNull,
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    cell::{Cell, Tracked},
    check::WaitHost,
    picture::WaitGraph,
    ticket::Ticket,
};
use crate::{
    engine::{Engine, Shared, until},
    error::{GroupSubmitError, SubmitError, SubmitReason},
    front::{Front, Patience, Target},
    group::block::Group,
    group_handle::GroupHandle,
    ingress::ring::{Address, Refused},
};

fn debug_text<K: Debug>(key: &K) -> String {
    format!("{key:?}")
}

impl<K: Hash + Eq, T> Engine<K, T> {
    /// As [`Engine::submit`], with a ticket that tells how the task ends.
    ///
    /// Costs a lock and two allocations more than a submit, and the end of the task two more locks. Tasks of one key run in the order of
    /// their submits, whether tracked or not.
    ///
    /// ```
    /// # use bgrp::{Ended, Engine};
    /// # let engine = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build()?;
    /// let ticket = engine.submit_tracked(1001, 7)?;
    /// assert_eq!(ticket.wait()?, Ended::Done);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::submit`].
    #[track_caller]
    pub fn submit_tracked(&self, key: K, task: T) -> Result<Ticket, SubmitError<K, T>>
    where
        K: Debug,
    {
        self.tracked_by(debug_text).submit(key, task)
    }

    /// As [`Engine::submit_tracked`], without waiting for room.
    ///
    /// # Errors
    /// As [`Engine::try_submit`].
    #[track_caller]
    pub fn try_submit_tracked(&self, key: K, task: T) -> Result<Ticket, SubmitError<K, T>>
    where
        K: Debug,
    {
        self.tracked_by(debug_text).try_submit(key, task)
    }

    /// As [`Engine::submit_tracked`]; waits at most `timeout` for room.
    ///
    /// # Errors
    /// As [`Engine::submit_timeout`].
    #[track_caller]
    pub fn submit_tracked_timeout(
        &self,
        key: K,
        task: T,
        timeout: Duration,
    ) -> Result<Ticket, SubmitError<K, T>>
    where
        K: Debug,
    {
        self.tracked_by(debug_text).submit_timeout(key, task, timeout)
    }

    /// Tracked submits for keys that cannot be printed, or should not be: `text` is how errors and graphs write them. The first such
    /// function stays for the life of the engine; `Debug` counts as one.
    pub fn tracked_by(&self, text: fn(&K) -> String) -> TrackedBy<'_, K, T> {
        self.shared.control.waits().name_keys(text);
        TrackedBy { shared: &self.shared }
    }

    /// Who waits for what at this moment: handlers, threads and futures that wait for tickets, and groups among them that wait
    /// for a permit.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// # let engine = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build()?;
    /// println!("{}", engine.wait_graph().to_dot());
    /// # assert!(engine.wait_graph().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_graph(&self) -> WaitGraph {
        self.shared.control.wait_graph()
    }
}

/// Tracked submits whose keys are written by a function. From [`Engine::tracked_by`].
pub struct TrackedBy<'a, K, T> {
    shared: &'a Arc<Shared<K, T>>,
}

impl<K, T> Debug for TrackedBy<'_, K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TrackedBy")
    }
}

impl<K: Hash + Eq, T> TrackedBy<'_, K, T> {
    /// As [`Engine::submit_tracked`].
    ///
    /// # Errors
    /// As [`Engine::submit`].
    #[track_caller]
    pub fn submit(&self, key: K, task: T) -> Result<Ticket, SubmitError<K, T>> {
        self.send(key, task, Patience::Forever, Location::caller())
    }

    /// As [`Engine::try_submit_tracked`].
    ///
    /// # Errors
    /// As [`Engine::try_submit`].
    #[track_caller]
    pub fn try_submit(&self, key: K, task: T) -> Result<Ticket, SubmitError<K, T>> {
        self.send(key, task, Patience::None, Location::caller())
    }

    /// As [`Engine::submit_tracked_timeout`].
    ///
    /// # Errors
    /// As [`Engine::submit_timeout`].
    #[track_caller]
    pub fn submit_timeout(
        &self,
        key: K,
        task: T,
        timeout: Duration,
    ) -> Result<Ticket, SubmitError<K, T>> {
        self.send(key, task, until(timeout), Location::caller())
    }

    fn send(
        &self,
        key: K,
        task: T,
        patience: Patience,
        at: &'static Location<'static>,
    ) -> Result<Ticket, SubmitError<K, T>> {
        let front = &self.shared.front;
        let (shard, hash) = front.hash(&key);
        let cell = Arc::new(Cell::new(shard, hash));
        let target = Target { shard, hash, address: Address::Key(hash, key) };
        front.send_tracked(target, None, task, patience, &cell).map_err(
            |(address, task, reason)| match address {
                Address::Key(_, key) => SubmitError { key, task, reason },
                Address::Group(_) => unreachable!("submitted by key"),
            },
        )?;
        Ok(self.shared.ticket(cell, at))
    }
}

impl<K, T> Shared<K, T> {
    fn ticket(&self, cell: Arc<Cell>, at: &'static Location<'static>) -> Ticket {
        let host: Arc<dyn WaitHost> = self.control.clone();
        let host: Weak<dyn WaitHost> = Arc::downgrade(&host);
        Ticket::new(cell, host, at)
    }
}

impl<K: Hash + Eq, T> GroupHandle<K, T> {
    /// As [`Engine::submit_tracked`].
    ///
    /// # Errors
    /// Gives the task back with the reason.
    #[track_caller]
    pub fn submit_tracked(&self, task: T) -> Result<Ticket, GroupSubmitError<T>>
    where
        K: Debug,
    {
        self.send_tracked(task, Patience::Forever, Location::caller())
    }

    /// As [`Engine::try_submit_tracked`].
    ///
    /// # Errors
    /// Gives the task back with the reason.
    #[track_caller]
    pub fn try_submit_tracked(&self, task: T) -> Result<Ticket, GroupSubmitError<T>>
    where
        K: Debug,
    {
        self.send_tracked(task, Patience::None, Location::caller())
    }

    /// As [`Engine::submit_tracked_timeout`].
    ///
    /// # Errors
    /// Gives the task back with the reason.
    #[track_caller]
    pub fn submit_tracked_timeout(
        &self,
        task: T,
        timeout: Duration,
    ) -> Result<Ticket, GroupSubmitError<T>>
    where
        K: Debug,
    {
        self.send_tracked(task, until(timeout), Location::caller())
    }

    fn send_tracked(
        &self,
        task: T,
        patience: Patience,
        at: &'static Location<'static>,
    ) -> Result<Ticket, GroupSubmitError<T>>
    where
        K: Debug,
    {
        let shared = self.shared();
        shared.control.waits().name_keys(debug_text);
        let (hash, index) = self.place();
        // Before any lock of the slow way is taken: it asks under the claim.
        let block = shared.control.block(hash, index);
        let shard = shared.front.shard_of(hash);
        let cell = Arc::new(Cell::new(shard, hash));
        cell.found(block);
        let target = Target { shard, hash, address: Address::Group(index) };
        shared
            .front
            .send_tracked(target, Some(block), task, patience, &cell)
            .map_err(|(_, task, reason)| GroupSubmitError { task, reason })?;
        Ok(shared.ticket(cell, at))
    }
}

/// A record that was not accepted.
type Back<K, T> = (Address<K>, T, SubmitReason);

impl<K: Hash + Eq, T> Front<K, T> {
    /// As `Front::send`, for a task with a ticket: always the slow way, so that the others stay fast.
    fn send_tracked(
        &self,
        target: Target<K>,
        block: Option<NonNull<Group<K, T>>>,
        mut task: T,
        patience: Patience,
        cell: &Arc<Cell>,
    ) -> Result<(), Back<K, T>> {
        if let Some(exact) = self.exact() {
            return self.send_exactly(exact, target, block, task, patience, Some(cell));
        }
        let Target { shard, hash, mut address } = target;
        let door = &self.doors[shard];
        let mut gate = door.gate.enter();
        let mut tracked = Some(Tracked::new(cell.clone()));
        loop {
            if self.status.refuses() {
                return Err((address, task, SubmitReason::Closed));
            }
            let full = match self.bar(&gate, hash, &address, block) {
                Ok(full) => full,
                Err(reason) => return Err((address, task, reason)),
            };
            let why = if let Some(full) = full {
                full
            } else {
                // The lock is held from before the reservation until the record is published: notes are in the order of
                // positions, and no note is missed. Nobody who could be slow takes it.
                let mut table = door.tickets.lock();
                table.make_room();
                let pushed = door.ring.push_tracked(address, task, |position| {
                    cell.at(position);
                    if let Some(tracked) = tracked.take() {
                        table.note(position, tracked);
                    }
                });
                drop(table);
                match pushed {
                    Ok(()) => {
                        drop(gate);
                        self.published(door);
                        return Ok(());
                    }
                    Err((back, again, Refused::Closed)) => {
                        return Err((back, again, SubmitReason::Closed));
                    }
                    Err((back, again, full)) => {
                        (address, task) = (back, again);
                        self.refused(full)
                    }
                }
            };
            if let Err(reason) = self.wait_at(&mut gate, patience, why) {
                let reason = self.name_own(reason, why, &address, block);
                return Err((address, task, reason));
            }
        }
    }

    /// A handler that would wait for room in its own group is told so.
    pub(crate) fn name_own(
        &self,
        reason: SubmitReason,
        why: SubmitReason,
        address: &Address<K>,
        block: Option<NonNull<Group<K, T>>>,
    ) -> SubmitReason {
        if reason != SubmitReason::OwnWorker
            || !matches!(why, SubmitReason::GroupFull | SubmitReason::GroupHalted)
        {
            return reason;
        }
        let own = self.own_groups().into_iter().any(|group| match address {
            // SAFETY: this thread is in the dispatch of that group: it holds its token.
            Address::Key(_, key) => unsafe { group.as_ref().key() == key },
            Address::Group(_) => Some(group) == block,
        });
        if own { SubmitReason::OwnGroup } else { reason }
    }
}
