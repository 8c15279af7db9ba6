//! Who waits for what, as a plain value: for people, for tests, and for DOT.

use std::{fmt, panic::Location};

/// Who waits, or is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WaitNode {
    /// A group, by the text of its key.
    Group(String),
    /// A thread outside of the engine's handlers, by its name.
    Thread(String),
    /// A future that is polled outside of the engine's handlers.
    Future,
    /// The permits of the limit in flight.
    Permits,
}

impl WaitNode {
    /// The text of the key, if it is a group.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Group(key) => Some(key),
            _ => None,
        }
    }
}

impl fmt::Display for WaitNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(key) => write!(f, "group {key}"),
            Self::Thread(name) => write!(f, "thread {name}"),
            Self::Future => f.write_str("a future"),
            Self::Permits => f.write_str("the permits in flight"),
        }
    }
}

/// One wait for a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// Who waits.
    pub waiter: WaitNode,
    /// For a task of this group. A group that does not exist yet is shown by its key as well.
    pub waits_for: WaitNode,
    /// Where in the program: the call of `wait`, or for a future the submit of the task.
    pub at: &'static Location<'static>,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {} ({})", self.waiter, self.waits_for, self.at)
    }
}

/// One arrow of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitEdge {
    /// What is held up.
    pub from: WaitNode,
    /// By what.
    pub to: WaitNode,
    /// Where in the program, if it is a wait for a ticket; otherwise it has to do with permits.
    pub at: Option<&'static Location<'static>>,
}

/// The waits of an engine at one moment, from [`Engine::wait_graph`](crate::Engine::wait_graph).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitGraph {
    /// The arrows, oldest waits first.
    pub edges: Vec<WaitEdge>,
}

impl WaitGraph {
    /// Everybody in the graph, once, in order.
    pub fn nodes(&self) -> Vec<&WaitNode> {
        let mut nodes: Vec<_> = self.edges.iter().flat_map(|edge| [&edge.from, &edge.to]).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// The graph in the language of Graphviz.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph waits {\n");
        for node in self.nodes() {
            let shape = match node {
                WaitNode::Group(_) => "box",
                WaitNode::Permits => "diamond",
                _ => "ellipse",
            };
            dot += &format!("  {} [shape={shape}];\n", quoted(&node.to_string()));
        }
        for edge in &self.edges {
            let label = edge.at.map_or_else(String::new, |at| {
                format!(" [label={}]", quoted(&format!("{}:{}", at.file(), at.line())))
            });
            dot += &format!(
                "  {} -> {}{label};\n",
                quoted(&edge.from.to_string()),
                quoted(&edge.to.to_string())
            );
        }
        dot + "}\n"
    }
}

/// A quoted identifier of DOT, whatever is in it.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
