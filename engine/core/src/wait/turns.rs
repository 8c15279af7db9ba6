//! What a turn does for the tickets of its group: before the dispatch, after it, and where tasks are taken out.

use std::{hash::Hash, ptr::NonNull, task::Waker};

use super::cell::{Ended, Tracked};
use crate::{
    core::Core,
    front::Door,
    group::{block::Group, ring::End, state::State},
    handler::Work,
    outcome::{Mark, Trouble},
    worker::Worker,
};

/// Tickets whose tasks are over, with how they ended.
pub(crate) type Endings = Vec<(Tracked, Ended)>;

/// Whoever waits for them hears of it.
pub(crate) fn tell(endings: &mut Endings) {
    for (tracked, ended) in endings.drain(..) {
        tracked.end(ended);
    }
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Token holder of a group whose word says TRACKED, before a dispatch of up to `most` tasks: their tickets go into their
    /// marks. Returns how many tasks the dispatch may have: where tasks are handled one by one a task with a ticket is the
    /// last one, so that nobody waits for those behind it.
    #[cold]
    pub(crate) fn reach_tickets(&mut self, group: &Group<K, T>, most: u32) -> u32 {
        let core = self.core();
        // SAFETY: we hold the token. Nothing is moved: the trouble stands in the segment.
        let mut head = unsafe { group.head_end() };
        let marked = head.trouble().as_ref().and_then(|trouble| trouble.first_ticket());
        let cut = |at: u32| if W::BATCHED { most } else { most.min(at.saturating_add(1)) };
        if let Some(at) = marked
            && !W::BATCHED
        {
            return cut(at);
        }
        let pointer = NonNull::from(group);
        let tickets = &core.door_of(group).tickets;
        let reached =
            tickets.reach(pointer, &group.word, head, most, !W::BATCHED, marked.is_some());
        let first = reached.first().map(|(at, _)| *at);
        if !reached.is_empty() {
            head.trouble().get_or_insert_default().attach(reached);
        }
        first.map_or(most, cut)
    }

    /// Token holder of such a group, after the dispatch and before the word is settled: who waits hears of it. Before, so that a
    /// block is not used for another group while one of its tasks counts as not over.
    #[cold]
    pub(crate) fn tell_tickets(&mut self, group: &Group<K, T>, removed: u32, done: u32) {
        if removed > 0 {
            let mut table = self.core().door_of(group).tickets.lock();
            let tally = table.find(NonNull::from(group)).and_then(|entry| entry.tally.clone());
            drop(table);
            if let Some(tally) = tally {
                tally.settled(done, removed - done);
            }
        }
        tell(&mut self.endings);
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    pub(crate) fn door_of(&self, group: &Group<K, T>) -> &Door<K, T> {
        &self.front.doors[self.front.shard_of(group.hash())]
    }

    /// After the word of a tracked group was settled: who waits until it is idle looks again. The group may be another one by now.
    #[cold]
    pub(crate) fn tell_watchers(&self, group: &Group<K, T>, after: State) {
        if after.is_idle() || after.is_halted() {
            let tickets = &self.door_of(group).tickets;
            // The lock: whoever watches is before its look at the word, or asleep.
            drop(tickets.lock());
            tickets.idle.notify_all();
        }
    }

    /// Whoever takes all `tasks` out of a group, under its claim and as its token holder, or of a halted engine: so they
    /// ended. Call it before the tasks are moved out, and wake (`wake_all`) whom it returns behind all locks.
    #[must_use]
    pub(crate) fn take_out_tickets(
        &self,
        group: &Group<K, T>,
        head: &mut End<T>,
        tasks: u32,
        ended: &Ended,
    ) -> Vec<Waker> {
        let first = *head;
        let mut wakers = Vec::new();
        let mut marked = head.trouble().take().map(|trouble| trouble.marks).unwrap_or_default();
        for tracked in marked.iter_mut().filter_map(|mark| mark.ticket.take()) {
            wakers.append(&mut tracked.end_unheard(ended.clone()));
        }
        if group.word.load().is_tracked() {
            let mut table = self.door_of(group).tickets.lock();
            for tracked in table.take_out(NonNull::from(group), first, tasks, ended) {
                wakers.append(&mut tracked.end_unheard(ended.clone()));
            }
        }
        wakers
    }
}

impl Trouble {
    /// How many tasks are before the first with a ticket.
    fn first_ticket(&self) -> Option<u32> {
        self.marks.iter().position(|mark| mark.ticket.is_some()).map(|at| at as u32)
    }

    /// Puts tickets into the marks of their tasks.
    fn attach(&mut self, tickets: Vec<(u32, Tracked)>) {
        for (at, tracked) in tickets {
            let at = at as usize;
            if self.marks.len() <= at {
                self.marks.resize_with(at + 1, Mark::default);
            }
            debug_assert!(self.marks[at].ticket.is_none(), "one ticket a task");
            self.marks[at].ticket = Some(tracked);
        }
    }
}
