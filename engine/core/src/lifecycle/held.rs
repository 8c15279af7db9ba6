//! Groups that stop: halted by the policy, paused or closed by their owner. A table of them, and of what is wanted of groups
//! whose token is somewhere else at the moment.
//!
//! | group | word | its run token is | who takes it from there |
//! |---|---|---|---|
//! | stands | HALTED | in its entry of the table | resume, discard, cancel, close of the group: in O(1), under the claim |
//! | wanted | CALLED | on the ready list, in a hand, in a timer or the queue of admission | whoever comes to hold it asks the table before a task runs (`Core::decide`) |
//! | wanted, but was idle or lingering | HALTED | the caller's: it decides itself | - |
//!
//! Everything that is wanted of a group is written into its entry, under the claim of its shard and the lock of the table; the
//! holder of the token decides, under that lock. So there is one place where a stop, a cancel, a drain and a resume meet
//! ([`Core::decide`]), and one moment at which each of them happens.
//!
//! Invariants:
//!
//! * **I1** An entry exists if and only if its group's word says HALTED or CALLED. Such a group is not quiet, so it is not
//!   reclaimed and its key may be read under the lock.
//! * **I2** HALTED is set and cleared under the lock, together with the unit in the entry.
//! * **I3** `tasks` is the number of tasks in groups that stand. It never runs ahead: a task is taken off before it can end or
//!   is given back, so settled + held never exceeds what was accepted ([`Core::is_drained`]).
//! * **I4** A token that comes to rest in a timer or the queue of admission while its group is wanted is taken out again: by
//!   who wants it, or by who put it there and then looked at the word ([`Core::fetch`]). Not for a drain: who waits for a group to
//!   be empty waits for its back-off too.
//!
//! Lock order: claim, table, admission or timers. Nothing of the user's runs under the table but `Clone` of keys.

use std::{collections::HashMap, ptr::NonNull, task::Waker, time::Instant};

use ahash::RandomState;

use crate::{
    core::Core,
    flow::line::Wakes,
    group::{
        block::{Group, Place},
        segment::Pool,
        token::RunToken,
    },
    handler::Work,
    lifecycle::close::take_tasks,
    outcome::Failure,
    ready::link::{Chain, Unit},
    sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, mutant, wait},
    wait::cell::{Ended, wake_all},
};

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The tasks that wait in the group.
    Pending,
    /// That no task is in the group.
    Empty,
    /// That the group stands, or need not any more.
    Rest,
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) paused: bool,
    pub(crate) closed: bool,
    pub(crate) halted: Option<Failure>,
    /// When it was stopped, on the engine's clock.
    pub(crate) since: u64,
    /// The run token, while the group stands.
    pub(crate) unit: Option<Unit>,
    /// Counted in the status: its dispatch is to end after the task at hand.
    pub(crate) loud: bool,
    pub(crate) asks: Vec<(u64, Ask)>,
}

impl Entry {
    pub(crate) fn stands(&self) -> bool {
        self.paused || self.closed || self.halted.is_some()
    }

    /// For submitters and the watch. A halt outweighs a pause: nobody lifts it soon.
    fn place(&self) -> Place {
        if self.closed {
            Place::Closed
        } else if self.halted.is_some() {
            Place::Halted
        } else {
            Place::Paused
        }
    }
}

/// What is behind the lock.
pub(crate) struct Table<K, T> {
    pub(crate) entries: HashMap<NonNull<Group<K, T>>, Entry, RandomState>,
    /// Answers, by the number of the ask. `None`: it will not be.
    replies: HashMap<u64, Option<Vec<T>>, RandomState>,
    asked: u64,
}

// SAFETY: the pointers are to blocks that live as long as the engine; keys are read under the lock (I1).
unsafe impl<K: Send + Sync, T: Send> Send for Table<K, T> {}

impl<K, T> Table<K, T> {
    /// A number under which the answer will be found.
    pub(crate) fn ask(&mut self, group: NonNull<Group<K, T>>, ask: Ask) -> u64 {
        self.asked += 1;
        let asked = self.asked;
        self.entries.entry(group).or_default().asks.push((asked, ask));
        asked
    }
}

/// See the module text.
pub(crate) struct Held<K, T> {
    table: Mutex<Table<K, T>>,
    answered: Condvar,
    /// Tasks in groups that stand (I3).
    pub(crate) tasks: AtomicU64,
    /// Tasks that were given back before the engine was closed.
    pub(crate) cancelled: AtomicU64,
    /// Records that were taken in by others than workers, and those of them whose key could not be compared.
    pub(crate) taken: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

impl<K, T> Held<K, T> {
    pub(crate) fn new() -> Self {
        let seeds = || RandomState::with_seeds(1, 2, 3, 4);
        Self {
            table: Mutex::new(Table {
                entries: HashMap::with_hasher(seeds()),
                replies: HashMap::with_hasher(seeds()),
                asked: 0,
            }),
            answered: Condvar::new(),
            tasks: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table<K, T>> {
        self.table.lock()
    }

    /// Somebody was answered, or the engine is halted.
    pub(crate) fn wake(&self) {
        // The lock makes sure that who waits is either before its last look or asleep.
        drop(self.table.lock());
        self.answered.notify_all();
    }

    /// Close takes the groups apart: no entry may name one.
    pub(crate) fn clear(&self) {
        self.table.lock().entries.clear();
        self.answered.notify_all();
    }

    /// Tasks that ended outside of workers. Read it before what was accepted.
    pub(crate) fn settled(&self) -> u64 {
        self.cancelled() + self.rejected()
    }

    /// Tasks that were given back.
    pub(crate) fn cancelled(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of the adds: who counts them sees the groups without them.
        self.cancelled.load(Ordering::Acquire)
    }

    /// Tasks whose key could not be compared when they were taken in by hand.
    pub(crate) fn rejected(&self) -> u64 {
        // ORDERING: Acquire, as in `cancelled`.
        self.rejected.load(Ordering::Acquire)
    }

    /// Somebody wants more of the group than that it becomes empty. For that alone it is not taken out of a timer or a queue: it
    /// would run before its back-off is over, again and again.
    fn is_wanted_now(&self, group: NonNull<Group<K, T>>) -> bool {
        let table = self.table.lock();
        table.entries.get(&group).is_some_and(|entry| {
            entry.stands() || entry.asks.iter().any(|(_, ask)| *ask != Ask::Empty)
        })
    }

    /// Token holder: the policy halts the group. What follows is decided by [`Core::decide`].
    pub(crate) fn halt(&self, group: &Group<K, T>, failure: Failure, now: u64) {
        let mut table = self.table.lock();
        let entry = table.entries.entry(NonNull::from(group)).or_default();
        entry.halted = Some(failure);
        entry.since = now;
        group.word.call_self();
    }
}

/// What remains to be done when the locks are released.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) ready: Chain,
    /// Something changed that others wait for.
    pub(crate) news: bool,
    alarm: Option<u64>,
    /// Of those who wait for a task that was taken out.
    wakers: Vec<Waker>,
    /// Of those who wait for room.
    wakes: Wakes,
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    /// The token is in hand; the word says CALLED, or HALTED with the claim held and its tasks not counted as held. Does what
    /// is wanted of the group. `Some`: it may run.
    pub(crate) fn decide<'e>(
        &self,
        table: &mut Table<K, T>,
        token: RunToken<'e, K, T>,
        pool: &mut Pool<T>,
        after: &mut After,
    ) -> Option<RunToken<'e, K, T>> {
        let pointer = token.as_ptr();
        let word = &token.group().word;
        let Table { entries, replies, .. } = table;
        let mut stands = false;
        let mut asked = false;
        if let Some(entry) = entries.get_mut(&pointer) {
            if entry.asks.iter().any(|(_, ask)| *ask == Ask::Pending) {
                let mut tasks = self.take_pending(&token, pool, after);
                entry.asks.retain(|(id, ask)| {
                    let other = *ask != Ask::Pending;
                    if !other {
                        replies.insert(*id, Some(std::mem::take(&mut tasks)));
                    }
                    other
                });
            }
            stands = entry.stands();
            let empty = word.load().count() == 0;
            entry.asks.retain(|(id, ask)| {
                // A group that stands does not become empty by itself.
                let answered = *ask == Ask::Rest || empty || stands;
                if answered {
                    replies.insert(*id, (*ask == Ask::Rest || empty).then(Vec::new));
                }
                !answered
            });
            asked = !entry.asks.is_empty();
            if std::mem::take(&mut entry.loud) {
                self.front.status.answered();
            }
            after.news = true;
        }
        if !stands && asked {
            word.recall();
            return Some(token);
        }
        let stands = stands && !(mutant("pause-empty-forgotten") && word.load().count() == 0);
        let state = if stands { word.hold() } else { word.free() };
        if !stands {
            entries.remove(&pointer);
            token.group().set_place(Place::Ready);
            if !state.is_idle() {
                return Some(token);
            }
        }
        if self.admission.is_active() {
            let now = self.front.ready.clock.now();
            let alarm = self.admission.forgo(pointer, now, &mut after.ready).0;
            after.alarm = after.alarm.into_iter().chain(alarm).min();
        }
        match entries.get_mut(&pointer) {
            Some(entry) => {
                // ORDERING: SeqCst, see `Core::is_drained`.
                self.held.tasks.fetch_add(u64::from(state.count()), Ordering::SeqCst);
                token.group().set_place(entry.place());
                entry.unit = Some(token.rest());
            }
            None => token.gone(),
        }
        None
    }

    /// Token holder: everything that waits in the group, in order.
    fn take_pending(
        &self,
        token: &RunToken<'_, K, T>,
        pool: &mut Pool<T>,
        after: &mut After,
    ) -> Vec<T> {
        let group = token.group();
        let count = group.word.load().count();
        if count == 0 {
            return Vec::new();
        }
        // SAFETY: we hold the token, and put the head back below.
        let mut head = unsafe { group.head_end() };
        if !mutant("cancel-tells-nobody") {
            let wakers = self.take_out_tickets(group, &mut head, count, &Ended::GivenBack);
            after.wakers.extend(wakers);
        }
        let bytes = head.weight_of(pool, count);
        let tasks = take_tasks(&mut head, pool, count);
        // SAFETY: as above.
        unsafe { group.set_head(head) };
        group.word.settle(count);
        self.give_room_back_later(count, bytes, &mut after.wakes);
        // ORDERING: Release, after the word, as the counters of workers; see `Held::cancelled`.
        self.held.cancelled.fetch_add(u64::from(count), Ordering::Release);
        tasks
    }

    /// Takes the token of a group that is wanted from where it may rest long. The caller has called the group before, or put
    /// the token there before it looked at the word (I4).
    #[cold]
    pub(crate) fn fetch(&self, group: NonNull<Group<K, T>>) -> Option<Unit> {
        self.timers.take(group).or_else(|| self.admission.take(group))
    }

    /// Token holder, after the token went to a timer or the queue of admission: brings it back where its group is wanted.
    pub(crate) fn fetch_if_called(&self, group: NonNull<Group<K, T>>) {
        // SAFETY: blocks live as long as the engine.
        if unsafe { group.as_ref() }.word.load().is_called()
            && self.held.is_wanted_now(group)
            && let Some(unit) = self.fetch(group)
        {
            self.front.ready.put_back(unit);
        }
    }

    /// Does what was put off until the locks are released.
    pub(crate) fn follow_up(&self, group: NonNull<Group<K, T>>, mut after: After) {
        if let Some(at) = after.alarm {
            self.set_alarm(crate::flow::admission::Alarm(Some(at)));
        }
        self.front.ready.spill(&mut after.ready);
        wake_all(std::mem::take(&mut after.wakers));
        std::mem::take(&mut after.wakes).wake();
        if !after.news {
            return;
        }
        self.held.wake();
        // SAFETY: blocks live as long as the engine, and the word is atomic.
        let (state, hash) = unsafe { (group.as_ref().word.load(), group.as_ref().hash()) };
        if self.settings.exact {
            // Tasks of groups that stand leave their room to others, and who waits for the group may have to give up.
            self.give_room_back(0, 0);
            self.tell_line(group, true);
        } else if state.is_full() {
            if state.count() <= self.settings.low_mark() {
                self.relieve(group);
            }
            // A halted group turns away those who wait for room in it.
            let gate = &self.front.doors[self.front.shard_of(hash)].gate;
            gate.notify(|| true);
            gate.wake_due();
        }
        self.feed_starved();
        self.watch.notify();
    }

    /// Waits for an answer. `None`: the time is up, the engine is halted, or the caller may not wait; the ask is withdrawn.
    pub(crate) fn await_reply(
        &self,
        group: NonNull<Group<K, T>>,
        ask: u64,
        deadline: Option<Instant>,
    ) -> Option<Vec<T>> {
        let may_wait = self.may_wait();
        let mut table = self.held.table.lock();
        loop {
            if let Some(tasks) = table.replies.remove(&ask) {
                return tasks;
            }
            let left = deadline.map(|end| end.saturating_duration_since(crate::sync::instant()));
            let over = left.is_some_and(|left| left.is_zero());
            if over || !may_wait || self.front.status.stops() {
                if let Some(entry) = table.entries.get_mut(&group) {
                    entry.asks.retain(|(id, _)| *id != ask);
                }
                return None;
            }
            table = wait(&self.held.answered, table, left);
        }
    }

    /// Somebody else runs the workers.
    pub(crate) fn may_wait(&self) -> bool {
        let apart = || !self.hands.iter().all(|hand| hand.is_gone());
        !self.front.is_own_worker() && apart()
    }
}
