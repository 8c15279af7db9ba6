//! Row E4, leases: a batch leaves its worker, its group stays in flight, and it comes back once, from anywhere.

mod common;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use bgrp::{
    Engine, Failure, FailureKind, InFlight, Lease, OnExhausted, Outcome, Retry, Sim, Workers,
};
use common::{Counted, LONG, Log, MS, Order, Rng, Tally, WANTED, lock, quiet, scale, watch};

type Leases<S = ()> = Receiver<Lease<u32, u32, S>>;

fn builder() -> bgrp::Builder<u32, u32> {
    Engine::<u32, u32>::builder().workers(Workers::fixed(2)).batch_size(3)
}

/// An engine without threads, whose leases come out of a channel.
fn sim(
    with: impl FnOnce(bgrp::Builder<u32, u32>) -> bgrp::Builder<u32, u32>,
) -> (Sim<u32, u32>, Leases) {
    let (sender, leases) = channel();
    let sim = with(builder()).lease_handler(forward(sender)).build_sim(1).expect("valid settings");
    (sim, leases)
}

fn forward<S: Send + 'static>(
    sender: Sender<Lease<u32, u32, S>>,
) -> impl Fn(Lease<u32, u32, S>) + Send + Sync {
    let sender = Mutex::new(sender);
    move |lease| lock(&sender).send(lease).expect("somebody takes leases")
}

fn tasks<S>(lease: &Lease<u32, u32, S>) -> Vec<u32> {
    lease.iter().copied().collect()
}

#[test]
fn a_lease_holds_its_group_and_no_worker() {
    let (mut sim, leases) = sim(|b| b);
    (0..5).for_each(|n| sim.submit(1, n).expect("room"));
    (0..2).for_each(|n| sim.submit(2, 10 + n).expect("room"));
    sim.run();
    let out: Vec<_> = leases.try_iter().collect();
    let mut seen: Vec<_> = out.iter().map(|lease| (*lease.key(), tasks(lease))).collect();
    seen.sort();
    assert_eq!(seen, [(1, vec![0, 1, 2]), (2, vec![10, 11])], "one batch of each group");
    assert_eq!(sim.stats().leased, 2);
    sim.submit(1, 5).expect("room");
    sim.run();
    assert!(leases.try_recv().is_err(), "nothing of a group whose batch is out");
    out.into_iter().for_each(|lease| lease.complete(()));
    assert_eq!(sim.stats().done, 0, "settled by a worker, not by who completes");
    sim.run();
    assert_eq!((sim.stats().done, sim.stats().leased), (5, 1));
    let next = leases.try_recv().expect("the rest of group 1");
    assert_eq!(tasks(&next), [3, 4, 5]);
    next.complete(());
    sim.run();
    assert!(sim.close().is_complete());
    assert_eq!(sim.stats().done, 8);
}

#[test]
fn outcomes_of_a_lease_mean_what_those_of_a_batch_mean() {
    let letters = Log::new();
    let dead = letters.clone();
    let (mut sim, leases) = sim(|b| {
        b.retry(Retry::fixed(1_000 * MS).attempts(2)).on_exhausted(OnExhausted::dead_letter(
            MS,
            move |failed: bgrp::Exhausted<'_, u32, u32>| {
                dead.push((*failed.task, failed.attempts, failed.failure.reason().to_owned()));
                Ok::<(), std::io::Error>(())
            },
        ))
    });
    (0..4).for_each(|n| sim.submit(7, n).expect("room"));
    sim.run();
    let lease = leases.try_recv().expect("a batch");
    assert_eq!(lease.attempt(1), 1);
    lease.complete(vec![
        Outcome::Fail(Failure::new("for good")),
        Outcome::Retry(Failure::new("not yet")),
        Outcome::Done,
    ]);
    sim.run();
    assert_eq!((sim.stats().done, sim.stats().failed, sim.stats().retries), (1, 1, 1));
    assert!(leases.try_recv().is_err(), "the task that failed is waited for");
    sim.advance(1_000 * MS);
    sim.run();
    let mut lease = leases.try_recv().expect("the second attempt");
    assert_eq!(tasks(&lease), [1, 3], "at the head, before what came later");
    assert_eq!((lease.attempt(0), lease.attempt(1)), (2, 1));
    *lease.get_mut(1).expect("two tasks") += 100;
    lease.complete(Err("both"));
    sim.run();
    sim.advance(1_000 * MS);
    sim.run();
    let lease = leases.try_recv().expect("the one with an attempt left");
    assert_eq!(tasks(&lease), [103], "as the lease left it");
    lease.complete(vec![Outcome::Done; 7]);
    sim.run();
    let seen = letters.take();
    assert_eq!(seen[..2], [(0, 1, "for good".to_owned()), (1, 2, "both".to_owned())]);
    assert_eq!((seen[2].0, seen.len()), (103, 3));
    assert!(seen[2].2.contains("7 outcomes for a batch of 1"), "{}", seen[2].2);
    assert!(sim.close().is_complete());
}

#[test]
fn a_dropped_lease_is_a_failure_of_its_own_kind_and_a_panic_drops_it() {
    quiet();
    let kinds = Log::new();
    let seen = kinds.clone();
    let (mut sim, leases) = sim(|b| {
        b.retry(Retry::custom(move |attempts, failure| {
            seen.push((attempts, failure.kind(), failure.reason().to_owned()));
            (attempts < 3).then_some(Duration::ZERO)
        }))
    });
    sim.submit(1, 1).expect("room");
    sim.run();
    drop(leases.try_recv().expect("first"));
    sim.run();
    sim.advance(MS);
    sim.run();
    let second = leases.try_recv().expect("second");
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _owned = second;
        panic!("{WANTED}");
    }));
    assert!(panicked.is_err());
    sim.run();
    sim.advance(MS);
    sim.run();
    drop(leases.try_recv().expect("third"));
    sim.run();
    let all = kinds.take();
    let kinds: Vec<_> = all.iter().map(|(attempts, kind, _)| (*attempts, *kind)).collect();
    assert_eq!(kinds, [1, 2, 3].map(|n| (n, FailureKind::Abandoned)));
    assert!(all[0].2.contains("not completed") && all[1].2.contains("panic"), "{all:?}");
    assert_eq!((sim.stats().failed, sim.stats().retries, sim.stats().leased), (1, 2, 0));
}

#[test]
fn a_handler_that_panics_with_the_lease_in_its_hand_fails_that_batch_only() {
    quiet();
    let engine = builder()
        .lease_handler(|lease| {
            assert!(*lease.key() != 3, "{WANTED}");
            lease.complete(());
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("panicking lease handler", &engine);
    (0..300).for_each(|n| engine.submit(n % 10, n).expect("open"));
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (270, 30));
    assert!(report.is_complete());
}

#[test]
fn state_goes_along_and_a_state_that_cannot_be_opened_fails_one_task() {
    quiet();
    let opened = Arc::new(AtomicU64::new(0));
    let count = opened.clone();
    let (sender, leases) = channel();
    let mut sim = builder()
        .state(move |key| {
            let before = count.fetch_add(1, SeqCst);
            if *key == 9 && before == 0 {
                panic!("{WANTED}");
            }
            vec![*key]
        })
        .lease_handler(forward(sender))
        .build_sim(1)
        .expect("valid settings");
    (0..4).for_each(|n| sim.submit(9, n).expect("room"));
    sim.run();
    assert_eq!((sim.stats().failed, sim.stats().leased), (1, 1));
    let mut lease = leases.try_recv().expect("opened at the second attempt to open it");
    let (state, batch) = lease.split();
    state.extend(batch.iter());
    assert_eq!((lease.state(), lease.len()), (&vec![9, 1, 2, 3], 3));
    lease.state_mut().push(77);
    lease.complete(());
    sim.run();
    sim.submit(9, 5).expect("room");
    sim.run();
    let lease = leases.try_recv().expect("the next batch");
    assert_eq!(*lease.state(), [9, 1, 2, 3, 77]);
    lease.complete(());
    assert!(sim.close().is_complete());
    assert_eq!(opened.load(SeqCst), 2);
}

#[test]
fn linger_and_retries_of_held_letters_go_on_around_leases() {
    // The dead letter fails twice: the task is held at the head, and what stands behind it is not lent meanwhile.
    let fails = Arc::new(AtomicU64::new(2));
    let sink = fails.clone();
    let (mut sim, leases) = sim(|b| {
        b.flush_interval(50 * MS).on_exhausted(OnExhausted::dead_letter(
            10 * MS,
            move |_: bgrp::Exhausted<'_, u32, u32>| match sink
                .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
            {
                Ok(_) => Err("disk full"),
                Err(_) => Ok(()),
            },
        ))
    });
    (0..2).for_each(|n| sim.submit(1, n).expect("room"));
    sim.run();
    assert!(leases.try_recv().is_err(), "less than a batch lingers");
    sim.submit(1, 2).expect("room");
    sim.run();
    let lease = leases.try_recv().expect("a full batch goes at once");
    sim.submit(1, 3).expect("room");
    sim.advance(20 * MS);
    lease.complete(vec![Outcome::Fail(Failure::new("no")), Outcome::Done, Outcome::Done]);
    sim.run();
    for left in [1, 0] {
        assert_eq!((fails.load(SeqCst), sim.stats().failed), (left, 0));
        assert!(leases.try_recv().is_err(), "the head is held");
        sim.advance(10 * MS);
        sim.run();
    }
    assert_eq!(sim.stats().failed, 1);
    sim.advance(50 * MS);
    sim.run();
    let lease = leases.try_recv().expect("it has waited for longer than the interval");
    assert_eq!(tasks(&lease), [3]);
    lease.complete(());
    assert!(sim.close().is_complete());
}

#[test]
fn hatchet_4494_permits_are_running_batches_whatever_becomes_of_a_lease() {
    // R32: permits leaked when a holder panicked, timed out, was cancelled or dropped at one of its steps.
    quiet();
    for round in 0..scale(100, 1_000) {
        let mut rng = Rng(round);
        let most = 1 + rng.below(4) as u32;
        let (mut sim, leases) =
            sim(|b| b.in_flight(most).retry(Retry::fixed(MS).attempts(3)).group_capacity(1_000));
        let mut out = Vec::new();
        for step in 0..200u32 {
            match rng.below(8) {
                0..3 => sim.submit(rng.below(12) as u32, step).expect("room"),
                3..5 => sim.run(),
                5 => sim.advance(MS),
                _ if out.is_empty() => {}
                _ => {
                    let lease: Lease<u32, u32> =
                        out.swap_remove(rng.below(out.len() as u64) as usize);
                    match rng.below(6) {
                        0 => drop(lease),
                        1 => drop(catch_unwind(AssertUnwindSafe(move || {
                            let _owned = lease;
                            resume_unwind(Box::new("wanted"));
                        }))),
                        2 => lease.complete(Err("no")),
                        3 => lease.complete(Outcome::Throttled(MS)),
                        _ => lease.complete(()),
                    }
                    // Given back when a worker settles it.
                    sim.run();
                }
            }
            out.extend(leases.try_iter());
            let limits = sim.engine().limits();
            assert_eq!(limits.in_flight as usize, out.len(), "round {round}, step {step}");
            assert!(limits.in_flight <= most);
            assert_eq!(sim.stats().leased as usize, out.len());
        }
        out.clear();
        for _ in 0..1_000 {
            sim.run();
            leases.try_iter().for_each(|lease| lease.complete(()));
            sim.advance(MS);
        }
        assert_eq!(sim.engine().limits().in_flight, 0);
        let stats = sim.stats();
        assert_eq!((stats.backlog(), stats.leased), (0, 0), "round {round}");
    }
}

#[test]
fn parallel_consumer_547_a_thousand_cancellations_of_five_leave_nothing_in_flight() {
    // R22: work that was cancelled stayed counted as in flight, and after some cycles nothing was taken in any more.
    let (mut sim, leases) = sim(|b| b.batch_size(1).in_flight(InFlight::from(5)));
    for cycle in 0..1_000 {
        (0..5).for_each(|key| sim.submit(key, cycle).expect("intake goes on"));
        sim.run();
        assert_eq!(sim.engine().limits().in_flight, 5);
        assert_eq!(leases.try_iter().count(), 5, "taken out, and dropped at once");
        sim.run();
        assert_eq!((sim.engine().limits().in_flight, sim.stats().leased), (0, 0));
        assert_eq!(sim.stats().failed, 5 * u64::from(cycle + 1));
    }
    assert!(sim.close().is_complete());
}

#[test]
fn leases_that_end_on_many_threads_at_random_keep_the_order_and_end_each_task_once() {
    quiet();
    const KEYS: usize = 40;
    let each = scale(200, 3_000);
    let order = Order::new(KEYS, 1);
    let (sender, leases) = channel::<Lease<usize, (u64, Counted)>>();
    let (sender, leases) = (Mutex::new(sender), Arc::new(Mutex::new(leases)));
    let tally = Tally::new(KEYS * each as usize);
    let finishers: Vec<_> = (0..3)
        .map(|seed| {
            let (leases, order) = (leases.clone(), order.clone());
            thread::spawn(move || {
                let mut rng = Rng(seed);
                loop {
                    // Several are out at once, and end in another order than they came.
                    let next = lock(&leases).recv();
                    let Ok(mut lease) = next else { return };
                    if rng.below(20) == 0 {
                        drop(lease);
                        continue;
                    }
                    if rng.below(3) == 0 {
                        thread::yield_now();
                    }
                    let key = *lease.key();
                    for (number, task) in lease.iter_mut() {
                        order.task(key, 0, *number, || task.run());
                    }
                    lease.complete(());
                }
            })
        })
        .collect();
    let engine = Engine::builder()
        .workers(Workers::fixed(2))
        .batch_size(7)
        .retry(Retry::fixed(Duration::ZERO))
        .lease_handler(move |lease| lock(&sender).send(lease).expect("they wait for it"))
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("leases on many threads", &engine);
    for n in 0..each {
        for key in 0..KEYS {
            let task = tally.task(key * each as usize + n as usize);
            engine.submit(key, (n + 1, task)).expect("open");
        }
    }
    assert!(engine.wait_drain(LONG), "leased tasks have not ended, and they do end");
    let report = engine.close(LONG);
    assert!(report.is_complete());
    assert_eq!(report.done, KEYS as u64 * each);
    order.assert_clean(KEYS as u64 * each);
    drop(Arc::into_inner(engine));
    finishers.into_iter().for_each(|finisher| finisher.join().expect("no panic"));
    tally.all_dropped_once();
    assert_eq!(tally.total_runs(), KEYS as u64 * each);
}

#[test]
fn a_lease_of_many_segments_is_whole_while_more_tasks_come() {
    let (sender, leases) = channel();
    let mut sim = Engine::<u32, String>::builder()
        .workers(Workers::fixed(1))
        .batch_size(1_000)
        .lease_handler({
            let sender = Mutex::new(sender);
            move |lease: Lease<u32, String>| lock(&sender).send(lease).expect("taken")
        })
        .build_sim(1)
        .expect("valid settings");
    (0..700).for_each(|n| sim.submit(1, n.to_string()).expect("room"));
    sim.run();
    let lease = leases.try_recv().expect("one batch");
    let references: Vec<&String> = lease.iter().collect();
    assert!(references.len() > 100, "several segments: they begin with 8 slots");
    for n in 700..3_000 {
        sim.submit(1, n.to_string()).expect("room");
        // Others come and go, and take segments.
        sim.submit(n, n.to_string()).expect("room");
        if n % 10 == 0 {
            sim.run();
            leases.try_iter().for_each(|other| other.complete(()));
        }
    }
    assert!(references.iter().enumerate().all(|(n, text)| **text == n.to_string()));
    let mut next = references.len();
    lease.complete(());
    sim.run();
    while next < 3_000 {
        sim.run();
        for lease in leases.try_iter() {
            if *lease.key() == 1 {
                for text in lease.iter() {
                    assert_eq!(*text, next.to_string());
                    next += 1;
                }
            }
            lease.complete(());
        }
    }
    sim.run();
    assert!(sim.close().is_complete());
}
