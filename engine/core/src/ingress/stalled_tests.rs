//! S24 (crossbeam #675): a submitter that is stopped between its reservation and its publication.
//!
//! No user code runs there, so a test must stand in for the stopped submitter: it does the two halves of a submit by
//! hand, and lets time pass between them. What it shows: groups of other shards go on; who submits to the same shard
//! gets in while there is room, and sleeps (rather than spins) when there is none; workers sleep too; and once the
//! stopped one goes on, everything runs in order.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use super::ring::Address;
use crate::{Engine, SubmitReason, Workers};

/// How long the submitter stands still; the report had 10 ms.
const STOPPED: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(50);

/// Processor time of the calling thread.
fn own_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec to where it is told.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time of all threads of this process whose names begin with `name`.
fn cpu_time_of(name: &str) -> Duration {
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc/self/task").expect("proc is there").flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let (before, after) = stat.rsplit_once(')').expect("a name in brackets");
        if before.split('(').nth(1).is_some_and(|own| own.starts_with(name)) {
            let mut fields = after.split_whitespace().skip(11);
            ticks += fields.next().and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
            ticks += fields.next().and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    // In ticks of 10 ms.
    Duration::from_millis(10 * ticks)
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

type Runs = Arc<Mutex<Vec<(u64, u64)>>>;

fn engine(workers: usize, name: &str) -> (Engine<u64, u64>, Runs) {
    let runs = Runs::default();
    let log = runs.clone();
    let engine = Engine::<u64, u64>::builder()
        .workers(Workers::fixed(workers))
        .capacity(1 << 11)
        .thread_name(name)
        .task_handler(move |(), task| log.lock().unwrap().push((*task.key(), **task)))
        .build()
        .expect("valid settings");
    (engine, runs)
}

#[test]
fn crossbeam_675_a_submitter_stopped_in_its_critical_step_delays_its_own_shard_only() {
    for (workers, name) in [(1, "stop1"), (2, "stop2"), (6, "stop6")] {
        let (engine, runs) = engine(workers, name);
        let front = &engine.front;
        let shard_of = |key: &u64| front.hash(key).0;
        let (shard, hash) = front.hash(&0);
        let door = &front.doors[shard];
        let neighbours: Vec<u64> = (1..).filter(|key| shard_of(key) == shard).take(3).collect();
        let others: Vec<u64> = (1..).filter(|key| shard_of(key) != shard).take(40).collect();

        // The submitter of key 0 has reserved, and stands still.
        let (position, _) = door.ring.reserve(1).expect("room");

        // Groups of other shards are unaffected.
        for n in 0..50 {
            for key in &others {
                engine.submit(*key, n).expect("open");
            }
        }
        let of_others = 50 * others.len();
        until("other groups run", || runs.lock().unwrap().len() == of_others);

        // The shard takes what has room, then hands back.
        let mut taken = 0;
        loop {
            match engine.try_submit(neighbours[0], taken) {
                Ok(()) => taken += 1,
                Err(error) => {
                    assert!(matches!(error.reason, SubmitReason::EngineFull), "{error}");
                    break;
                }
            }
        }
        assert!(taken > 0, "the ring has more than one cell");

        // Who waits sleeps, and so do the workers.
        until("workers go to sleep", || engine.stats().sleeping_workers == workers as u64);
        let used = AtomicU64::new(0);
        let waiting = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for key in &neighbours[1..] {
                let (engine, used, waiting) = (&engine, &used, &waiting);
                scope.spawn(move || {
                    let before = own_cpu_time();
                    waiting.fetch_add(1, SeqCst);
                    engine.submit(*key, 7).expect("open");
                    let own = own_cpu_time() - before;
                    used.fetch_add(own.as_nanos() as u64, SeqCst);
                });
            }
            until("they begin", || waiting.load(SeqCst) == neighbours.len() - 1);
            let before = cpu_time_of(name);
            std::thread::sleep(STOPPED);
            let of_workers = cpu_time_of(name) - before;
            assert_eq!(runs.lock().unwrap().len(), of_others, "nothing passes the gap");
            // The submitter goes on.
            // SAFETY: reserved above, and filled once.
            unsafe { door.ring.fill(position, Address::Key(hash, 0), 99) };
            front.published(door);
            let share = of_workers.as_secs_f64() / STOPPED.as_secs_f64();
            println!("{workers} workers used {of_workers:?} of {STOPPED:?} meanwhile");
            assert!(share < 0.5, "workers spin behind the gap: {of_workers:?}");
        });
        let used = Duration::from_nanos(used.load(SeqCst));
        println!("two waiting submitters used {used:?}");
        assert!(used < STOPPED / 2, "waiting submitters spin: {used:?}");

        let report = engine.close(LONG);
        assert!(report.is_complete());
        assert_eq!(report.done, of_others as u64 + taken + 2 + 1);
        let runs = runs.lock().unwrap();
        let of = |key: u64| runs.iter().filter(move |run| run.0 == key).map(|run| run.1);
        assert!(of(0).eq([99]));
        assert!(of(neighbours[0]).eq(0..taken));
        assert!(others.iter().all(|key| of(*key).eq(0..50)));
    }
}

#[test]
fn a_halt_gives_back_the_task_of_a_submitter_that_is_stopped() {
    // Found by shuttle: close collected what was published, and the submitter then told that its task was accepted.
    for by_deadline in [false, true] {
        let (engine, runs) = engine(2, "stoph");
        let (shard, hash) = engine.front.hash(&5);
        let door = &engine.front.doors[shard];
        let (position, _) = door.ring.reserve(1).expect("room");
        let engine = &engine;
        std::thread::scope(|scope| {
            let closing = scope.spawn(move || {
                if by_deadline {
                    return engine.close(Duration::from_millis(10));
                }
                engine.halt();
                engine.close(LONG)
            });
            until("nothing starts any more", || engine.is_halted());
            std::thread::sleep(Duration::from_millis(30));
            assert!(!closing.is_finished(), "an accepted task is not accounted for");
            // SAFETY: reserved above, and filled once.
            unsafe { door.ring.fill(position, Address::Key(hash, 5), 1) };
            engine.front.published(door);
            let report = closing.join().expect("close returns");
            assert_eq!((report.done, report.left_tasks()), (0, 1));
            assert_eq!((report.left[0].key, report.left[0].tasks[0]), (5, 1));
        });
        assert!(runs.lock().unwrap().is_empty());
    }
}

#[test]
fn crossbeam_675_close_waits_for_a_submitter_that_is_stopped() {
    // Its task counts as accepted: close may neither lose it nor return before it.
    let (engine, runs) = engine(2, "stopc");
    let (shard, hash) = engine.front.hash(&5);
    let door = &engine.front.doors[shard];
    let (position, _) = door.ring.reserve(1).expect("room");
    let (engine, taken) = (&engine, AtomicU64::new(0));
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || engine.close(LONG));
        let refused = || match engine.try_submit(6, 0) {
            Ok(()) => {
                taken.fetch_add(1, SeqCst);
                false
            }
            Err(_) => true,
        };
        until("it is closed to others", refused);
        std::thread::sleep(Duration::from_millis(30));
        assert!(!closing.is_finished(), "an accepted task is not accounted for");
        // SAFETY: reserved above, and filled once.
        unsafe { door.ring.fill(position, Address::Key(hash, 5), 1) };
        engine.front.published(door);
        let report = closing.join().expect("close returns");
        assert_eq!((report.done, report.left.len()), (1 + taken.load(SeqCst), 0));
    });
    assert_eq!(runs.lock().unwrap().iter().filter(|run| **run == (5, 1)).count(), 1);
}
