//! Sleep and wake (worker/idle.rs): the loop of worker/pool.rs around a unit in an inbox, and the end of the engine
//! at each step of parking (recipes S1, S2, S6, S9). A lost wake is a deadlock, which loom reports.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::{ALL, check};
use crate::{
    lifecycle::status::Status,
    ready::{
        inbox::Inbox,
        link::{Kind, Link, Unit},
    },
    sync::{AtomicU32, Condvar, Mutex, Ordering, mutant, wait},
    worker::idle::{Idle, SUPPRESS},
};

struct World {
    idle: Idle,
    /// One for each worker; everybody looks at all of them.
    inboxes: Vec<Inbox>,
    status: Status,
    links: Vec<Link>,
    left: AtomicU32,
    /// Unit 0 is a long task: it ends when unit 1 has run.
    long: bool,
    second_ran: Mutex<bool>,
    changed: Condvar,
}

impl World {
    fn new(workers: usize, units: u32) -> Arc<Self> {
        Arc::new(Self {
            idle: Idle::new(workers),
            inboxes: (0..workers).map(|_| Inbox::new()).collect(),
            status: Status::new(),
            links: (0..units).map(|_| Link::new()).collect(),
            left: AtomicU32::new(units),
            long: false,
            second_ran: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    fn with_long_task(workers: usize) -> Arc<Self> {
        let mut world = Self::new(workers, 2);
        Arc::get_mut(&mut world).expect("nobody else has it yet").long = true;
        world
    }

    /// `ready::Ready::send`. Time stands still: a wake that may be left to who searches is left to it.
    fn send(&self, worker: usize, unit: usize) {
        self.inboxes[worker].push(Unit::group(NonNull::from(&self.links[unit])));
        self.wake();
    }

    fn wake(&self) {
        self.idle.wake(|| SUPPRESS - 1);
    }

    fn has_work(&self) -> bool {
        self.inboxes.iter().any(|inbox| !inbox.is_empty())
    }

    /// The last unit halts the engine, as a handler might.
    fn run(&self, unit: Unit) {
        let Kind::Group(link) = unit.open() else { unreachable!("groups only") };
        if self.long {
            let mut ran = self.second_ran.lock();
            if link == NonNull::from(&self.links[1]) {
                *ran = true;
                self.changed.notify_all();
            }
            while !*ran {
                ran = wait(&self.changed, ran, None);
            }
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.halt();
        }
    }

    fn halt(&self) {
        self.status.halt();
        self.idle.wake_all(SUPPRESS - 1);
    }

    /// `Worker::find_and_run`, without the spin.
    fn find_and_run(&self, id: usize, searching: &mut bool) -> bool {
        let workers = self.inboxes.len();
        for i in 0..workers {
            let mut chain = self.inboxes[(id + i) % workers].take();
            if let Some(unit) = chain.pop() {
                // What a worker has too much of is for others to steal: in its deque, here in its inbox.
                let more = chain.len() > 0;
                while let Some(unit) = chain.pop() {
                    self.inboxes[id].push(unit);
                }
                if more && !mutant("refill-no-wake") {
                    self.wake();
                }
                if std::mem::take(searching)
                    && self.idle.end_search(id, SUPPRESS - 1)
                    && !mutant("search-no-chain")
                {
                    self.wake();
                }
                self.run(unit);
                return true;
            }
        }
        if !*searching {
            *searching = self.idle.start_search(id, SUPPRESS - 1);
        }
        false
    }

    /// `Worker::run_loop` and `Worker::sleep`.
    fn worker(&self, id: usize) {
        self.idle.enlist(id);
        let mut searching = false;
        while !self.status.stops() {
            if self.find_and_run(id, &mut searching) {
                continue;
            }
            self.idle.announce(id, std::mem::take(&mut searching));
            let found = !mutant("sleep-no-recheck") && self.has_work();
            if !found && (mutant("sleep-no-recheck") || !self.status.stops()) {
                self.idle.park(id, None);
            }
            if !self.idle.cancel(id) {
                searching = true;
            } else if found && !mutant("sleep-no-resume") {
                self.idle.resume_search(id, SUPPRESS - 1);
                searching = true;
            }
        }
        if searching {
            self.idle.end_search(id, SUPPRESS - 1);
        }
    }

    fn start(self: &Arc<Self>, workers: usize) -> Vec<thread::JoinHandle<()>> {
        (0..workers)
            .map(|id| {
                let world = self.clone();
                thread::spawn(move || world.worker(id))
            })
            .collect()
    }
}

fn end(world: &World, threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(world.left.load(Ordering::Relaxed), 0);
    assert_eq!(world.idle.sleepers(), 0);
}

#[test]
fn one_sleeper() {
    check(ALL, || {
        let world = World::new(1, 1);
        let threads = world.start(1);
        world.send(0, 0);
        end(&world, threads);
    });
}

/// The second unit may find the only worker anywhere in its loop.
#[test]
fn one_sleeper_two_units() {
    check(6, || {
        let world = World::new(1, 2);
        let threads = world.start(1);
        world.send(0, 0);
        world.send(0, 1);
        end(&world, threads);
    });
}

/// Two workers, two wakers: a wake left to who searches, the end of a search, a wake that takes the wrong sleeper.
#[test]
fn two_sleepers() {
    check(2, || {
        let world = World::new(2, 2);
        let threads = world.start(2);
        world.send(0, 0);
        world.send(1, 1);
        end(&world, threads);
    });
}

/// A unit does not wait behind a long task while a worker sleeps, wherever it was when that worker looked last: in
/// the inbox, or on its way from the inbox to the deque of the worker that then runs the long task.
#[test]
fn long_task() {
    check(2, || {
        let world = World::with_long_task(2);
        let threads = world.start(2);
        world.send(0, 0);
        world.send(0, 1);
        end(&world, threads);
    });
}

/// The same with the units in two places: both wakes may be left to a worker that searches, and that one then takes the
/// long task.
#[test]
fn long_task_apart() {
    check(2, || {
        let world = World::with_long_task(2);
        let threads = world.start(2);
        world.send(0, 0);
        world.send(1, 1);
        end(&world, threads);
    });
}

/// The engine ends at each step of parking.
#[test]
fn halt() {
    check(3, || {
        let world = World::new(2, 0);
        let threads = world.start(2);
        world.halt();
        end(&world, threads);
    });
}
