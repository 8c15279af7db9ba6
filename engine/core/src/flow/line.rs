//! Who waits for room, in the order in which they came. One at a time is woken: the first.
//!
//! A line is data under somebody's lock. Whoever waits has a ticket, by which he stands in one line at a time and keeps his place
//! among those who came later, also when he has to wait in another line in between. Only the first may enter, so nobody
//! overtakes; who enters, or goes away, passes the wake on.
//!
//! Who waits is a waker, of a thread ([`Sleeper`]) or of a future. Wakers are user code: they are cloned before, and woken
//! and dropped after the locks ([`Wakes`]).

use std::{
    collections::{HashMap, VecDeque},
    ptr::NonNull,
    sync::Arc,
    task::{Wake, Waker},
    time::Instant,
};

use ahash::RandomState;

use crate::{
    group::block::{Group, Place},
    outcome::drop_quietly,
    sync::{Condvar, Mutex, mutant, wait},
    wait::cell::wake_all,
};

/// The ticket of who has not waited yet: behind everybody.
const NEW: u64 = u64::MAX;

/// Where somebody waits.
#[derive(Debug)]
enum Standing<K, T> {
    Nowhere,
    /// For a place in this group.
    Group(NonNull<Group<K, T>>),
    /// For room in the engine.
    Room,
}

/// What somebody who wants to get in has of the lines: a ticket, once he had to wait.
#[derive(Debug)]
pub(crate) struct Seat<K, T> {
    pub(crate) ticket: u64,
    standing: Standing<K, T>,
}

impl<K, T> Default for Seat<K, T> {
    fn default() -> Self {
        Self { ticket: NEW, standing: Standing::Nowhere }
    }
}

// SAFETY: the pointer is the name of a block.
unsafe impl<K: Send, T: Send> Send for Seat<K, T> {}
// SAFETY: as above.
unsafe impl<K: Sync, T: Sync> Sync for Seat<K, T> {}

impl<K, T> Seat<K, T> {
    /// He has never waited.
    pub(crate) fn is_new(&self) -> bool {
        self.ticket == NEW
    }

    pub(crate) fn waits(&self) -> bool {
        !matches!(self.standing, Standing::Nowhere)
    }

    pub(crate) fn in_group(&self) -> Option<NonNull<Group<K, T>>> {
        match self.standing {
            Standing::Group(group) => Some(group),
            _ => None,
        }
    }

    pub(crate) fn in_room(&self) -> bool {
        matches!(self.standing, Standing::Room)
    }

    pub(crate) fn stands_in_room(&mut self) {
        self.standing = Standing::Room;
    }

    pub(crate) fn stands_nowhere(&mut self) {
        self.standing = Standing::Nowhere;
    }
}

/// Wakers to be woken, and to be dropped, when no lock is held.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    pub(crate) due: Vec<Waker>,
    pub(crate) spent: Vec<Waker>,
}

impl Wakes {
    /// Without any lock.
    #[inline]
    pub(crate) fn wake(self) {
        // Nearly always nobody waits.
        if !self.due.is_empty() || !self.spent.is_empty() {
            self.wake_some();
        }
    }

    #[cold]
    fn wake_some(self) {
        wake_all(self.due);
        self.spent.into_iter().for_each(drop_quietly);
    }
}

/// One who waits.
#[derive(Debug)]
struct Waiting {
    ticket: u64,
    /// What he needs of what the line is for.
    need: u64,
    /// `None`: he was woken, and will look.
    waker: Option<Waker>,
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Line(VecDeque<Waiting>);

impl Line {
    /// Nobody is before the one with this ticket, whether he stands here or not. (Who has none is before nobody.)
    pub(crate) fn is_first(&self, ticket: u64) -> bool {
        self.0.front().is_none_or(|first| first.ticket >= ticket)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the first one needs.
    pub(crate) fn first_need(&self) -> Option<u64> {
        self.0.front().map(|first| first.need)
    }

    pub(crate) fn join(&mut self, ticket: u64, need: u64, waker: Waker, wakes: &mut Wakes) {
        let at = self.0.partition_point(|other| other.ticket < ticket);
        match self.0.get_mut(at) {
            Some(other) if other.ticket == ticket => {
                wakes.spent.extend(other.waker.replace(waker));
            }
            _ => self.0.insert(at, Waiting { ticket, need, waker: Some(waker) }),
        }
    }

    pub(crate) fn leave(&mut self, ticket: u64, wakes: &mut Wakes) {
        let at = self.0.partition_point(|other| other.ticket < ticket);
        if self.0.get(at).is_some_and(|other| other.ticket == ticket)
            && let Some(gone) = self.0.remove(at)
        {
            wakes.spent.extend(gone.waker);
        }
    }

    /// He looks, as if he had been woken.
    fn waker_back(&mut self, ticket: u64) -> Option<Waker> {
        let at = self.0.partition_point(|other| other.ticket < ticket);
        self.0.get_mut(at).filter(|own| own.ticket == ticket)?.waker.take()
    }

    /// There may be room: the first one looks.
    pub(crate) fn wake_first(&mut self, wakes: &mut Wakes) {
        wakes.due.extend(self.0.front_mut().and_then(|first| first.waker.take()));
    }

    /// Something else changed: all of them look.
    pub(crate) fn wake_all(&mut self, wakes: &mut Wakes) {
        wakes.due.extend(self.0.iter_mut().filter_map(|waiting| waiting.waker.take()));
    }
}

/// What a submitter finds at a group that may be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Place,
    Full,
    /// Full, and halted by the policy.
    Halted,
}

/// Lines by their groups.
type ByGroup<K, T> = HashMap<NonNull<Group<K, T>>, Line, RandomState>;

/// Of one shard: the lines of its full groups. A group has one if and only if its word says FULL. The lock is a leaf.
#[derive(Debug)]
pub(crate) struct Lines<K, T>(Mutex<ByGroup<K, T>>);

// SAFETY: the pointers are to blocks that live as long as the engine, of which only atomics are touched.
unsafe impl<K: Send + Sync, T: Send> Send for Lines<K, T> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, T: Send> Sync for Lines<K, T> {}

impl<K, T> Lines<K, T> {
    pub(crate) fn new() -> Self {
        // Nothing depends on the order, and shuttle wants the same in every run.
        Self(Mutex::new(HashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4))))
    }

    /// Claim holder: is there a place in the group for who has this seat? If not, and there is a `waker`, he stands in its line
    /// from now on, and in no other.
    pub(crate) fn look(
        &self,
        group: &Group<K, T>,
        capacity: u32,
        seat: &mut Seat<K, T>,
        waker: &mut Option<Waker>,
        wakes: &mut Wakes,
    ) -> Found {
        let name = NonNull::from(group);
        let mut lines = self.0.lock();
        let is_first = |line: Option<&Line>| line.is_none_or(|line| line.is_first(seat.ticket));
        if is_first(lines.get(&name)) && group.word.load().count() < capacity {
            return Found::Place;
        }
        // The place is set before this lock is taken by who tells that the group is halted (`tell`).
        let found = if group.place() == Place::Halted { Found::Halted } else { Found::Full };
        let Some(given) = waker.take() else { return found };
        let line = lines.entry(name).or_default();
        line.join(seat.ticket, 1, given, wakes);
        seat.standing = Standing::Group(name);
        // The count may have gone down before FULL was there to be seen: the one of the two that comes later sees the other.
        let count = group.word.set_full().count();
        if line.is_first(seat.ticket) && count < capacity && !mutant("line-no-second-look") {
            if !mutant("line-keeps-waker") {
                // He may have to wait for something else yet: there, not here.
                *waker = line.waker_back(seat.ticket);
            }
            return Found::Place;
        }
        found
    }

    /// Stands in this group's line no more: he has got a place, or goes away. `room`: there is a place for the next.
    pub(crate) fn leave(
        &self,
        group: NonNull<Group<K, T>>,
        ticket: u64,
        room: impl FnOnce() -> bool,
        wakes: &mut Wakes,
    ) {
        let mut lines = self.0.lock();
        let Some(line) = lines.get_mut(&group) else { return };
        line.leave(ticket, wakes);
        if line.is_empty() {
            lines.remove(&group);
            // SAFETY: blocks live as long as the engine.
            unsafe { group.as_ref() }.word.clear_full();
        } else if room() && !mutant("line-leave-no-wake") {
            line.wake_first(wakes);
        }
    }

    /// Who settled tasks of a FULL group and saw it at or below the low mark.
    pub(crate) fn relieve(&self, group: NonNull<Group<K, T>>, wakes: &mut Wakes) {
        if let Some(line) = self.0.lock().get_mut(&group) {
            line.wake_first(wakes);
        }
    }

    /// The group was halted, closed, or emptied: all who wait for it look.
    pub(crate) fn tell(&self, group: NonNull<Group<K, T>>, wakes: &mut Wakes) {
        if let Some(line) = self.0.lock().get_mut(&group) {
            line.wake_all(wakes);
        }
    }

    /// The engine closes.
    pub(crate) fn tell_all(&self, wakes: &mut Wakes) {
        self.0.lock().values_mut().for_each(|line| line.wake_all(wakes));
    }
}

/// A thread that waits.
#[derive(Debug)]
pub(crate) struct Sleeper {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { woken: Mutex::new(false), changed: Condvar::new() })
    }

    /// Until somebody wakes it. `false`: the time was up first.
    pub(crate) fn sleep(&self, end: Option<Instant>) -> bool {
        let mut woken = self.woken.lock();
        while !*woken {
            let left = end.map(|end| end.saturating_duration_since(crate::sync::instant()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            woken = wait(&self.changed, woken, left);
        }
        *woken = false;
        true
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }
}
