//! Leases: a batch that leaves the worker and comes back with its outcomes, from any thread, at any time.
//!
//! ```text
//!  worker: turn ── lend ──> Lease (the run token is in it) ──> any thread, any runtime
//!                                   │ complete, or dropped
//!                                   v
//!  outcomes to the head of the group, place = Returned, token to the inbox of the group's home worker
//!                                   v
//!  worker: take back = settle as after a turn (retries, used-up attempts, counters, permit, linger)
//! ```
//!
//! | the run token is | place | head, state and leased tasks belong to | who moves it on |
//! |---|---|---|---|
//! | in the lease | `Lease` | the lease | [`Grip::give_back`], once: by `complete`, by the drop, by the end of a future |
//! | on the ready list | `Returned` | whoever opens the unit | the worker that takes it back; after a halt, close |
//!
//! Invariants:
//!
//! * **I1** A group is leased once at a time: the lease has the group's only run token, and gives it back exactly once.
//! * **I2** Leased tasks do not move and are not dropped before they come back. Tasks stand in segments; a segment is written
//!   by the claim holder (behind the tail only), linked (`next` of the last one), and taken away only by the token holder
//!   ([`End::run`](crate::group::ring::End::run)) or by a claim holder that found the word quiet. While the lease is out the count is not
//!   zero, so the word is not quiet, the group is not reclaimed and its block, key and state stay.
//! * **I3** Nothing of the user's runs in the thread that completes, but for the drop of the lease's own parts: it stores, pushes and
//!   wakes. Only where the engine is gone (the lease has the last share of the core) it settles there: nobody else is left.
//! * **I4** After a halt no worker takes a lease back that none has in hand already. Close settles those that have come back, and
//!   counts those that have not ([`CloseReport::leased`](crate::CloseReport::leased)).
//!
//! Close and a completion race for the count of leases that are out, and for the notification:
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | completion: outcomes, then place = `Returned` | Release | close's look at the place | models::lease `close`, mutant `lease-place-relaxed` |
//! | completion: `returned` + 1, fence, look at the status | SeqCst | halt, fence, close's look at `returned` | models::lease `wait`, mutants `lease-no-fence`, `lease-no-notify` |
//! | completion: unit to the inbox | Release | the worker that takes it | models::inbox |
//!
//! Cost: one allocation a lease (72 bytes: marks, outcomes, permit), a share of the core (one read-modify-write each way), one
//! push. Nothing a task. A lease that is out holds 32 bytes beside what its group holds anyway.

pub(crate) mod back;
#[cfg(feature = "tokio")]
mod on_tokio;
mod run;
mod work;

use std::{fmt, marker::PhantomData, ptr::NonNull, sync::Arc};

#[cfg(feature = "tokio")]
pub use self::on_tokio::OnTokio;
pub use self::run::Attempt;
use self::run::Slot;
use crate::{
    batch::{Batch, Iter, IterMut},
    flow::admission::Admitted,
    group::block::{Block, Group},
    outcome::{Failure, FailureKind, IntoOutcomes, Outcome, Trouble, wrong_count},
    sync::mutant,
};

/// This thread runs what may own leases: it must not wait for them.
pub(crate) fn must_not_block() -> bool {
    #[cfg(feature = "tokio")]
    return on_tokio::must_not_block();
    #[cfg(not(feature = "tokio"))]
    false
}

/// What goes along with a lease, and comes back with it. Stands in the group's trouble while the token is on its way back.
#[derive(Debug)]
pub(crate) struct Leased {
    /// Tasks at the head that are leased.
    pub(crate) tasks: u32,
    /// Tasks that the group had when it was lent, and when that was (ms, as the ring's `since`): for linger.
    pub(crate) count: u32,
    pub(crate) since: u32,
    /// For how long, in ns, the group had waited then; for the watch.
    pub(crate) waited: u64,
    /// The permit. It stays taken while the lease is out.
    pub(crate) admitted: Option<Admitted>,
    /// One for each task, or none when all are done.
    pub(crate) outcomes: Vec<Outcome>,
}

/// Where leases come back to: the core, whatever its handler.
pub(crate) trait Home<K, T>: Send + Sync {
    /// # Safety
    /// The caller has the group's run token out of a lease, and gives it up.
    unsafe fn take_back(&self, group: NonNull<Group<K, T>>, record: Box<Trouble>);
}

/// The run token of a leased group. Gives it back once: with outcomes, or when it is dropped.
pub(crate) struct Grip<K, T> {
    group: NonNull<Group<K, T>>,
    /// `None`: given back.
    record: Option<Box<Trouble>>,
    home: Arc<dyn Home<K, T>>,
}

// SAFETY: the grip owns the token, and with it the consumer's side of the group: tasks and what is opened of the state (whose type
// asks for Send itself); the key is shared with the claim holder.
unsafe impl<K: Send + Sync, T: Send> Send for Grip<K, T> {}
// SAFETY: by reference it shows key, tasks and state to read.
unsafe impl<K: Send + Sync, T: Send + Sync> Sync for Grip<K, T> {}

impl<K, T> Grip<K, T> {
    /// # Safety
    /// The caller hands over the token of `group`, whose `record.lease` tasks stand at its head, and `home` is its core.
    pub(crate) unsafe fn new(
        group: NonNull<Group<K, T>>,
        record: Box<Trouble>,
        home: Arc<dyn Home<K, T>>,
    ) -> Self {
        Self { group, record: Some(record), home }
    }

    fn record(&self) -> &Trouble {
        self.record.as_deref().expect("not given back: that consumes the grip")
    }

    fn len(&self) -> u32 {
        self.record().lease.as_ref().map_or(0, |leased| leased.tasks)
    }

    fn group(&self) -> &Group<K, T> {
        // SAFETY: blocks live as long as the core, of which we have a share.
        unsafe { self.group.as_ref() }
    }

    /// # Safety
    /// Tasks are reached through one such value at a time, or only read.
    unsafe fn batch(&self) -> Batch<'_, K, T> {
        let trouble = self.record();
        // SAFETY: the token is ours: the head stands still, its tasks are ours (I2), the key stays.
        unsafe {
            Batch::new(self.group().key(), self.group().head_end(), self.len(), Some(trouble))
        }
    }

    /// The one way back.
    fn give_back(mut self, outcomes: Vec<Outcome>) {
        self.return_with(outcomes);
    }

    fn return_with(&mut self, outcomes: Vec<Outcome>) {
        let Some(mut record) = self.record.take() else { return };
        if let Some(leased) = &mut record.lease {
            leased.outcomes = outcomes;
        }
        // SAFETY: the record was still here, so the token is (I1).
        unsafe { self.home.take_back(self.group, record) };
    }
}

impl<K, T> Drop for Grip<K, T> {
    fn drop(&mut self) {
        if self.record.is_some() {
            let n = if mutant("lease-drop-is-done") { 0 } else { self.len() as usize };
            self.return_with(vec![Outcome::Retry(abandoned()); n]);
        }
    }
}

/// Nobody said what became of the tasks.
pub(super) fn abandoned() -> Failure {
    let why = if std::thread::panicking() {
        "a panic dropped the lease"
    } else {
        "the lease was dropped and not completed"
    };
    Failure::with_kind(why, FailureKind::Abandoned)
}

/// One outcome for each of `n` tasks, or none when all are done, whatever the answer is made of.
pub(super) fn outcomes_of(answer: impl IntoOutcomes, n: usize) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    answer.write(n, &mut outcomes);
    // The answer may be of the user's own making, and slots are passed by what it says.
    if !outcomes.is_empty() && outcomes.len() != n {
        let failure = wrong_count(outcomes.len(), n);
        outcomes.clear();
        outcomes.resize(n, Outcome::Fail(failure));
    }
    outcomes
}

/// A batch that left its worker: up to `batch_size` tasks of one group, oldest first, in place, with the group's state.
///
/// Its group stays in flight until the lease is completed or dropped: no other task of the group is run, its permit
/// ([`Builder::in_flight`](crate::Builder::in_flight)) stays taken, while the worker goes on with other groups. A lease may be sent
/// to any thread, kept for any time, and completed anywhere; completing never runs user code and never waits. Retries, dead letters and
/// everything else that follows from the outcomes happen on a worker of the engine, in the order of the group.
///
/// **A lease that is dropped without [`complete`](Self::complete)** has failed: each of its tasks, with
/// [`FailureKind::Abandoned`], and the [`Retry`](crate::Retry) policy says what follows. So a panic in the code that owns it, or a future
/// that is cancelled, is a failure of that batch and of nothing else. A lease that is forgotten (`std::mem::forget`) holds its group for
/// ever, and the memory of the engine with it.
///
/// A lease may outlive its engine: see [`CloseReport::leased`](crate::CloseReport::leased).
pub struct Lease<K, T, S = ()> {
    /// `None`: completed, or left in the slot.
    grip: Option<Grip<K, T>>,
    /// A future's answer completes it (lease/run.rs).
    slot: Option<Arc<Slot<K, T>>>,
    state: PhantomData<S>,
}

impl<K, T, S> Lease<K, T, S> {
    /// The group of `grip` has an open state of type `S`.
    pub(crate) fn new(grip: Grip<K, T>) -> Self {
        Self { grip: Some(grip), slot: None, state: PhantomData }
    }

    fn grip(&self) -> &Grip<K, T> {
        self.grip.as_ref().expect("there until it is completed, which consumes the lease")
    }

    /// The key of the group.
    pub fn key(&self) -> &K {
        // SAFETY: the group is live while its token is ours.
        unsafe { self.grip().group().key() }
    }

    /// The number of tasks; at least one.
    pub fn len(&self) -> usize {
        self.grip().len() as usize
    }

    /// Never true; here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which attempt this is for the task at `index`: 1 for the first.
    pub fn attempt(&self, index: usize) -> u32 {
        self.batch().attempt(index)
    }

    /// The task at `index`, counted from the oldest.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.iter().nth(index)
    }

    /// The task at `index`, to change or to take out of.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.iter_mut().nth(index)
    }

    /// The tasks, oldest first.
    pub fn iter(&self) -> Iter<'_, T> {
        self.batch().into_refs()
    }

    /// The tasks, oldest first, to change or to take out of.
    pub fn iter_mut(&mut self) -> IterMut<'_, T> {
        // SAFETY: borrowed from the lease for as long as the iterator lives.
        unsafe { self.grip().batch() }.into_muts()
    }

    /// The state of the group.
    pub fn state(&self) -> &S {
        // SAFETY: the state was opened before the lease was made, and is ours with the token.
        unsafe { (*self.state_slot()).assume_init_ref() }
    }

    /// The state of the group, to change.
    pub fn state_mut(&mut self) -> &mut S {
        // SAFETY: as `state`; borrowed from the lease.
        unsafe { (*self.state_slot()).assume_init_mut() }
    }

    /// State and tasks at the same time.
    ///
    /// ```
    /// # use bgrp::Lease;
    /// fn sum_up(mut lease: Lease<String, u64, u64>) {
    ///     let (sum, batch) = lease.split();
    ///     *sum += batch.iter().sum::<u64>();
    ///     lease.complete(());
    /// }
    /// ```
    pub fn split(&mut self) -> (&mut S, Batch<'_, K, T>) {
        let state = self.state_slot();
        // SAFETY: both are borrowed from the lease; state and tasks are different memory.
        unsafe { ((*state).assume_init_mut(), self.grip().batch()) }
    }

    /// Ends the lease: `outcomes` says what became of each task, as the answer of a batch handler does.
    ///
    /// Stores the outcomes, gives the group back to the engine and wakes a worker: no user code runs here and nothing is waited for.
    pub fn complete(mut self, outcomes: impl IntoOutcomes) {
        let outcomes = outcomes_of(outcomes, self.len());
        if let Some(grip) = self.grip.take() {
            grip.give_back(outcomes);
        }
    }

    fn batch(&self) -> Batch<'_, K, T> {
        // SAFETY: only read through it, as long as the lease is only read.
        unsafe { self.grip().batch() }
    }

    fn state_slot(&self) -> *mut std::mem::MaybeUninit<S> {
        // SAFETY: a lease is made for a block with this state (worker/lend.rs); blocks live as long as the core.
        unsafe { self.grip().group.cast::<Block<K, T, S>>().as_ref() }.state()
    }
}

// SAFETY: with the token the lease owns tasks and state; the key is shared.
unsafe impl<K: Send + Sync, T: Send, S: Send> Send for Lease<K, T, S> {}
// SAFETY: by reference it shows key, tasks and state to read.
unsafe impl<K: Send + Sync, T: Send + Sync, S: Send + Sync> Sync for Lease<K, T, S> {}

impl<K, T, S> Drop for Lease<K, T, S> {
    fn drop(&mut self) {
        if let (Some(grip), Some(slot)) = (self.grip.take(), self.slot.take()) {
            slot.lease_ends(grip);
        }
    }
}

impl<K: fmt::Debug, T: fmt::Debug, S> fmt::Debug for Lease<K, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.key())
            .field("tasks", &self.iter().collect::<Vec<_>>())
            .finish()
    }
}
