//! Memory limits by cgroup v2, where some part of the tree is ours to use. Whether it is, is found by trying.
//!
//! ```text
//! <base>/bgrp-<run>/          controllers: memory; nobody in it
//! <base>/bgrp-<run>/t<token>  memory.max, memory.oom.group; a process with all it starts
//! ```
//!
//! The base is the cgroup of the program, or the one above it (a cgroup that holds processes cannot share out memory),
//! if memory is shared out there and a process may be moved. The program itself is never moved.
//!
//! A guardian that is killed leaves these directories behind, empty.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The part of the tree that this run uses.
#[derive(Debug)]
pub(super) struct Cgroups {
    dir: PathBuf,
}

/// The cgroup of one token.
#[derive(Debug)]
pub(super) struct Cgroup {
    dir: PathBuf,
}

impl Cgroups {
    /// Finds a base and makes the directory of the run, if that can be done.
    pub(super) fn find(run: &str) -> Option<Self> {
        let own = own_dir(
            &fs::read_to_string("/proc/self/mountinfo").ok()?,
            &fs::read_to_string("/proc/self/cgroup").ok()?,
        )?;
        let above = own.parent().map(Path::to_owned);
        [Some(own), above]
            .into_iter()
            .flatten()
            .find_map(|base| Self::try_base(&base, run, can_move))
    }

    fn try_base(base: &Path, run: &str, can_move: fn(&Path) -> bool) -> Option<Self> {
        let shared = fs::read_to_string(base.join("cgroup.subtree_control")).ok()?;
        if !shared.split_whitespace().any(|controller| controller == "memory") {
            return None;
        }
        let dir = base.join(format!("bgrp-{run}"));
        fs::create_dir(&dir).ok()?;
        // From here on it is removed again if anything fails.
        let cgroups = Self { dir };
        fs::write(cgroups.dir.join("cgroup.subtree_control"), "+memory").ok()?;
        let probe = cgroups.make(0, 1 << 30).ok()?;
        let works = can_move(&probe.dir);
        let left = probe.remove();
        (works && left.is_none()).then_some(cgroups)
    }

    /// Whether all in a cgroup can be killed in one go (since Linux 5.14).
    pub(super) fn can_kill(&self) -> bool {
        fs::exists(self.dir.join("cgroup.kill")).unwrap_or(false)
    }

    /// A cgroup that may use `most` bytes, and is killed as a whole over it.
    pub(super) fn make(&self, token: u64, most: u64) -> io::Result<Cgroup> {
        let dir = self.dir.join(format!("t{token}"));
        fs::create_dir(&dir)?;
        let cgroup = Cgroup { dir };
        let set = fs::write(cgroup.dir.join("memory.max"), most.to_string())
            .and_then(|()| fs::write(cgroup.dir.join("memory.oom.group"), "1"));
        match set {
            Ok(()) => Ok(cgroup),
            Err(error) => {
                cgroup.remove();
                Err(error)
            }
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

impl Cgroup {
    /// Where a process writes 0 to come in.
    pub(super) fn door(&self) -> io::Result<OwnedFd> {
        let door = fs::OpenOptions::new().write(true).open(self.dir.join("cgroup.procs"))?;
        Ok(OwnedFd::from(door))
    }

    /// Whether somebody in it was killed over the limit.
    pub(super) fn oom_killed(&self) -> bool {
        let events = fs::read_to_string(self.dir.join("memory.events")).unwrap_or_default();
        events
            .lines()
            .filter_map(|line| line.strip_prefix("oom_kill "))
            .any(|count| count.trim() != "0")
    }

    /// Kills all in it.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.dir.join("cgroup.kill"), "1");
    }

    /// Removes it, if nobody is in it; gives it back otherwise.
    pub(super) fn remove(self) -> Option<Self> {
        match fs::remove_dir(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Some(self),
            _ => None,
        }
    }
}

impl Drop for Cgroup {
    /// For those that were left over at the end of the run.
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Whether a child of ours may move into the cgroup `dir`.
fn can_move(dir: &Path) -> bool {
    let Ok(mut door) = fs::OpenOptions::new().write(true).open(dir.join("cgroup.procs")) else {
        return false;
    };
    // SAFETY: this process has one thread, so the child may do what it likes; it writes, and ends without handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(door.write_all(b"0").is_err());
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let mut status = 1;
    // SAFETY: waits for the child that was just made, if it was.
    pid > 0 && unsafe { libc::waitpid(pid, &mut status, 0) } == pid && status == 0
}

/// The directory of this process's cgroup, by what the system says of mounts and cgroups.
fn own_dir(mounts: &str, cgroups: &str) -> Option<PathBuf> {
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        if kind.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup_is_found_below_its_mount() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - tmpfs tmpfs rw\n\
                      31 30 0:27 /user.slice /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let cgroups = "4:memory:/x\n0::/user.slice/a.scope\n";
        assert_eq!(own_dir(mounts, cgroups).unwrap(), Path::new("/sys/fs/cgroup/unified/a.scope"));
        assert_eq!(own_dir(mounts, "4:memory:/x\n"), None);
        assert_eq!(own_dir("31 30 0:27 / /c rw - cgroup cgroup rw", cgroups), None);
    }

    /// A directory with the files of a cgroup stands in where none is delegated.
    #[test]
    fn limits_are_written_and_kills_are_read() {
        let base = tempfile::tempdir().unwrap();
        let no_memory = Cgroups::try_base(base.path(), "r", |_| true);
        assert!(no_memory.is_none());
        fs::write(base.path().join("cgroup.subtree_control"), "cpu\n").unwrap();
        assert!(Cgroups::try_base(base.path(), "r", |_| true).is_none());
        let cgroups = Cgroups { dir: base.path().to_owned() };
        let cgroup = cgroups.make(7, 123_456).unwrap();
        let read = |name: &str| fs::read_to_string(base.path().join("t7").join(name)).unwrap();
        assert_eq!((read("memory.max"), read("memory.oom.group")), ("123456".into(), "1".into()));
        assert!(!cgroup.oom_killed());
        let events = base.path().join("t7/memory.events");
        fs::write(&events, "low 0\noom 1\noom_kill 0\n").unwrap();
        assert!(!cgroup.oom_killed());
        fs::write(&events, "low 0\noom 1\noom_kill 3\noom_group_kill 1\n").unwrap();
        assert!(cgroup.oom_killed());
        cgroup.kill();
        assert_eq!(read("cgroup.kill"), "1");
        // It is not empty, as one with a process in it.
        assert!(cgroup.remove().is_some());
    }
}
