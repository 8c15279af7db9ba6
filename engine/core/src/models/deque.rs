//! Units on their way from one worker's deque to another's (ready/deque.rs, worker/steal.rs, worker/mod.rs), around the
//! engine's own ready list. The deque is the stand-in: what the engine relies on, and no more.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::check_seen;
use crate::{
    ready::{
        Ready,
        deque::{Deque, Steal},
        link::{Kind, Link, Unit},
    },
    sync::{AtomicU32, Condvar, Mutex, Ordering, UnsafeCell, mutant, wait},
    time::clock::VirtualClock,
    worker::idle::SUPPRESS,
};

/// Begins with its link, as everything that can be ready.
#[repr(C)]
struct Group {
    link: Link,
    /// What the holder of the unit owns.
    runs: UnsafeCell<u32>,
}

struct World {
    ready: Ready,
    groups: Vec<Group>,
    left: AtomicU32,
    /// Unit 0 is a long task: it ends when unit 1 has run.
    second_ran: Mutex<bool>,
    changed: Condvar,
    stops: AtomicU32,
}

// SAFETY: loom watches each access to `runs`.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(groups: usize) -> (Arc<Self>, Vec<Deque<Unit>>) {
        let deques: Vec<Deque<Unit>> = (0..2).map(|_| Deque::new_fifo()).collect();
        let stealers = deques.iter().map(Deque::stealer).collect();
        let world = Arc::new(Self {
            ready: Ready::new(stealers, Arc::new(VirtualClock::new())),
            groups: (0..groups)
                .map(|_| Group { link: Link::new(), runs: UnsafeCell::new(0) })
                .collect(),
            left: AtomicU32::new(groups as u32),
            second_ran: Mutex::new(false),
            changed: Condvar::new(),
            stops: AtomicU32::new(0),
        });
        (world, deques)
    }

    fn unit(&self, index: usize) -> Unit {
        Unit::group(NonNull::from(&self.groups[index]).cast())
    }

    /// Time stands still: a wake that may be left to who searches is left to it.
    fn wake(&self) {
        self.ready.idle.wake(|| SUPPRESS - 1);
    }

    fn run(&self, unit: Unit) {
        let Kind::Group(link) = unit.open() else { unreachable!("groups only") };
        // SAFETY: it begins with its link, and lives as long as the world.
        let group = unsafe { link.cast::<Group>().as_ref() };
        // SAFETY: the unit is ours.
        group.runs.with_mut(|runs| unsafe { *runs += 1 });
        let at = |index: usize| NonNull::from(group) == NonNull::from(&self.groups[index]);
        let mut ran = self.second_ran.lock();
        if at(1) {
            *ran = true;
            self.changed.notify_all();
        }
        while at(0) && !*ran {
            ran = wait(&self.changed, ran, None);
        }
        drop(ran);
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.stops.store(1, Ordering::Relaxed);
            self.ready.idle.wake_all(0);
        }
    }

    /// `Worker::steal` and `Worker::wake_for_stolen`.
    fn steal(&self, id: usize, own: &Deque<Unit>) -> Option<Unit> {
        let victim = &self.ready.posts[1 - id];
        for _ in 0..2 {
            match victim.stealer.steal_batch_with_limit_and_pop(own, 2) {
                Steal::Success(unit) => {
                    if !own.is_empty() && !mutant("stolen-no-wake") {
                        self.wake();
                    }
                    return Some(unit);
                }
                Steal::Empty => break,
                Steal::Retry => {}
            }
        }
        None
    }

    /// `Worker::run_loop`, without the spin and without inbox and overflow.
    fn worker(&self, id: usize, own: &Deque<Unit>) {
        let idle = &self.ready.idle;
        let stops = || self.stops.load(Ordering::Relaxed) != 0;
        let mut searching = false;
        while !stops() {
            if let Some(unit) = own.pop().or_else(|| self.steal(id, own)) {
                if std::mem::take(&mut searching) && idle.end_search(id, SUPPRESS - 1) {
                    self.wake();
                }
                self.run(unit);
                continue;
            }
            if !searching {
                searching = idle.start_search(id, SUPPRESS - 1);
            }
            idle.announce(id, std::mem::take(&mut searching));
            let found = self.ready.has_units();
            if !found && !stops() {
                idle.park(id, None);
            }
            if !idle.cancel(id) {
                searching = true;
            } else if found {
                idle.resume_search(id, SUPPRESS - 1);
                searching = true;
                loom::thread::yield_now();
            }
        }
        if searching {
            idle.end_search(id, SUPPRESS - 1);
        }
    }
}

fn start(order: &[usize], preemptions: usize) {
    let order = order.to_vec();
    check_seen(preemptions, move || {
        let (world, mut deques) = World::new(order.len());
        let (second, first) = (deques.pop().expect("two"), deques.pop().expect("two"));
        for index in &order {
            first.push(world.unit(*index));
        }
        let theirs = world.clone();
        let thief = thread::spawn(move || theirs.worker(1, &second));
        world.worker(0, &first);
        thief.join().unwrap();
        assert_eq!(world.left.load(Ordering::Relaxed), 0);
        for group in &world.groups {
            // SAFETY: alone.
            group.runs.with(|runs| assert_eq!(unsafe { *runs }, 1, "each once"));
        }
        assert_eq!(world.ready.idle.sleepers(), 0);
    });
}

/// A thief takes half of a deque while its owner takes the rest: each unit once.
#[test]
fn each_once() {
    start(&[2, 1, 0], 2);
}

/// The thief takes the long task with the one that it waits for behind it, and these two are in no deque for a moment. The
/// owner, which looks for the last time just then, must be woken.
#[test]
fn hand_over() {
    start(&[0, 1, 2], 2);
}
