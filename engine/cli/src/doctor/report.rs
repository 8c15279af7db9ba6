//! What `bgrp doctor` prints: one value, as text or as JSON.

use std::fmt;
use std::path::Path;

use bgrp::topology::{CpuList, FULL_CAPACITY, Plan, Snapshot};
use serde::Serialize;

use super::checks::{Check, Level, Limits, mebibytes};

/// See the module text. The names are those of the JSON object (docs/reference/cli.md).
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    plan: Planned,
    pub(super) limits: Option<Limits>,
    pub(super) checks: Vec<Check>,
    warnings: usize,
    #[serde(skip)]
    in_words: String,
}

#[derive(Debug, Serialize)]
struct Machine {
    /// The file that describes it; none for the machine at hand.
    file: Option<String>,
    cpus: Vec<usize>,
    offline: Vec<usize>,
    weaker: Vec<usize>,
    /// The kernel listed its CPUs.
    known: bool,
    mask: Vec<usize>,
    quota: Option<f64>,
    nodes: Vec<Node>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Node {
    id: usize,
    cpus: Vec<usize>,
    distance: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct Planned {
    effective_cpus: usize,
    pinned: bool,
    spin: bool,
    nodes: Vec<usize>,
    workers: Vec<Worker>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Worker {
    worker: usize,
    cpu: Option<usize>,
    /// The kernel's number.
    node: Option<usize>,
    steals: Vec<Tier>,
}

#[derive(Debug, Serialize)]
struct Tier {
    near: String,
    workers: Vec<usize>,
}

impl Report {
    pub(super) fn new(file: Option<&Path>, machine: &Snapshot, plan: &Plan) -> Self {
        let of = |wanted: &dyn Fn(&bgrp::topology::Cpu) -> bool| {
            machine.cpus.iter().filter(|cpu| wanted(cpu)).map(|cpu| cpu.id).collect()
        };
        let node = |node: &bgrp::topology::Node| Node {
            id: node.id,
            cpus: node.cpus.clone(),
            distance: node.distance.clone(),
        };
        Self {
            machine: Machine {
                file: file.map(|file| file.display().to_string()),
                cpus: of(&|cpu| cpu.online),
                offline: of(&|cpu| !cpu.online),
                weaker: of(&|cpu| cpu.online && cpu.capacity < FULL_CAPACITY),
                known: machine.known,
                mask: machine.mask.clone(),
                quota: machine.quota,
                nodes: machine.nodes.iter().map(node).collect(),
                notes: machine.notes.clone(),
            },
            plan: planned(plan),
            limits: None,
            checks: Vec::new(),
            warnings: 0,
            in_words: machine.to_string(),
        }
    }

    pub(super) fn warnings(&self) -> usize {
        self.checks.iter().filter(|check| check.level == Level::Warning).count()
    }

    pub(super) fn into_json(mut self) -> String {
        self.warnings = self.warnings();
        // Names and numbers only: nothing of it can fail to be JSON.
        serde_json::to_string_pretty(&self).unwrap_or_default()
    }
}

fn planned(plan: &Plan) -> Planned {
    let worker = |(number, worker): (usize, &bgrp::topology::WorkerPlan)| Worker {
        worker: number,
        cpu: worker.cpu,
        node: plan.node_ids.get(worker.node).copied(),
        steals: worker
            .steal
            .iter()
            .map(|tier| Tier { near: tier.near.to_string(), workers: tier.workers.clone() })
            .collect(),
    };
    Planned {
        effective_cpus: plan.effective_cpus,
        pinned: plan.pinned,
        spin: plan.spin,
        nodes: plan.node_ids.clone(),
        workers: plan.workers.iter().enumerate().map(worker).collect(),
        notes: plan.notes.clone(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.machine.file {
            Some(file) => writeln!(f, "machine in {file}")?,
            None => writeln!(f, "this machine")?,
        }
        writeln!(f, "  {}", self.in_words)?;
        writeln!(f, "\n{}", self.plan)?;
        if let Some(limits) = &self.limits {
            writeln!(f, "\nlimits\n{limits}")?;
        }
        if self.checks.is_empty() {
            return write!(f, "\nnothing was checked: the machine is another one");
        }
        writeln!(f, "\nchecks")?;
        for Check { what, level, finding } in &self.checks {
            let level = match level {
                Level::Ok => "ok",
                Level::Note => "note",
                Level::Warning => "WARNING",
            };
            writeln!(f, "  {level:<8} {what}: {finding}")?;
        }
        match self.warnings() {
            0 => write!(f, "\nno warnings"),
            1 => write!(f, "\n1 warning"),
            n => write!(f, "\n{n} warnings"),
        }
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.workers.len();
        let pinned = if self.pinned { "pinned" } else { "not pinned" };
        let spin = if self.spin { "spin a moment before they sleep" } else { "sleep at once" };
        let cpus = self.effective_cpus;
        writeln!(f, "plan: {count} workers on {cpus} CPUs, {pinned}; they {spin}")?;
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        if !self.pinned {
            return write!(f, "  all run on any CPU, and steal from each other in no order");
        }
        write!(f, "  worker  CPU  node  steals from (near ones first)")?;
        for Worker { worker, cpu, node, steals } in &self.workers {
            let (cpu, node) = (cpu.unwrap_or_default(), node.unwrap_or_default());
            write!(f, "\n  {worker:>6} {cpu:>4} {node:>5} ")?;
            for (n, tier) in steals.iter().enumerate() {
                let mut workers = tier.workers.clone();
                workers.sort_unstable();
                let between = if n == 0 { " " } else { "; " };
                write!(f, "{between}{}: {}", tier.near, CpuList(&workers))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |n| n.to_string());
        let hard = show(self.open_files_hard);
        writeln!(f, "  open files: {} (may be raised to: {hard})", show(self.open_files))?;
        writeln!(f, "  processes of this user: {}", show(self.processes))?;
        writeln!(f, "  processes of the control group: {}", show(self.processes_cgroup))?;
        let memory = self.memory_cgroup.map_or("no limit".to_owned(), mebibytes);
        write!(f, "  memory of the control group: {memory}")
    }
}
