//! Checks on a machine of several NUMA nodes that the engine does there what its plan says, and prints a table.
//!
//! ```text
//! numa_check [EXPECTED]     EXPECTED: the machine in its text form, as it should be read
//! ```
//!
//! The exit code is 0 if every check passed. perf/numa-emulator runs it on emulated machines of two and four nodes; on a
//! machine of one node most of it has nothing to see.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("there is nothing to check on this system");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    check::main()
}

#[cfg(target_os = "linux")]
mod check {
    use std::collections::BTreeMap;
    use std::process::ExitCode;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use bgrp::topology::{Plan, Snapshot};
    use bgrp::{Engine, Workers};

    const LIMIT: Duration = Duration::from_secs(60);

    /// What a handler saw.
    #[derive(Clone, Copy)]
    struct Seen {
        key: u64,
        worker: usize,
        cpu: usize,
        state: usize,
        task: usize,
    }

    /// State of a group: the number that is due, and some memory.
    struct State {
        next: u64,
        _more: [u8; 56],
    }

    type Log = Arc<Mutex<Vec<Seen>>>;

    /// An engine whose tasks work for so long, watch the order, and write down where they ran. A task carries its number.
    struct Rig {
        engine: Engine<u64, u64>,
        log: Log,
        inversions: Arc<AtomicU64>,
        next: BTreeMap<u64, u64>,
    }

    impl Rig {
        fn new(work: Duration) -> Self {
            let log: Log = Arc::default();
            let inversions: Arc<AtomicU64> = Arc::default();
            let (written, wrong) = (log.clone(), inversions.clone());
            let engine = Engine::<u64, u64>::builder()
                .workers(Workers::per_core())
                .batch_size(8)
                .state(|_| State { next: 0, _more: [0; 56] })
                .task_handler(move |state: &mut State, task| {
                    if **task != state.next {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    state.next = **task + 1;
                    let seen = Seen {
                        key: *task.key(),
                        worker: own_number(),
                        cpu: own_cpu(),
                        state: std::ptr::from_ref(state).addr(),
                        task: std::ptr::from_ref(&**task).addr(),
                    };
                    written.lock().unwrap().push(seen);
                    let from = Instant::now();
                    while from.elapsed() < work {
                        std::hint::spin_loop();
                    }
                })
                .build()
                .expect("the settings are within their bounds");
            Self { engine, log, inversions, next: BTreeMap::new() }
        }

        fn submit(&mut self, key: u64) {
            let next = self.next.entry(key).or_default();
            self.engine.submit(key, *next).expect("the engine is open");
            *next += 1;
        }

        /// The first keys whose home is this worker.
        fn keys_of(&self, worker: usize, count: usize) -> Vec<u64> {
            (0..).filter(|key| self.engine.home(key) == worker).take(count).collect()
        }

        /// Waits for the end of all tasks, and gives what they saw.
        fn drain(&self) -> Vec<Seen> {
            assert!(self.engine.wait_drain(LIMIT), "tasks are stuck: {:?}", self.engine.stats());
            std::mem::take(&mut self.log.lock().unwrap())
        }

        fn ordered(&self) -> bool {
            let sent: u64 = self.next.values().sum();
            self.inversions.load(Ordering::Relaxed) == 0 && self.engine.stats().done == sent
        }
    }

    /// The worker number in the name of this thread.
    fn own_number() -> usize {
        let thread = std::thread::current();
        let name = thread.name().and_then(|name| name.strip_prefix("bgrp-"));
        name.and_then(|number| number.parse().ok()).expect("handlers run on workers")
    }

    fn own_cpu() -> usize {
        // SAFETY: takes no arguments.
        usize::try_from(unsafe { libc::sched_getcpu() }).expect("Linux tells the CPU")
    }

    /// The nodes on which these addresses lie; -1 where the kernel does not say.
    fn nodes_of(addresses: &[usize]) -> Vec<i32> {
        let pages: Vec<*const libc::c_void> =
            addresses.iter().map(|address| std::ptr::with_exposed_provenance(*address)).collect();
        let mut status = vec![-1i32; pages.len()];
        let none = std::ptr::null::<i32>();
        // SAFETY: as many answers as addresses, which are only asked about: without a list of nodes nothing moves.
        let answer = unsafe {
            let (count, pages) = (pages.len(), pages.as_ptr());
            libc::syscall(libc::SYS_move_pages, 0, count, pages, none, status.as_mut_ptr(), 0)
        };
        assert_eq!(answer, 0, "move_pages: {}", std::io::Error::last_os_error());
        status
    }

    #[derive(Default)]
    struct Table {
        failed: u32,
    }

    impl Table {
        fn row(&mut self, what: &str, passed: bool, figure: &str) {
            println!("| {} | {what} | {figure} |", if passed { "pass" } else { "FAIL" });
            self.failed += u32::from(!passed);
        }

        /// `part` of `all` is at least `least` percent of it, and there is something.
        fn share(&mut self, what: &str, part: usize, all: usize, least: usize) {
            let percent = 100.0 * part as f64 / all.max(1) as f64;
            let figure = format!("{part} of {all} ({percent:.1} %), at least {least} %");
            self.row(what, all > 0 && part * 100 >= all * least, &figure);
        }
    }

    pub(super) fn main() -> ExitCode {
        let machine = Snapshot::read();
        println!("{machine}");
        let mut table = Table::default();
        if let Some(path) = std::env::args().nth(1) {
            let text = std::fs::read_to_string(&path).expect("the expected machine can be read");
            let expected: Snapshot = text.parse().expect("it is a machine");
            table.row("snapshot is what the machine was made as", machine == expected, "");
        }
        let mut rig = Rig::new(Duration::ZERO);
        let plan = rig.engine.plan().clone();
        println!("{plan}");
        for note in rig.engine.notes() {
            println!("note: {note}");
        }
        spread(&mut rig, &plan, &mut table);
        table.row("order, all tasks done", rig.ordered(), &rig.engine.stats().done.to_string());
        drop(rig);
        if plan.nodes > 1 {
            one_by_one(&plan, &mut table);
            lopsided(&plan, &mut table);
        }
        println!("{} failed", table.failed);
        ExitCode::from(u8::from(table.failed > 0))
    }

    /// Many groups, evenly spread: where do workers run, and where does the memory of the groups lie?
    fn spread(rig: &mut Rig, plan: &Plan, table: &mut Table) {
        for _ in 0..5 {
            for key in 0..4_000 {
                rig.submit(key);
            }
        }
        // Some are made by this thread, not by a worker.
        let handles: Vec<_> = (4_000..4_500).map(|key| rig.engine.group(key)).collect();
        (4_000..4_500).for_each(|key| rig.submit(key));
        let seen = rig.drain();
        drop(handles);
        let planned = |worker: usize| plan.workers[worker].cpu;
        let right = seen.iter().filter(|s| planned(s.worker) == Some(s.cpu)).count();
        if plan.pinned {
            table.share("tasks ran on the CPU of their worker", right, seen.len(), 100);
        }
        let states: BTreeMap<u64, usize> = seen.iter().map(|s| (s.key, s.state)).collect();
        let home = |key: &u64| plan.node_ids.get(plan.workers[rig.engine.home(key)].node).copied();
        let nodes = nodes_of(&states.values().copied().collect::<Vec<_>>());
        let at_home = states.keys().zip(&nodes).filter(|(key, node)| {
            home(key).unwrap_or_default() == usize::try_from(**node).unwrap_or(usize::MAX)
        });
        table.share("groups whose memory is on their home node", at_home.count(), states.len(), 99);
        let tasks = nodes_of(&seen.iter().map(|s| s.task).collect::<Vec<_>>());
        let node_of = |s: &Seen| plan.node_ids.get(plan.workers[s.worker].node).copied();
        let near = seen.iter().zip(&tasks).filter(|(s, node)| {
            node_of(s).unwrap_or_default() == usize::try_from(**node).unwrap_or(usize::MAX)
        });
        table.share("tasks that lay on the node of who ran them", near.count(), seen.len(), 45);
    }

    /// One task at a time, all workers asleep: who is woken?
    fn one_by_one(plan: &Plan, table: &mut Table) {
        let mut rig = Rig::new(Duration::from_micros(50));
        for key in 0..300 {
            rig.submit(key);
            assert!(rig.engine.wait_drain(LIMIT));
            let asleep = |engine: &Engine<u64, u64>| engine.stats().sleeping_workers;
            let from = Instant::now();
            while asleep(&rig.engine) < plan.workers.len() as u64 && from.elapsed() < LIMIT {
                std::thread::yield_now();
            }
        }
        let seen = rig.drain();
        let node = |worker: usize| plan.workers[worker].node;
        let at_home =
            seen.iter().filter(|s| node(s.worker) == node(rig.engine.home(&s.key))).count();
        table.share("single tasks that woke a worker of their home node", at_home, seen.len(), 60);
        table.row("order, all tasks done", rig.ordered(), &rig.engine.stats().done.to_string());
    }

    /// Two workers have all the work, as far from each other as can be: the others should take it from the nearer one.
    fn lopsided(plan: &Plan, table: &mut Table) {
        let mut rig = Rig::new(Duration::from_micros(300));
        let tier = |thief: usize, victim: usize| {
            plan.workers[thief].steal.iter().position(|tier| tier.contains(&victim))
        };
        let a = 0;
        let far = plan.workers[a].steal.last().expect("there are other nodes");
        let b = far[0];
        let keys: Vec<u64> = rig.keys_of(a, 60).into_iter().chain(rig.keys_of(b, 60)).collect();
        for _ in 0..30 {
            keys.iter().for_each(|key| rig.submit(*key));
        }
        let seen = rig.drain();
        let (mut near, mut all) = (0, 0);
        let mut by_tier: BTreeMap<String, usize> = BTreeMap::new();
        for s in &seen {
            let home = rig.engine.home(&s.key);
            let other = if home == a { b } else { a };
            // Those of the two themselves were not stolen; for some both are equally far.
            if [a, b].contains(&s.worker) || tier(s.worker, a) == tier(s.worker, b) {
                continue;
            }
            all += 1;
            near += usize::from(tier(s.worker, home) < tier(s.worker, other));
            let how = &plan.workers[s.worker].steal[tier(s.worker, home).expect("another worker")];
            *by_tier.entry(how.near.to_string()).or_default() += 1;
        }
        println!("workers {a} and {b} have the work; stolen tasks by tier: {by_tier:?}");
        table.share("stolen tasks that came from the nearer of two", near, all, 60);
        table.row("order, all tasks done", rig.ordered(), &rig.engine.stats().done.to_string());
    }
}
