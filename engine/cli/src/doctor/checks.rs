//! What holds the engine and its commands back on this machine, found by trying.

use std::thread;

use bgrp::topology::{self, Plan, Snapshot};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// Limits of this process; none where a value is missing.
#[derive(Debug, Default, Serialize)]
pub(super) struct Limits {
    pub(super) open_files: Option<u64>,
    /// Up to here the process may raise the one above.
    pub(super) open_files_hard: Option<u64>,
    /// Processes and threads of this user.
    pub(super) processes: Option<u64>,
    /// Processes and threads of the control group.
    pub(super) processes_cgroup: Option<u64>,
    /// Bytes that the control group may use before the kernel kills.
    pub(super) memory_cgroup: Option<u64>,
}

impl Limits {
    pub(super) fn read() -> Self {
        let files = getrlimit(Resource::Nofile);
        let groups = topology::Limits::read();
        Self {
            open_files: files.current,
            open_files_hard: files.maximum,
            processes: getrlimit(Resource::Nproc).current,
            processes_cgroup: groups.processes,
            memory_cgroup: groups.memory,
        }
    }
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Not used here, for a reason that is no fault.
    Note,
    /// It costs speed, or it will fail under load.
    Warning,
}

/// One thing that was tried.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) what: &'static str,
    pub(super) level: Level,
    pub(super) finding: String,
}

fn check(what: &'static str, level: Level, finding: impl Into<String>) -> Check {
    Check { what, level, finding: finding.into() }
}

pub(super) fn checks(machine: &Snapshot, plan: &Plan, limits: &Limits) -> Vec<Check> {
    let mut all: Vec<Check> =
        machine.notes.iter().map(|note| check("machine", Level::Warning, note.as_str())).collect();
    all.push(pinning(plan));
    all.push(barrier());
    all.push(node_memory(plan));
    all.push(exit_watch());
    all.push(check(
        "process groups",
        Level::Ok,
        "each command leads one; stopping a command stops what is in its group",
    ));
    all.push(spool());
    all.extend(enough(plan, limits));
    all
}

/// Pins a thread to each CPU of the plan, one after the other.
fn pinning(plan: &Plan) -> Check {
    if !plan.pinned {
        let why = plan.notes.iter().find_map(|note| note.strip_prefix("workers are not pinned: "));
        return check("pinning", Level::Note, format!("not used: {}", why.unwrap_or("no reason")));
    }
    let cpus: Vec<usize> = plan.workers.iter().filter_map(|worker| worker.cpu).collect();
    let count = cpus.len();
    let try_all = move || cpus.into_iter().find_map(|cpu| topology::pin_current_thread(cpu).err());
    match thread::spawn(try_all).join() {
        Ok(None) => {
            check("pinning", Level::Ok, format!("{count} workers, each on a CPU of its own"))
        }
        Ok(Some(why)) => check("pinning", Level::Warning, why.to_string()),
        Err(_) => check("pinning", Level::Warning, "the thread that tried it died"),
    }
}

fn barrier() -> Check {
    if topology::has_membarrier() {
        return check("barrier", Level::Ok, "membarrier: a submit needs no fence of its own");
    }
    let why =
        "no membarrier (an old kernel, or a filter of the container): each submit pays a fence";
    check("barrier", Level::Warning, why)
}

fn node_memory(plan: &Plan) -> Check {
    const WHAT: &str = "memory of nodes";
    if plan.nodes < 2 {
        return check(WHAT, Level::Note, "not used: the workers are on one node, or tied to none");
    }
    match plan.node_ids.iter().find_map(|node| topology::can_bind_memory(*node).err()) {
        None => check(WHAT, Level::Ok, "groups lie on the node of their worker"),
        Some(why) => {
            let so = format!("it cannot be bound ({why}): groups lie where they are first touched");
            check(WHAT, Level::Warning, so)
        }
    }
}

/// Whether the system tells at once that a command has ended.
fn exit_watch() -> Check {
    const WHAT: &str = "end of commands";
    if has_pidfd() {
        check(WHAT, Level::Ok, "pidfd: it is seen at once")
    } else {
        check(WHAT, Level::Warning, "no pidfd: it is looked for every 10 ms")
    }
}

#[cfg(target_os = "linux")]
fn has_pidfd() -> bool {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    pidfd_open(getpid(), PidfdFlags::empty()).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn has_pidfd() -> bool {
    false
}

/// Output above 1 MiB is kept in a temporary file.
fn spool() -> Check {
    let dir = std::env::temp_dir();
    match tempfile::tempfile() {
        Ok(_) => check("temporary files", Level::Ok, format!("in {}", dir.display())),
        Err(why) => {
            let lost =
                format!("none in {}: {why}; large output of commands is lost", dir.display());
            check("temporary files", Level::Warning, lost)
        }
    }
}

/// What a run with as many commands as workers needs.
fn enough(plan: &Plan, limits: &Limits) -> Vec<Check> {
    let workers = plan.workers.len() as u64;
    // Three pipes (two ends each while it starts) and a descriptor of the process; the rest is ours.
    let files = 8 * workers + 64;
    // Our own threads, a command each, and what commands start.
    let processes = 4 * workers + 64;
    // Rings of the shards, records on their way, and room for output.
    let memory = (64 + 4 * workers) << 20;
    let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    let one = |what, limit: Option<u64>, need: u64, show: fn(u64) -> String| {
        let limit = limit.filter(|limit| *limit < need)?;
        let finding =
            format!("{} allowed, about {} needed for {workers} workers", show(limit), show(need));
        Some(check(what, Level::Warning, finding))
    };
    let processes_limit = least(limits.processes, limits.processes_cgroup);
    [
        one("open files", limits.open_files, files, |n| n.to_string()),
        one("processes", processes_limit, processes, |n| n.to_string()),
        one("memory", limits.memory_cgroup, memory, mebibytes),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Bytes in words.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use bgrp::topology::Workers;

    use super::*;

    fn plan(cpus: usize) -> Plan {
        Plan::new(&Snapshot::one_node(cpus), Workers::per_core())
    }

    #[test]
    fn limits_are_compared_with_what_the_workers_need() {
        let scarce = Limits {
            open_files: Some(100),
            processes: None,
            processes_cgroup: Some(70),
            memory_cgroup: Some(32 << 20),
            ..Limits::default()
        };
        let found = enough(&plan(8), &scarce);
        let what: Vec<_> = found.iter().map(|check| check.what).collect();
        assert_eq!(what, ["open files", "processes", "memory"]);
        assert_eq!(found[0].finding, "100 allowed, about 128 needed for 8 workers");
        assert_eq!(found[2].finding, "32 MiB allowed, about 96 MiB needed for 8 workers");
        assert!(enough(&plan(4), &scarce).iter().all(|check| check.what != "open files"));
        assert!(enough(&plan(8), &Limits::default()).is_empty());
    }

    #[test]
    fn a_plan_that_pins_nothing_says_why() {
        let found = pinning(&plan(4));
        assert_eq!((found.level, found.what), (Level::Note, "pinning"));
        assert_eq!(found.finding, "not used: the CPUs of this machine are a guess");
    }

    #[test]
    fn a_cpu_that_cannot_be_had_is_a_warning() {
        let mut plan = plan(1);
        plan.pinned = true;
        plan.workers[0].cpu = Some(900_000);
        let found = pinning(&plan);
        assert_eq!(found.level, Level::Warning);
        assert!(found.finding.contains("900000"), "{}", found.finding);
    }

    #[test]
    fn what_the_machine_does_not_tell_is_a_warning() {
        let machine = Snapshot::read_from("/no/such/tree");
        let all = checks(&machine, &plan(1), &Limits::default());
        let told: Vec<_> = all.iter().filter(|check| check.what == "machine").collect();
        assert_eq!(told.len(), machine.notes.len());
        assert!(told.iter().all(|check| check.level == Level::Warning));
    }
}
