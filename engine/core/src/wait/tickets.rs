//! Which records of a shard's ring, and which tasks in its groups, have a ticket.
//!
//! | who | does | under |
//! |---|---|---|
//! | a tracked submitter | reserves a position, notes it, publishes a cell that says TRACKED | the lock |
//! | claim holder at such a cell | takes the note, appends the task, notes its spot; then sets TRACKED in the group's word, before it publishes the group | the lock; the claim |
//! | token holder that reads TRACKED | moves what its dispatch reaches into the marks; clears TRACKED when nothing is left | the lock; the token |
//! | close, discard | takes all of a group | the lock; claim and token |
//!
//! Invariants:
//!
//! * **I1** A task with a ticket is counted in its group's word only after TRACKED was set there, and TRACKED is cleared
//!   only under the lock while the group has neither spot nor mark: no dispatch passes a ticket by.
//!   (models::tickets, mutants `track-not-set`, `untrack-unlocked`)
//! * **I2** A spot names its task until the task is settled: segments are reused only when all their tasks are, and tasks
//!   move inside a dispatch only, whose tickets are in marks by then.
//! * **I3** Notes and spots are in the order of the ring and of the group.
//!
//! The lock is a leaf.

use std::{
    collections::{HashMap, VecDeque},
    ptr::NonNull,
    sync::Arc,
};

use ahash::RandomState;

use super::{
    cell::{Ended, Tracked},
    tally::Tally,
};
use crate::{
    group::{
        block::Group,
        ring::{End, Spot},
        state::Word,
    },
    sync::{Condvar, Mutex, MutexGuard, mutant},
};

/// The table of one shard.
pub(crate) struct Tickets<K, T> {
    table: Mutex<Table<K, T>>,
    /// A watched group went idle.
    pub(crate) idle: Condvar,
}

/// See the module text.
pub(crate) struct Table<K, T> {
    notes: VecDeque<(u64, Tracked)>,
    groups: HashMap<NonNull<Group<K, T>>, Entry, RandomState>,
}

/// What is known of one group.
#[derive(Default)]
pub(crate) struct Entry {
    pub(crate) spots: VecDeque<(Spot, Tracked)>,
    /// All tasks of the group are counted here (`split`).
    pub(crate) tally: Option<Arc<Tally>>,
    /// So many wait until the group is idle.
    pub(crate) watchers: u32,
}

// SAFETY: the pointers are names of blocks, never followed here.
unsafe impl<K: Send, T: Send> Send for Table<K, T> {}

impl<K, T> Tickets<K, T> {
    pub(crate) fn new() -> Self {
        let table = Table { notes: VecDeque::new(), groups: HashMap::default() };
        Self { table: Mutex::new(table), idle: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Table<K, T>> {
        self.table.lock()
    }

    /// Claim holder: the task was appended there, and is not counted yet.
    pub(crate) fn place(
        &self,
        group: NonNull<Group<K, T>>,
        word: &Word,
        spot: Spot,
        tracked: Tracked,
    ) {
        self.lock().entry(group).spots.push_back((spot, tracked));
        if !mutant("track-not-set") {
            word.track();
        }
    }

    /// Token holder that read TRACKED: takes the tickets of the first `most` tasks at the head, with how many tasks are before
    /// each; or only the first of them. Clears TRACKED where the group has none left, and none is `marked`.
    pub(crate) fn reach(
        &self,
        group: NonNull<Group<K, T>>,
        word: &Word,
        head: End<T>,
        most: u32,
        only_first: bool,
        marked: bool,
    ) -> Vec<(u32, Tracked)> {
        let mut reached = Vec::new();
        let mut table = self.lock();
        if let Some(entry) = table.groups.get_mut(&group) {
            while let Some((spot, _)) = entry.spots.front()
                && let Some(offset) = head.offset_of(*spot, most)
                && let Some((_, tracked)) = entry.spots.pop_front()
            {
                reached.push((offset, tracked));
                if only_first {
                    break;
                }
            }
        }
        let ends = reached.is_empty() && !marked && table.tidy(group);
        if ends && mutant("untrack-unlocked") {
            drop(table);
            word.untrack();
        } else if ends {
            // Under the lock: see I1.
            word.untrack();
        }
        reached
    }
}

impl<K, T> Table<K, T> {
    /// Room for one more note, so that noting it between reserve and publish does nothing but move.
    pub(crate) fn make_room(&mut self) {
        self.notes.reserve(1);
    }

    /// Submitter, between reserve and publish, under one lock with both (I3).
    pub(crate) fn note(&mut self, position: u64, tracked: Tracked) {
        self.notes.push_back((position, tracked));
    }

    /// Claim holder at a cell that says TRACKED.
    pub(crate) fn take_note(&mut self, position: u64) -> Option<Tracked> {
        let (noted, _) = self.notes.front()?;
        debug_assert!(*noted == position, "I3");
        self.notes.pop_front().map(|(_, tracked)| tracked)
    }

    pub(crate) fn entry(&mut self, group: NonNull<Group<K, T>>) -> &mut Entry {
        self.groups.entry(group).or_default()
    }

    pub(crate) fn find(&mut self, group: NonNull<Group<K, T>>) -> Option<&mut Entry> {
        self.groups.get_mut(&group)
    }

    /// Forgets the group if there is nothing to know. `true`: it is forgotten.
    pub(crate) fn tidy(&mut self, group: NonNull<Group<K, T>>) -> bool {
        let empty = self.groups.get(&group).is_none_or(|entry| {
            entry.spots.is_empty() && entry.tally.is_none() && entry.watchers == 0
        });
        if empty {
            self.groups.remove(&group);
        }
        empty
    }

    /// Token holder that takes the first `tasks` tasks at the head out of the group: their tickets. What a claim holder appends
    /// meanwhile, and has not published, stays.
    #[must_use]
    pub(crate) fn take_out(
        &mut self,
        group: NonNull<Group<K, T>>,
        head: End<T>,
        tasks: u32,
        ended: &Ended,
    ) -> Vec<Tracked> {
        let Some(entry) = self.groups.get_mut(&group) else { return Vec::new() };
        let mut tickets = Vec::new();
        while let Some((spot, _)) = entry.spots.front()
            && head.offset_of(*spot, tasks).is_some()
            && let Some((_, tracked)) = entry.spots.pop_front()
        {
            tickets.push(tracked);
        }
        if let Some(tally) = &entry.tally {
            tally.out(u64::from(tasks), ended);
        }
        self.tidy(group);
        tickets
    }
}

impl<K, T> std::fmt::Debug for Tickets<K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = self.lock();
        f.debug_struct("Tickets")
            .field("notes", &table.notes.len())
            .field("groups", &table.groups.len())
            .finish()
    }
}
