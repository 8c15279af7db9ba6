//! One turn of a group: the token holder runs up to a batch of tasks in place, settles them, and moves the token on.
//!
//! | what happened | where the token goes |
//! |---|---|
//! | no task is left | nowhere: the group is idle |
//! | more tasks | tail of the ready list |
//! | less than a batch, with linger | the group's word |
//! | the head is to be retried | the timer |
//! | limits do not let it start | the queue of admission, or the timer (worker/admit.rs) |
//! | the group is halted | the list of held groups |
//! | the engine is halted | nowhere: nothing runs any more, close walks the blocks |

use std::{
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    time::Duration,
};

use super::{Worker, settle::Next};
use crate::{
    group::{
        block::{Block, Group, Place},
        ring::End,
        token::RunToken,
    },
    handler::{Budget, Phase, Turn, Work},
    outcome::{Failure, FailureKind, Outcome},
    sync::Ordering,
    time::timers::Entry,
    watch::stats::add,
};

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    pub(crate) fn turn(&mut self, token: RunToken<'_, K, T>) {
        let core = self.core();
        if !self.take_in_hand(token.as_ptr()) {
            // The engine is halted. The group's tasks lie in its block; close finds them there.
            self.forgo(&token);
            token.gone();
            return;
        }
        let count = token.group().word.load().count();
        let Some((token, leave)) = self.admit(token, count.min(core.settings.batch)) else {
            self.hand().lay_down();
            return;
        };
        let group = token.group();
        // SAFETY: we hold the token, and put the head back below.
        let mut head = unsafe { group.head_end() };
        let since = if core.settings.flush > Duration::ZERO {
            (core.front.ready.clock.now() / 1_000_000) as u32
        } else {
            0
        };
        let begun = self.begin_dispatch(group, head, leave.tasks);
        let settled = self.dispatch(group, &mut head, leave.tasks);
        // SAFETY: as above.
        unsafe { group.set_head(head) };
        self.end_dispatch(group, begun, &settled);
        add(&self.post().counters.turns, 1);
        let halts = matches!(settled.next, Next::HaltGroup);
        if halts {
            let held = group.word.halt().count() - settled.removed;
            // ORDERING: SeqCst, see `Core::is_drained`.
            core.held.tasks.fetch_add(u64::from(held), Ordering::SeqCst);
        }
        let after = group.word.settle(settled.removed);
        // The counters of ended tasks come after the word, so that who sees them all sees every group at rest.
        add(&self.post().counters.done, u64::from(settled.done));
        let pointer = token.as_ptr();
        if settled.failures() > 0 {
            self.note_failures(pointer, &settled);
        }
        if after.is_full() && after.count() <= core.settings.low_mark() {
            core.relieve(pointer);
        }
        if !after.is_idle() && settled.removed > 0 {
            head.set_stamp(self.pace.now);
        }
        match settled.next {
            Next::HaltGroup => {
                core.held.units.lock().push(token.rest());
                core.watch.notify();
            }
            Next::HaltEngine => {
                token.gone();
                core.halt();
            }
            _ if after.is_idle() => token.gone(),
            Next::Wait(wait) => self.back_off(token, wait),
            Next::Go
                if core.settings.flush > Duration::ZERO && after.count() < core.settings.batch =>
            {
                // SAFETY: we hold the token.
                let mut head = unsafe { token.group().head_end() };
                if head.trouble().is_some() {
                    // A task that stood behind a retried one is held, and its wait is over by now.
                    self.queue(token.rest());
                } else {
                    // What was there before this turn and was not run is older than the turn.
                    let older = if count > settled.removed { *head.since() } else { since };
                    self.linger_again(token, older);
                }
            }
            Next::Go if self.rounds > 1 => {
                // Its share of this round is not used up: it goes on, with its permit if it has one.
                self.rounds -= 1;
                self.kept = leave.keep();
                self.again = Some(token.rest());
                self.hand().lay_down();
                return;
            }
            Next::Go => self.queue(token.rest()),
        }
        if let Some(pause) = settled.throttled {
            leave.throttled(pause);
        } else {
            drop(leave);
        }
        self.hand().lay_down();
    }

    /// Notes what this worker has in hand, then asks whether it still may run it. Close does it the other way
    /// round: it halts, pays the heavy barrier, and then looks at the hands.
    fn take_in_hand(&self, group: NonNull<Group<K, T>>) -> bool {
        let core = self.core();
        self.hand().take(group, core.front.barrier, &core.front.status)
    }

    fn back_off(&mut self, token: RunToken<'_, K, T>, wait: Duration) {
        let core = self.core();
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX / 2);
        let deadline = core.front.ready.clock.now().saturating_add(nanos);
        token.group().set_place(Place::BackOff);
        let entry = Entry::BackOff(token.rest(), deadline);
        let call = core.timers.add([(deadline, entry)], || false);
        core.front.ready.call_keeper(call);
    }

    /// Calls the handler for up to `most` tasks.
    fn dispatch(
        &mut self,
        group: &Group<K, T>,
        head: &mut End<T>,
        most: u32,
    ) -> super::settle::Settled {
        let core = self.core();
        // SAFETY: we hold the token of a live group.
        let key = unsafe { group.key() };
        let mut settled = super::settle::Settled::default();
        let mut planned = most;
        if let Some(trouble) = head.trouble() {
            self.hand().note_attempt(trouble);
            planned = self.resolve_held(key, head, most, &mut settled);
            if planned == 0 {
                return settled;
            }
        }
        let trouble = head.trouble().take();
        self.outcomes.clear();
        let mut turn = Turn {
            key,
            head,
            pool: &mut self.pool,
            trouble: trouble.as_deref(),
            planned,
            budget: Budget {
                clock: &*core.front.ready.clock,
                nanos: core.settings.budget.as_nanos() as u64,
                started: None,
            },
            status: &core.front.status,
            phase: Phase::Between,
            done: 0,
            failed: None,
            outcomes: &mut self.outcomes,
            batched: false,
        };
        // SAFETY: this block belongs to an engine with this kind of work, so its state is of this type.
        let state =
            unsafe { NonNull::from(group).cast::<Block<K, T, W::State>>().as_ref() }.state();
        let run = catch_unwind(AssertUnwindSafe(|| {
            if !group.is_open() {
                turn.phase = Phase::Batch;
                let opened = core.work.open(key);
                // SAFETY: we hold the token; the slot is empty.
                unsafe { (*state).write(opened) };
                group.set_open(true);
                turn.phase = Phase::Between;
            }
            // SAFETY: we hold the token and the state is open.
            core.work.run(unsafe { (*state).assume_init_mut() }, &mut turn);
        }));
        let mut dropped_badly = false;
        if let Err(payload) = run {
            match turn.phase {
                Phase::Drop => {
                    // The task counts as passed; its own drop is what failed.
                    dropped_badly = true;
                    drop(Failure::from_panic(payload, FailureKind::Panicked));
                }
                Phase::Batch if group.is_open() => {
                    let failure = Failure::from_panic(payload, FailureKind::Panicked);
                    turn.outcomes.clear();
                    turn.outcomes.resize(planned as usize, Outcome::Retry(failure));
                    turn.batched = true;
                }
                Phase::Batch => {
                    let failure = Failure::from_panic(payload, FailureKind::StatePanicked);
                    turn.failed = Some(Outcome::Retry(failure));
                }
                Phase::Task | Phase::Between => {
                    let failure = Failure::from_panic(payload, FailureKind::Panicked);
                    turn.failed = Some(Outcome::Retry(failure));
                }
            }
        }
        let clean = !turn.batched && turn.failed.is_none() && trouble.is_none();
        let done = turn.done - u32::from(dropped_badly);
        settled.removed += turn.done;
        settled.done += done;
        if !clean {
            // A copy, since the turn still borrows the original; only a failure comes here.
            let marks = trouble.clone();
            let marks =
                super::settle::settle(&core.settings, turn, marks, &mut self.random, &mut settled);
            *head.trouble() = marks;
        }
        settled
    }
}
