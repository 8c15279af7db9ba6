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

use std::{hash::Hash, ptr::NonNull, time::Duration};

use super::{
    Worker,
    settle::{Next, Settled},
};
use crate::{
    group::{
        block::{Group, Place},
        state::State,
        token::RunToken,
    },
    handler::Work,
    outcome::Failure,
    sync::mutant,
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
        let state = token.group().word.load();
        let mut plan = Plan { token, count: state.count(), tracked: false, most: 0 };
        plan.most = plan.count.min(core.settings.batch);
        // One look for all that most groups never have: somebody wants the group, a ticket, a limit.
        let special = state.wants_care() || core.is_limited() || core.settings.exact;
        if special {
            match self.prepare(plan, state) {
                Some(prepared) => plan = prepared,
                None => return self.hand().lay_down(),
            }
        }
        let Plan { token, count, most, tracked } = plan;
        let since =
            if self.lingers { (core.front.ready.clock.now() / 1_000_000) as u32 } else { 0 };
        if W::LEASES {
            self.lend(token, most, count, since);
            if special {
                self.leave();
            }
            return self.hand().lay_down();
        }
        let group = token.group();
        // SAFETY: we hold the token, and put the head back below.
        let mut head = unsafe { group.head_end() };
        let begun = self.begin_dispatch(group, head, most);
        let clean = self.dispatch(group, &mut head, most);
        // SAFETY: as above.
        unsafe { group.set_head(head) };
        match clean {
            Some(done) => {
                self.end_dispatch(group, begun, None);
                if special {
                    self.before_settle(group, done, tracked);
                }
                let after = group.word.settle(done);
                // The counters of ended tasks come after the word, so that who sees them all sees every group at rest.
                let counters = &self.post().counters;
                add(&counters.turns, 1);
                add(&counters.done, u64::from(done));
                if after.is_bare() {
                    token.gone();
                } else {
                    self.end_clean(token, after, done, count, since);
                }
            }
            None => {
                let settled = std::mem::take(&mut self.settled);
                self.end_dispatch(group, begun, Some(&settled));
                self.end_troubled(token, &settled, count > settled.removed, since);
            }
        }
        if special {
            self.pay_room();
            self.leave();
        }
        self.hand().lay_down();
    }

    /// All tasks of a dispatch are done, and its word is settled next.
    #[cold]
    #[inline(never)]
    fn before_settle(&mut self, group: &Group<K, T>, done: u32, tracked: bool) {
        if tracked {
            self.tell_tickets(group, done, done);
        }
        self.owe_room(group, done);
    }

    /// What the engine's owner wants of the group, its tickets, and the limits. `None`: it does not run now.
    #[cold]
    #[inline(never)]
    fn prepare<'e>(&mut self, plan: Plan<'e, K, T>, state: State) -> Option<Plan<'e, K, T>> {
        let core = self.core();
        let mut plan = plan;
        let mut state = state;
        if state.is_called() && !mutant("pause-unasked") {
            plan.token = self.answer(plan.token)?;
            state = plan.token.group().word.load();
        }
        plan.count = state.count();
        plan.most = plan.count.min(core.settings.batch);
        plan.tracked = state.is_tracked();
        if plan.tracked {
            plan.most = self.reach_tickets(plan.token.group(), plan.most);
        }
        if core.is_limited() {
            (plan.token, plan.most) = self.admit(plan.token, plan.most)?;
        }
        self.weigh(plan.token.group(), plan.most);
        Some(plan)
    }

    /// After a dispatch whose tasks are all done: the group has more of them, or its word says more than their number.
    #[inline(never)]
    fn end_clean(
        &mut self,
        token: RunToken<'_, K, T>,
        after: State,
        done: u32,
        count: u32,
        since: u32,
    ) {
        self.spread(&token, after, done);
        if after.is_idle() {
            token.gone();
        } else {
            self.go_on(token, after, count > done, since);
        }
    }

    /// The word of the group was settled, `removed` tasks of it, and the counters after it: whoever waits for that hears of it.
    fn spread(&self, token: &RunToken<'_, K, T>, after: State, removed: u32) {
        let core = self.core();
        if after.is_tracked() {
            core.tell_watchers(token.group(), after);
        }
        if after.is_full() && after.count() <= core.settings.low_mark() {
            // It is open again.
            core.relieve(token.as_ptr());
        }
        if !after.is_idle() && removed > 0 {
            // SAFETY: we hold the token.
            unsafe { token.group().head_end() }.set_stamp(self.pace.now);
        }
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
        self.owe_room(group, settled.removed);
        let after = group.word.settle(settled.removed);
        self.pay_room();
        // After the word, as in `turn`.
        add(&counters.done, u64::from(settled.done));
        if settled.failures() > 0 {
            self.note_failures(token.as_ptr(), settled);
        }
        self.spread(&token, after, settled.removed);
        match settled.next {
            Next::HaltGroup => {
                if let Some(token) = self.answer(token) {
                    // Somebody resumed it meanwhile.
                    self.queue(token.rest());
                }
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
        let nanos = if mutant("back-off-half") { nanos / 2 } else { nanos };
        let deadline = core.front.ready.clock.now().saturating_add(nanos);
        token.group().set_place(Place::BackOff);
        let group = token.as_ptr();
        let entry = Entry::BackOff(token.rest(), deadline);
        core.put_in_timer([entry], || false);
        core.fetch_if_called(group);
    }
}

/// What a turn is to do.
struct Plan<'e, K, T> {
    token: RunToken<'e, K, T>,
    /// Tasks of the group.
    count: u32,
    /// Tasks of this dispatch, at most.
    most: u32,
    /// Some of them may have tickets.
    tracked: bool,
}
