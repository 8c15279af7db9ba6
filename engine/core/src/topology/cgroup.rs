//! What control groups grant, v1 and v2: CPU time, memory, processes.
//!
//! A group is limited by itself and by every group above it, so the answer is the least limit on
//! the way up. Inside a container `proc/self/cgroup` may name a path of the host that is not
//! mounted: levels that are not there are passed over, and the mount point itself is the last.
//!
//! | version | line of `proc/self/cgroup` | CPU time | memory | processes | no limit |
//! |---|---|---|---|---|---|
//! | 2 | `0::/path` | `cpu.max`: `QUOTA PERIOD` | `memory.max` | `pids.max` | `max` |
//! | 1 | `4:cpu,cpuacct:/path` | `cpu.cfs_quota_us`, `cpu.cfs_period_us` | `memory.limit_in_bytes` | `pids.max` | `-1`, `max`, or more than 2^62 bytes |
//!
//! Cost: one or two small files a level, read once.

use std::path::{Component, Path, PathBuf};

use super::read::text_at;
use crate::sync::mutant;

/// A limit at one level: `None` if there is none.
type Limit<T> = Result<Option<T>, String>;

/// CPUs' worth of time granted, the least of all levels; `None` is no limit.
pub(super) fn quota(root: &Path, notes: &mut Vec<String>) -> Option<f64> {
    least(
        root,
        "cpu",
        "CPU quota",
        notes,
        |unified, dir| {
            if unified { quota_v2(dir) } else { quota_v1(dir) }
        },
    )
}

/// Bytes of memory granted, the least of all levels; `None` is no limit.
pub(super) fn memory(root: &Path, notes: &mut Vec<String>) -> Option<u64> {
    least(root, "memory", "memory limit", notes, |unified, dir| {
        let file = if unified { "memory.max" } else { "memory.limit_in_bytes" };
        // The first version says "no limit" with the greatest number of pages that there is.
        Ok(count(&dir.join(file))?.filter(|bytes| *bytes < 1 << 62))
    })
}

/// Processes and threads granted, the least of all levels; `None` is no limit.
pub(super) fn processes(root: &Path, notes: &mut Vec<String>) -> Option<u64> {
    least(root, "pids", "process limit", notes, |_, dir| count(&dir.join("pids.max")))
}

/// The least that `limit` finds in the groups of `controller`, by version and directory.
fn least<T: PartialOrd>(
    root: &Path,
    controller: &str,
    what: &str,
    notes: &mut Vec<String>,
    limit: impl Fn(bool, &Path) -> Limit<T>,
) -> Option<T> {
    let groups = match text_at(&root.join("proc/self/cgroup")) {
        Ok(groups) => groups,
        Err(why) => {
            notes.push(format!("the {what} is not known: {why}"));
            return None;
        }
    };
    let mut least: Option<T> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            notes.push(format!("odd line in proc/self/cgroup: {line:?}"));
            continue;
        };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        // A machine with both versions has the second in a directory of its own.
        let mounts = if unified { ["", "unified"] } else { [controllers, controller] };
        for (n, mount) in mounts.into_iter().enumerate() {
            if n > 0 && mount == mounts[0] {
                continue;
            }
            let mount = root.join("sys/fs/cgroup").join(mount);
            for dir in ways_up(&mount, path) {
                match limit(unified, &dir) {
                    Ok(Some(found)) if least.as_ref().is_none_or(|least| found < *least) => {
                        least = Some(found);
                    }
                    Ok(_) => {}
                    Err(why) => notes.push(format!("odd {what}, taken as none: {why}")),
                }
            }
        }
    }
    least
}

/// The directory of the group `path` below `mount`, and those above it up to `mount`.
fn ways_up(mount: &Path, path: &str) -> Vec<PathBuf> {
    let mut dirs = vec![mount.to_owned()];
    for part in Path::new(path).components() {
        // A group outside the namespace is shown with `..`: nothing of it is mounted here.
        if let Component::Normal(name) = part {
            dirs.push(dirs[dirs.len() - 1].join(name));
        }
    }
    dirs.reverse();
    dirs
}

/// A file with one number, or a word for "no limit"; no file is no limit.
fn count(path: &Path) -> Limit<u64> {
    match text_at(path).as_deref() {
        Err(_) | Ok("max" | "-1") => Ok(None),
        Ok(text) => match text.parse() {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(format!("{}: {text:?}", path.display())),
        },
    }
}

fn quota_v2(dir: &Path) -> Limit<f64> {
    let path = dir.join("cpu.max");
    let Ok(text) = text_at(&path) else { return Ok(None) };
    let mut words = text.split_whitespace();
    match (words.next(), words.next()) {
        (Some("max"), _) => Ok(None),
        // The kernel's period is 100 ms where none is given.
        (Some(quota), period) => ratio(&path, quota, period.unwrap_or("100000")),
        (None, _) => Err(format!("{} is empty", path.display())),
    }
}

fn quota_v1(dir: &Path) -> Limit<f64> {
    let path = dir.join("cpu.cfs_quota_us");
    let Ok(quota) = text_at(&path) else { return Ok(None) };
    if quota == "-1" {
        return Ok(None);
    }
    ratio(&path, &quota, &text_at(&dir.join("cpu.cfs_period_us"))?)
}

fn ratio(path: &Path, quota: &str, period: &str) -> Limit<f64> {
    match (quota.parse::<u64>(), period.parse::<u64>()) {
        (Ok(quota @ 1..), Ok(period)) if period > 0 || mutant("quota-no-period") => {
            Ok(Some(quota as f64 / period as f64))
        }
        _ => Err(format!("{}: {quota:?} of {period:?}", path.display())),
    }
}
