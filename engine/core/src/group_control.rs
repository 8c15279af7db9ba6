//! One group by hand: pause, resume, cancel what waits, discard, drain, close.
//!
//! Each call writes what is wanted into the table of held groups and takes the group's run token where it rests; where a
//! worker has it, that worker does it before the next task (lifecycle/held.rs).

use std::{
    fmt,
    hash::Hash,
    ptr::NonNull,
    time::{Duration, Instant},
};

use crate::{
    core::Core,
    engine::{Engine, Shared},
    group::{block::Group, state::Called, token::RunToken},
    group_handle::GroupHandle,
    handler::Work,
    lifecycle::{
        close::GRACE,
        held::{After, Ask},
    },
    outcome::Failure,
    sync::mutant,
    wait::check::WaitHost,
};

/// Why a call about one group could not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// A task of the group is running, or about to, and the caller may not wait for it: it is a handler of this engine, or
    /// the engine is stepped by hand.
    Busy,
    /// The engine is halted or closed: [`Engine::close`] gives back what is left.
    Closed,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => {
                "the group is running, and a handler must not wait for its own engine; \
                 ask from another thread, or pause the group first"
            }
            Self::Closed => "the engine is halted or closed; Engine::close gives back what is left",
        })
    }
}

impl std::error::Error for GroupError {}

/// Why a group stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HaltReason {
    /// The attempts of a task were used up and the policy said [`Verdict::HaltGroup`](crate::Verdict::HaltGroup), for this
    /// failure.
    Exhausted(Failure),
    /// It was paused.
    Paused,
    /// It was closed.
    Closed,
}

/// A group that stands: it starts no task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HaltedGroup<K> {
    /// Its key.
    pub key: K,
    /// Why it stands; of several reasons the first of closed, exhausted, paused.
    pub why: HaltReason,
    /// Tasks that wait in it.
    pub tasks: usize,
    /// How long ago it was stopped.
    pub since: Duration,
    /// Its last dispatch is not over yet, or it waits for something else (a back-off, a permit) before it comes to rest.
    pub running: bool,
}

/// What the close of one group gives back.
#[derive(Debug)]
#[non_exhaustive]
pub struct GroupReport<T> {
    /// The tasks that did not end, in order.
    pub left: Vec<T>,
    /// A handler of the group was still running at the deadline, and what waits behind it is not in `left`: close the group
    /// again to get it.
    pub running: bool,
}

impl<T> GroupReport<T> {
    /// Every task of the group ended.
    pub fn is_complete(&self) -> bool {
        self.left.is_empty() && !self.running
    }
}

/// Which group: by its key, or by its index in its shard, with the hash bits.
pub(crate) enum Who<'a, K> {
    Key(u32, &'a K),
    Index(u32, u32),
}

impl<K> Clone for Who<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Who<'_, K> {}

impl<K> Who<'_, K> {
    fn hash(&self) -> u32 {
        match self {
            Self::Key(hash, _) | Self::Index(hash, _) => *hash,
        }
    }
}

/// What is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Pause,
    /// And wait until it has come to rest.
    PauseAndRest,
    Resume,
    Cancel,
    /// Cancel, and resume what was halted or paused.
    Discard,
    Drain,
    /// It stands from now on, and gives back what waits.
    Close,
}

/// What came of it.
pub(crate) struct Reply<T> {
    /// It stood, or was about to.
    stood: bool,
    /// The answer; `None`: it did not come in time, or the engine is halted.
    tasks: Option<Vec<T>>,
}

/// What the face needs of the core for single groups.
pub(crate) trait GroupControl<K, T> {
    fn request(&self, who: Who<'_, K>, wish: Wish, deadline: Option<Instant>) -> Reply<T>;
    /// From now on, or no longer, submits to the group are refused.
    fn shut(&self, who: Who<'_, K>, shut: bool);
    /// Shows each group that stands or is about to, under the table's lock.
    fn visit_halted(&self, visit: &mut dyn FnMut(&K, HaltReason, usize, Duration, bool));
}

impl<K, T, W> GroupControl<K, T> for Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn request(&self, who: Who<'_, K>, wish: Wish, deadline: Option<Instant>) -> Reply<T> {
        let shard = self.front.shard_of(who.hash());
        let mut desk = self.desk(shard);
        let mut after = After::default();
        let mut back = self.backs[shard].lock();
        if self.front.status.stops() {
            // Under the claim: close takes the shard apart after it has stopped, and after us.
            return Reply { stood: false, tasks: None };
        }
        if matches!(wish, Wish::Cancel | Wish::Discard | Wish::Drain | Wish::Close) {
            self.take_in(shard, &mut back, &mut desk);
        }
        let index = match who {
            Who::Key(hash, key) => back.find(hash, key),
            Who::Index(_, index) => Some(index),
        };
        let Some(index) = index else {
            drop(back);
            self.clear_desk(shard, desk);
            return Reply { stood: false, tasks: Some(Vec::new()) };
        };
        let group = NonNull::from(back.group(index));
        // SAFETY: blocks live as long as the engine.
        let reference: &Group<K, T> = unsafe { &*group.as_ptr() };
        let mut table = self.held.table();
        let now = self.front.ready.clock.now();
        let before = table.entries.get(&group).is_some_and(|entry| entry.stands());
        if wish == Wish::Resume && !before {
            drop((table, back));
            self.clear_desk(shard, desk);
            return Reply { stood: false, tasks: Some(Vec::new()) };
        }
        let ask = match wish {
            Wish::Pause | Wish::Resume => None,
            Wish::PauseAndRest => Some(Ask::Rest),
            Wish::Cancel | Wish::Discard | Wish::Close => Some(Ask::Pending),
            Wish::Drain => Some(Ask::Empty),
        };
        let entry = table.entries.entry(group).or_default();
        match wish {
            Wish::Pause | Wish::PauseAndRest => entry.paused = true,
            Wish::Close => entry.closed = true,
            Wish::Resume => (entry.paused, entry.closed, entry.halted) = (false, false, None),
            Wish::Discard if mutant("discard-stays-halted") => {}
            Wish::Discard => (entry.paused, entry.halted) = (false, None),
            Wish::Cancel | Wish::Drain => {}
        }
        if entry.stands() && !before {
            entry.since = now;
        }
        let ask = ask.map(|ask| table.ask(group, ask));
        let entry = table.entries.entry(group).or_default();
        let is_ours = match reference.word.call() {
            Called::Token => true,
            Called::Held => {
                let unit = entry.unit.take();
                debug_assert!(unit.is_some(), "a held token is in its entry");
                // ORDERING: SeqCst, see `Core::is_drained`. The claim is ours: nobody adds meanwhile.
                let count = u64::from(reference.word.load().count());
                self.held.tasks.fetch_sub(count, std::sync::atomic::Ordering::SeqCst);
                true
            }
            Called::Busy => {
                if !matches!(wish, Wish::Resume | Wish::Drain) && !entry.loud {
                    entry.loud = true;
                    self.front.status.call();
                }
                // Who waits for the group does not wait for its timer.
                matches!(wish, Wish::PauseAndRest | Wish::Cancel | Wish::Discard | Wish::Close)
                    && self.fetch(group).is_some()
            }
        };
        if is_ours {
            // SAFETY: the token is ours, one way or the other, and whatever unit stood for it is gone.
            let token = unsafe { RunToken::new(group, &self.front.ready) };
            // SAFETY: we hold the claim, and the token of a group that was idle, if it has no segment.
            let producer = unsafe { reference.producer() };
            if producer.tail.is_detached() {
                *producer.tail = back.segment_for(index, producer.flags, &mut desk.pool);
                // SAFETY: as above.
                unsafe { reference.set_head(*producer.tail) };
            }
            if reference.word.load().count() == 0 {
                // It has not got on since now, should a task come while it stands.
                // SAFETY: the token is ours, and the group has a segment.
                unsafe { reference.head_end() }.set_stamp(now);
            }
            if let Some(token) = self.decide(&mut table, token, &mut desk.pool, &mut after) {
                after.ready.push(token.rest());
            }
        }
        drop((table, back));
        self.clear_desk(shard, desk);
        self.follow_up(group, after);
        // Who waits for a task of it may have to give up, or may go on.
        self.poke_waits();
        let tasks = match ask {
            Some(ask) => self.await_reply(group, ask, deadline),
            None => Some(Vec::new()),
        };
        Reply { stood: before, tasks }
    }

    fn shut(&self, who: Who<'_, K>, shut: bool) {
        let shard = self.front.shard_of(who.hash());
        let mut back = self.backs[shard].lock();
        let index = match who {
            Who::Key(hash, key) => back.find(hash, key),
            Who::Index(_, index) => Some(index),
        };
        if let Some(index) = index.filter(|_| !self.front.status.stops()) {
            let group = NonNull::from(back.group(index));
            let gate = &self.front.doors[shard].gate;
            let changed = if shut && mutant("close-stays-open") {
                false
            } else if shut {
                gate.shut(&self.front.filter, who.hash(), group)
            } else {
                gate.open(&self.front.filter, who.hash(), group)
            };
            // A closed group exists until it is opened again, tasks or not.
            match (changed, shut) {
                (true, true) => back.pin(index),
                (true, false) => back.unpin(index),
                _ => {}
            }
            drop(back);
            gate.wake_due();
            if self.settings.exact {
                self.tell_line(group, true);
            }
        }
    }

    fn visit_halted(&self, visit: &mut dyn FnMut(&K, HaltReason, usize, Duration, bool)) {
        let now = self.front.ready.clock.now();
        let table = self.held.table();
        for (group, entry) in &table.entries {
            if !entry.stands() {
                continue;
            }
            // SAFETY: blocks live as long as the engine, and a group with an entry is not taken apart under the lock.
            let (group, key) = unsafe { (group.as_ref(), group.as_ref().key()) };
            let why = match &entry.halted {
                _ if entry.closed => HaltReason::Closed,
                Some(failure) => HaltReason::Exhausted(failure.clone()),
                None => HaltReason::Paused,
            };
            let tasks = group.word.load().count() as usize;
            let since = Duration::from_nanos(now.saturating_sub(entry.since));
            visit(key, why, tasks, since, entry.unit.is_none());
        }
    }
}

impl<K, T> Shared<K, T> {
    fn ask(&self, who: Who<'_, K>, wish: Wish, timeout: Option<Duration>) -> Reply<T> {
        // A time that is too far to add is no deadline.
        let deadline = timeout.and_then(|timeout| crate::sync::instant().checked_add(timeout));
        self.control.request(who, wish, deadline)
    }

    fn tasks(&self, who: Who<'_, K>, wish: Wish) -> Result<Vec<T>, GroupError> {
        self.ask(who, wish, None).tasks.ok_or_else(|| {
            if self.front.status.stops() { GroupError::Closed } else { GroupError::Busy }
        })
    }

    fn resume(&self, who: Who<'_, K>) -> bool {
        self.control.shut(who, false);
        self.ask(who, Wish::Resume, None).stood
    }

    fn close_group(&self, who: Who<'_, K>, timeout: Duration) -> GroupReport<T> {
        self.control.shut(who, true);
        self.ask(who, Wish::Drain, Some(timeout));
        match self.ask(who, Wish::Close, Some(GRACE)).tasks {
            Some(left) => GroupReport { left, running: false },
            None => GroupReport { left: Vec::new(), running: !self.front.status.stops() },
        }
    }
}

impl<K: Hash + Eq, T> Engine<K, T> {
    fn who<'k>(&self, key: &'k K) -> Who<'k, K> {
        Who::Key(self.front.hash(key).1, key)
    }

    /// Pauses the group with this key: none of its tasks is started any more, until [`Engine::resume_group`]. Submits to it
    /// are accepted until it is full. Other groups go on.
    ///
    /// Returns at once. A task that runs is not interrupted, and one that is just being started still runs: to wait for it,
    /// call [`GroupHandle::pause_within`]. A group that does not exist yet is made, and starts paused.
    ///
    /// ```
    /// use std::time::Duration;
    /// use bgrp::Engine;
    /// let engine = Engine::<&str, u32>::builder().task_handler(|_, _| ()).build()?;
    /// engine.pause_group("merchant_1001");
    /// for n in 0..3 {
    ///     engine.submit("merchant_1001", n)?;
    /// }
    /// assert_eq!(engine.cancel_pending(&"merchant_1001")?, [0, 1, 2]);
    /// engine.submit("merchant_1001", 3)?;
    /// assert!(engine.resume_group(&"merchant_1001"));
    /// assert_eq!(engine.close(Duration::from_secs(10)).done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pause_group(&self, key: K) {
        self.group(key).pause();
    }

    /// Lets a group go on that was paused, halted by the policy, or closed. `false`: it did not stand.
    pub fn resume_group(&self, key: &K) -> bool {
        self.shared.resume(self.who(key))
    }

    /// Takes out of the group what waits in it, in order: everything that was submitted before the call and has not been
    /// started, tasks in back-off included. A task that runs is not touched; where one does, this waits for the end of that
    /// task (of that batch, for a batch handler). The group goes on as it was.
    ///
    /// # Errors
    /// [`GroupError::Busy`] where it would have to wait and may not; [`GroupError::Closed`] when the engine is halted.
    pub fn cancel_pending(&self, key: &K) -> Result<Vec<T>, GroupError> {
        self.shared.tasks(self.who(key), Wish::Cancel)
    }

    /// Takes out of the group what waits in it, as [`Engine::cancel_pending`], and lets it go on if it was halted or paused:
    /// what comes next is run.
    ///
    /// # Errors
    /// As [`Engine::cancel_pending`]; the halt or pause is lifted also then.
    pub fn discard_group(&self, key: &K) -> Result<Vec<T>, GroupError> {
        self.shared.tasks(self.who(key), Wish::Discard)
    }

    /// Waits until the group is empty: every task submitted before the call has ended. Linger ends meanwhile. `false`: the
    /// time was up first, the group stands (or came to stand) with tasks in it, the engine was halted, or the caller may not
    /// wait.
    pub fn drain_group(&self, key: &K, timeout: Duration) -> bool {
        self.shared.ask(self.who(key), Wish::Drain, Some(timeout)).tasks.is_some()
    }

    /// Closes the group: from now on submits to it are refused with
    /// [`SubmitReason::GroupClosed`](crate::SubmitReason::GroupClosed), what it holds is run, and what did not end within
    /// `timeout` is given back, in order. None of its tasks starts after the return. [`Engine::resume_group`] opens it again.
    ///
    /// A submit that was under way when this was called may still put its task into the group. That task waits there; close
    /// the group again, or the engine, to get it back. Lanes ([`Engine::producer`]) do not ask the group: their tasks wait
    /// in it too.
    ///
    /// A closed group stays in memory: this is for hundreds of groups, not for millions.
    pub fn close_group(&self, key: K, timeout: Duration) -> GroupReport<T> {
        self.group(key).close(timeout)
    }

    /// The groups that stand, in no particular order, and why.
    pub fn halted_groups(&self) -> Vec<HaltedGroup<K>>
    where
        K: Clone,
    {
        let mut groups = Vec::new();
        self.shared.control.visit_halted(&mut |key, why, tasks, since, running| {
            groups.push(HaltedGroup { key: key.clone(), why, tasks, since, running });
        });
        groups
    }
}

impl<K: Hash + Eq, T> GroupHandle<K, T> {
    fn who(&self) -> Who<'_, K> {
        Who::Index(self.hash, self.index)
    }

    /// As [`Engine::pause_group`](crate::Engine::pause_group).
    pub fn pause(&self) {
        self.shared.ask(self.who(), Wish::Pause, None);
    }

    /// Pauses the group and waits until none of its tasks is running or about to. `false`: the time was up first (the group
    /// is paused all the same), or the caller may not wait.
    pub fn pause_within(&self, timeout: Duration) -> bool {
        self.shared.ask(self.who(), Wish::PauseAndRest, Some(timeout)).tasks.is_some()
    }

    /// As [`Engine::resume_group`](crate::Engine::resume_group).
    pub fn resume(&self) -> bool {
        self.shared.resume(self.who())
    }

    /// As [`Engine::cancel_pending`](crate::Engine::cancel_pending).
    ///
    /// # Errors
    /// As there.
    pub fn cancel_pending(&self) -> Result<Vec<T>, GroupError> {
        self.shared.tasks(self.who(), Wish::Cancel)
    }

    /// As [`Engine::discard_group`](crate::Engine::discard_group).
    ///
    /// # Errors
    /// As there.
    pub fn discard(&self) -> Result<Vec<T>, GroupError> {
        self.shared.tasks(self.who(), Wish::Discard)
    }

    /// As [`Engine::drain_group`](crate::Engine::drain_group).
    pub fn drain(&self, timeout: Duration) -> bool {
        self.shared.ask(self.who(), Wish::Drain, Some(timeout)).tasks.is_some()
    }

    /// As [`Engine::close_group`](crate::Engine::close_group).
    pub fn close(&self, timeout: Duration) -> GroupReport<T> {
        self.shared.close_group(self.who(), timeout)
    }
}
