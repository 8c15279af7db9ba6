//! Helpers of the contract tests.
#![allow(dead_code)]

pub(crate) mod waiting;

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    io::Write,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use bgrp::Engine;

pub(crate) const MS: Duration = Duration::from_millis(1);
/// Long enough that reaching it means something is broken. No test waits for it when all is well.
pub(crate) const LONG: Duration = Duration::from_secs(50);

/// The smaller figure in debug builds, the larger one in release builds.
pub(crate) const fn scale(debug: u64, release: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}

/// The lock, whatever happened under it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aborts the test process with a dump of the engine's figures when the test takes longer than 60 s: a hang becomes
/// a failure that says where it hangs.
pub(crate) struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn watchdog(what: &'static str, dump: impl Fn() -> String + Send + 'static) -> Watchdog {
    let (stop, stopped) = channel::<()>();
    let thread = std::thread::spawn(move || {
        if stopped.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            // Past the capture of the test harness, which an abort would swallow.
            let _ = writeln!(std::io::stderr(), "{what}: no end after 60 s");
            // The figures need locks, which may be what hangs.
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(3));
                std::process::abort();
            });
            let _ = writeln!(std::io::stderr(), "{}", dump());
            std::process::abort();
        }
    });
    Watchdog { stop: Some(stop), thread: Some(thread) }
}

/// A watchdog that dumps the figures of `engine`, and does not keep it alive.
pub(crate) fn watch<K, T>(what: &'static str, engine: &Arc<Engine<K, T>>) -> Watchdog
where
    K: Send + Sync + 'static,
    T: Send + 'static,
{
    let weak = Arc::downgrade(engine);
    watchdog(what, move || format!("{:?}", weak.upgrade().map(|engine| engine.stats())))
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What unwinds next may wait for ever (an engine whose handler is blocked): the watch goes on.
            std::mem::forget(self.stop.take());
            return;
        }
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Panics that a test wants to see carry this text; they are not printed.
pub(crate) const WANTED: &str = "wanted panic";

/// A test has failed: nobody may wait for what it would have done next, or the failure would look like a hang.
static FAILED: AtomicBool = AtomicBool::new(false);

pub(crate) fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let text = text.unwrap_or_default();
            if !text.contains(WANTED) {
                FAILED.store(true, SeqCst);
                before(info);
            }
        }));
    });
}

/// A small random generator (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Keys by Zipf's law: key `i` with weight `1 / (i + 1)^s`.
#[derive(Clone, Debug)]
pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(keys: usize, s: f64) -> Self {
        let mut sum = 0.0;
        let sums = (0..keys).map(|i| {
            sum += 1.0 / ((i + 1) as f64).powf(s);
            sum
        });
        Self(sums.collect())
    }
    pub(crate) fn pick(&self, rng: &mut Rng) -> usize {
        let total = self.0.last().copied().unwrap_or(0.0);
        let at = (rng.next() >> 11) as f64 / (1u64 << 53) as f64 * total;
        self.0.partition_point(|sum| *sum <= at).min(self.0.len() - 1)
    }
}

/// Burns some processor time.
pub(crate) fn spin(turns: u64) {
    for i in 0..turns {
        std::hint::black_box(i);
    }
}

/// Watches order and exclusion inside the handler, per key and source: no lock that could hide a race, one
/// relaxed-looking flag per key.
#[derive(Debug)]
pub(crate) struct Order {
    running: Vec<AtomicBool>,
    last: Vec<AtomicU64>,
    sources: usize,
    pub(crate) inversions: AtomicU64,
    pub(crate) overlaps: AtomicU64,
    pub(crate) seen: AtomicU64,
}

impl Order {
    pub(crate) fn new(keys: usize, sources: usize) -> Arc<Self> {
        Arc::new(Self {
            running: (0..keys).map(|_| AtomicBool::new(false)).collect(),
            last: (0..keys * sources).map(|_| AtomicU64::new(0)).collect(),
            sources,
            inversions: AtomicU64::new(0),
            overlaps: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        })
    }

    /// `number` counts from 1 per key and source. Runs `body` between the marks.
    pub(crate) fn task(&self, key: usize, source: usize, number: u64, body: impl FnOnce()) {
        if self.running[key].swap(true, SeqCst) {
            self.overlaps.fetch_add(1, SeqCst);
        }
        let last = &self.last[key * self.sources + source];
        if last.swap(number, SeqCst) + 1 != number {
            self.inversions.fetch_add(1, SeqCst);
        }
        self.seen.fetch_add(1, SeqCst);
        body();
        self.running[key].store(false, SeqCst);
    }

    pub(crate) fn assert_clean(&self, tasks: u64) {
        assert_eq!(self.overlaps.load(SeqCst), 0, "two tasks of one group at once");
        assert_eq!(self.inversions.load(SeqCst), 0, "tasks of one group out of order");
        assert_eq!(self.seen.load(SeqCst), tasks, "tasks run");
    }
}

/// Waits until it is so. For states that the engine shows but notifies nobody of; a watchdog bounds it.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        assert!(!FAILED.load(SeqCst), "something failed meanwhile");
        std::thread::yield_now();
    }
}

/// What happened, in order.
#[derive(Clone, Debug)]
pub(crate) struct Log<E>(Arc<Mutex<Vec<E>>>);

impl<E> Log<E> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }
    pub(crate) fn push(&self, event: E) {
        lock(&self.0).push(event);
    }
    pub(crate) fn take(&self) -> Vec<E> {
        std::mem::take(&mut lock(&self.0))
    }
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// Counts runs and drops of each task.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) runs: Vec<AtomicU32>,
    pub(crate) drops: Vec<AtomicU32>,
}

impl Tally {
    pub(crate) fn new(tasks: usize) -> Arc<Self> {
        let zeros = || (0..tasks).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { runs: zeros(), drops: zeros() })
    }
    pub(crate) fn task(self: &Arc<Self>, id: usize) -> Counted {
        Counted { id, tally: self.clone() }
    }
    pub(crate) fn all_dropped_once(&self) {
        for (id, drops) in self.drops.iter().enumerate() {
            assert_eq!(drops.load(SeqCst), 1, "drops of task {id}");
        }
    }
    pub(crate) fn runs(&self, id: usize) -> u32 {
        self.runs[id].load(SeqCst)
    }
    pub(crate) fn total_runs(&self) -> u64 {
        self.runs.iter().map(|runs| u64::from(runs.load(SeqCst))).sum()
    }
}

/// A task that counts. A drop of memory that holds no task would be seen as a second drop, or crash.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) id: usize,
    tally: Arc<Tally>,
}

impl Counted {
    pub(crate) fn run(&self) {
        self.tally.runs[self.id].fetch_add(1, SeqCst);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.tally.drops[self.id].fetch_add(1, SeqCst);
    }
}

/// A gate that opens once; handlers wait at it.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    open: Mutex<bool>,
    changed: std::sync::Condvar,
}

impl Latch {
    pub(crate) fn new() -> Arc<Self> {
        quiet();
        Arc::default()
    }
    pub(crate) fn open(&self) {
        *lock(&self.open) = true;
        self.changed.notify_all();
    }
    pub(crate) fn wait(&self) {
        let mut open = lock(&self.open);
        while !*open && !FAILED.load(SeqCst) {
            let woken = self.changed.wait_timeout(open, 100 * MS);
            open = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A count that others can wait for.
#[derive(Debug, Default)]
pub(crate) struct Count {
    count: Mutex<u64>,
    changed: std::sync::Condvar,
}

impl Count {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }
    pub(crate) fn add(&self, n: u64) {
        *lock(&self.count) += n;
        self.changed.notify_all();
    }
    pub(crate) fn get(&self) -> u64 {
        *lock(&self.count)
    }
    pub(crate) fn wait_for(&self, n: u64) {
        let mut count = lock(&self.count);
        while *count < n {
            let (next, timeout) =
                self.changed.wait_timeout(count, LONG).unwrap_or_else(PoisonError::into_inner);
            count = next;
            assert!(!timeout.timed_out() || *count >= n, "waited for {n}, have {}", *count);
        }
    }
}

/// Groups events by key, keeping their order.
pub(crate) fn by_key<K: Eq + Hash + Debug, V>(events: Vec<(K, V)>) -> HashMap<K, Vec<V>> {
    let mut map: HashMap<K, Vec<V>> = HashMap::new();
    for (key, value) in events {
        map.entry(key).or_default().push(value);
    }
    map
}

/// Runs the test `name` of this binary once more, in a process of its own with `prepare`d command. `false`: this *is*
/// that process. For tests about the whole process: its processor time, its affinity mask, its control group.
pub(crate) fn in_own_process(name: &str, prepare: impl FnOnce(&mut std::process::Command)) -> bool {
    const ALONE: &str = "BGRP_TEST_ALONE";
    if std::env::var_os(ALONE).is_some_and(|other| *other == *name) {
        return false;
    }
    let program = std::env::current_exe().expect("this test binary");
    let mut command = std::process::Command::new(program);
    command.args(["--exact", name, "--nocapture"]).env(ALONE, name);
    prepare(&mut command);
    let status = command.status().expect("it starts");
    assert!(status.success(), "{name} in a process of its own: {status}");
    true
}

/// Processor time of this process so far.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc is there");
    let after = stat.rsplit(')').next().expect("a name in brackets");
    let ticks = |i: usize| -> u64 {
        after.split_whitespace().nth(i).and_then(|t| t.parse().ok()).unwrap_or(0)
    };
    // User and system time, in ticks of 10 ms.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// Says, past the capture of the test harness, that this run cannot show something, and what is missing for it.
pub(crate) fn skipped(what: &str, missing: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {missing}");
}
