//! Drain, halt and close: nothing that was accepted is lost, and nothing runs after the report.
//!
//! | step | what | why it is exact |
//! |---|---|---|
//! | 1 refuse | status to `Draining`; every ring gets its CLOSED bit; heavy barrier; no lane push is under way | from here on the number of accepted tasks stands still |
//! | 2 finish | linger ends; wait until settled + held = accepted, or the deadline | settled is read before accepted, both only grow |
//! | 3 halt | status to `Halted`, heavy barrier | a worker notes what it takes in hand, then reads the status: it is seen here, or it sees the halt |
//! | 4 wait | until each worker is gone or has a group in hand, and every lease is back | only a handler that is still running, and a lease that is out, stay |
//! | 5 collect | what lies in ingress and groups is given back, group by group, in order | nobody else touches a group that is in no hand |

use std::{
    collections::HashSet,
    ptr::NonNull,
    time::{Duration, Instant},
};

use crate::{
    core::Core,
    flow::line::Wakes,
    group::{
        block::{Flags, Group, Place},
        ring::End,
        segment::Pool,
    },
    handler::Work,
    outcome::drop_quietly,
    ready::link::Chain,
    shard::demux::{Demux, Scratch},
    sync::{mutant, yield_now},
    wait::{
        cell::{Ended, wake_all},
        check::WaitHost,
    },
};

/// After a deadline short handlers get this long to come back, so that `running` speaks of long ones.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

/// What an engine did and what it gives back.
#[derive(Debug)]
#[non_exhaustive]
pub struct CloseReport<K, T> {
    /// Tasks that ended as done, over the life of the engine.
    pub done: u64,
    /// Tasks that failed for good, over the life of the engine.
    pub failed: u64,
    /// Attempts that were followed by another one, over the life of the engine.
    pub retries: u64,
    /// Every accepted task that did not end, given back: group by group, in order.
    pub left: Vec<Left<K, T>>,
    /// Groups whose handler was still running at the deadline. Their tasks are not in `left`: close again to get
    /// them.
    pub running: usize,
    /// Groups whose batch was still leased out at the deadline. Their tasks are not in `left`: when the [`Lease`](crate::Lease)s have ended, close
    /// again to get what is left of them. A lease may end after the engine is gone: then its own tasks end as it says, and those behind them
    /// are dropped, with a message on standard error.
    pub leased: usize,
}

/// The tasks of one group that did not end, oldest first.
#[derive(Debug)]
#[non_exhaustive]
pub struct Left<K, T> {
    /// The key of the group.
    pub key: K,
    /// The tasks, in the order in which they were submitted.
    pub tasks: Vec<T>,
}

impl<K, T> CloseReport<K, T> {
    /// Every accepted task ended: none is given back, none is running or leased out.
    pub fn is_complete(&self) -> bool {
        self.left.is_empty() && self.running == 0 && self.leased == 0
    }

    /// The number of tasks given back.
    pub fn left_tasks(&self) -> usize {
        self.left.iter().map(|left| left.tasks.len()).sum()
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    /// Step 1, and the end of linger.
    pub(crate) fn refuse(&self) {
        let front = &self.front;
        front.status.drain();
        for door in &front.doors {
            door.ring.close();
        }
        front.barrier.heavy();
        for back in &self.backs {
            back.lock().lanes.iter().for_each(|lane| lane.settle());
        }
        for door in &front.doors {
            door.gate.notify(|| true);
            door.gate.wake_due();
        }
        if self.settings.exact {
            self.tell_all_lines();
        }
        let mut ready = Chain::default();
        self.timers.end_lingers(&mut ready);
        front.ready.spill(&mut ready);
        front.ready.idle.wake_all(front.ready.clock.now());
    }

    /// Step 3: no task starts from now on, but for those that a worker has in hand.
    pub(crate) fn halt(&self) {
        let front = &self.front;
        front.status.halt();
        for door in &front.doors {
            door.ring.close();
        }
        front.barrier.heavy();
        for door in &front.doors {
            door.gate.notify(|| true);
            door.gate.wake_due();
        }
        if self.settings.exact {
            self.tell_all_lines();
        }
        front.ready.idle.wake_all(front.ready.clock.now());
        self.held.wake();
        self.watch.notify();
    }

    /// Step 4. Returns the groups in hand.
    pub(crate) fn hands_at_rest(&self, deadline: Option<Instant>) -> HashSet<NonNull<Group<K, T>>> {
        // Until the deadline a handler may still come back; after it only engine code is waited for.
        let deadline = deadline.map(|end| end.max(crate::sync::instant() + GRACE));
        self.watch.wait_until(deadline, || self.hands.iter().all(|hand| hand.is_gone()));
        self.watch.wait_until(None, || {
            self.hands.iter().all(|hand| hand.is_gone() || hand.holds().is_some())
        });
        self.hands.iter().filter(|hand| !hand.is_gone()).filter_map(|hand| hand.holds()).collect()
    }
}

impl<K, T, W> Core<K, T, W>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Steps 3 to 5.
    pub(crate) fn stop(&self, deadline: Option<Instant>) -> CloseReport<K, T> {
        self.halt();
        // A handler that waits for a task which will not run hears of it.
        self.poke_waits();
        let running = self.hands_at_rest(deadline);
        self.admission.end();
        self.leases_at_rest(deadline);
        self.settle_returned(&running);
        let (left, leased) = self.collect(&running);
        CloseReport {
            done: self.total(|c| &c.done),
            failed: self.total(|c| &c.failed) + self.held.rejected(),
            retries: self.total(|c| &c.retries),
            left,
            running: running.len(),
            leased,
        }
    }

    /// Step 5.
    fn collect(&self, running: &HashSet<NonNull<Group<K, T>>>) -> (Vec<Left<K, T>>, usize) {
        let mut pool = Pool::new(self.segments.clone());
        let mut scratch = Scratch::new();
        let mut all = Vec::new();
        let mut leased = 0;
        let mut wakers = Vec::new();
        let mut wakes = Wakes::default();
        self.held.clear();
        for (door, back) in self.front.doors.iter().zip(&self.backs) {
            let mut back = back.lock();
            // What is still in the ingress goes to its groups first, so that each group comes back in one piece.
            loop {
                let mut demux =
                    Demux { door, back: &mut back, pool: &mut pool, scratch: &mut scratch, now: 0 };
                let taken = demux.chunk(u32::MAX / 2);
                for touched in scratch.touched.drain(..) {
                    touched.publish();
                }
                // The ring is closed, so its tail stands still. Who has reserved below it is a handful of
                // instructions away from its publication, and its submit will say that the task was accepted.
                let rest = door.ring.tail().0 - back.head;
                if (rest == 0 || mutant("collect-leaves-gap")) && !back.any_lane() {
                    break;
                }
                if taken == 0 {
                    yield_now();
                }
            }
            for index in 0..back.slab.used() {
                let group = back.group(index);
                // SAFETY: we hold the claim.
                let live = unsafe { group.producer() }.flags.has(Flags::LIVE);
                if !live
                    || group.word.load().count() == 0
                    || running.contains(&NonNull::from(group))
                {
                    continue;
                }
                let leased_now = matches!(group.place_now(), Place::Lease | Place::Returned);
                if W::LEASES && leased_now && !mutant("lease-taken-by-close") {
                    // What has come back after the look of `settle_returned` is settled by the next close.
                    leased += 1;
                    continue;
                }
                // SAFETY: no worker has it in hand and none will: the engine is halted. The claim and the token
                // side are ours.
                let mut head = unsafe { group.head_end() };
                let most = if mutant("close-gives-eight") { 8 } else { u32::MAX };
                let count = group.word.load().count().min(most);
                wakers.extend(self.take_out_tickets(group, &mut head, count, &Ended::GivenBack));
                let bytes = head.weight_of(&pool, count);
                let tasks = take_tasks(&mut head, &mut pool, count);
                // SAFETY: as above.
                unsafe { group.set_head(head) };
                group.word.settle(count);
                self.give_room_back_later(count, bytes, &mut wakes);
                all.push(Left { key: back.dissolve(index, &mut pool, &mut scratch), tasks });
            }
            self.census(&mut back);
            drop(back);
            wake_all(std::mem::take(&mut wakers));
            for tracked in scratch.rejected_tickets.drain(..) {
                tracked.end(Ended::GivenBack);
            }
            for (key, task, _) in scratch.rejected.drain(..) {
                all.push(Left { key, tasks: vec![task] });
            }
            scratch.garbage_keys.drain(..).for_each(drop_quietly);
            scratch.garbage_states.drain(..).for_each(drop_quietly);
        }
        wakes.wake();
        debug_assert!(
            !self.settings.exact
                || !running.is_empty()
                || leased > 0
                || self.room.inside() == (0, 0),
            "places taken are tasks inside, and there is none: {:?}",
            self.room.inside()
        );
        (all, leased)
    }
}

/// Moves `count` tasks out at the head.
pub(crate) fn take_tasks<T>(head: &mut End<T>, pool: &mut Pool<T>, count: u32) -> Vec<T> {
    let mut tasks = Vec::with_capacity(count as usize);
    let mut left = count;
    while left > 0 {
        let (slots, n) = head.run(pool, left);
        for i in 0..n as usize {
            // SAFETY: counted tasks, owned by the caller, each read once.
            tasks.push(unsafe { slots.add(i).read() });
        }
        head.pass(n);
        left -= n;
    }
    tasks
}

impl<K, T, W: Work<K, T>> Drop for Core<K, T, W> {
    fn drop(&mut self) {
        // The last share of the core may be that of the last lease.
        self.settle_returned(&HashSet::new());
        let mut pool = Pool::new(self.segments.clone());
        let mut lost = 0;
        for back in &self.backs {
            let back = back.lock();
            for index in 0..back.slab.used() {
                let group = back.group(index);
                // SAFETY: the last owner of the core has every claim and every token.
                let (producer, mut head) = unsafe { (group.producer(), group.head_end()) };
                if !producer.flags.has(Flags::LIVE) {
                    continue;
                }
                let count = group.word.load().count();
                lost += u64::from(count);
                if count > 0 {
                    take_tasks(&mut head, &mut pool, count).into_iter().for_each(drop_quietly);
                }
                End::detach(producer.tail, &mut head, &mut pool);
                let opened = group.is_open();
                group.set_open(false);
                producer.flags.clear(Flags::LIVE);
                // SAFETY: live until now; taken once.
                drop_quietly(unsafe { group.take_key() });
                if opened {
                    let state = back.slab.at(index);
                    // SAFETY: opened says that the state is initialised; taken once.
                    drop_quietly(unsafe { (*state.as_ref().state()).assume_init_read() });
                }
            }
            lost += back.lanes.iter().map(|lane| lane.tail() - lane.head()).sum::<u64>();
        }
        lost += self
            .front
            .doors
            .iter()
            .zip(&self.backs)
            .map(|(door, back)| door.ring.tail().0 - back.lock().head)
            .sum::<u64>();
        // A fuzz target drops an engine thousands of times a second, and counts for itself.
        if lost > 0 && !cfg!(fuzzing) {
            eprintln!(
                "bgrp: {lost} accepted tasks were dropped with their engine; call Engine::close to get them back"
            );
        }
    }
}
