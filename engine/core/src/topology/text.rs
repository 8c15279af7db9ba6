//! The text form of a snapshot: one fact a line, to be kept in a file, read by people and planned for elsewhere.
//!
//! ```text
//! bgrp-machine 1
//! # comments and blank lines are passed over
//! cpu 0 core 0 package 0 l3 0 node 0
//! cpu 1 core 1 package 0 l3 0 node 0 capacity 512
//! cpu 2 core 2 package 0 l3 0 node 0 offline
//! node 0 cpus 0-1 distance 10 21
//! node 1 cpus - distance 21 10
//! mask 0-1
//! quota 2.5
//! note efficiency cores do not say how strong they are: half assumed
//! ```
//!
//! | line | may be missing | then |
//! |---|---|---|
//! | `cpu` | no | |
//! | `node` | yes, all of them | one node, with every CPU that is online |
//! | `mask` | yes | not known |
//! | `quota` | yes | none |
//! | `guessed` | yes | the kernel listed the CPUs |
//!
//! The form is our own and not JSON: the core would carry a serialisation framework for this one type, and each of its
//! users would build it. Whoever has such a framework has the public fields.

use std::fmt::{self, Write as _};
use std::str::{FromStr, SplitWhitespace};

use super::list::{CpuList, parse_cpu_list};
use super::snapshot::{Cpu, FULL_CAPACITY, Node, Snapshot};

const HEADER: &str = "bgrp-machine 1";

/// Why a text is no snapshot: which line, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotError {
    /// The line, from 1; 0 if it is about the text as a whole.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "no snapshot of a machine: {}", self.what),
            line => write!(f, "no snapshot of a machine: line {line}: {}", self.what),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl Snapshot {
    /// All of it as text, from which [`str::parse`] makes the same snapshot again.
    ///
    /// ```
    /// use bgrp::topology::Snapshot;
    ///
    /// let text = Snapshot::one_node(2).to_text();
    /// assert!(text.starts_with("bgrp-machine 1\nguessed\ncpu 0 core 0 package 0 l3 0 node 0\n"));
    /// assert_eq!(text.parse::<Snapshot>()?, Snapshot::one_node(2));
    /// # Ok::<(), bgrp::topology::SnapshotError>(())
    /// ```
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        if !self.known {
            writeln!(text, "guessed")?;
        }
        for Cpu { id, core, package, l3, node, capacity, online } in &self.cpus {
            write!(text, "cpu {id} core {core} package {package} l3 {l3} node {node}")?;
            if *capacity != FULL_CAPACITY {
                write!(text, " capacity {capacity}")?;
            }
            writeln!(text, "{}", if *online { "" } else { " offline" })?;
        }
        for Node { id, cpus, distance } in &self.nodes {
            match cpus.as_slice() {
                [] => write!(text, "node {id} cpus -")?,
                cpus => write!(text, "node {id} cpus {}", CpuList(cpus))?,
            }
            if !distance.is_empty() {
                write!(text, " distance")?;
                distance.iter().try_for_each(|distance| write!(text, " {distance}"))?;
            }
            writeln!(text)?;
        }
        if !self.mask.is_empty() {
            writeln!(text, "mask {}", CpuList(&self.mask))?;
        }
        if let Some(quota) = self.quota {
            writeln!(text, "quota {quota}")?;
        }
        for note in &self.notes {
            writeln!(text, "note {}", escape(note))?;
        }
        Ok(())
    }
}

impl FromStr for Snapshot {
    type Err = SnapshotError;

    /// Reads what [`to_text`](Snapshot::to_text) wrote, or somebody by hand.
    fn from_str(text: &str) -> Result<Self, SnapshotError> {
        let mut machine = Snapshot {
            cpus: Vec::new(),
            known: true,
            mask: Vec::new(),
            quota: None,
            nodes: Vec::new(),
            notes: Vec::new(),
        };
        let mut lines = text.lines().zip(1..);
        let first = lines.find(|(line, _)| !is_idle(line));
        if first.is_none_or(|(line, _)| line.trim() != HEADER) {
            let line = first.map_or(0, |(_, line)| line);
            return Err(SnapshotError { line, what: format!("it must begin with `{HEADER}`") });
        }
        for (text, line) in lines.filter(|(line, _)| !is_idle(line)) {
            machine.take(text).map_err(|what| SnapshotError { line, what })?;
        }
        machine.complete().map_err(|what| SnapshotError { line: 0, what })
    }
}

fn is_idle(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

impl Snapshot {
    /// Adds what one line says.
    fn take(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        match kind {
            "cpu" => self.cpus.push(cpu(&mut words)?),
            "node" => self.nodes.push(node(&mut words)?),
            "mask" if self.mask.is_empty() => self.mask = list(&mut words)?,
            "quota" if self.quota.is_none() => {
                let quota = number::<f64>("quota", &mut words)?;
                if !quota.is_finite() || quota <= 0.0 {
                    return Err(format!("a quota of {quota} CPUs runs nothing"));
                }
                self.quota = Some(quota);
            }
            "guessed" => self.known = false,
            "note" => {
                let note = line.trim_start().strip_prefix("note").unwrap_or_default();
                self.notes.push(unescape(note.strip_prefix(' ').unwrap_or(note)));
                return Ok(());
            }
            "mask" | "quota" => return Err(format!("a second {kind}")),
            other => return Err(format!("{other:?} is no kind of line")),
        }
        match words.next() {
            None => Ok(()),
            Some(word) => Err(format!("{word:?} is one word too many")),
        }
    }

    /// Sorts what stands in any order, and refuses what contradicts itself.
    fn complete(mut self) -> Result<Self, String> {
        if self.cpus.is_empty() {
            return Err("it has no CPU".to_owned());
        }
        self.cpus.sort_by_key(|cpu| cpu.id);
        self.nodes.sort_by_key(|node| node.id);
        if self.nodes.is_empty() {
            let online = self.cpus.iter().filter(|cpu| cpu.online);
            let cpus = online.map(|cpu| cpu.id).collect();
            self.nodes = vec![Node { id: 0, cpus, distance: vec![10] }];
        }
        if let Some(pair) = self.cpus.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(format!("CPU {} stands there twice", pair[0].id));
        }
        if let Some(pair) = self.nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(format!("node {} stands there twice", pair[0].id));
        }
        let has_node = |id| self.nodes.iter().any(|node| node.id == id);
        if let Some(cpu) = self.cpus.iter().find(|cpu| !has_node(cpu.node)) {
            return Err(format!("CPU {} is on node {}, which is not there", cpu.id, cpu.node));
        }
        let count = self.nodes.len();
        if let Some(node) = self.nodes.iter().find(|n| ![0, count].contains(&n.distance.len())) {
            let given = node.distance.len();
            return Err(format!("node {} has {given} distances to {count} nodes", node.id));
        }
        Ok(self)
    }
}

/// The value that follows the word `name`.
fn named<T: FromStr>(name: &str, words: &mut SplitWhitespace<'_>) -> Result<T, String> {
    match words.next() {
        Some(word) if word == name => number(name, words),
        Some(word) => Err(format!("{word:?} stands where {name:?} belongs")),
        None => Err(format!("{name:?} is missing")),
    }
}

fn number<T: FromStr>(name: &str, words: &mut SplitWhitespace<'_>) -> Result<T, String> {
    let word = words.next().ok_or_else(|| format!("{name} has no value"))?;
    word.parse().map_err(|_| format!("{word:?} is no value for {name}"))
}

fn list(words: &mut SplitWhitespace<'_>) -> Result<Vec<usize>, String> {
    parse_cpu_list(words.next().ok_or("the list of CPUs is missing")?)
}

fn cpu(words: &mut SplitWhitespace<'_>) -> Result<Cpu, String> {
    let mut cpu = Cpu {
        id: number("cpu", words)?,
        core: named("core", words)?,
        package: named("package", words)?,
        l3: named("l3", words)?,
        node: named("node", words)?,
        capacity: FULL_CAPACITY,
        online: true,
    };
    while let Some(word) = words.next() {
        match word {
            "capacity" => cpu.capacity = number(word, words)?,
            "offline" => cpu.online = false,
            other => return Err(format!("{other:?} is nothing that a CPU has")),
        }
    }
    Ok(cpu)
}

fn node(words: &mut SplitWhitespace<'_>) -> Result<Node, String> {
    let id = number("node", words)?;
    if words.next() != Some("cpus") {
        return Err("\"cpus\" is missing".to_owned());
    }
    let cpus = match words.clone().next() {
        Some("-") => words.next().map(|_| Vec::new()).unwrap_or_default(),
        _ => list(words)?,
    };
    let distance = match words.next() {
        None => Vec::new(),
        Some("distance") => words
            .map(|word| word.parse().map_err(|_| format!("{word:?} is no distance")))
            .collect::<Result<Vec<u32>, String>>()?,
        Some(other) => return Err(format!("{other:?} is nothing that a node has")),
    };
    Ok(Node { id, cpus, distance })
}

/// A note stays on its line.
fn escape(note: &str) -> String {
    note.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

fn unescape(note: &str) -> String {
    let mut text = String::with_capacity(note.len());
    let mut chars = note.chars();
    while let Some(next) = chars.next() {
        match (next, chars.clone().next()) {
            ('\\', Some('n')) => text.push('\n'),
            ('\\', Some('r')) => text.push('\r'),
            ('\\', Some('\\')) => text.push('\\'),
            _ => {
                text.push(next);
                continue;
            }
        }
        chars.next();
    }
    text
}
