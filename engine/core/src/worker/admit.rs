//! A turn before it begins: may the group be dispatched now, and how many of its tasks? And after it: who may go next.

use std::{hash::Hash, ptr::NonNull};

use super::Worker;
use crate::{
    core::Core,
    flow::admission::{Admitted, Alarm, Entered, Feedback},
    group::{
        block::{Group, Place},
        token::RunToken,
    },
    handler::Work,
    ready::link::Chain,
    sync::Ordering,
    time::timers::Entry,
};

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Asks for the dispatch of up to `tasks` tasks, where there are limits. `None`: the token waits for its turn, in the timer
    /// or in the queue of admission. What it is admitted with is the worker's until [`Worker::leave`].
    #[cold]
    #[inline(never)]
    pub(crate) fn admit<'e>(
        &mut self,
        token: RunToken<'e, K, T>,
        mut tasks: u32,
    ) -> Option<(RunToken<'e, K, T>, u32)> {
        let core = self.core();
        let now = core.front.ready.clock.now();
        let shard = core.front.shard_of(token.group().hash());
        let group = token.as_ptr();
        if core.group_rates.is_active() {
            let rates = &core.group_rates;
            let setting = rates.setting();
            let (most, at) = rates.ready_at(shard, group.addr().get(), tasks);
            if at > now {
                // Others need its permit meanwhile.
                self.forgo(group);
                token.group().set_place(Place::GroupRate);
                let entry = Entry::Rate(token.rest(), at);
                // Where the rate was changed meanwhile, it asks again at once.
                core.put_in_timer([entry], || rates.setting() != setting);
                core.fetch_if_called(group);
                return None;
            }
            tasks = most;
        }
        let mut token = token;
        if core.admission.is_active() {
            // SAFETY: we hold the token of a live group.
            let class = core.settings.shares.class(unsafe { group.as_ref().key() });
            token.group().set_place(Place::Admission);
            let mut ready = Chain::default();
            // The group goes on with its round (weights). Or, were engine code to panic between, a permit that nobody else gives back.
            let entered = match self.admitted.take() {
                Some(kept) => {
                    let (entered, alarm) =
                        core.admission.renew(token, kept, class, tasks, now, &mut ready);
                    core.set_alarm(alarm);
                    entered
                }
                None => core.admission.enter(token, class, tasks, now),
            };
            if ready.len() > 0 {
                self.queue_all(&mut ready);
            }
            match entered {
                Entered::Starts(ours, admitted) => {
                    token = ours;
                    tasks = tasks.min(admitted.tasks);
                    self.admitted = Some(admitted);
                }
                Entered::Waits(alarm) => {
                    core.fetch_if_called(group);
                    core.set_alarm(alarm);
                    return None;
                }
            }
            token.group().set_place(Place::Ready);
        }
        if core.group_rates.is_active() {
            core.group_rates.take(shard, group.addr().get(), tasks, now);
        }
        // For the graph of waits: what this dispatch holds up while its handler waits.
        let held = self.admitted.as_ref().map_or(0, |admitted| admitted.tasks);
        self.hand().permits.store(held, Ordering::Relaxed);
        Some((token, tasks))
    }

    /// The dispatch is over: its permit goes back, unless the same group goes on.
    #[cold]
    #[inline(never)]
    pub(crate) fn leave(&mut self) {
        if self.again.is_none() {
            self.give_up_permit();
        }
    }

    /// The dispatch is over, and the downstream throttled a task of it for so many ns.
    #[cold]
    pub(crate) fn leave_throttled(&mut self, after: u64) {
        let admitted = self.admitted.take();
        self.give_back(admitted, Feedback { throttled: Some(after) });
    }

    fn give_back(&self, admitted: Option<Admitted>, feedback: Feedback) {
        let core = self.core();
        core.change_limits(|now, ready| core.admission.leave(admitted, feedback, now, ready));
    }

    /// The permit that the worker kept goes back.
    pub(crate) fn give_up_permit(&mut self) {
        if let Some(kept) = self.admitted.take() {
            self.give_back(Some(kept), Feedback::default());
        }
    }

    /// The group does not run after all: what it was admitted with goes back.
    #[cold]
    #[inline(never)]
    pub(crate) fn forgo(&mut self, group: NonNull<Group<K, T>>) {
        self.give_up_permit();
        let core = self.core();
        if core.admission.is_active() {
            core.change_limits(|now, ready| core.admission.forgo(group, now, ready));
        }
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    /// Dispatches must ask first.
    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.admission.is_active() || self.group_rates.is_active()
    }

    /// Puts entries into the timer, and sees to it that somebody keeps the time. `hurry`: see
    /// [`Timers::add`](crate::time::timers::Timers::add).
    pub(crate) fn put_in_timer(
        &self,
        entries: impl IntoIterator<Item = Entry<K, T>>,
        hurry: impl FnOnce() -> bool,
    ) {
        let call = self.timers.add(entries, hurry);
        self.front.ready.call_keeper(call);
    }

    /// Puts the alarm of admission into the timer.
    pub(crate) fn set_alarm(&self, alarm: Alarm) {
        if let Alarm(Some(at)) = alarm {
            self.put_in_timer([Entry::Alarm(at)], || false);
        }
    }

    /// Changes a limit: what may go now goes, and the alarm is set for what may go later.
    pub(crate) fn change_limits(&self, change: impl FnOnce(u64, &mut Chain) -> Alarm) {
        let mut ready = Chain::default();
        let alarm = change(self.front.ready.clock.now(), &mut ready);
        self.set_alarm(alarm);
        self.front.ready.spill(&mut ready);
    }
}
