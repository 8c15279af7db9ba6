//! Which protections are active on this machine, found by trying.

use std::fmt;

/// What the guardian can do here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protections {
    /// Orphans of a task become children of the guardian, so that nothing that a task starts can get away.
    pub subreaper: bool,
    /// `/proc` tells the descendants of a process, so that those which left group and session are found.
    pub descendants: bool,
    /// Processes are held by a descriptor while they are looked at and killed, so that no number is mistaken.
    pub pidfd: bool,
    /// A process that was asked for `memory` gets a cgroup with `memory.max` and `memory.oom.group`.
    pub memory: bool,
    /// Such a cgroup can be killed as a whole.
    pub cgroup_kill: bool,
}

impl fmt::Display for Protections {
    /// A line for each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = [
            (self.subreaper, "subreaper", "orphans of a task come back and are swept"),
            (self.descendants, "descendants", "what left its group or session is found by /proc"),
            (self.pidfd, "pidfd", "no number of a process is mistaken for another"),
            (self.memory, "memory", "memory limits by cgroup, for a task with all it starts"),
            (self.cgroup_kill, "cgroup.kill", "a task with a memory limit is killed in one go"),
        ];
        for (active, name, what) in lines {
            writeln!(f, "{} {name:<12} {what}", if active { "yes" } else { "no " })?;
        }
        Ok(())
    }
}
