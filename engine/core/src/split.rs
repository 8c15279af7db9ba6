//! A hot key, spread: one logical group as several groups that only their handle knows.
//!
//! | part of a split | any other group |
//! |---|---|
//! | a block with a copy of the key, pinned by the handle | a block with the key |
//! | in no map: nobody finds it by its key | found by its key |
//! | in a shard of its own as long as there are enough | in the shard of its key |
//! | counted: each dispatch adds to the split's [`Tally`] (wait/tally.rs) | not counted |
//! | reclaimed at its shard's next look, once the handle is gone and it is idle | reclaimed when there are too many groups |
//!
//! Everything else is the same: order, state, retries, limits, close.
//!
//! Cost: a submit is that of a group handle, and one more read-modify-write on a line that all submitters of the split share; a
//! dispatch pays two short locks.

use std::{
    fmt,
    hash::Hash,
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use ahash::RandomState;

use crate::{
    core::Core,
    engine::{Engine, Shared, until},
    error::GroupSubmitError,
    front::{Patience, Target},
    group::block::{Flags, Group},
    handler::Work,
    ingress::ring::Address,
    sync::{AtomicU32, Ordering, wait},
    wait::tally::{Figures, Tally},
};

/// Parts of one split, at most.
const MOST: usize = 1_024;
/// How long to wait for a claim holder to come round, before the next look.
const MOMENT: Duration = Duration::from_millis(1);

/// Why a group was not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitError {
    /// The number of parts is not between 1 and 1024.
    Parts(usize),
    /// The group was never idle within this time.
    TimedOut(Duration),
    /// The group is halted.
    Halted,
    /// The group is not idle, and the caller is a handler of this engine.
    OwnWorker,
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parts(n) => write!(f, "a split has between 1 and {MOST} parts, not {n}"),
            Self::TimedOut(after) => write!(
                f,
                "the group had tasks for all of {after:?}; stop submitting to its key, or wait longer"
            ),
            Self::Halted => f.write_str("the group is halted: what waits in it will not run"),
            Self::OwnWorker => f.write_str(
                "the group has tasks, and a handler must not wait for its own engine; split it elsewhere",
            ),
        }
    }
}

impl std::error::Error for SplitError {}

/// Not all tasks of a split had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JoinError {
    /// What has ended so far.
    pub figures: Figures,
    /// Tasks that were submitted and have not ended.
    pub open: u64,
    /// The caller is a handler of the same engine and was not let wait; otherwise the time was up.
    pub own_worker: bool,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.own_worker {
            "a handler must not wait for its own engine"
        } else {
            "the time was up"
        };
        write!(
            f,
            "{} of the tasks have ended and {} have not: {why}",
            self.figures.ended(),
            self.open
        )
    }
}

impl std::error::Error for JoinError {}

/// What a split needs of the core.
pub(crate) trait Splits<K, T>: Send + Sync {
    /// A group that nobody finds by its key: pinned, and counted in `tally`.
    fn make_part(&self, hash: u32, key: K, tally: &Arc<Tally>) -> u32;
    /// The handle is gone.
    fn drop_part(&self, part: &Part<K, T>);
    /// Waits for a moment at which the group with this key has no task, after all that were accepted before the call.
    fn wait_idle(&self, hash: u32, key: &K, deadline: Option<Instant>) -> Result<(), NotIdle>;
}

/// Why [`Splits::wait_idle`] came back early.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotIdle {
    TimedOut,
    Halted,
}

/// One part of a split.
pub(crate) struct Part<K, T> {
    hash: u32,
    index: u32,
    block: NonNull<Group<K, T>>,
}

// SAFETY: the block lives as long as the engine, of which the split has a share; only its word is read through the pointer.
unsafe impl<K: Send + Sync, T: Send> Send for Part<K, T> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, T: Send> Sync for Part<K, T> {}

impl<K, T, W> Splits<K, T> for Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn make_part(&self, hash: u32, key: K, tally: &Arc<Tally>) -> u32 {
        let shard = self.front.shard_of(hash);
        let mut back = self.backs[shard].lock();
        let index = back.make_part(hash, key);
        back.pin(index);
        self.census(&mut back);
        let group = back.group(index);
        // Under the claim and before its first task: every dispatch of the group counts.
        self.front.doors[shard].tickets.lock().entry(NonNull::from(group)).tally =
            Some(tally.clone());
        group.word.track();
        index
    }

    fn drop_part(&self, part: &Part<K, T>) {
        let door = &self.front.doors[self.front.shard_of(part.hash)];
        {
            let mut table = door.tickets.lock();
            if let Some(entry) = table.find(part.block) {
                entry.tally = None;
            }
            // TRACKED goes with the next dispatch, if there is one.
            table.tidy(part.block);
        }
        crate::engine::Control::unpin(self, part.hash, part.index);
        // Somebody looks at the shard, and reclaims.
        self.front.published(door);
    }

    fn wait_idle(&self, hash: u32, key: &K, deadline: Option<Instant>) -> Result<(), NotIdle> {
        let shard = self.front.shard_of(hash);
        let door = &self.front.doors[shard];
        let accepted = door.ring.tail().0;
        loop {
            let back = self.backs[shard].lock();
            let taken = back.head >= accepted;
            let group = back.find(hash, key).map(|index| back.group(index));
            let state = group.map(|group| group.word.load());
            if state.is_some_and(|state| state.is_halted()) {
                return Err(NotIdle::Halted);
            }
            if taken && state.is_none_or(|state| state.is_idle()) {
                return Ok(());
            }
            let left = deadline.map(|end| end.saturating_duration_since(crate::sync::instant()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(NotIdle::TimedOut);
            }
            let mut table = door.tickets.lock();
            let watched = match group {
                // The flag first, then the look: whoever makes the group idle after it sees the flag, and wakes behind the lock.
                Some(group) if taken => {
                    let pointer = NonNull::from(group);
                    table.entry(pointer).watchers += 1;
                    group.word.track();
                    if group.word.load().is_idle() {
                        table.entry(pointer).watchers -= 1;
                        continue;
                    }
                    Some(pointer)
                }
                _ => None,
            };
            drop(back);
            let moment = watched.is_none().then_some(MOMENT);
            table = wait(&door.tickets.idle, table, left.into_iter().chain(moment).min());
            if let Some(pointer) = watched {
                table.entry(pointer).watchers -= 1;
                table.tidy(pointer);
            }
        }
    }
}

impl<K: Hash + Eq + Clone, T> Engine<K, T> {
    /// Spreads one logical group over `parts` groups, for a key that has more work than one group can do. Waits until the group of
    /// the key is idle, so that everything accepted for the key before the call ended before the split begins.
    ///
    /// The parts are the handle's own: tasks submitted to the key meanwhile, by [`Engine::submit`], go to the group of the key, and
    /// have no order with those of the split. Each part has a state of its own, and limits of each group hold for each part.
    ///
    /// ```
    /// use std::time::Duration;
    /// use bgrp::Engine;
    /// let engine = Engine::<&str, (u64, &str)>::builder().task_handler(|_, _| ()).build()?;
    /// let split = engine.split("merchant_1001", 4)?;
    /// for order in 0..100 {
    ///     // In order for each order number, in parallel for different ones.
    ///     split.submit_to(order, (order, "paid"))?;
    ///     split.submit_to(order, (order, "shipped"))?;
    /// }
    /// let figures = split.join(Duration::from_secs(10))?;
    /// assert_eq!(figures.done, 200);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The number of parts is out of its bounds, the group is halted, or a handler of this engine would have to wait.
    pub fn split(&self, key: K, parts: usize) -> Result<Split<K, T>, SplitError> {
        self.split_by(key, parts, None, Duration::MAX)
    }

    /// As [`Engine::split`]; waits at most so long for the group to be idle.
    ///
    /// # Errors
    /// As [`Engine::split`], and when the time was up first.
    pub fn split_timeout(
        &self,
        key: K,
        parts: usize,
        timeout: Duration,
    ) -> Result<Split<K, T>, SplitError> {
        self.split_by(key, parts, crate::sync::instant().checked_add(timeout), timeout)
    }

    fn split_by(
        &self,
        key: K,
        parts: usize,
        deadline: Option<Instant>,
        timeout: Duration,
    ) -> Result<Split<K, T>, SplitError> {
        if !(1..=MOST).contains(&parts) {
            return Err(SplitError::Parts(parts));
        }
        let (_, hash) = self.front.hash(&key);
        let control = &self.shared.control;
        let own = self.front.is_own_worker();
        let deadline = if own { Some(crate::sync::instant()) } else { deadline };
        control.wait_idle(hash, &key, deadline).map_err(|why| match why {
            NotIdle::Halted => SplitError::Halted,
            NotIdle::TimedOut if own => SplitError::OwnWorker,
            NotIdle::TimedOut => SplitError::TimedOut(timeout),
        })?;
        let tally = Arc::new(Tally::new());
        let keys = std::iter::repeat_n(key, parts);
        let parts = keys.zip(1..).map(|(key, n)| {
            // Shards are the lowest bits: neighbours are in different ones, at home with different workers.
            let hash = hash.wrapping_add(n);
            let index = control.make_part(hash, key, &tally);
            Part { hash, index, block: control.block(hash, index) }
        });
        Ok(Split {
            parts: parts.collect(),
            shared: self.shared.clone(),
            tally,
            next: AtomicU32::new(0),
            hasher: RandomState::new(),
        })
    }
}

/// One logical group, spread over several: from [`Engine::split`]. Share it by reference or in an [`Arc`].
///
/// Dropping it lets the tasks submitted through it run; its groups go when they have.
pub struct Split<K, T> {
    shared: Arc<Shared<K, T>>,
    parts: Box<[Part<K, T>]>,
    tally: Arc<Tally>,
    next: AtomicU32,
    hasher: RandomState,
}

impl<K: Hash + Eq, T> Split<K, T> {
    /// Submits a task; tasks with equal sub-keys run one after another, in the order of their submits. Waits while there is no room.
    ///
    /// # Errors
    /// Gives the task back with the reason.
    pub fn submit_to(&self, sub_key: impl Hash, task: T) -> Result<(), GroupSubmitError<T>> {
        self.send(self.part_of(sub_key), task, Patience::Forever)
    }

    /// As [`Split::submit_to`], without waiting.
    ///
    /// # Errors
    /// Gives the task back with the reason.
    pub fn try_submit_to(&self, sub_key: impl Hash, task: T) -> Result<(), GroupSubmitError<T>> {
        self.send(self.part_of(sub_key), task, Patience::None)
    }

    /// As [`Split::submit_to`]; waits at most `timeout` for room.
    ///
    /// # Errors
    /// Gives the task back with the reason.
    pub fn submit_to_timeout(
        &self,
        sub_key: impl Hash,
        task: T,
        timeout: Duration,
    ) -> Result<(), GroupSubmitError<T>> {
        self.send(self.part_of(sub_key), task, until(timeout))
    }

    /// Submits a task of which the caller says that it does not depend on any other: parts are taken in
    /// turn, but for one that holds more than the next. Waits while there is no room.
    ///
    /// # Errors
    /// Gives the task back with the reason.
    pub fn submit_any(&self, task: T) -> Result<(), GroupSubmitError<T>> {
        self.send(self.emptier(), task, Patience::Forever)
    }

    /// As [`Split::submit_any`], without waiting.
    ///
    /// # Errors
    /// Gives the task back with the reason.
    pub fn try_submit_any(&self, task: T) -> Result<(), GroupSubmitError<T>> {
        self.send(self.emptier(), task, Patience::None)
    }

    fn part_of(&self, sub_key: impl Hash) -> &Part<K, T> {
        let hash = self.hasher.hash_one(sub_key);
        &self.parts[(hash % self.parts.len() as u64) as usize]
    }

    fn emptier(&self) -> &Part<K, T> {
        let n = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let part = |n: usize| &self.parts[n % self.parts.len()];
        // SAFETY: blocks live as long as the engine, of which we have a share.
        let backlog = |part: &Part<K, T>| unsafe { part.block.as_ref() }.word.load().count();
        let (one, other) = (part(n), part(n + 1));
        // One more may be a task that has just ended.
        if backlog(other) + 1 < backlog(one) { other } else { one }
    }

    fn send(
        &self,
        part: &Part<K, T>,
        task: T,
        patience: Patience,
    ) -> Result<(), GroupSubmitError<T>> {
        let front = &self.shared.front;
        self.tally.submits();
        let sent = front.submit_to(part.hash, part.index, task).or_else(|task| {
            let address = Address::Group(part.index);
            let shard = front.shard_of(part.hash);
            let target = Target { shard, hash: part.hash, address };
            front
                .send(target, Some(part.block), task, patience)
                .map_err(|(_, task, reason)| GroupSubmitError { task, reason })
        });
        if sent.is_err() {
            self.tally.refused();
        }
        sent
    }

    /// Waits until everything that was submitted through this handle before the call has ended, one way or the other.
    ///
    /// From inside a handler of the same engine it does not wait.
    ///
    /// # Errors
    /// The time was up first; the error says how far it has come. Join again to wait on.
    pub fn join(&self, timeout: Duration) -> Result<Figures, JoinError> {
        let own_worker = self.shared.front.is_own_worker();
        let timeout = if own_worker { Duration::ZERO } else { timeout };
        self.tally.join(crate::sync::instant().checked_add(timeout)).map_err(|figures| JoinError {
            figures,
            open: self.tally.submitted().saturating_sub(figures.ended()),
            own_worker,
        })
    }
}

impl<K, T> Split<K, T> {
    /// The number of groups over which the tasks are spread.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// What has become of the tasks so far.
    pub fn figures(&self) -> Figures {
        self.tally.figures()
    }
}

impl<K, T> Drop for Split<K, T> {
    fn drop(&mut self) {
        for part in &self.parts {
            self.shared.control.drop_part(part);
        }
    }
}

impl<K, T> fmt::Debug for Split<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split")
            .field("parts", &self.parts.len())
            .field("figures", &self.figures())
            .finish_non_exhaustive()
    }
}

impl Flags {
    /// A part of a split: in no map.
    pub(crate) const PART: Self = Self::bit(6);
}
