//! How near two CPUs are, and the tiers of workers that follow from it.
//!
//! | tier | what the two share | what a steal costs, roughly |
//! |---|---|---|
//! | [`Near::Core`] | the core: SMT siblings | a hit in the level-1 or level-2 cache |
//! | [`Near::Cache`] | the level-3 cache | a hit in it |
//! | [`Near::Node`] | the memory of the node | a transfer between caches |
//! | [`Near::Remote`] | the machine | a transfer between nodes, the farther the longer |
//!
//! A cache that reaches over several nodes (sub-NUMA clusters of one package) is no tier: memory is what counts then, and
//! the clusters of a package are near by their distances.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use super::plan::WorkerPlan;
use super::snapshot::{Cpu, Snapshot};
use crate::sync::mutant;

/// What two workers share, near ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Near {
    /// The core: SMT siblings.
    Core,
    /// The level-3 cache, and the node.
    Cache,
    /// The NUMA node.
    Node,
    /// No node: so far is it from one to the other.
    Remote {
        /// By the kernel's measure (10 is here); `None`, and farther than any other, if it does not say.
        distance: Distance,
        /// Whether they are on different packages; of two nodes at one distance that of the own package is nearer.
        other_package: bool,
    },
    /// Workers that are not tied to CPUs: nobody knows.
    Unknown,
}

/// The distance of two NUMA nodes. One that is not known sorts behind all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// As the kernel says: 10 is here, 20 twice as slow.
    Known(u32),
    /// The kernel does not say.
    Unknown,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Core => f.write_str("same core"),
            Self::Cache => f.write_str("same L3"),
            Self::Node => f.write_str("same node"),
            Self::Remote { distance: Distance::Known(distance), .. } => {
                write!(f, "distance {distance}")
            }
            Self::Remote { .. } => f.write_str("other node"),
            Self::Unknown => f.write_str("anywhere"),
        }
    }
}

/// Workers that are equally near to one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// How near.
    pub near: Near,
    /// Their numbers; never none. The next higher number comes first, round the end.
    pub workers: Vec<usize>,
}

/// A tier is its workers.
impl Deref for Tier {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.workers
    }
}

impl<'a> IntoIterator for &'a Tier {
    type Item = &'a usize;
    type IntoIter = std::slice::Iter<'a, usize>;

    fn into_iter(self) -> Self::IntoIter {
        self.workers.iter()
    }
}

pub(super) fn near(machine: &Snapshot, a: &Cpu, b: &Cpu) -> Near {
    if a.core == b.core {
        Near::Core
    } else if a.node != b.node {
        let distance = machine.distance(a.node, b.node).map_or(Distance::Unknown, Distance::Known);
        Near::Remote { distance, other_package: a.package != b.package }
    } else if a.l3 == b.l3 {
        Near::Cache
    } else {
        Near::Node
    }
}

/// The tiers of worker `of` of those that have these CPUs.
pub(super) fn tiers(machine: &Snapshot, cpus: &[&Cpu], of: usize) -> Vec<Tier> {
    let mut tiers: BTreeMap<Near, Vec<usize>> = BTreeMap::new();
    for other in others(of, cpus.len()) {
        let near = near(machine, cpus[of], cpus[other]);
        if mutant("plan-no-remote") && matches!(near, Near::Remote { .. }) {
            continue;
        }
        tiers.entry(near).or_default().push(other);
    }
    tiers.into_iter().map(|(near, workers)| Tier { near, workers }).collect()
}

/// Workers that run wherever the kernel puts them.
pub(super) fn roaming(count: usize) -> Vec<WorkerPlan> {
    let steal = |worker| {
        let workers: Vec<usize> = others(worker, count).collect();
        let tier = Tier { near: Near::Unknown, workers };
        if tier.workers.is_empty() { Vec::new() } else { vec![tier] }
    };
    (0..count).map(|worker| WorkerPlan { cpu: None, node: 0, steal: steal(worker) }).collect()
}

/// Every worker but `worker`, the next one first.
fn others(worker: usize, count: usize) -> impl Iterator<Item = usize> {
    (1..count).map(move |by| (worker + by) % count)
}
