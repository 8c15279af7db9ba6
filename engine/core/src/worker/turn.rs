//! One turn of a group: the token holder runs up to a batch of tasks in place, settles them, and moves the token on.
//!
//! | what happened | where the token goes |
//! |---|---|
//! | no task is left | nowhere: the group is idle |
//! | more tasks | tail of the ready list |
//! | less than a batch, with linger | the group's word |
//! | the head is to be retried | the timer |
//! | its weight allows another batch | the same hand |
//! | limits do not let it start | the queue of admission, or the timer (worker/admit.rs) |
//! | the batch is lent | the lease (worker/lend.rs) |
//! | the group is halted | the table of held groups |
//! | the group is wanted (CALLED) | where the table of held groups says (worker/answer.rs) |
//! | the engine is halted | nowhere: nothing runs any more, close walks the blocks |

use std::{
    hash::Hash,
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    time::Duration,
};

use super::{
    Worker,
    settle::{Next, Settled, settle},
};
use crate::{
    group::{
        block::{Block, Group, Place},
        ring::End,
        state::State,
        token::RunToken,
    },
    handler::{Budget, Phase, Turn, Work},
    outcome::Failure,
    time::timers::Entry,
    wait::check::WaitHost,
    watch::stats::add,
};

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Not a part of its callers, so that there is one copy of it, and the call of the handler a part of that.
    #[inline(never)]
    pub(crate) fn turn(&mut self, token: RunToken<'_, K, T>) {
        let core = self.core();
        if !self.take_in_hand(token.as_ptr()) {
            // The engine is halted. The group's tasks lie in its block; close finds them there.
            self.forgo(token.as_ptr());
            token.gone();
            return;
        }
        let mut token = token;
        let mut state = token.group().word.load();
        if state.is_called() {
            match self.answer(token) {
                Some(ours) => token = ours,
                None => return self.hand().lay_down(),
            }
            state = token.group().word.load();
        }
        let count = state.count();
        let mut most = count.min(core.settings.batch);
        let tracked = state.is_tracked();
        if tracked {
            most = self.reach_tickets(token.group(), most);
        }
        let limited = core.is_limited();
        if limited {
            match self.admit(token, most) {
                Some((ours, tasks)) => (token, most) = (ours, tasks),
                None => return self.hand().lay_down(),
            }
        }
        let since =
            if self.lingers { (core.front.ready.clock.now() / 1_000_000) as u32 } else { 0 };
        if W::LEASES {
            self.lend(token, most, count, since);
            if limited {
                self.leave();
            }
            return self.hand().lay_down();
        }
        let group = token.group();
        // SAFETY: we hold the token, and put the head back below.
        let mut head = unsafe { group.head_end() };
        let begun = self.begin_dispatch(group, head, most);
        let settled = self.dispatch(group, &mut head, most);
        // SAFETY: as above.
        unsafe { group.set_head(head) };
        self.end_dispatch(group, begun, settled.as_ref().err());
        match settled {
            Ok(done) => {
                if tracked {
                    self.tell_tickets(group, done, done);
                }
                let after = group.word.settle(done);
                if after.is_tracked() {
                    core.tell_watchers(group, after);
                }
                // The counters of ended tasks come after the word, so that who sees them all sees every group at rest.
                let counters = &self.post().counters;
                add(&counters.turns, 1);
                add(&counters.done, u64::from(done));
                self.relieve(token.as_ptr(), after);
                if after.is_idle() {
                    token.gone();
                } else {
                    if done > 0 {
                        head.set_stamp(self.pace.now);
                    }
                    self.go_on(token, after, count > done, since);
                }
            }
            Err(settled) => self.end_troubled(token, &settled, count > settled.removed, since),
        }
        if limited {
            self.leave();
        }
        self.hand().lay_down();
    }

    /// A dispatch that did not simply end with all its tasks done.
    #[inline(never)]
    pub(super) fn end_troubled(
        &mut self,
        token: RunToken<'_, K, T>,
        settled: &Settled,
        left: bool,
        since: u32,
    ) {
        let core = self.core();
        let group = token.group();
        let counters = &self.post().counters;
        add(&counters.turns, 1);
        if settled.next == Next::HaltGroup {
            let failure = settled.halted.as_deref().cloned();
            let failure = failure.unwrap_or_else(|| Failure::new("halted"));
            core.held.halt(group, failure, core.front.ready.clock.now());
        }
        if group.word.load().is_tracked() {
            self.tell_tickets(group, settled.removed, settled.done);
        }
        let after = group.word.settle(settled.removed);
        if after.is_tracked() {
            core.tell_watchers(group, after);
        }
        // After the word, as in `turn`.
        add(&counters.done, u64::from(settled.done));
        if settled.failures() > 0 {
            self.note_failures(token.as_ptr(), settled);
        }
        self.relieve(token.as_ptr(), after);
        if !after.is_idle() && settled.removed > 0 {
            // SAFETY: we hold the token.
            unsafe { group.head_end() }.set_stamp(self.pace.now);
        }
        match settled.next {
            Next::HaltGroup => {
                if let Some(token) = self.answer(token) {
                    // Somebody resumed it meanwhile.
                    self.queue(token.rest());
                }
                core.poke_waits();
            }
            Next::HaltEngine => {
                token.gone();
                core.halt();
                core.poke_waits();
            }
            _ if after.is_idle() => token.gone(),
            Next::Wait(wait) => self.back_off(token, wait),
            Next::Go => self.go_on(token, after, left, since),
        }
        if settled.throttled > 0 {
            self.leave_throttled(u64::from(settled.throttled) * 1_000_000);
        }
    }

    /// A full group that holds few tasks now is open again. Its token may be gone.
    #[inline(always)]
    fn relieve(&self, group: NonNull<Group<K, T>>, after: State) {
        let core = self.core();
        if after.is_full() && after.count() <= core.settings.low_mark() {
            core.relieve(group);
        }
    }

    /// More tasks wait. `left`: some of them were there before this turn, which began at `since`.
    fn go_on(&mut self, token: RunToken<'_, K, T>, after: State, left: bool, since: u32) {
        if !self.lingers || after.count() >= self.core().settings.batch {
            if self.rounds > 1 {
                // Its share of this round is not used up: it goes on, with its permit if it has one.
                self.rounds -= 1;
                self.again = Some(token.rest());
            } else {
                self.queue(token.rest());
            }
            return;
        }
        // SAFETY: we hold the token.
        let mut head = unsafe { token.group().head_end() };
        if head.trouble().is_some() {
            // A task that stood behind a retried one is held, and its wait is over by now.
            self.queue(token.rest());
        } else {
            // What was there before this turn and was not run is older than the turn.
            let older = if left { *head.since() } else { since };
            self.linger_again(token, older);
        }
    }

    /// Notes what this worker has in hand, then asks whether it still may run it. Close does it the other way
    /// round: it halts, pays the heavy barrier, and then looks at the hands.
    pub(super) fn take_in_hand(&self, group: NonNull<Group<K, T>>) -> bool {
        let core = self.core();
        self.hand().take(group, core.front.barrier, &core.front.status)
    }

    fn back_off(&mut self, token: RunToken<'_, K, T>, wait: Duration) {
        let core = self.core();
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX / 2);
        let deadline = core.front.ready.clock.now().saturating_add(nanos);
        token.group().set_place(Place::BackOff);
        let group = token.as_ptr();
        let entry = Entry::BackOff(token.rest(), deadline);
        let call = core.timers.add([(deadline, entry)], || false);
        core.front.ready.call_keeper(call);
        core.fetch_if_called(group);
    }

    /// Calls the handler for up to `most` tasks. `Ok`: that is how many are done, and there is nothing else to settle.
    #[inline(always)]
    fn dispatch(
        &mut self,
        group: &Group<K, T>,
        head: &mut End<T>,
        most: u32,
    ) -> Result<u32, Settled> {
        let core = self.core();
        // SAFETY: we hold the token of a live group.
        let key = unsafe { group.key() };
        let mut planned = most;
        let mut trouble = None;
        let marked = head.trouble().is_some();
        if marked {
            self.hand().note_attempt(head.trouble().as_deref());
            // What is settled before the call lies apart: a group without trouble has no part in it.
            let mut before = Settled::default();
            planned = self.resolve_held(key, head, most, &mut before);
            if planned == 0 {
                return Err(before);
            }
            trouble = head.trouble().take();
            self.before = before;
        }
        debug_assert!(self.outcomes.is_empty(), "whoever settles a batch empties it");
        let mut turn = Turn {
            key,
            head,
            pool: &mut self.pool,
            trouble: trouble.as_deref(),
            planned,
            budget: Budget {
                clock: &core.front.ready.clock,
                most: &core.settings.budget,
                started: None,
            },
            status: &core.front.status,
            word: &group.word,
            phase: Phase::Between,
            done: 0,
            failed: None,
            outcomes: &mut self.outcomes,
            batched: false,
            endings: &mut self.endings,
        };
        // SAFETY: this block belongs to an engine with this kind of work, so its state is of this type.
        let state =
            unsafe { NonNull::from(group).cast::<Block<K, T, W::State>>().as_ref() }.state();
        let run = catch_unwind(AssertUnwindSafe(|| {
            if !group.is_open() {
                turn.phase = Phase::Batch;
                // SAFETY: we hold the token; the slot is empty.
                unsafe { open(&core.work, key, state) };
                group.set_open(true);
                turn.phase = Phase::Between;
            }
            // SAFETY: we hold the token and the state is open.
            core.work.run(unsafe { (*state).assume_init_mut() }, &mut turn);
        }));
        if run.is_ok() && !turn.batched && turn.failed.is_none() && !marked {
            return Ok(turn.done);
        }
        let panicked = run.err().map(|payload| (payload, group.is_open()));
        let mut settled =
            if marked { std::mem::take(&mut self.before) } else { Settled::default() };
        // A copy, since the turn still borrows the original; only a failure comes here.
        let marks = trouble.clone();
        // Part by part into another place: so the turn of a dispatch that simply ends can live in registers.
        let mut turn = Turn {
            key: turn.key,
            head: turn.head,
            pool: turn.pool,
            trouble: turn.trouble,
            planned: turn.planned,
            budget: turn.budget,
            status: turn.status,
            word: turn.word,
            phase: turn.phase,
            done: turn.done,
            failed: turn.failed,
            outcomes: turn.outcomes,
            batched: turn.batched,
            endings: turn.endings,
        };
        let random = &mut self.random;
        let marks = settle(&core.settings, &mut turn, panicked, marks, random, &mut settled);
        *head.trouble() = marks;
        Err(settled)
    }
}

/// Opens the state of a group.
///
/// # Safety
/// The slot is the caller's, and empty.
#[cold]
#[inline(never)]
unsafe fn open<K, T, W: Work<K, T>>(work: &W, key: &K, state: *mut MaybeUninit<W::State>) {
    let opened = work.open(key);
    // SAFETY: the caller's promise.
    unsafe { (*state).write(opened) };
}
