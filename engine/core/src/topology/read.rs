//! Reads a [`Snapshot`] from the kernel, or from a copy of its files.
//!
//! | field | from (below the root path) | if it is missing or odd |
//! |---|---|---|
//! | `cpus` | `sys/devices/system/cpu/{present,online}` | the mask, or as many as the standard library counts; `known` is false |
//! | `Cpu::core` | `cpuN/topology/{core_cpus_list,thread_siblings_list}` | each CPU is a core |
//! | `Cpu::package` | `cpuN/topology/physical_package_id` | 0 |
//! | `Cpu::l3` | `cpuN/cache/indexM/{level,shared_cpu_list}` | the CPUs of the same package and node |
//! | `Cpu::capacity` | `cpuN/cpu_capacity`, or `sys/devices/cpu_atom/cpus` | all are equally strong |
//! | `nodes` | `sys/devices/system/node/online`, `nodeN/{cpulist,distance}` | one node with every CPU |
//! | `mask` | `sched_getaffinity`, or `proc/self/status` | empty |
//! | `quota` | `proc/self/cgroup`, `sys/fs/cgroup`, v1 and v2, every level up to the root | no quota |
//!
//! Invariants:
//! * I1: reading never panics and never fails; what is guessed is told in `notes`.
//! * I2: with a root other than `/` the machine it runs on is not looked at, save for the count of
//!   CPUs if the tree names none.
//!
//! Cost: about ten small files per CPU, read once, when an engine is built.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use super::cgroup;
use super::list::parse_cpu_list;
use super::snapshot::{FULL_CAPACITY, Node, Snapshot};
use crate::sync::mutant;

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
                snapshot.capacities_from(root, &mut notes);
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

    /// How strong the CPUs are: the kernel's figures if it has one for each, else which are efficiency cores.
    fn capacities_from(&mut self, root: &Path, notes: &mut Vec<String>) {
        let dir = root.join("sys/devices/system/cpu");
        let told =
            |id: usize| text_at(&dir.join(format!("cpu{id}/cpu_capacity"))).ok()?.parse().ok();
        let online = self.cpus.iter().filter(|cpu| cpu.online);
        if let Some(told) = online.map(|cpu| told(cpu.id)).collect::<Option<Vec<u32>>>() {
            let online = self.cpus.iter_mut().filter(|cpu| cpu.online);
            online.zip(told).for_each(|(cpu, told)| cpu.capacity = told);
            return;
        }
        // Intel's hybrid processors have a unit for each kind of core; the second exists on those only.
        let Ok(weak) = cpu_list_at(&root.join("sys/devices/cpu_atom/cpus")) else { return };
        if text_at(&root.join("sys/devices/cpu_core/cpus")).is_err() {
            return;
        }
        for cpu in self.cpus.iter_mut().filter(|cpu| weak.binary_search(&cpu.id).is_ok()) {
            cpu.capacity = FULL_CAPACITY / 2;
        }
        notes.push("efficiency cores do not say how strong they are: half assumed".to_owned());
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
