//! Worker threads: start, the loop, sleep, and leave.

use std::{
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use super::Worker;
use crate::{
    error::BuildError,
    handler::Work,
    sync::{
        Ordering, mutant, spin_hint,
        thread::{self, JoinHandle},
        yield_now,
    },
    topology::pin_current_thread,
};

/// What a worker saw in its last look before it parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLook {
    Work,
    /// The engine is halted.
    Halt,
    /// It parks: until it is unparked, or for so long when it keeps the time.
    Nothing(Option<Duration>),
}

/// Starts one thread for each worker.
pub(crate) fn start<K, T, W>(
    workers: Vec<Worker<K, T, W>>,
    name: &str,
) -> Result<Vec<JoinHandle<()>>, BuildError>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    let mut threads = Vec::with_capacity(workers.len());
    for worker in workers {
        let id = worker.id;
        let core = worker.share();
        let thread =
            thread::Builder::new().name(format!("{name}-{id}")).spawn(move || thread_main(worker));
        match thread {
            Ok(thread) => threads.push(thread),
            Err(source) => {
                core.halt();
                core.front.ready.idle.wake_all(0);
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(BuildError::Spawn { worker: id, source });
            }
        }
    }
    Ok(threads)
}

/// Shuttle's schedules by priority know no fairness: who sees a unit that another one is still moving lets it go on.
#[inline(always)]
fn step_back() {
    #[cfg(shuttle)]
    crate::sync::yield_now();
}

fn thread_main<K, T, W>(mut worker: Worker<K, T, W>)
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    let core = worker.share();
    // A panic of user code never comes here; one of the engine's own leaves nothing that could be trusted.
    let looped = catch_unwind(AssertUnwindSafe(|| {
        core.front.ready.idle.enlist(worker.id);
        let _adopted = core.front.adopt_thread(worker.hand());
        if let Some(cpu) = core.plan.workers[worker.id].cpu {
            match pin_current_thread(cpu) {
                Ok(()) => core.front.ready.idle.pinned(worker.id, cpu),
                Err(error) => core.note(format!("worker {} is not pinned: {error}", worker.id)),
            }
        }
        worker.run_loop();
    }));
    #[cfg(shuttle)]
    if let Err(payload) = looped {
        // The run has failed: it ends here, and says with which seed.
        std::panic::resume_unwind(payload);
    }
    #[cfg(not(shuttle))]
    if looped.is_err() {
        eprintln!(
            "bgrp: internal error in worker {}; aborting so that no task runs twice",
            worker.id
        );
        std::process::abort();
    }
    worker.hand_over();
    // ORDERING: SeqCst: its Release hands all that this worker did to who waits for its end (lifecycle/close.rs).
    core.hands[worker.id].gone.store(true, Ordering::SeqCst);
    core.watch.notify();
    drop(worker);
    drop(core);
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    fn run_loop(&mut self) {
        let core = self.core();
        let mut searching = false;
        while !core.front.status.stops() {
            if self.find_and_run(&mut searching) {
                continue;
            }
            self.sleep(&mut searching);
            step_back();
        }
        if searching {
            core.front.ready.idle.end_search(self.id, core.front.ready.clock.now());
        }
    }

    /// Runs a unit, spinning a little for one. `false`: there is none.
    pub(crate) fn find_and_run(&mut self, searching: &mut bool) -> bool {
        let core = self.core();
        let ready = &core.front.ready;
        if let Some(unit) = self.poll() {
            if std::mem::take(searching)
                && ready.idle.end_search(self.id, ready.clock.now())
                && !mutant("search-no-chain")
            {
                // The last that searched has found something: there may be more than it can do.
                ready.wake();
            }
            if std::mem::take(&mut self.owes_keeper) && core.timers.any() {
                // This may take long: somebody else keeps the time.
                ready.idle.wake_one(ready.clock.now());
            }
            self.run(unit);
            return true;
        }
        if !*searching {
            *searching = ready.idle.start_search(self.id, ready.clock.now());
        }
        let spin = core.settings.spin;
        if *searching && spin > 0 {
            let start = ready.clock.now();
            let mut now = start;
            while now.saturating_sub(start) < spin {
                ready.idle.searches(self.id, now);
                if self.has_work() || core.front.status.stops() {
                    step_back();
                    return true;
                }
                for _ in 0..16 {
                    spin_hint();
                }
                // Whoever else wants this processor, a submitter perhaps, has better use for it.
                yield_now();
                now = ready.clock.now();
            }
        }
        false
    }

    /// Something is there for this worker to do, by a look at every source.
    fn has_work(&self) -> bool {
        let core = self.core();
        let timers = &core.timers;
        core.front.ready.has_units()
            || (timers.any() && timers.is_due(core.front.ready.clock.now()))
            || core.can_feed()
    }

    fn sleep(&mut self, searching: &mut bool) {
        let look = self.lie_down(searching);
        if let LastLook::Nothing(timeout) = look {
            self.core().front.ready.idle.park(self.id, timeout);
        }
        self.get_up(look, searching);
    }

    /// First half of a sleep: announces it and looks for the last time. Only after [`LastLook::Nothing`] may the
    /// worker park; [`Worker::get_up`] follows in any case.
    pub(crate) fn lie_down(&mut self, searching: &mut bool) -> LastLook {
        let core = self.core();
        let ready = &core.front.ready;
        core.watch.notify();
        // ORDERING: SeqCst: what this worker settled, the fence of `notify`, this load; who orphans the engine stores the mark,
        // fences in the same place, and looks at what is settled. So the last of them sees both.
        if core.orphaned.load(Ordering::SeqCst) && core.is_drained() {
            core.halt();
        }
        ready.idle.announce(self.id, std::mem::take(searching));
        // From here on whoever makes a unit visible wakes somebody, or this look finds it.
        if !mutant("sleep-no-recheck") {
            if self.has_work() {
                return LastLook::Work;
            }
            if core.front.status.stops() {
                return LastLook::Halt;
            }
        }
        self.owes_keeper = false;
        LastLook::Nothing(core.timers.keep(self.id, ready.clock.now()))
    }

    /// Second half of a sleep.
    pub(crate) fn get_up(&mut self, look: LastLook, searching: &mut bool) {
        let core = self.core();
        let ready = &core.front.ready;
        if matches!(look, LastLook::Nothing(_)) {
            self.owes_keeper |= core.timers.unkeep(self.id);
        }
        if !ready.idle.cancel(self.id) {
            // Somebody took us off the stack to wake us: we count as searching.
            *searching = true;
        } else if matches!(look, LastLook::Work) && !mutant("sleep-no-resume") {
            // What we saw may be what a wake was left to us for, while we searched, and we may take something else
            // first: we search on, so that the next one is woken when we have found something (I3).
            ready.idle.resume_search(self.id, ready.clock.now());
            *searching = true;
        }
    }
}
