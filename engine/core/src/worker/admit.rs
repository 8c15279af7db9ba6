//! A turn before it begins: may the group be dispatched now, and how many of its tasks? And after it: who may go next.

use std::hash::Hash;

use super::Worker;
use crate::{
    core::Core,
    flow::admission::{Admitted, Alarm, Feedback},
    group::{block::Place, token::RunToken},
    handler::Work,
    ready::link::Chain,
    sync::Ordering,
    time::timers::Entry,
};

/// What a turn may do, and what it has to give back.
#[derive(Debug)]
pub(crate) struct Leave {
    pub(crate) tasks: u32,
    admitted: Option<Admitted>,
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Asks for the dispatch of up to `tasks` tasks. `None`: the token waits for its turn, in the timer or in the queue of admission.
    pub(crate) fn admit<'a>(
        &mut self,
        token: RunToken<'a, K, T>,
        tasks: u32,
    ) -> Option<(RunToken<'a, K, T>, Leave)> {
        let core = self.core();
        if !core.admission.is_active() && !core.group_rates.is_active() {
            return Some((token, Leave { tasks, admitted: None }));
        }
        self.admit_limited(token, tasks)
    }

    #[cold]
    fn admit_limited<'a>(
        &mut self,
        token: RunToken<'a, K, T>,
        mut tasks: u32,
    ) -> Option<(RunToken<'a, K, T>, Leave)> {
        let core = self.core();
        let now = core.front.ready.clock.now();
        let shard = core.front.shard_of(token.group().hash());
        let group = token.as_ptr();
        if core.group_rates.is_active() {
            let rates = &core.group_rates;
            let setting = rates.setting();
            let (most, at) = rates.ready_at(shard, group.addr().get(), tasks);
            if at > now {
                token.group().set_place(Place::GroupRate);
                let entry = Entry::Rate(token.rest(), at);
                // Where the rate was changed meanwhile, it asks again at once.
                let call = core.timers.add([(at, entry)], || rates.setting() != setting);
                core.front.ready.call_keeper(call);
                return None;
            }
            tasks = most;
        }
        let (token, admitted) = if core.admission.is_active() {
            token.group().set_place(Place::Admission);
            match core.admission.enter(token, tasks, now) {
                Ok((token, admitted)) => {
                    token.group().set_place(Place::Ready);
                    (token, Some(admitted))
                }
                Err(alarm) => {
                    core.set_alarm(alarm);
                    return None;
                }
            }
        } else {
            (token, None)
        };
        let tasks = admitted.as_ref().map_or(tasks, |admitted| admitted.tasks.min(tasks));
        if let Some(admitted) = &admitted {
            // For the graph of waits: what is held up while this dispatch waits.
            self.hand().permits.store(admitted.tasks, Ordering::Relaxed);
        }
        if core.group_rates.is_active() {
            core.group_rates.take(shard, group.addr().get(), tasks, now);
        }
        Some((token, Leave { tasks, admitted }))
    }

    /// The dispatch is over.
    pub(crate) fn leave(&mut self, leave: Leave, throttled: Option<std::time::Duration>) {
        if leave.admitted.is_none() && throttled.is_none() {
            return;
        }
        let core = self.core();
        self.hand().permits.store(0, Ordering::Relaxed);
        let now = core.front.ready.clock.now();
        let feedback = Feedback {
            throttled: throttled.map(|pause| u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX)),
        };
        let mut ready = Chain::default();
        let alarm = core.admission.leave(leave.admitted, feedback, now, &mut ready);
        core.set_alarm(alarm);
        if ready.len() > 0 {
            self.queue_all(&mut ready);
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
