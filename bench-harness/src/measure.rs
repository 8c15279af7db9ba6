//! One run of one system on one workload, and what may be said about it.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use crate::{
    count_alloc, oracle,
    oracle::Verdict,
    process,
    system::System,
    workload::{Stream, Workload},
};

/// A run that the oracle has confirmed. There is no other way to get a rate.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    tasks: u64,
    seconds: f64,
    allocations: Option<u64>,
    peak_rss: Option<u64>,
}

/// The oracle disagrees: no rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The system.
    pub system: String,
    /// The workload.
    pub workload: String,
    /// What the run came to.
    pub got: Verdict,
    /// What it had to come to.
    pub wanted: Verdict,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} on {}: no rate, since the oracle disagrees: {} of {} tasks ran, {} out of order, sum {:#x} instead of {:#x}",
            self.system,
            self.workload,
            self.got.tasks,
            self.wanted.tasks,
            self.got.violations,
            self.got.sum,
            self.wanted.sum
        )
    }
}

impl std::error::Error for Wrong {}

impl Checked {
    /// Tasks per second.
    pub fn rate(&self) -> f64 {
        self.tasks as f64 / self.seconds
    }
    /// Wall time from the first submit to the last task's end.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }
    /// Tasks.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }
    /// Allocations per task, those of warm-up included; none for a program of its own.
    pub fn allocations_per_task(&self) -> Option<f64> {
        self.allocations.map(|allocations| allocations as f64 / self.tasks as f64)
    }
    /// Bytes by which the resident memory grew at its peak; none for a program of its own.
    pub fn peak_rss(&self) -> Option<u64> {
        self.peak_rss
    }
}

/// A workload made ready: streams and the verdict they must get.
#[derive(Debug)]
pub struct Prepared {
    /// The workload.
    pub workload: Workload,
    /// What the producers submit.
    pub streams: Vec<Stream>,
    wanted: Verdict,
    /// The same with fewer tasks, for a system that takes no more ([`System::most_tasks`]).
    reduced: OnceLock<Box<Prepared>>,
}

impl Prepared {
    /// Makes the streams, and runs them in order once for the expected sum.
    pub fn new(workload: Workload) -> Self {
        let streams = workload.streams();
        let wanted = oracle::expected(&streams, workload.keys);
        Self { workload, streams, wanted, reduced: OnceLock::new() }
    }

    /// One run. The clock runs from the first submit until the system says that the last task has ended; starting
    /// and stopping the system is outside.
    ///
    /// # Errors
    /// The oracle disagrees.
    pub fn run(&self, system: &dyn System) -> Result<Checked, Box<Wrong>> {
        if let Some(most) = system.most_tasks().filter(|most| *most < self.workload.tasks) {
            let reduced = self.reduced.get_or_init(|| {
                Box::new(Self::new(Workload { tasks: most, ..self.workload.clone() }))
            });
            return reduced.run(system);
        }
        oracle::reset();
        process::reset_peak();
        let before = process::resident_bytes();
        let timed = system.run(&self.workload, &self.streams);
        let peak = process::peak_bytes();
        let got = oracle::verdict();
        if got != self.wanted {
            return Err(Box::new(Wrong {
                system: system.name().to_owned(),
                workload: self.workload.name.to_owned(),
                got,
                wanted: self.wanted,
            }));
        }
        Ok(Checked {
            tasks: got.tasks,
            seconds: timed.elapsed.as_secs_f64(),
            allocations: timed.allocations,
            peak_rss: timed.allocations.map(|_| peak.saturating_sub(before)),
        })
    }
}

/// What a system measured of its own run.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// From the first submit to the end of the last task.
    pub elapsed: Duration,
    /// Allocations in that time; none when the tasks ran in another process.
    pub allocations: Option<u64>,
}

/// Times `submit_and_wait`.
pub fn timed(submit_and_wait: impl FnOnce()) -> Timed {
    let allocations = count_alloc::allocations();
    let start = Instant::now();
    submit_and_wait();
    let elapsed = start.elapsed();
    Timed { elapsed, allocations: Some(count_alloc::allocations() - allocations) }
}

/// Runs one thread for each stream, the first on the calling thread.
pub fn each_producer(streams: &[Stream], submit: impl Fn(&Stream) + Sync) {
    let (first, others) = streams.split_first().expect("a workload has a producer");
    std::thread::scope(|scope| {
        for stream in others {
            let submit = &submit;
            scope.spawn(move || submit(stream));
        }
        submit(first);
    });
}

/// Median, least and greatest of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let n = figures.len();
        let median =
            if n % 2 == 1 { figures[n / 2] } else { (figures[n / 2 - 1] + figures[n / 2]) / 2.0 };
        Self { median, min: figures[0], max: figures[n - 1] }
    }
}
