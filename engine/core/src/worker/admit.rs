//! A turn before it begins: may the group be dispatched now, and how many of its tasks? And after it: who may go next.

use std::{hash::Hash, ptr::NonNull, time::Duration};

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
    time::timers::Entry,
};

/// What a turn may do, and what it has to give back. Dropping it gives back, so that no way out of a turn keeps a permit.
pub(crate) struct Leave<'e, K, T, W: Work<K, T>> {
    pub(crate) tasks: u32,
    core: &'e Core<K, T, W>,
    admitted: Option<Admitted>,
}

type Started<'e, K, T, W> = Option<(RunToken<'e, K, T>, Leave<'e, K, T, W>)>;

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Asks for the dispatch of up to `tasks` tasks. `None`: the token waits for its turn, in the timer or in the queue of admission.
    #[inline]
    pub(crate) fn admit<'e>(
        &mut self,
        token: RunToken<'e, K, T>,
        tasks: u32,
    ) -> Started<'e, K, T, W> {
        let core = self.core();
        if !core.admission.is_active() && !core.group_rates.is_active() {
            return Some((token, Leave { tasks, core, admitted: None }));
        }
        self.admit_limited(token, tasks)
    }

    /// The group does not run after all: what it was admitted with goes back.
    #[cold]
    pub(crate) fn forgo(&mut self, token: &RunToken<'_, K, T>) {
        let kept = self.kept.take();
        self.forgo_grant(token.as_ptr(), kept);
    }

    fn forgo_grant(&self, group: NonNull<Group<K, T>>, kept: Option<Admitted>) {
        let core = self.core();
        drop(Leave { tasks: 0, core, admitted: kept });
        if core.admission.is_active() {
            core.change_limits(|now, ready| core.admission.forgo(group, now, ready));
        }
    }

    #[cold]
    fn admit_limited<'e>(
        &mut self,
        token: RunToken<'e, K, T>,
        mut tasks: u32,
    ) -> Started<'e, K, T, W> {
        let core = self.core();
        let now = core.front.ready.clock.now();
        let shard = core.front.shard_of(token.group().hash());
        let group = token.as_ptr();
        let kept = self.kept.take();
        if core.group_rates.is_active() {
            let rates = &core.group_rates;
            let setting = rates.setting();
            let (most, at) = rates.ready_at(shard, group.addr().get(), tasks);
            if at > now {
                // The rate went down while it had its permit: others need that meanwhile.
                self.forgo_grant(group, kept);
                token.group().set_place(Place::GroupRate);
                let entry = Entry::Rate(token.rest(), at);
                // Where the rate was changed meanwhile, it asks again at once.
                let call = core.timers.add([(at, entry)], || rates.setting() != setting);
                core.front.ready.call_keeper(call);
                return None;
            }
            tasks = most;
        }
        let mut leave = Leave { tasks, core, admitted: None };
        let mut token = token;
        if core.admission.is_active() {
            // SAFETY: we hold the token of a live group.
            let class = core.settings.shares.class(unsafe { group.as_ref().key() });
            token.group().set_place(Place::Admission);
            let mut ready = Chain::default();
            let entered = match kept {
                Some(kept) => core.admission.renew(token, kept, class, tasks, now, &mut ready),
                None => core.admission.enter(token, class, tasks, now),
            };
            if ready.len() > 0 {
                self.queue_all(&mut ready);
            }
            match entered {
                Entered::Starts(ours, admitted) => {
                    token = ours;
                    leave.tasks = admitted.tasks.min(tasks);
                    leave.admitted = Some(admitted);
                }
                Entered::Waits(alarm) => {
                    core.set_alarm(alarm);
                    return None;
                }
            }
            token.group().set_place(Place::Ready);
        }
        if core.group_rates.is_active() {
            core.group_rates.take(shard, group.addr().get(), leave.tasks, now);
        }
        Some((token, leave))
    }
}

impl<K, T, W: Work<K, T>> Leave<'_, K, T, W> {
    /// The dispatch is over, and the downstream throttled a task of it.
    pub(crate) fn throttled(mut self, pause: Duration) {
        let after = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        self.give_back(Feedback { throttled: Some(after) });
    }

    /// The same group goes on with another dispatch: what it was admitted with stays with it.
    pub(crate) fn keep(mut self) -> Option<Admitted> {
        self.admitted.take()
    }

    fn give_back(&mut self, feedback: Feedback) {
        let (core, admitted) = (self.core, self.admitted.take());
        core.change_limits(|now, ready| core.admission.leave(admitted, feedback, now, ready));
    }
}

impl<K, T, W: Work<K, T>> Drop for Leave<'_, K, T, W> {
    #[inline]
    fn drop(&mut self) {
        if self.admitted.is_some() {
            self.give_back(Feedback::default());
        }
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    /// Puts the alarm of admission into the timer.
    pub(crate) fn set_alarm(&self, alarm: Alarm) {
        if let Alarm(Some(at)) = alarm {
            let call = self.timers.add([(at, Entry::Alarm(at))], || false);
            self.front.ready.call_keeper(call);
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
