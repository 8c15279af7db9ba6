//! What the system says about this process: memory and processor time.

/// Resident bytes now; 0 where the system does not tell.
pub fn resident_bytes() -> u64 {
    status_kib("VmRSS:") * 1_024
}

/// The most resident bytes since [`reset_peak`]; 0 where the system does not tell.
pub fn peak_bytes() -> u64 {
    status_kib("VmHWM:") * 1_024
}

/// Starts a new peak, where the system allows it.
pub fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn status_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Processor seconds of all threads so far.
pub fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for writes of one rusage.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return 0.0;
    }
    // SAFETY: the call succeeded, so it is filled.
    let usage = unsafe { usage.assume_init() };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Processor seconds of the calling thread so far.
pub fn thread_cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writes of one timespec.
    if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0 {
        return 0.0;
    }
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What the scheduler did to one thread so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// The thread's id.
    pub id: u64,
    /// Its name; the first thread has that of the program.
    pub name: String,
    /// Time on a CPU, in ns.
    pub ran: u64,
    /// Time in which it could have run and had no CPU, in ns. Counted when it gets one.
    pub delayed: u64,
    /// How often a CPU was taken away from it.
    pub preempted: u64,
}

/// Every thread of this process; nothing where the system does not tell.
pub fn threads() -> Vec<Scheduled> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    tasks.flatten().filter_map(|task| scheduled(&task.path())).collect()
}

/// The calling thread.
pub fn this_thread() -> Scheduled {
    scheduled(std::path::Path::new("/proc/thread-self")).unwrap_or_default()
}

fn scheduled(folder: &std::path::Path) -> Option<Scheduled> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let times = read("schedstat")?;
    let mut times = times.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
    let status = read("status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    Some(Scheduled {
        id: field("Pid:")?,
        name: read("comm")?.trim_end().to_owned(),
        ran: times.next()?,
        delayed: times.next()?,
        preempted: field("nonvoluntary_ctxt_switches:")?,
    })
}

impl Scheduled {
    /// What happened to it since `before`.
    #[must_use]
    pub fn since(&self, before: &[Self]) -> Self {
        let before = before.iter().find(|other| other.id == self.id).cloned().unwrap_or_default();
        Self {
            id: self.id,
            name: self.name.clone(),
            ran: self.ran.saturating_sub(before.ran),
            delayed: self.delayed.saturating_sub(before.delayed),
            preempted: self.preempted.saturating_sub(before.preempted),
        }
    }
}

/// What the workers of an engine have waited for a CPU since `before`, all together: threads whose names begin as its do.
pub fn workers_since(before: &[Scheduled]) -> Scheduled {
    threads().iter().filter(|thread| thread.name.starts_with("bgrp-") && thread.id != first()).fold(
        Scheduled::default(),
        |sum, thread| {
            let since = thread.since(before);
            Scheduled {
                ran: sum.ran + since.ran,
                delayed: sum.delayed + since.delayed,
                preempted: sum.preempted + since.preempted,
                ..sum
            }
        },
    )
}

fn first() -> u64 {
    u64::from(std::process::id())
}
