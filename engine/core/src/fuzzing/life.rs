//! Virtual workers that sleep: what a worker thread does, without the thread.
//!
//! A worker that found nothing announces itself, looks for the last time and lies down (worker/pool.rs). It gets up
//! when somebody unparks it, or when it keeps the time and its time has come on the virtual clock. So work that is
//! left while every worker lies down is work of which nobody was told.

use std::hash::Hash;

use crate::{
    handler::Work,
    sim::Sim,
    worker::{Worker, pool::LastLook},
};

/// Where a virtual worker is in the loop of a worker thread.
#[derive(Debug, Default)]
pub(crate) struct Life {
    searching: bool,
    /// What it saw before it lay down, and when it gets up by itself.
    asleep: Option<(LastLook, Option<u64>)>,
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// One round of the loop. `false`: it sleeps on, or has left the loop.
    pub(crate) fn live(&mut self, life: &mut Life) -> bool {
        let core = self.core();
        let ready = &core.front.ready;
        if core.front.status.stops() {
            let wakes = life.asleep.take().is_none() || ready.idle.was_unparked(self.id);
            assert!(wakes, "worker {} sleeps on in an engine that is halted", self.id);
            if std::mem::take(&mut life.searching) {
                ready.idle.end_search(self.id, ready.clock.now());
            }
            return false;
        }
        if let Some((look, alarm)) = life.asleep {
            let rings = alarm.is_some_and(|alarm| ready.clock.now() >= alarm);
            if !ready.idle.was_unparked(self.id) && !rings {
                return false;
            }
            life.asleep = None;
            self.get_up(look, &mut life.searching);
            return true;
        }
        if self.find_and_run(&mut life.searching) {
            return true;
        }
        match self.lie_down(&mut life.searching) {
            look @ LastLook::Nothing(timeout) => {
                let alarm = timeout.map(|timeout| ready.clock.now() + timeout.as_nanos() as u64);
                life.asleep = Some((look, alarm));
            }
            look => self.get_up(look, &mut life.searching),
        }
        true
    }
}

impl<K, T> Sim<K, T> {
    /// Lets one worker go on as its thread would, with its sleep: it runs a unit, lies down, or gets up. `false`: it
    /// sleeps. Build the engine with `pin(false)`, so that nobody spins on a clock that stands still, and do not mix
    /// this with [`Sim::step`], which knows no sleep.
    ///
    /// # Panics
    /// When there is no such worker, or when it sleeps through a halt.
    pub fn live(&mut self, worker: usize) -> bool {
        self.workers[worker].live(&mut self.lives[worker])
    }

    /// Lets the workers go on in turn until all of them sleep.
    pub fn live_all(&mut self) {
        while (0..self.workers.len()).fold(false, |any, worker| self.live(worker) | any) {}
    }
}
