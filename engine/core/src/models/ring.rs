//! Ingress ring, shard flag and barrier (ingress/ring.rs, shard/flag.rs, ingress/barrier.rs).

use std::sync::Arc;

use loom::thread;

use super::{ALL, check, check_plain};
use crate::{
    ingress::{
        barrier::Barrier,
        records::Records as _,
        ring::{Address, Refused, Ring},
    },
    shard::flag::Flag,
    sync::{AtomicBool, AtomicU32, Mutex, Ordering, yield_now},
};

type Records = Ring<(), u32>;

/// Pushes, again and again while the ring is full.
fn push(ring: &Records, task: u32) {
    while let Err((_, _, refused)) = ring.push(Address::Key(0, ()), task) {
        assert_eq!(refused, Refused::Full);
        yield_now();
    }
}

/// Claim holder: takes what is published from `head` on, and gives the cells back.
fn drain(ring: &Records, head: &mut u64, seen: &mut Vec<u32>) {
    let before = *head;
    while ring.peek(*head).is_some() {
        // SAFETY: `peek` has shown it; the head passes it, so it is taken once.
        seen.push(unsafe { ring.take_task(*head) });
        *head += 1;
    }
    if *head != before {
        ring.give_back(*head);
    }
}

// These four speak of Release and Acquire alone: the fence that stands for SeqCst would hide one that is missing.

/// A ring of two cells whose turns are about to wrap, three records of two producers: no race on a cell, no record
/// twice or never, and each producer's records in order.
#[test]
fn order() {
    check_plain(3, || {
        let start = (1 << 31) - 2;
        let ring = Arc::new(Records::new(2, start));
        let twice = ring.clone();
        let first = thread::spawn(move || {
            push(&twice, 1);
            push(&twice, 2);
        });
        let once = ring.clone();
        let second = thread::spawn(move || push(&once, 10));
        let (mut head, mut seen) = (start, Vec::new());
        while seen.len() < 3 {
            drain(&ring, &mut head, &mut seen);
            if seen.len() < 3 {
                yield_now();
            }
        }
        first.join().unwrap();
        second.join().unwrap();
        let of_first: Vec<u32> = seen.iter().copied().filter(|task| *task < 10).collect();
        assert_eq!(of_first, [1, 2]);
        assert_eq!(ring.tail(), (start + 3, false));
    });
}

/// One producer through one lap and a half: it writes a cell only after the consumer has left it.
#[test]
fn lap() {
    check_plain(ALL, || {
        let ring = Arc::new(Records::new(2, 0));
        let theirs = ring.clone();
        let producer = thread::spawn(move || (1..=3).for_each(|task| push(&theirs, task)));
        let (mut head, mut seen) = (0, Vec::new());
        while seen.len() < 3 {
            drain(&ring, &mut head, &mut seen);
            if seen.len() < 3 {
                yield_now();
            }
        }
        producer.join().unwrap();
        assert_eq!(seen, [1, 2, 3]);
    });
}

/// Row E1: a submit that returned before another began is first, whatever thread it was on.
#[test]
fn baton() {
    check_plain(ALL, || {
        let ring = Arc::new(Records::new(2, 0));
        let baton = Arc::new(AtomicBool::new(false));
        let (one, given) = (ring.clone(), baton.clone());
        let first = thread::spawn(move || {
            push(&one, 1);
            // ORDERING: Release pairs with the Acquire below: the service's own signal.
            given.store(true, Ordering::Release);
        });
        let two = ring.clone();
        let second = thread::spawn(move || {
            // ORDERING: Acquire pairs with the Release above.
            if baton.load(Ordering::Acquire) {
                push(&two, 2);
            }
        });
        let (mut head, mut seen) = (0, Vec::new());
        drain(&ring, &mut head, &mut seen);
        first.join().unwrap();
        second.join().unwrap();
        drain(&ring, &mut head, &mut seen);
        assert!(seen == [1] || seen == [1, 2], "{seen:?}");
    });
}

/// I1: a reservation that succeeded before the ring was closed is in the tail that close left.
#[test]
fn close() {
    check_plain(ALL, || {
        let ring = Arc::new(Records::new(2, 0));
        let theirs = ring.clone();
        let producer = thread::spawn(move || {
            (1..=2).filter(|task| theirs.push(Address::Key(0, ()), *task).is_ok()).count() as u64
        });
        ring.close();
        let (accepted, closed) = ring.tail();
        assert!(closed);
        assert_eq!(producer.join().unwrap(), accepted);
        let (mut head, mut seen) = (0, Vec::new());
        drain(&ring, &mut head, &mut seen);
        assert_eq!(head, accepted);
    });
}

/// A shard and the list of units, which is a number here: there is one shard.
struct Shard {
    ring: Records,
    flag: Flag,
    /// Units in the ready list.
    listed: AtomicU32,
    /// Units anywhere: in the list or in a hand.
    live: AtomicU32,
    barrier: Barrier,
}

impl Shard {
    /// With its unit in the caller's hand.
    fn new(barrier: Barrier) -> Arc<Self> {
        let flag = Flag::new();
        assert!(flag.ring());
        Arc::new(Self {
            ring: Ring::new(2, 0),
            flag,
            listed: AtomicU32::new(0),
            live: AtomicU32::new(1),
            barrier,
        })
    }

    /// Relaxed: this counter must not order anything.
    fn made(&self) {
        assert_eq!(self.live.fetch_add(1, Ordering::Relaxed), 0, "two units of one shard");
    }

    /// Producer, after its record is published.
    fn published(&self) {
        self.barrier.light();
        if self.flag.ring() {
            self.made();
            // ORDERING: Release pairs with the Acquire of `take`, as push and take of an inbox do.
            self.listed.fetch_add(1, Ordering::Release);
        }
    }

    fn submit(&self, task: u32) {
        push(&self.ring, task);
        self.published();
    }

    /// Worker with the unit in hand: looks until the shard rests.
    fn look(&self, head: &mut u64, seen: &mut Vec<u32>) {
        loop {
            drain(&self.ring, head, seen);
            self.live.fetch_sub(1, Ordering::Relaxed);
            if self.flag.rest(&self.ring, *head, self.barrier, None) {
                return;
            }
            self.made();
        }
    }

    /// The unit, if it is in the list.
    fn take(&self) -> bool {
        // ORDERING: Acquire, and Relaxed when there is none: see `published`.
        let taken =
            self.listed.fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| n.checked_sub(1));
        taken.is_ok()
    }

    /// Looks with the unit that the caller holds, and as often as it comes back; then waits for the producers and
    /// looks once more if there is a unit. Whatever was submitted must have been seen.
    fn run(&self, producers: impl IntoIterator<Item = thread::JoinHandle<()>>) -> Vec<u32> {
        let (mut head, mut seen) = (0, Vec::new());
        self.look(&mut head, &mut seen);
        if self.take() {
            self.look(&mut head, &mut seen);
        }
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        while self.take() {
            self.look(&mut head, &mut seen);
        }
        assert_eq!(self.live.load(Ordering::Relaxed), 0);
        assert_eq!(self.ring.tail().0, head, "a record is left in a shard that rests");
        seen.sort_unstable();
        seen
    }
}

fn idle_with(barrier: Barrier) {
    check(4, move || {
        let shard = Shard::new(barrier);
        let producers = [1, 2].map(|task| {
            let shard = shard.clone();
            thread::spawn(move || shard.submit(task))
        });
        assert_eq!(shard.run(producers), [1, 2]);
    });
}

/// What SeqCst of the reservation and of IDLE prove alone: there is no barrier, and a claim holder that sees a gap
/// waits for its record (as the spin of `Flag::rest` does, but for ever).
#[test]
fn idle() {
    idle_with(Barrier::Absent);
}

/// The whole rule, with both barriers.
#[test]
fn idle_both() {
    idle_with(Barrier::Symmetric);
}

/// What the barriers prove alone: both producers have reserved (recipe R3: a gap), and SeqCst is no fence.
#[test]
fn idle_gap() {
    check_plain(6, || {
        let shard = Shard::new(Barrier::Symmetric);
        let (first, _) = shard.ring.reserve(1).expect("room");
        let (second, _) = shard.ring.reserve(1).expect("room");
        let producers = [(first, 1), (second, 2)].map(|(position, task)| {
            let shard = shard.clone();
            thread::spawn(move || {
                // SAFETY: reserved above for this thread, filled once.
                unsafe { shard.ring.fill(position, Address::Key(0, ()), task) };
                shard.published();
            })
        });
        assert_eq!(shard.run(producers), [1, 2]);
    });
}

/// Two workers and the claim's lock: a producer may ring while the first is still about to rest, and the second then
/// waits at the lock with the unit in hand.
#[test]
fn two_claimers() {
    check(3, || {
        let shard = Shard::new(Barrier::Symmetric);
        let back = Arc::new(Mutex::new((0, Vec::new())));
        let look = |shard: &Shard, back: &Mutex<(u64, Vec<u32>)>| {
            let mut back = back.lock();
            let (head, seen) = &mut *back;
            shard.look(head, seen);
        };
        let theirs = shard.clone();
        let producer = thread::spawn(move || (1..=2).for_each(|task| theirs.submit(task)));
        let (theirs, claim) = (shard.clone(), back.clone());
        let worker = thread::spawn(move || {
            if theirs.take() {
                look(&theirs, &claim);
            }
        });
        look(&shard, &back);
        producer.join().unwrap();
        worker.join().unwrap();
        while shard.take() {
            look(&shard, &back);
        }
        assert_eq!(back.lock().1, [1, 2], "a record is left in a shard that rests");
    });
}
