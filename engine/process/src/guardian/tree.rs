//! What `/proc` tells of processes: descendants, states, marks. And killing one without mistaking its number.
//!
//! | source | tells | where it is missing |
//! |---|---|---|
//! | `/proc/<pid>/task/*/children` | children | kernels without `CONFIG_PROC_CHILDREN`: all of `/proc/*/stat` is read instead |
//! | `/proc/<pid>/stat` | state, parent, group | no `/proc`: nothing can be found, only groups are killed |
//! | `/proc/<pid>/environ` | the mark of a run or token | processes of other users, and those that emptied it |

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// What one line of `/proc/<pid>/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: u8,
    pub(super) parent: i32,
    pub(super) group: i32,
}

impl Stat {
    /// Whether only its number is left.
    pub(super) fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// The state of a process; `None` if there is no such process.
pub(super) fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses is the process's own choice, so only what follows the last one counts.
fn parse(line: &[u8]) -> Option<Stat> {
    let after = memchr::memrchr(b')', line)? + 1;
    let mut fields = line[after..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let parent = number(fields.next()?)?;
    let group = number(fields.next()?)?;
    Some(Stat { state, parent, group })
}

fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// The processes that there are.
pub(super) fn all() -> Vec<i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| number(entry.file_name().as_bytes()))
        .collect()
}

/// What the environment that a process was started with says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It holds the mark.
    Found,
    /// It does not.
    Missing,
    /// It is empty. While a process executes a program, there is a moment in which every environment looks like
    /// that, so it is worth another look.
    Unclear,
}

/// Looks for `mark`, which begins with the name of the variable and ends with its NUL, or is the beginning of such a
/// text.
pub(super) fn mark(pid: i32, mark: &[u8]) -> Mark {
    let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { return Mark::Missing };
    if environ.is_empty() {
        return Mark::Unclear;
    }
    let found = memchr::memmem::find_iter(&environ, mark).any(|at| at == 0 || environ[at - 1] == 0);
    if found { Mark::Found } else { Mark::Missing }
}

/// Who is whose child.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// Whether the system keeps lists of children.
    lists: bool,
}

impl Tree {
    /// Looks how this system tells.
    pub(super) fn new() -> Self {
        let pid = std::process::id();
        Self { lists: fs::exists(format!("/proc/self/task/{pid}/children")).unwrap_or(false) }
    }

    /// Whether descendants can be found at all.
    pub(super) fn works(self) -> bool {
        stat(rustix::process::getpid().as_raw_nonzero().get()).is_some()
    }

    /// The children and children's children of `roots`, parents first, without `roots`. Those which begin to exist
    /// meanwhile may be missing.
    pub(super) fn descendants(self, roots: &[i32]) -> Vec<i32> {
        let scanned = if self.lists { HashMap::new() } else { by_parent() };
        let mut found = roots.to_vec();
        // A number may be seen twice if a process moves to another parent meanwhile.
        let mut seen: HashSet<i32> = roots.iter().copied().collect();
        let mut at = 0;
        while let Some(&pid) = found.get(at) {
            let children = if self.lists {
                listed(pid)
            } else {
                scanned.get(&pid).cloned().unwrap_or_default()
            };
            found.extend(children.into_iter().filter(|&child| seen.insert(child)));
            at += 1;
        }
        found.split_off(roots.len())
    }

    /// The children of this process, which has one thread.
    pub(super) fn own_children(self) -> Vec<i32> {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        if self.lists {
            list_of(own, OsStr::new(&own.to_string()))
        } else {
            by_parent().remove(&own).unwrap_or_default()
        }
    }
}

fn listed(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads.flatten().flat_map(|thread| list_of(pid, &thread.file_name())).collect()
}

fn list_of(pid: i32, thread: &OsStr) -> Vec<i32> {
    let list = fs::read(format!("/proc/{pid}/task/{}/children", thread.display()));
    list.unwrap_or_default().split(|&byte| byte == b' ').filter_map(number).collect()
}

fn by_parent() -> HashMap<i32, Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in all() {
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    children
}

/// Signals a process that is not a child of ours, if `is_meant` says so while its number cannot pass to another.
/// Answers whether it was there and alive.
pub(super) fn signal_if(pid: i32, signal: Signal, is_meant: impl FnOnce(Stat) -> bool) -> bool {
    let Some(number) = Pid::from_raw(pid) else { return false };
    let held = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(held) => Some(held),
        // Kernels before 5.3, and limits that leave no descriptor: by number then, which is as good as the moment
        // between the look and the signal is short.
        Err(Errno::NOSYS | Errno::MFILE | Errno::NFILE | Errno::NOMEM) => None,
        Err(_) => return false,
    };
    let Some(stat) = stat(pid) else { return false };
    if stat.is_dead() || !is_meant(stat) {
        return false;
    }
    let sent = match held {
        Some(held) => pidfd_send_signal(&held, signal),
        None => kill_process(number, signal),
    };
    sent != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_confuse_the_state() {
        let stat = parse(b"12 (a) Z 1 (b) R 7 8 9 0 -1").unwrap();
        assert_eq!(stat, Stat { state: b'R', parent: 7, group: 8 });
        assert_eq!(parse(b"12 (a"), None);
        assert_eq!(parse(b"12 (a) R"), None);
    }

    #[test]
    fn lists_and_scan_agree() {
        let mut child = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        for lists in [true, false] {
            let found = Tree { lists }.descendants(&[own]);
            assert!(found.contains(&pid), "lists: {lists}");
        }
        assert!(!signal_if(pid, Signal::KILL, |stat| stat.parent == pid));
        assert!(signal_if(pid, Signal::KILL, |stat| stat.parent == own));
        child.wait().unwrap();
        assert!(!signal_if(pid, Signal::KILL, |stat| stat.parent == own));
    }

    #[test]
    fn a_mark_counts_only_as_a_whole_variable() {
        let run = crate::guardian::new_run();
        let mut child = std::process::Command::new("sleep")
            .arg("300")
            .env("X", format!("BGRP_TEST={run}-1"))
            .env("BGRP_TEST", format!("{run}-12"))
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let look = |text: String| mark(pid, text.as_bytes());
        // Until it has executed the program.
        while look(format!("BGRP_TEST={run}-")) == Mark::Unclear {
            std::thread::yield_now();
        }
        assert_eq!(look(format!("BGRP_TEST={run}-12\0")), Mark::Found);
        assert_eq!(look(format!("BGRP_TEST={run}-")), Mark::Found);
        assert_eq!(look(format!("BGRP_TEST={run}-1\0")), Mark::Missing);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
