//! Where workers go on a machine, as a pure function of the machine.
//!
//! | | CPUs that count | pinned | spins before it sleeps |
//! |---|---|---|---|
//! | no quota | online and in the mask | yes, if workers <= CPUs | if workers <= CPUs and CPUs > 1 |
//! | quota below those CPUs | the quota, rounded up | no: the kernel places what it throttles | only within the quota |
//! | CPUs or mask not told by the kernel | a guess | no | as without a quota |
//!
//! A quota of 2.5 CPUs counts as 3: two workers would leave half a CPU unused for ever, three use all of it and are
//! throttled now and then. A quota below one CPU counts as 1. (Java, .NET and Go round up too.)
//!
//! A mask that leaves out CPUs is a statement of who runs the process, so workers are pinned inside it (recipe S16). Two
//! engines on one machine should have a mask each, or `Builder::cpus`.
//!
//! Invariants:
//! * I1: at least one CPU counts; the number of workers is what was asked for.
//! * I2: pinned workers have CPUs of their own, all online and in the mask. Cores are used up before SMT siblings, strong
//!   cores before weak ones, and one node before the next.
//! * I3: the tiers of a worker name every other worker exactly once, near ones first; none is empty.
//! * I4: `WorkerPlan::node` counts the nodes used from 0 to `nodes - 1`, without gaps.
//!
//! Cost: O(workers^2) time and memory, for the tiers; made once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::near::{Tier, roaming, tiers};
use super::snapshot::{Cpu, Snapshot};
use crate::sync::mutant;

/// Workers that an engine may have.
pub(crate) const MAX_WORKERS: usize = 1_024;

/// How many workers an engine has.
///
/// ```
/// use bgrp::topology::Workers;
///
/// assert_eq!(Workers::from(8), Workers::fixed(8));
/// assert_eq!(Workers::default(), Workers::per_core());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// One for each CPU that this process may use: in its mask, online, and within its quota. At most 1,024.
    #[default]
    PerCore,
    /// So many. 0 can be said, and is refused when the engine is built.
    Fixed(usize),
}

impl Workers {
    /// One worker for each CPU that this process may use, at most 1,024.
    ///
    /// ```
    /// # use bgrp::topology::{Plan, Snapshot, Workers};
    /// let plan = Plan::new(&Snapshot::one_node(4), Workers::per_core());
    /// assert_eq!(plan.workers.len(), 4);
    /// ```
    pub fn per_core() -> Self {
        Self::PerCore
    }

    /// `n` workers, whatever the machine.
    ///
    /// ```
    /// # use bgrp::topology::{Plan, Snapshot, Workers};
    /// let plan = Plan::new(&Snapshot::one_node(4), Workers::fixed(64));
    /// assert_eq!(plan.workers.len(), 64);
    /// assert!(!plan.pinned && !plan.spin);
    /// ```
    pub fn fixed(n: usize) -> Self {
        Self::Fixed(n)
    }
}

impl From<usize> for Workers {
    fn from(n: usize) -> Self {
        Self::Fixed(n)
    }
}

/// Workers, their CPUs, and who is near to whom.
///
/// ```
/// use bgrp::topology::{Plan, Snapshot, Workers};
///
/// let plan = Plan::new(&Snapshot::read(), Workers::per_core());
/// assert_eq!(plan.workers.len(), plan.effective_cpus);
/// println!("{plan}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One entry a worker, in the order of their numbers.
    pub workers: Vec<WorkerPlan>,
    /// CPUs that this process may use at once; at least 1.
    pub effective_cpus: usize,
    /// Whether each worker is tied to a CPU.
    pub pinned: bool,
    /// Whether a worker may spin for some microseconds before it sleeps.
    pub spin: bool,
    /// NUMA nodes that workers are on; at least 1.
    pub nodes: usize,
    /// The kernel's numbers of those nodes, by [`WorkerPlan::node`]; none if workers are not tied.
    pub node_ids: Vec<usize>,
    /// Why workers are not pinned, and what else is not as one may expect; one sentence each. Notes
    /// of the [`Snapshot`] are not repeated.
    pub notes: Vec<String>,
}

/// Where one worker goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPlan {
    /// The CPU it is tied to, by the kernel's number; `None` if it is not tied.
    pub cpu: Option<usize>,
    /// Its node among those in use, counted from 0; 0 if it is not tied.
    pub node: usize,
    /// The other workers, in tiers from near to far. A worker that is not tied has one tier, the only one none.
    pub steal: Vec<Tier>,
}

impl Plan {
    /// Plans `workers` on `machine`. Looks at nothing else, so it can be tried on any machine that
    /// can be described. Never panics.
    ///
    /// ```
    /// use bgrp::topology::{Plan, Snapshot, Workers};
    ///
    /// let half_a_cpu = Snapshot { quota: Some(0.5), ..Snapshot::one_node(64) };
    /// let plan = Plan::new(&half_a_cpu, Workers::per_core());
    /// assert_eq!((plan.effective_cpus, plan.pinned, plan.spin), (1, false, false));
    /// ```
    pub fn new(machine: &Snapshot, workers: Workers) -> Self {
        let mut notes = Vec::new();
        let allowed = allowed_cpus(machine, &mut notes);
        let effective = match machine.quota {
            // A float converts to the nearest integer there is, and NaN to 0.
            Some(quota) => allowed.len().min(quota.ceil() as usize),
            None => allowed.len(),
        }
        .max(1);
        let count = match workers {
            Workers::PerCore => effective.min(MAX_WORKERS),
            Workers::Fixed(n) => n,
        };
        let obstacle = obstacle(machine, allowed.len(), count);
        let pinned = obstacle.is_none();
        notes.extend(obstacle.map(|why| format!("workers are not pinned: {why}")));
        let within_quota = machine.quota.is_none_or(|quota| count as f64 <= quota);
        let (workers, node_ids) =
            if pinned { pin_to(machine, allowed, count) } else { (roaming(count), Vec::new()) };
        let spin = effective > 1 && count <= effective && within_quota;
        let nodes = node_ids.len().max(1);
        Self { workers, effective_cpus: effective, pinned, spin, nodes, node_ids, notes }
    }

    /// The same number of workers, free to run on any CPU, and without spinning: for handlers that start processes (a
    /// child inherits the affinity of its parent) or leave the CPU to others.
    #[must_use]
    pub fn unpinned(self) -> Self {
        let mut notes = self.notes;
        if self.pinned {
            notes.push("workers are not pinned: not wanted".to_owned());
        }
        let workers = roaming(self.workers.len());
        Self { workers, pinned: false, spin: false, nodes: 1, node_ids: Vec::new(), notes, ..self }
    }
}

/// CPUs that are online and in the mask; those online if that leaves none.
fn allowed_cpus<'a>(machine: &'a Snapshot, notes: &mut Vec<String>) -> Vec<&'a Cpu> {
    let counts = |cpu: &&Cpu| cpu.online || mutant("plan-offline");
    let online: Vec<&Cpu> = machine.cpus.iter().filter(counts).collect();
    if machine.mask.is_empty() {
        return online;
    }
    let mask: BTreeSet<usize> = machine.mask.iter().copied().collect();
    let allowed: Vec<&Cpu> = online.iter().filter(|cpu| mask.contains(&cpu.id)).copied().collect();
    if allowed.is_empty() {
        notes.push("no CPU of the affinity mask is online: the mask is taken as unknown".into());
        return online;
    }
    allowed
}

/// Why pinning `count` workers would be wrong.
fn obstacle(machine: &Snapshot, allowed: usize, count: usize) -> Option<String> {
    let mask: BTreeSet<usize> = machine.mask.iter().copied().collect();
    let in_mask = |cpu: &Cpu| cpu.online && mask.contains(&cpu.id);
    if !machine.known {
        Some("the CPUs of this machine are a guess".to_owned())
    } else if !machine.cpus.iter().any(in_mask) {
        Some("the affinity mask is not known".to_owned())
    } else if let Some(quota) = machine.quota.filter(|&quota| quota < allowed as f64) {
        Some(format!("the quota of {quota} CPUs is less than the {allowed} that may be used"))
    } else if count > allowed {
        Some(format!("{count} workers are more than {allowed} CPUs"))
    } else {
        None
    }
}

/// Workers on CPUs of their own, and the nodes they are on.
fn pin_to(machine: &Snapshot, mut cpus: Vec<&Cpu>, count: usize) -> (Vec<WorkerPlan>, Vec<usize>) {
    // The how-manieth of its core each CPU is: all first ones are taken before any second one.
    cpus.sort_by_key(|cpu| cpu.id);
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, &Cpu)> = cpus
        .into_iter()
        .map(|cpu| {
            let rank = taken.entry(cpu.core).or_default();
            *rank += 1;
            (*rank, cpu)
        })
        .collect();
    ranked.sort_by_key(|(rank, cpu)| {
        (*rank, Reverse(cpu.capacity), cpu.node, cpu.l3, cpu.core, cpu.id)
    });
    let chosen: Vec<&Cpu> = ranked.into_iter().take(count).map(|(_, cpu)| cpu).collect();

    let mut nodes: Vec<usize> = chosen.iter().map(|cpu| cpu.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let workers = chosen.iter().enumerate().map(|(worker, cpu)| WorkerPlan {
        cpu: Some(cpu.id),
        node: nodes.binary_search(&cpu.node).unwrap_or(0),
        steal: tiers(machine, &chosen, worker),
    });
    (workers.collect(), nodes)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} workers on {} CPUs", self.workers.len(), self.effective_cpus)?;
        let pinned = if self.pinned { "pinned" } else { "not pinned" };
        let spin = if self.spin { "spin before they sleep" } else { "sleep at once" };
        write!(f, ", {} nodes, {pinned}, {spin}", self.nodes)?;
        for (number, worker) in self.workers.iter().enumerate().filter(|_| self.pinned) {
            let cpu = worker.cpu.unwrap_or_default();
            let node = self.node_ids.get(worker.node).copied().unwrap_or_default();
            write!(f, "\n  worker {number}: CPU {cpu}, node {node}")?;
            for (n, tier) in worker.steal.iter().enumerate() {
                let from = if n == 0 { ", steals from" } else { "," };
                write!(f, "{from} {:?} ({})", tier.workers, tier.near)?;
            }
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  note: {note}"))
    }
}
