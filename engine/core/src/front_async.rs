//! `submit_async`: a submit that waits for room without a thread, on any runtime.
//!
//! A future that finds no room leaves its waker at the gate of its shard, under the same protocol as a thread that waits there
//! (flow/gate.rs): announced, fenced, tried again under the lock. Wakers are moved to a list of those that are due under that lock, and
//! woken when no lock of the engine is held: what a waker does is its runtime's business.

use std::{
    fmt,
    future::Future,
    hash::Hash,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::{
    engine::Engine,
    error::{GroupSubmitError, SubmitError, SubmitReason},
    exact::{Exact, Record, Refused},
    flow::line::Seat,
    front::{Front, Patience, Target},
    group_handle::GroupHandle,
    ingress::ring::Address,
};

/// What a try came to.
enum Tried<K, T> {
    Sent,
    Refused(Address<K>, T, SubmitReason),
    /// The waker waits at the gate under this number.
    Waits(Address<K>, T, u64),
}

/// How a submit ended.
type Sent<K, T> = Result<(), (Address<K>, T, SubmitReason)>;

/// A task on its way in.
struct Sending<'a, K, T> {
    front: &'a Front<K, T>,
    /// Where it goes by handle.
    handle: Option<&'a GroupHandle<K, T>>,
    hash: u32,
    item: Option<(Address<K>, T)>,
    ticket: Option<u64>,
    /// Where capacities are exact: its place in the lines, and what the task weighs.
    seat: Seat<K, T>,
    bytes: Option<u32>,
}

impl<'a, K, T> Sending<'a, K, T> {
    fn new(
        front: &'a Front<K, T>,
        handle: Option<&'a GroupHandle<K, T>>,
        hash: u32,
        item: Option<(Address<K>, T)>,
    ) -> Self {
        Self { front, handle, hash, item, ticket: None, seat: Seat::default(), bytes: None }
    }

    fn waits(&self) -> bool {
        self.ticket.is_some() || self.seat.waits()
    }
}

impl<K: Hash + Eq, T> Sending<'_, K, T> {
    fn poll(&mut self, waker: &Waker) -> Poll<Sent<K, T>> {
        if let Some(exact) = self.front.exact() {
            return self.poll_exactly(exact, waker);
        }
        let (address, task) = self.item.take().expect("polled after it was ready");
        self.leave();
        match self.try_once(address, task, waker) {
            Tried::Sent => Poll::Ready(Ok(())),
            Tried::Refused(address, task, reason) => Poll::Ready(Err((address, task, reason))),
            Tried::Waits(address, task, ticket) => {
                self.item = Some((address, task));
                self.ticket = Some(ticket);
                Poll::Pending
            }
        }
    }

    /// As `poll`, where capacities are exact: the waker stands in a line.
    fn poll_exactly(&mut self, exact: &dyn Exact<K, T>, waker: &Waker) -> Poll<Sent<K, T>> {
        let (address, task) = self.item.take().expect("polled after it was ready");
        let block = self.handle.map(GroupHandle::block);
        let bytes = match self.bytes {
            Some(bytes) => bytes,
            None => match exact.weigh(&address, block, &task) {
                Ok(bytes) => *self.bytes.insert(bytes),
                Err(reason) => return Poll::Ready(Err((address, task, reason))),
            },
        };
        let mut record = Some(Record { hash: self.hash, address, task, bytes, cell: None });
        let entered = exact.enter(&mut record, &mut self.seat, Some(waker.clone()));
        let Some(Record { address, task, .. }) = record else { return Poll::Ready(Ok(())) };
        match entered {
            Err(Refused::Never(reason)) => Poll::Ready(Err((address, task, reason))),
            _ => {
                self.item = Some((address, task));
                Poll::Pending
            }
        }
    }

    fn try_once(&self, address: Address<K>, task: T, waker: &Waker) -> Tried<K, T> {
        let front = self.front;
        let shard = front.shard_of(self.hash);
        let block = self.handle.map(GroupHandle::block);
        let target = Target { shard, hash: self.hash, address };
        let (mut address, mut task) = match front.send(target, block, task, Patience::None) {
            Ok(()) => return Tried::Sent,
            Err((address, task, reason)) if is_room(reason, front) => (address, task),
            Err((address, task, reason)) => return Tried::Refused(address, task, reason),
        };
        let door = &*front.doors[shard];
        let gate = door.gate.enter();
        if front.status.refuses() {
            return Tried::Refused(address, task, SubmitReason::Closed);
        }
        match front.bar(&gate, self.hash, &address, block) {
            Err(reason) => return Tried::Refused(address, task, reason),
            Ok(Some(_)) => {}
            Ok(None) => match door.ring.push(address, task) {
                Ok(()) => {
                    drop(gate);
                    front.published(door);
                    return Tried::Sent;
                }
                Err((back, again, refused)) => {
                    (address, task) = (back, again);
                    if front.refused(refused) == SubmitReason::Closed {
                        return Tried::Refused(address, task, SubmitReason::Closed);
                    }
                }
            },
        }
        let ticket = gate.stay(waker.clone());
        Tried::Waits(address, task, ticket)
    }
}

/// What is missing is room, so that waiting may help.
fn is_room<K, T>(reason: SubmitReason, front: &Front<K, T>) -> bool {
    match reason {
        SubmitReason::GroupFull | SubmitReason::EngineFull => true,
        SubmitReason::GroupHalted => front.waits_at_halted(),
        _ => false,
    }
}

impl<K, T> Sending<'_, K, T> {
    /// Nobody waits at the gate any more.
    fn leave(&mut self) {
        if self.seat.waits()
            && let Some(exact) = self.front.exact()
        {
            exact.leave(&mut self.seat);
        }
        if let Some(ticket) = self.ticket.take() {
            self.front.doors[self.front.shard_of(self.hash)].gate.leave(ticket);
        }
    }
}

impl<K, T> Drop for Sending<'_, K, T> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A submit that waits for room without a thread, from [`Engine::submit_async`].
///
/// Dropping it before it is ready submits nothing: key and task are dropped with it, or come back by [`SubmitAsync::into_inner`].
#[must_use = "a future does nothing unless it is polled"]
pub struct SubmitAsync<'a, K, T>(Sending<'a, K, T>);

impl<K, T> SubmitAsync<'_, K, T> {
    /// Gives it up: key and task, unless they were submitted or came back in an error already.
    pub fn into_inner(mut self) -> Option<(K, T)> {
        match self.0.item.take()? {
            (Address::Key(_, key), task) => Some((key, task)),
            (Address::Group(_), _) => None,
        }
    }
}

// Key and task are moved, never pinned.
impl<K, T> Unpin for SubmitAsync<'_, K, T> {}

impl<K: Hash + Eq, T> Future for SubmitAsync<'_, K, T> {
    type Output = Result<(), SubmitError<K, T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context.waker()).map_err(|(address, task, reason)| match address {
            Address::Key(_, key) => SubmitError { key, task, reason },
            Address::Group(_) => unreachable!("submitted by key"),
        })
    }
}

impl<K, T> fmt::Debug for SubmitAsync<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitAsync").field("waits", &self.0.waits()).finish_non_exhaustive()
    }
}

/// As [`SubmitAsync`], from [`GroupHandle::submit_async`].
#[must_use = "a future does nothing unless it is polled"]
pub struct GroupSubmitAsync<'a, K, T>(Sending<'a, K, T>);

impl<K, T> GroupSubmitAsync<'_, K, T> {
    /// Gives it up: the task, unless it was submitted or came back in an error already.
    pub fn into_inner(mut self) -> Option<T> {
        self.0.item.take().map(|(_, task)| task)
    }
}

// The task is moved, never pinned.
impl<K, T> Unpin for GroupSubmitAsync<'_, K, T> {}

impl<K: Hash + Eq, T> Future for GroupSubmitAsync<'_, K, T> {
    type Output = Result<(), GroupSubmitError<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let sent = self.0.poll(context.waker());
        sent.map_err(|(_, task, reason)| GroupSubmitError { task, reason })
    }
}

impl<K, T> fmt::Debug for GroupSubmitAsync<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupSubmitAsync").field("waits", &self.0.waits()).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq, T> Engine<K, T> {
    /// Submits a task; where there is no room, the future waits for it, without a thread. It needs no particular runtime.
    ///
    /// The task is submitted when the future is polled with success, and its place in the order of its key is that of this poll.
    /// Cancel-safe: a future that is dropped before has submitted nothing.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// async fn take(engine: &Engine<String, u32>) -> Result<(), Box<dyn std::error::Error>> {
    ///     engine.submit_async("merchant_1001".to_owned(), 7).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// Gives key and task back when the engine is closed, or the group is closed or halted and full.
    pub fn submit_async(&self, key: K, task: T) -> SubmitAsync<'_, K, T> {
        let (_, hash) = self.front.hash(&key);
        let item = Some((Address::Key(hash, key), task));
        SubmitAsync(Sending::new(&self.front, None, hash, item))
    }
}

impl<K: Hash + Eq, T> GroupHandle<K, T> {
    /// As [`Engine::submit_async`](crate::Engine::submit_async).
    ///
    /// # Errors
    /// Gives the task back, as there.
    pub fn submit_async(&self, task: T) -> GroupSubmitAsync<'_, K, T> {
        let item = Some((Address::Group(self.index), task));
        let (front, hash) = (&*self.shared.front, self.hash);
        GroupSubmitAsync(Sending::new(front, Some(self), hash, item))
    }
}
