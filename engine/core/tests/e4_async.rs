//! Row E4, futures: the same rules on any runtime, and on tokio's.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::{
    future::{Future, pending, poll_fn},
    panic::panic_any,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::{Sender, channel},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use bgrp::{Engine, Failure, FailureKind, Lease, OnTokio, Outcome, Retry, Workers};
use common::{Counted, LONG, Log, MS, Order, Tally, WANTED, lock, quiet, scale, watch};
use tokio::runtime::{Builder as Tokio, Runtime};

/// The smallest runtime: one thread, which polls what is woken.
struct Tiny {
    queue: Mutex<Sender<Arc<Spawned>>>,
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Spawned {
    /// `None`: over.
    future: Mutex<Option<Boxed>>,
    runtime: Arc<Tiny>,
}

impl Wake for Spawned {
    fn wake(self: Arc<Self>) {
        // A runtime that is gone polls nothing.
        let _ = lock(&self.runtime.queue).send(self.clone());
    }
}

impl Tiny {
    fn start() -> Arc<Self> {
        let (queue, woken) = channel::<Arc<Spawned>>();
        thread::spawn(move || {
            for spawned in woken {
                let mut future = lock(&spawned.future);
                let waker = Waker::from(spawned.clone());
                let polled =
                    future.as_mut().map(|f| f.as_mut().poll(&mut Context::from_waker(&waker)));
                if polled.is_some_and(|polled| polled.is_ready()) {
                    *future = None;
                }
            }
        });
        Arc::new(Self { queue: Mutex::new(queue) })
    }

    fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) -> Arc<Spawned> {
        let future = Mutex::new(Some(Box::pin(future) as Boxed));
        let spawned = Arc::new(Spawned { future, runtime: self.clone() });
        spawned.clone().wake();
        spawned
    }
}

/// Lets others run `n` times.
async fn yields(mut n: u64) {
    poll_fn(|context| {
        if n == 0 {
            return Poll::Ready(());
        }
        n -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn tokio() -> Runtime {
    Tokio::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime")
}

fn builder<T: Send>() -> bgrp::Builder<u32, T> {
    Engine::<u32, T>::builder().workers(Workers::fixed(2)).batch_size(4)
}

#[test]
fn wolverine_1576_futures_of_one_group_never_overlap_on_any_runtime() {
    // R11: handlers that yield, and a second message of the same group started meanwhile.
    const KEYS: usize = 16;
    let each = scale(100, 2_000);
    for on_tokio in [false, true] {
        let order = Order::new(KEYS, 1);
        let inside = Arc::new((0..KEYS).map(|_| AtomicBool::new(false)).collect::<Vec<_>>());
        let runtime = tokio();
        let (watched, guards) = (order.clone(), inside.clone());
        let handler = move |mut lease: Lease<usize, u64>| {
            let (order, inside) = (watched.clone(), guards.clone());
            async move {
                let key = *lease.key();
                assert!(!inside[key].swap(true, SeqCst), "two batches of one group");
                for number in lease.iter_mut() {
                    // The reference into the ring lives over the await.
                    yields(*number % 4).await;
                    order.task(key, 0, *number, || ());
                }
                inside[key].store(false, SeqCst);
            }
        };
        let builder = Engine::<usize, u64>::builder().workers(Workers::fixed(2)).batch_size(4);
        let engine = if on_tokio {
            builder.tokio_handler(runtime.handle(), handler).build()
        } else {
            let tiny = Tiny::start();
            builder.async_handler(move |future| drop(tiny.spawn(future)), handler).build()
        };
        let engine = Arc::new(engine.expect("valid settings"));
        let _watch = watch("futures of one group", &engine);
        for number in 1..=each {
            (0..KEYS).for_each(|key| engine.submit(key, number).expect("open"));
        }
        assert!(engine.close(LONG).is_complete());
        order.assert_clean(KEYS as u64 * each);
    }
}

#[test]
fn an_error_a_panic_and_a_wrong_count_are_failures_of_their_kinds() {
    quiet();
    let kinds = Log::new();
    let seen = kinds.clone();
    let tiny = Tiny::start();
    let engine = builder::<u32>()
        .batch_size(2)
        .retry(Retry::custom(move |attempts, failure| {
            seen.push((failure.kind(), failure.reason().to_owned()));
            (attempts < 2).then_some(Duration::ZERO)
        }))
        .async_handler(
            move |future| drop(tiny.spawn(future)),
            |lease| async move {
                yields(1).await;
                match *lease.get(0).expect("one at least") {
                    0 => Err::<(), _>("no route".to_owned())?,
                    1 => panic!("{WANTED}"),
                    2 => panic_any(7),
                    _ => {}
                }
                Ok::<_, String>(())
            },
        )
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("failures of futures", &engine);
    let mut failed = 0;
    for (task, kind, reason) in [
        (0, FailureKind::Reported, "no route"),
        (1, FailureKind::Panicked, WANTED),
        (2, FailureKind::Panicked, "not text"),
    ] {
        engine.submit(task, task).expect("open");
        assert!(engine.wait_drain(LONG));
        failed += 1;
        assert_eq!(engine.stats().failed, failed);
        let all = kinds.take();
        assert_eq!(all.len(), 2, "two attempts");
        assert!(all.iter().all(|(k, r)| *k == kind && r.contains(reason)), "{all:?}");
    }
    engine.submit(9, 9).expect("open");
    assert_eq!(engine.close(LONG).done, 1);
}

#[test]
fn a_lease_completed_early_or_sent_away_is_ended_once() {
    let tiny = Tiny::start();
    let (sender, away) = channel::<Lease<u32, Counted>>();
    let (sender, runtime) = (Mutex::new(sender), tiny.clone());
    let gone = Arc::new(AtomicU64::new(0));
    let ended = gone.clone();
    let tally = Tally::new(3);
    let engine = builder::<Counted>()
        .async_handler(
            move |future| drop(runtime.spawn(future)),
            move |lease| {
                let sender = lock(&sender).clone();
                let ended = ended.clone();
                async move {
                    match *lease.key() {
                        // Its own completion counts, not the answer that follows.
                        0 => lease.complete(()),
                        // The answer waits for the lease.
                        _ => sender.send(lease).expect("taken"),
                    }
                    yields(2).await;
                    ended.fetch_add(1, SeqCst);
                    Outcome::Fail(Failure::new("the answer"))
                }
            },
        )
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("leases that go their own way", &engine);
    engine.submit(0, tally.task(0)).expect("open");
    assert!(engine.wait_drain(LONG));
    assert_eq!(engine.stats().done, 1);
    (1..3).for_each(|key| engine.submit(key, tally.task(key as usize)).expect("open"));
    let leases: Vec<_> = (0..2).map(|_| away.recv().expect("sent")).collect();
    while gone.load(SeqCst) < 3 {
        thread::yield_now();
    }
    assert_eq!(engine.stats().leased, 2, "the futures are over, the tasks still borrowed");
    let mut leases = leases.into_iter();
    drop(leases.next());
    leases.next().expect("two").complete(());
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (2, 1), "one by its lease, one by the answer");
    tally.all_dropped_once();
}

#[test]
fn parallel_consumer_547_aborted_futures_free_group_and_permit() {
    // R22 on a runtime: five are cancelled again and again, and intake goes on.
    let runtime = tokio();
    let handle = runtime.handle().clone();
    let (sender, spawned) = channel();
    let sender = Mutex::new(sender);
    let engine = builder::<u32>()
        .batch_size(1)
        .in_flight(5)
        .async_handler(
            move |future| lock(&sender).send(handle.spawn(future)).expect("taken"),
            |lease| async move {
                yields(u64::from(*lease.key())).await;
                pending::<()>().await;
                drop(lease);
            },
        )
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("aborted futures", &engine);
    let cycles = scale(200, 1_000);
    for cycle in 1..=cycles {
        (0..5).for_each(|key| engine.submit(key, 0).expect("intake goes on"));
        let all: Vec<tokio::task::JoinHandle<()>> = spawned.iter().take(5).collect();
        assert_eq!(engine.limits().in_flight, 5);
        all.iter().for_each(tokio::task::JoinHandle::abort);
        assert!(engine.wait_drain(LONG));
        assert_eq!(engine.stats().failed, 5 * cycle);
        assert_eq!(engine.stats().leased, 0);
    }
    assert!(engine.close(LONG).is_complete());
    assert_eq!(engine.limits().in_flight, 0);
}

#[test]
fn a_future_out_of_time_is_dropped_and_its_tasks_run_again() {
    let runtime = tokio();
    let kinds = Log::new();
    let seen = kinds.clone();
    let dropped = Arc::new(AtomicU64::new(0));
    let drops = dropped.clone();
    struct Bomb(Arc<AtomicU64>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let engine = builder::<u32>()
        .in_flight(1)
        .retry(Retry::custom(move |attempts, failure| {
            seen.push((attempts, failure.kind()));
            Some(Duration::ZERO)
        }))
        .tokio_handler(OnTokio::new(runtime.handle().clone()).timeout(20 * MS), move |lease| {
            let bomb = Bomb(drops.clone());
            async move {
                let _bomb = bomb;
                if *lease.key() == 1 && lease.attempt(0) < 3 {
                    // It holds a reference into the tasks when it is dropped.
                    let first = lease.get(0);
                    pending::<()>().await;
                    assert!(first.is_some());
                }
            }
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("futures out of time", &engine);
    engine.submit(1, 1).expect("open");
    engine.submit(2, 2).expect("open");
    let report = engine.close(LONG);
    assert_eq!((report.done, report.failed), (2, 0));
    assert_eq!(kinds.take(), [(1, FailureKind::TimedOut), (2, FailureKind::TimedOut)]);
    assert_eq!(dropped.load(SeqCst), 4, "every attempt's future is dropped");
    assert_eq!(engine.limits().in_flight, 0);
}

#[test]
fn a_runtime_that_goes_first_leaves_no_lease_behind() {
    let runtime = tokio();
    let engine = builder::<u32>()
        .tokio_handler(runtime.handle(), |lease| async move {
            pending::<()>().await;
            drop(lease);
        })
        .build()
        .expect("valid settings");
    let engine = Arc::new(engine);
    let _watch = watch("a runtime that goes first", &engine);
    (0..40).for_each(|n| engine.submit(n % 8, n).expect("open"));
    while engine.stats().leased < 8 {
        thread::yield_now();
    }
    runtime.shutdown_background();
    let report = engine.close(LONG);
    assert_eq!((report.failed, report.leased), (40, 0), "{report:?}");
}

#[test]
fn an_engine_dropped_inside_its_runtime_does_not_block_it() {
    // The one thread of the runtime drops the engine, and must still run the futures that hold its leases.
    let runtime = Tokio::new_current_thread().build().expect("a runtime");
    let tally = Tally::new(20);
    let ended = runtime.block_on(async {
        let engine = builder::<Counted>()
            .tokio_handler(tokio::runtime::Handle::current(), |lease| async move {
                yields(3).await;
                lease.iter().for_each(Counted::run);
            })
            .build()
            .expect("valid settings");
        (0..20).for_each(|id| engine.submit(id as u32 % 5, tally.task(id)).expect("open"));
        while engine.stats().leased == 0 {
            thread::yield_now();
        }
        drop(engine);
        for turn in 0..u64::MAX {
            if tally.total_runs() == 20 {
                return turn;
            }
            yields(1).await;
        }
        unreachable!("the watchdog comes first")
    });
    let _ = ended;
    while (0..20).any(|id| tally.drops[id].load(SeqCst) == 0) {
        thread::yield_now();
    }
    tally.all_dropped_once();
}
