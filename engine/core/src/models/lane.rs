//! A lane (ingress/lane.rs): one producer, one claim holder, close, and the shard's flag.

use std::sync::Arc;

use loom::thread;

use super::{ALL, check, check_plain};
use crate::{
    ingress::{barrier::Barrier, lane::Lane, records::Records, ring::Ring},
    lifecycle::status::Status,
    shard::{
        fenced::{Fenced, Mode},
        flag::Flag,
    },
    sync::{AtomicU32, Ordering, yield_now},
};

type Lane32 = Lane<(), u32>;

/// Claim holder: takes what is there.
fn drain(lane: &Lane32, seen: &mut Vec<u32>) {
    let (head, tail) = (lane.head(), lane.tail());
    let records = lane.up_to(tail);
    for position in head..tail {
        // SAFETY: between head and tail, once: the head passes it below.
        seen.push(unsafe { records.take_task(position) });
    }
    if tail > head {
        lane.give_back(tail);
    }
}

/// Three records through two cells.
#[test]
fn order() {
    check(ALL, || {
        let lane = Arc::new(Lane32::new(2));
        let theirs = lane.clone();
        let producer = thread::spawn(move || {
            let mut head = 0;
            for task in 1..=3 {
                while theirs.push(&mut head, 0, (), task).is_err() {
                    yield_now();
                }
            }
            theirs.retire();
        });
        let mut seen = Vec::new();
        while !lane.is_spent() {
            drain(&lane, &mut seen);
            yield_now();
        }
        producer.join().unwrap();
        assert_eq!(seen, [1, 2, 3]);
    });
}

/// A lane that says it is spent has nothing in it: the claim holder drops it then.
#[test]
fn retire() {
    check(ALL, || {
        let lane = Arc::new(Lane32::new(2));
        let theirs = lane.clone();
        let producer = thread::spawn(move || {
            theirs.push(&mut 0, 0, (), 1).expect("room");
            theirs.retire();
        });
        let mut seen = Vec::new();
        drain(&lane, &mut seen);
        if lane.is_spent() {
            assert_eq!(seen, [1]);
        }
        producer.join().unwrap();
    });
}

/// Close against a producer, as `Producer::push` and `Core::refuse` do it: what close counts after the handshake is
/// what was accepted, and it stays so.
#[test]
fn close() {
    check_plain(ALL, || {
        let lane = Arc::new(Lane32::new(2));
        let status = Arc::new(Status::new());
        let barrier = Barrier::Symmetric;
        let (theirs, running) = (lane.clone(), status.clone());
        let producer = thread::spawn(move || {
            let (mut head, mut accepted) = (0, 0);
            for task in 1..=2 {
                theirs.begin();
                barrier.light();
                if !running.refuses() {
                    theirs.push(&mut head, 0, (), task).expect("room");
                    accepted += 1;
                }
                theirs.end();
            }
            accepted
        });
        status.drain();
        barrier.heavy();
        lane.settle();
        let counted = lane.tail();
        assert_eq!(producer.join().unwrap(), counted);
    });
}

/// A lane and the shard's flag: no record is left in a shard that rests.
fn no_record_is_left(barrier: Barrier, light: bool) {
    let flag = Arc::new(Flag::new());
    let fenced = Arc::new(Fenced::new());
    let mut mode = Mode::new();
    if light {
        mode.looked(1_000, &fenced);
        assert!(!mode.is_fenced());
    }
    assert!(flag.ring());
    let lane = Arc::new(Lane32::new(2));
    let listed = Arc::new(AtomicU32::new(0));
    let ring = Ring::<(), u32>::new(2, 0);
    let producer = {
        let (lane, flag, fenced) = (lane.clone(), flag.clone(), fenced.clone());
        let listed = listed.clone();
        thread::spawn(move || {
            let mut head = 0;
            for task in 1..=2 {
                lane.push(&mut head, 0, (), task).expect("room");
                fenced.after_push(barrier);
                if flag.ring() {
                    // ORDERING: Release pairs with the Acquire below, as push and take of an inbox do.
                    listed.fetch_add(1, Ordering::Release);
                }
            }
        })
    };
    let mut seen = Vec::new();
    let mut look = || loop {
        drain(&lane, &mut seen);
        let mut last = || {
            mode.pay(&fenced, barrier);
            lane.tail() != lane.head()
        };
        if flag.rest(&ring, 0, barrier, Some(&mut last)) {
            return;
        }
    };
    let take = || {
        // ORDERING: Acquire, and Relaxed when there is none: see above.
        listed
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |units| units.checked_sub(1))
            .is_ok()
    };
    look();
    producer.join().unwrap();
    while take() {
        look();
    }
    assert_eq!(seen, [1, 2], "a record is left in a shard that rests");
}

/// A busy shard that goes to rest.
#[test]
fn idle() {
    check_plain(ALL, || no_record_is_left(Barrier::Symmetric, true));
}

/// A shard with few records: there is no barrier but the fences.
#[test]
fn idle_fenced() {
    check_plain(ALL, || no_record_is_left(Barrier::Absent, false));
}
