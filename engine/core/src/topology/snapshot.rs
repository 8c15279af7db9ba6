//! The machine as a plain value: what a [`Plan`](super::Plan) is made from.
//!
//! Three ways lead to one: [`Snapshot::read`] asks the kernel (read.rs), the text form brings one from another machine
//! (text.rs), and every field is public, so that a test can invent one.
//!
//! Invariants of a snapshot that was read or parsed (a plan is made of any other too):
//! * I1: `cpus` is sorted by id and not empty; `nodes` is sorted by id and not empty; each CPU names
//!   a node that exists.
//! * I2: `mask` is sorted, each id once.
//! * I3: `distance` of a node is empty or has an entry for each node.

use std::fmt;

use super::list::CpuList;

/// How strong the strongest CPU of a machine is, in [`Cpu::capacity`].
pub const FULL_CAPACITY: u32 = 1024;

/// One logical CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's number; numbers may have gaps.
    pub id: usize,
    /// The physical core: the least id of the CPUs (SMT siblings) that share it.
    pub core: usize,
    /// The package (socket), by the kernel's number.
    pub package: usize,
    /// The level-3 cache: the least id of the CPUs that share it.
    pub l3: usize,
    /// The NUMA node, by the kernel's number.
    pub node: usize,
    /// How strong it is, [`FULL_CAPACITY`] for the strongest core of the machine. Efficiency cores of
    /// hybrid processors have less.
    pub capacity: u32,
    /// Whether the kernel runs threads on it now.
    pub online: bool,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number; numbers may have gaps.
    pub id: usize,
    /// Ids of its CPUs; none if it is memory only.
    pub cpus: Vec<usize>,
    /// How far the nodes are, in the order of [`Snapshot::nodes`]: 10 is here, 20 twice as slow.
    /// Empty if the kernel does not say.
    pub distance: Vec<u32>,
}

/// The machine as the engine sees it: what a [`Plan`](super::Plan) is made from.
///
/// ```
/// use bgrp::topology::Snapshot;
///
/// let machine = Snapshot::read();
/// assert!(!machine.cpus.is_empty());
/// println!("{machine}");
/// // And the whole of it, to be planned for elsewhere.
/// let there: Snapshot = machine.to_text().parse()?;
/// assert_eq!(there, machine);
/// # Ok::<(), bgrp::topology::SnapshotError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Every CPU that is present, by id.
    pub cpus: Vec<Cpu>,
    /// Whether the kernel listed `cpus`. If not they are a guess, and nothing is pinned.
    pub known: bool,
    /// Ids of the CPUs this process may run on (its affinity mask); empty if that is not known.
    pub mask: Vec<usize>,
    /// CPUs' worth of time that the control groups grant, the least of all levels; 0.5 is half a
    /// CPU. `None` is no limit.
    pub quota: Option<f64>,
    /// NUMA nodes, by id; at least one.
    pub nodes: Vec<Node>,
    /// What could not be read and was guessed, one sentence each.
    pub notes: Vec<String>,
}

impl Snapshot {
    /// A machine of `cpus` CPUs, each a core of its own, in one node, of which nothing else is
    /// known. At least one CPU.
    ///
    /// ```
    /// let machine = bgrp::topology::Snapshot::one_node(4);
    /// assert_eq!((machine.cpus.len(), machine.nodes.len()), (4, 1));
    /// assert!(!machine.known);
    /// ```
    pub fn one_node(cpus: usize) -> Self {
        Self::of_ids(&(0..cpus.max(1)).collect::<Vec<_>>())
    }

    /// CPUs of these ids, at least one, each a core of its own, in one node.
    pub(super) fn of_ids(ids: &[usize]) -> Self {
        let l3 = ids[0];
        let capacity = FULL_CAPACITY;
        let cpu = |&id| Cpu { id, core: id, package: 0, l3, node: 0, capacity, online: true };
        Self {
            cpus: ids.iter().map(cpu).collect(),
            known: false,
            mask: Vec::new(),
            quota: None,
            nodes: vec![Node { id: 0, cpus: ids.to_vec(), distance: vec![10] }],
            notes: Vec::new(),
        }
    }

    /// The same machine for a process that may use these CPUs only, as if its affinity mask said so: for two
    /// engines that share a machine. The mask is empty afterwards if none of them may be used.
    ///
    /// ```
    /// use bgrp::topology::{Plan, Snapshot, Workers};
    ///
    /// let half = Snapshot::one_node(8).restricted_to(&[4, 5, 6, 7]);
    /// assert_eq!(Plan::new(&half, Workers::per_core()).workers.len(), 4);
    /// ```
    #[must_use]
    pub fn restricted_to(mut self, cpus: &[usize]) -> Self {
        let allowed = |id: &usize| self.mask.is_empty() || self.mask.contains(id);
        let usable = self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id);
        self.mask = usable.filter(allowed).filter(|id| cpus.contains(id)).collect();
        self
    }

    /// Where the node with this id stands in [`nodes`](Snapshot::nodes).
    fn node_at(&self, id: usize) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// How far it is from one node to another, by their ids; `None` if the kernel does not say.
    ///
    /// ```
    /// assert_eq!(bgrp::topology::Snapshot::one_node(4).distance(0, 0), Some(10));
    /// ```
    pub fn distance(&self, from: usize, to: usize) -> Option<u32> {
        let (from, to) = (self.node_at(from)?, self.node_at(to)?);
        self.nodes[from].distance.get(to).copied()
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |key: fn(&Cpu) -> usize| {
            let mut keys: Vec<usize> = self.cpus.iter().filter(|c| c.online).map(key).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.len()
        };
        let online = count(|c| c.id);
        write!(f, "{online} CPUs online")?;
        match self.cpus.len() - online {
            0 => {}
            offline => write!(f, " ({offline} offline)")?,
        }
        write!(f, ", {} cores, {} level-3 caches", count(|c| c.core), count(|c| c.l3))?;
        write!(f, ", {} packages, {} nodes", count(|c| c.package), self.nodes.len())?;
        match self.mask.as_slice() {
            [] => write!(f, "\n  mask: not known")?,
            mask => write!(f, "\n  mask: {}", CpuList(mask))?,
        }
        match self.quota {
            None => write!(f, "\n  quota: none")?,
            Some(cpus) => write!(f, "\n  quota: {cpus} CPUs")?,
        }
        let weak: Vec<usize> = self
            .cpus
            .iter()
            .filter(|c| c.online && c.capacity < FULL_CAPACITY)
            .map(|c| c.id)
            .collect();
        if !weak.is_empty() {
            write!(f, "\n  weaker CPUs: {}", CpuList(&weak))?;
        }
        for node in &self.nodes {
            match node.cpus.as_slice() {
                [] => write!(f, "\n  node {}: memory only", node.id)?,
                cpus => write!(f, "\n  node {}: CPUs {}", node.id, CpuList(cpus))?,
            }
            if self.nodes.len() > 1 {
                write!(f, ", distances {:?}", node.distance)?;
            }
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  note: {note}"))
    }
}
