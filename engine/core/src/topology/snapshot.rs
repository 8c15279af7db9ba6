//! What the kernel says of the machine, as a plain value.
//!
//! | field | from (below the root path) | if it is missing or odd |
//! |---|---|---|
//! | `cpus` | `sys/devices/system/cpu/{present,online}` | the mask, or as many as the standard library counts; `known` is false |
//! | `Cpu::core` | `cpuN/topology/{core_cpus_list,thread_siblings_list}` | each CPU is a core |
//! | `Cpu::package` | `cpuN/topology/physical_package_id` | 0 |
//! | `Cpu::l3` | `cpuN/cache/indexM/{level,shared_cpu_list}` | the CPUs of the same package and node |
//! | `nodes` | `sys/devices/system/node/online`, `nodeN/{cpulist,distance}` | one node with every CPU |
//! | `mask` | `sched_getaffinity`, or `proc/self/status` | empty |
//! | `quota` | `proc/self/cgroup`, `sys/fs/cgroup`, v1 and v2, every level up to the root | no quota |
//!
//! Invariants:
//! * I1: reading never panics and never fails; what is guessed is told in `notes`.
//! * I2: `cpus` is sorted by id and not empty; `nodes` is sorted by id and not empty; each CPU names
//!   a node that exists.
//! * I3: with a root other than `/` the machine it runs on is not looked at, save for the count of
//!   CPUs if the tree names none.
//!
//! Cost: about ten small files per CPU, read once, when an engine is built.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::thread;

use super::cgroup;
use crate::sync::mutant;

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
    /// Reads the machine this runs on. The mask is that of the calling thread, so call it before
    /// pinning. Never fails: what cannot be read is guessed, and [`notes`](Snapshot::notes) says so.
    ///
    /// ```
    /// let machine = bgrp::topology::Snapshot::read();
    /// assert!(!machine.nodes.is_empty());
    /// ```
    pub fn read() -> Self {
        if cfg!(target_os = "linux") {
            return Self::from_tree(Path::new("/"), super::pin::affinity_of_current_thread());
        }
        let note = "this system does not say what its CPUs are".to_owned();
        Self { notes: vec![note], ..Self::one_node(counted_cpus()) }
    }

    /// Reads the copy of `/sys` and `/proc` below `root`, captured on some Linux machine. Never
    /// fails, as [`read`](Snapshot::read).
    ///
    /// ```
    /// use bgrp::topology::Snapshot;
    ///
    /// let nothing = Snapshot::read_from("/no/such/tree");
    /// assert_eq!(nothing.nodes.len(), 1);
    /// assert!(!nothing.notes.is_empty());
    /// ```
    pub fn read_from(root: impl AsRef<Path>) -> Self {
        Self::from_tree(root.as_ref(), None)
    }

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

    fn of_ids(ids: &[usize]) -> Self {
        let first = ids[0];
        let cpu = |&id| Cpu { id, core: id, package: 0, l3: first, node: 0, online: true };
        Self {
            cpus: ids.iter().map(cpu).collect(),
            known: false,
            mask: Vec::new(),
            quota: None,
            nodes: vec![Node { id: 0, cpus: ids.to_vec(), distance: vec![10] }],
            notes: Vec::new(),
        }
    }

    fn from_tree(root: &Path, mask: Option<Vec<usize>>) -> Self {
        let mut notes = Vec::new();
        let mask = mask.or_else(|| mask_of_status(root, &mut notes)).unwrap_or_default();
        let quota = cgroup::quota(root, &mut notes);
        let base = match listed_cpus(root, &mut notes) {
            Some(cpus) => {
                let mut snapshot = Self { known: true, ..Self::of_ids(&cpus.present) };
                for cpu in &mut snapshot.cpus {
                    cpu.online = cpus.online.binary_search(&cpu.id).is_ok();
                }
                snapshot.nodes_from(root, &mut notes);
                snapshot.cores_from(root, &mut notes);
                snapshot
            }
            None if mask.is_empty() => Self::one_node(counted_cpus()),
            None => Self::of_ids(&mask),
        };
        Self { mask, quota, notes, ..base }
    }

    /// Nodes, or one node if anything about them is odd.
    fn nodes_from(&mut self, root: &Path, notes: &mut Vec<String>) {
        let dir = root.join("sys/devices/system/node");
        let nodes = match read_nodes(&dir) {
            Ok(nodes) => nodes,
            Err(why) => return notes.push(format!("one NUMA node assumed: {why}")),
        };
        let mut node_of = BTreeMap::new();
        for node in &nodes {
            node_of.extend(node.cpus.iter().map(|&cpu| (cpu, node.id)));
        }
        if let Some(lost) = self.cpus.iter().find(|c| c.online && !node_of.contains_key(&c.id)) {
            let id = lost.id;
            return notes.push(format!("one NUMA node assumed: no node has CPU {id}"));
        }
        for cpu in &mut self.cpus {
            // An offline CPU is in no node's list.
            cpu.node = node_of.get(&cpu.id).copied().unwrap_or(nodes[0].id);
        }
        self.nodes = nodes;
    }

    /// Cores, packages and caches of the CPUs that are online.
    fn cores_from(&mut self, root: &Path, notes: &mut Vec<String>) {
        let (mut no_core, mut no_l3) = (0, 0);
        let mut l3_of_package = BTreeMap::new();
        for cpu in self.cpus.iter_mut().filter(|cpu| cpu.online) {
            let dir = root.join(format!("sys/devices/system/cpu/cpu{}", cpu.id));
            let siblings = ["core_cpus_list", "thread_siblings_list"]
                .iter()
                .find_map(|file| cpu_list_at(&dir.join("topology").join(file)).ok())
                .filter(|list| list.contains(&cpu.id));
            no_core += usize::from(siblings.is_none());
            cpu.core = siblings.map_or(cpu.id, |list| list[0]);
            cpu.package = text_at(&dir.join("topology/physical_package_id"))
                .ok()
                .and_then(|id| id.parse().ok())
                .unwrap_or(0);
            let shared = shared_l3(&dir).filter(|list| list.contains(&cpu.id));
            no_l3 += usize::from(shared.is_none());
            let of_package = *l3_of_package.entry((cpu.package, cpu.node)).or_insert(cpu.id);
            cpu.l3 = shared.map_or(of_package, |list| list[0]);
        }
        if no_core > 0 {
            notes.push(format!(
                "{no_core} CPUs do not say which core they are on: one each assumed"
            ));
        }
        if no_l3 > 0 {
            notes.push(format!("{no_l3} CPUs do not list a level-3 cache: one a package assumed"));
        }
    }
}

struct Listed {
    present: Vec<usize>,
    online: Vec<usize>,
}

fn listed_cpus(root: &Path, notes: &mut Vec<String>) -> Option<Listed> {
    let dir = root.join("sys/devices/system/cpu");
    let online = match cpu_list_at(&dir.join("online")) {
        Ok(online) => online,
        Err(why) => {
            notes.push(format!("the CPUs of the machine are not known: {why}"));
            return None;
        }
    };
    let mut present = cpu_list_at(&dir.join("present")).unwrap_or_else(|why| {
        notes.push(format!("CPUs that are offline are not known: {why}"));
        online.clone()
    });
    present.extend(&online);
    present.sort_unstable();
    present.dedup();
    Some(Listed { present, online })
}

fn read_nodes(dir: &Path) -> Result<Vec<Node>, String> {
    let ids = cpu_list_at(&dir.join("online"))?;
    let mut nodes = Vec::with_capacity(ids.len());
    for &id in &ids {
        let dir = dir.join(format!("node{id}"));
        let path = dir.join("cpulist");
        // A node may have memory only: its list is empty.
        let cpus = match text_at(&path)? {
            text if text.is_empty() => Vec::new(),
            text => parse_cpu_list(&text).map_err(|why| format!("{}: {why}", path.display()))?,
        };
        let distance: Vec<u32> = text_at(&dir.join("distance"))
            .ok()
            .and_then(|text| text.split_whitespace().map(|word| word.parse().ok()).collect())
            .filter(|list: &Vec<u32>| list.len() == ids.len())
            .unwrap_or_default();
        nodes.push(Node { id, cpus, distance });
    }
    if mutant("nodes-unchecked") {
        return Ok(nodes.into_iter().filter(|node| !node.cpus.is_empty()).collect());
    }
    let total: usize = nodes.iter().map(|node| node.cpus.len()).sum();
    let mut all: Vec<usize> = nodes.iter().flat_map(|node| &node.cpus).copied().collect();
    all.sort_unstable();
    all.dedup();
    if all.len() < total { Err("a CPU is in two nodes".to_owned()) } else { Ok(nodes) }
}

/// CPUs that share the level-3 cache of the CPU described in `dir`.
fn shared_l3(dir: &Path) -> Option<Vec<usize>> {
    (0..16)
        .map(|index| dir.join(format!("cache/index{index}")))
        .find(|cache| text_at(&cache.join("level")).is_ok_and(|level| level == "3"))
        .and_then(|cache| cpu_list_at(&cache.join("shared_cpu_list")).ok())
}

fn mask_of_status(root: &Path, notes: &mut Vec<String>) -> Option<Vec<usize>> {
    let mask = text_at(&root.join("proc/self/status")).and_then(|text| {
        let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        parse_cpu_list(list.ok_or("proc/self/status has no Cpus_allowed_list")?)
    });
    mask.map_err(|why| notes.push(format!("the affinity mask is not known: {why}"))).ok()
}

fn counted_cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn cpu_list_at(path: &Path) -> Result<Vec<usize>, String> {
    parse_cpu_list(&text_at(path)?).map_err(|why| format!("{}: {why}", path.display()))
}

/// The trimmed text of a file.
pub(super) fn text_at(path: &Path) -> Result<String, String> {
    #[cfg(not(fuzzing))]
    use std::fs::read;

    #[cfg(fuzzing)]
    use crate::fuzzing::read;

    match read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(why) => Err(format!("{}: {why}", path.display())),
    }
}

/// Ids above this are a mistake, not a machine: it is twice the CPUs that a Linux kernel can be built for. Each CPU
/// of a range costs a dozen looks for files. Fewer in fuzz targets, which write such ranges all the time.
pub(super) const MAX_ID: usize = if cfg!(fuzzing) { 1 << 8 } else { 1 << 14 };

/// Ids of a list as the kernel writes them, such as `0-3,8,10-11`: sorted, each once, at least one.
pub(super) fn parse_cpu_list(text: &str) -> Result<Vec<usize>, String> {
    let mut ids = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last <= MAX_ID => ids.extend(first..=last),
            _ => return Err(format!("{part:?} is no CPU or range of CPUs")),
        }
        if ids.len() > 2 * MAX_ID {
            return Err("more CPUs than a machine has".to_owned());
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Writes ids as the kernel does.
struct List<'a>(&'a [usize]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
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
            mask => write!(f, "\n  mask: {}", List(mask))?,
        }
        match self.quota {
            None => write!(f, "\n  quota: none")?,
            Some(cpus) => write!(f, "\n  quota: {cpus} CPUs")?,
        }
        for node in &self.nodes {
            write!(f, "\n  node {}: CPUs {}", node.id, List(&node.cpus))?;
            if self.nodes.len() > 1 {
                write!(f, ", distances {:?}", node.distance)?;
            }
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  note: {note}"))
    }
}
