//! Row F12: for each stuck group the key, since when, and why; and nothing about groups that get on.

mod common;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::channel,
    },
    time::Duration,
};

use bgrp::{
    Builder, By, Engine, InFlight, Lease, OnExhausted, Outcome, Rate, Retry, Sim, Stuck, Why,
    Workers,
};
use common::{Count, LONG, Latch, MS, Rng, lock, until, watch};

const S: Duration = Duration::from_secs(1);

fn base() -> Builder<u32, u32> {
    Engine::builder().workers(Workers::fixed(2)).batch_size(1)
}

fn by_key(stuck: Vec<Stuck<u32>>) -> BTreeMap<u32, Stuck<u32>> {
    let n = stuck.len();
    let map: BTreeMap<_, _> = stuck.into_iter().map(|stuck| (stuck.key, stuck)).collect();
    assert_eq!(map.len(), n, "each group once");
    map
}

/// Runs what can run, lets `time` pass, runs again what is due then.
fn pass(sim: &mut Sim<u32, u32>, time: Duration) {
    sim.run();
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(10 * MS);
        sim.advance(step);
        sim.run();
        left -= step;
    }
}

#[test]
fn a_group_in_back_off_is_told_with_its_attempt_and_what_is_left() {
    let mut sim = base()
        .retry(Retry::fixed(20 * S).attempts(9))
        .task_handler(|(), task| if *task.key() == 7 { Err("no") } else { Ok(()) })
        .build_sim(1)
        .expect("valid settings");
    for key in 0..20 {
        for n in 0..3 {
            sim.submit(key, n).expect("room");
        }
    }
    pass(&mut sim, 25 * S);
    assert!(sim.engine().stuck(26 * S).is_empty());
    let stuck = sim.engine().stuck(10 * S);
    assert_eq!(stuck.len(), 1);
    assert_eq!((stuck[0].key, stuck[0].backlog), (7, 3));
    assert_eq!(stuck[0].age, 25 * S, "no task has ended since it came");
    assert_eq!(stuck[0].attempt, Some(3), "tried at 0 s and at 20 s");
    assert_eq!(stuck[0].why, Why::BackOff { left: 15 * S });
    assert_eq!(
        stuck[0].to_string(),
        "7: 3 tasks, no progress for 25.0 s: in back-off, 15.0 s left (attempt 3)"
    );
}

#[test]
fn a_halted_group_and_one_that_lingers_are_told_apart() {
    let mut sim = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .batch_size(10)
        .flush_interval(60 * S)
        .on_exhausted(OnExhausted::halt_group())
        .task_handler(|(), task| if **task == 13 { Err("thirteen") } else { Ok(()) })
        .build_sim(1)
        .expect("valid settings");
    for n in 10..20 {
        sim.submit(1, n).expect("room");
    }
    sim.submit(2, 0).expect("room");
    pass(&mut sim, 30 * S);
    let stuck = by_key(sim.engine().stuck(20 * S));
    assert_eq!(stuck.len(), 2);
    assert_eq!((&stuck[&1].why, stuck[&1].backlog), (&Why::Halted, 6));
    assert_eq!(stuck[&2].why, Why::Linger { left: 30 * S });
    assert_eq!(stuck[&2].age, 30 * S);
    assert_eq!(sim.stats().held, 6);
}

#[test]
fn a_leased_group_is_told_until_its_batch_is_settled() {
    let (sender, leases) = channel();
    let sender = Mutex::new(sender);
    let mut sim = base()
        .lease_handler(move |lease| lock(&sender).send(lease).expect("somebody takes leases"))
        .build_sim(1)
        .expect("valid settings");
    sim.advance(3 * S);
    sim.submit(1, 0).expect("room");
    sim.submit(1, 1).expect("room");
    pass(&mut sim, 40 * S);
    let stuck = sim.engine().stuck(30 * S);
    assert_eq!(stuck.len(), 1);
    assert_eq!((&stuck[0].why, stuck[0].backlog), (&Why::Leased { time: 40 * S }, 2));
    assert_eq!(stuck[0].to_string(), "1: 2 tasks, no progress for 40.0 s: leased out for 40.0 s");
    assert_eq!((sim.stats().leased, sim.stats().running), (1, 0), "no worker has it in hand");

    let lease: Lease<u32, u32> = leases.recv().expect("lent");
    lease.complete(Outcome::Done);
    let stuck = sim.engine().stuck(30 * S);
    assert!(
        matches!(stuck[0].why, Why::Ready { .. }),
        "back, and nobody has settled it: {stuck:?}"
    );
    sim.run();
    // Its second task is out now.
    let stuck = sim.engine().stuck(Duration::ZERO);
    assert!(stuck.is_empty(), "it got on at this moment: {stuck:?}");
    drop(leases.recv().expect("lent"));
    let times = sim.engine().histograms().batch_time;
    assert_eq!(times.count(), 1, "the time of a lease is known when it is back");
    assert!(times.quantile(1.0) >= 39 * S && times.quantile(1.0) <= 41 * S, "{times}");
}

#[test]
fn paused_and_closed_groups_are_told_when_they_hold_tasks() {
    let mut sim = base().task_handler(|(), _| ()).build_sim(1).expect("valid settings");
    for key in [1, 2] {
        sim.engine().pause_group(key);
    }
    sim.engine().close_group(3, Duration::ZERO);
    pass(&mut sim, S);
    assert!(sim.engine().stuck(Duration::ZERO).is_empty(), "nothing waits in them");
    let mut producer = sim.producer();
    for n in 0..2 {
        sim.submit(1, n).expect("room");
        producer.submit(3, n).expect("lanes do not ask the group");
    }
    pass(&mut sim, 40 * S);
    let stuck = by_key(sim.engine().stuck(30 * S));
    assert_eq!(stuck.keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert_eq!((&stuck[&1].why, stuck[&1].backlog), (&Why::Paused, 2));
    assert_eq!((&stuck[&3].why, stuck[&3].backlog), (&Why::Closed, 2));
    assert_eq!(stuck[&1].age, 41 * S, "since it was paused");
    assert!(stuck[&1].to_string().ends_with(": paused"), "{}", stuck[&1]);
    for key in [1, 2, 3] {
        assert!(sim.engine().resume_group(&key));
    }
    sim.run();
    assert!(sim.engine().stuck(Duration::ZERO).is_empty());
    assert_eq!(sim.stats().done, 4);
}

#[test]
fn rates_of_the_group_and_of_the_engine_are_told_apart() {
    let mut sim = base()
        .group_rate(Rate::per_second(0.1).burst(1))
        .task_handler(|(), _| ())
        .build_sim(1)
        .expect("valid settings");
    sim.submit(1, 0).expect("room");
    sim.submit(1, 1).expect("room");
    pass(&mut sim, 4 * S);
    let stuck = sim.engine().stuck(3 * S);
    assert_eq!(stuck.len(), 1);
    assert_eq!((&stuck[0].why, stuck[0].age), (&Why::GroupRate { left: 6 * S }, 4 * S));

    let mut sim = base()
        .rate(Rate::per_second(0.1).burst(1))
        .task_handler(|(), _| ())
        .build_sim(1)
        .expect("valid settings");
    for key in 0..3 {
        sim.submit(key, 0).expect("room");
    }
    pass(&mut sim, 4 * S);
    let stuck = by_key(sim.engine().stuck(3 * S));
    assert_eq!(stuck.len(), 2, "one of three has run");
    for stuck in stuck.values() {
        assert_eq!((&stuck.why, stuck.age), (&Why::EngineRate { left: 6 * S }, 4 * S));
    }
    assert_eq!(sim.stats().waiting, 2);
}

#[test]
fn a_throttled_downstream_is_told_for_all_that_wait_for_it() {
    let calls = Arc::new(AtomicU64::new(0));
    let seen = calls.clone();
    let mut sim = base()
        .in_flight(2)
        .task_handler(move |(), _| {
            if seen.fetch_add(1, SeqCst) == 0 { Outcome::Throttled(30 * S) } else { Outcome::Done }
        })
        .build_sim(1)
        .expect("valid settings");
    sim.submit(1, 0).expect("room");
    sim.run();
    sim.submit(2, 0).expect("room");
    sim.submit(3, 0).expect("room");
    pass(&mut sim, 10 * S);
    let stuck = by_key(sim.engine().stuck(5 * S));
    assert_eq!(stuck.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(stuck[&2].why, Why::Throttled { left: 20 * S });
    assert_eq!(stuck[&3].why, Why::Throttled { left: 20 * S });
    pass(&mut sim, 25 * S);
    assert!(sim.engine().stuck(Duration::ZERO).is_empty());
}

#[test]
fn who_runs_where_and_who_waits_behind_it() {
    let (latch, begun) = (Latch::new(), Count::new());
    let (gate, started) = (latch.clone(), begun.clone());
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .in_flight(InFlight::batches(1))
            .task_handler(move |(), task| {
                if *task.key() == 1 {
                    started.add(1);
                    gate.wait();
                }
            })
            .build()
            .expect("valid settings"),
    );
    let _watchdog = watch("who runs where", &engine);
    engine.submit(1, 0).expect("room");
    engine.submit(1, 1).expect("room");
    begun.wait_for(1);
    engine.submit(2, 0).expect("room");
    until(|| engine.stats().waiting == 1);
    until(|| engine.stuck(20 * MS).len() == 2);
    let stuck = by_key(engine.stuck(20 * MS));
    let Why::Running { worker, tasks, time } = stuck[&1].why else { panic!("{}", stuck[&1]) };
    assert!(worker < 2 && tasks >= 1 && time >= 20 * MS);
    assert_eq!(stuck[&1].attempt, Some(1));
    assert_eq!(stuck[&2].why, Why::Permit { in_flight: 1, limit: 1 });
    assert!(stuck[&1].to_string().contains("running on worker"), "{}", stuck[&1]);
    latch.open();
    assert!(engine.wait_drain(LONG));
    until(|| engine.stuck(Duration::ZERO).is_empty());
}

#[test]
fn tasks_that_no_worker_takes_in_are_told() {
    // All workers are held by handlers: what comes now stays in the ingress or in ready groups.
    let (latch, begun) = (Latch::new(), Count::new());
    let (gate, started) = (latch.clone(), begun.clone());
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .task_handler(move |(), task| {
                if *task.key() < 2 {
                    started.add(1);
                    gate.wait();
                }
            })
            .build()
            .expect("valid settings"),
    );
    let _watchdog = watch("in the ingress", &engine);
    engine.submit(0, 0).expect("room");
    engine.submit(1, 0).expect("room");
    begun.wait_for(2);
    for key in 100..150 {
        engine.submit(key, 0).expect("room");
    }
    // Whichever shard they are in: together the report tells of all of them.
    until(|| engine.stuck(20 * MS).iter().map(|stuck| stuck.backlog).sum::<u64>() == 52);
    let stuck = engine.stuck(20 * MS);
    let ingress: u64 = stuck
        .iter()
        .filter(|stuck| matches!(stuck.why, Why::Ingress { starved: false }))
        .map(|stuck| stuck.backlog)
        .sum();
    assert_eq!(ingress, engine.stats().ingress());
    assert_eq!(ingress, 50);
    latch.open();
    assert!(engine.wait_drain(LONG));
}

#[test]
fn a_group_that_gets_on_is_never_told_however_long_it_is_busy() {
    // One group gets a task a second for an hour, each of which fails once, while its backlog never runs dry; another gets stuck.
    let mut sim =
        base()
            .retry(Retry::fixed(100 * MS).attempts(1_000_000))
            .task_handler(|(), task| {
                if *task.key() == 2 || task.attempt() == 1 { Err("once") } else { Ok(()) }
            })
            .build_sim(1)
            .expect("valid settings");
    for _ in 0..600 {
        sim.submit(1, 0).expect("room");
    }
    sim.submit(2, 0).expect("room");
    for second in 1..=50 {
        for _ in 0..10 {
            sim.submit(1, 0).expect("room");
        }
        pass(&mut sim, S);
        let stuck = sim.engine().stuck(5 * S);
        assert_eq!(stuck.len(), usize::from(second > 5), "{second} s: {stuck:?}");
        if let Some(stuck) = stuck.first() {
            assert_eq!((stuck.key, stuck.age), (2, second * S));
        }
    }
    let top = sim.engine().top_groups(By::Backlog, 1);
    assert_eq!(top[0].key, 1);
    assert_eq!(top[0].backlog, sim.stats().backlog() - 1);
    assert!(top[0].age < S, "{:?}", top[0].age);
}

#[test]
fn at_most_so_many_are_told_and_they_are_the_oldest() {
    let mut sim = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .retry(Retry::fixed(10_000 * S).attempts(9))
        .task_handler(|(), _| Err::<(), _>("no"))
        .build_sim(1)
        .expect("valid settings");
    let mut rng = Rng(5);
    let mut since = HashMap::new();
    let mut now = Duration::ZERO;
    for key in 0..3_000u32 {
        let by = Duration::from_millis(rng.below(3));
        sim.advance(by);
        now += by;
        sim.submit(key, 0).expect("room");
        sim.run();
        since.insert(key, now);
    }
    sim.advance(S);
    now += S;
    assert_eq!(sim.engine().stuck(Duration::ZERO).len(), 1_000, "the documented bound");
    for most in [0, 1, 17, 400, 5_000] {
        let told = sim.engine().stuck_at_most(Duration::ZERO, most);
        assert_eq!(told.len(), most.min(3_000));
        assert!(told.is_sorted_by_key(|stuck| std::cmp::Reverse(stuck.age)));
        for stuck in &told {
            assert_eq!(stuck.age, now - since[&stuck.key], "{stuck}");
        }
        let youngest = told.last().map_or(Duration::MAX, |stuck| stuck.age);
        let older = since.values().filter(|since| now - **since > youngest).count();
        assert!(older <= most, "{older} are older than the youngest of {most}");
    }
}

#[test]
fn failures_and_rate_are_found_among_many_keys() {
    let mut sim = Engine::<u32, u32>::builder()
        .workers(Workers::fixed(2))
        .retry(Retry::fixed(MS).attempts(3))
        .task_handler(|(), task| if *task.key() == 77 { Err("no") } else { Ok(()) })
        .build_sim(1)
        .expect("valid settings");
    for n in 0..20_000u32 {
        let key = if n % 100 == 0 {
            77
        } else if n % 4 == 0 {
            5
        } else {
            100 + n % 5_000
        };
        sim.submit(key, n).expect("room");
        if n % 500 == 0 {
            sim.run();
            sim.advance(MS);
        }
    }
    for _ in 0..1_000 {
        sim.run();
        sim.advance(MS);
    }
    let failing = sim.engine().top_groups(By::Failures, 5);
    assert_eq!(failing.len(), 1, "nobody else failed");
    assert_eq!((failing[0].key, failing[0].share), (77, Some(1.0)));
    let busiest = sim.engine().top_groups(By::Rate, 1);
    assert_eq!((busiest[0].key, busiest[0].backlog), (5, 0));
}

#[test]
fn reports_beside_work_disturb_nothing_and_tell_only_what_is_there() {
    let keys = 500u32;
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(3))
            .idle_groups(64)
            .retry(Retry::fixed(MS).attempts(2))
            .task_handler(|(), task| {
                if **task % 97 == 0 && task.attempt() == 1 { Err("once") } else { Ok(()) }
            })
            .build()
            .expect("valid settings"),
    );
    let _watchdog = watch("reports beside work", &engine);
    let tasks = common::scale(60_000, 400_000) as u32;
    let feeder = {
        let engine = engine.clone();
        std::thread::spawn(move || {
            for n in 0..tasks {
                engine.submit((n.wrapping_mul(2_654_435_761) >> 8) % keys, n).expect("open");
            }
        })
    };
    let mut reports = 0u64;
    while !feeder.is_finished() || reports < 20 {
        for stuck in engine.stuck(Duration::ZERO) {
            assert!(stuck.key < keys);
            assert!(stuck.age < LONG, "no stamp is older than the test: {stuck}");
            assert!(stuck.backlog <= u64::from(tasks));
        }
        for top in engine.top_groups(By::Failures, 5) {
            assert!(top.key < keys);
        }
        assert!(engine.hot_keys(3).iter().all(|hot| hot.key < keys));
        reports += 1;
    }
    feeder.join().expect("the feeder ends");
    assert!(engine.wait_drain(LONG));
    until(|| engine.stuck(Duration::ZERO).is_empty());
    assert_eq!(engine.stats().done, u64::from(tasks));
}
