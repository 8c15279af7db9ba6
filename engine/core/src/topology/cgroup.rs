//! The CPU time that control groups grant, v1 and v2.
//!
//! A group is limited by itself and by every group above it, so the answer is the least limit on
//! the way up. Inside a container `proc/self/cgroup` may name a path of the host that is not
//! mounted: levels that are not there are passed over, and the mount point itself is the last.
//!
//! | version | line of `proc/self/cgroup` | files | no limit |
//! |---|---|---|---|
//! | 2 | `0::/path` | `cpu.max`: `QUOTA PERIOD` | `max` |
//! | 1 | `4:cpu,cpuacct:/path` | `cpu.cfs_quota_us`, `cpu.cfs_period_us` | `-1` |
//!
//! Cost: one or two small files a level, read once.

use std::path::{Component, Path, PathBuf};

use super::snapshot::text_at;
use crate::sync::mutant;

/// CPUs' worth of time granted, the least of all levels; `None` is no limit.
pub(super) fn quota(root: &Path, notes: &mut Vec<String>) -> Option<f64> {
    let groups = match text_at(&root.join("proc/self/cgroup")) {
        Ok(groups) => groups,
        Err(why) => {
            notes.push(format!("the CPU quota is not known: {why}"));
            return None;
        }
    };
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            notes.push(format!("odd line in proc/self/cgroup: {line:?}"));
            continue;
        };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|controller| controller == "cpu") {
            continue;
        }
        let limit = if unified { limit_v2 } else { limit_v1 };
        // A machine with both versions has the second in a directory of its own.
        let mounts: &[&str] = match controllers {
            "" => &["", "unified"],
            "cpu" => &["cpu"],
            several => &[several, "cpu"],
        };
        for mount in mounts {
            let mount = root.join("sys/fs/cgroup").join(mount);
            for dir in ways_up(&mount, path) {
                match limit(&dir) {
                    Ok(Some(cpus)) => least = Some(least.map_or(cpus, |least| least.min(cpus))),
                    Ok(None) => {}
                    Err(why) => notes.push(format!("odd CPU quota, taken as none: {why}")),
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

fn limit_v2(dir: &Path) -> Result<Option<f64>, String> {
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

fn limit_v1(dir: &Path) -> Result<Option<f64>, String> {
    let path = dir.join("cpu.cfs_quota_us");
    let Ok(quota) = text_at(&path) else { return Ok(None) };
    if quota == "-1" {
        return Ok(None);
    }
    ratio(&path, &quota, &text_at(&dir.join("cpu.cfs_period_us"))?)
}

fn ratio(path: &Path, quota: &str, period: &str) -> Result<Option<f64>, String> {
    match (quota.parse::<u64>(), period.parse::<u64>()) {
        (Ok(quota @ 1..), Ok(period)) if period > 0 || mutant("quota-no-period") => {
            Ok(Some(quota as f64 / period as f64))
        }
        _ => Err(format!("{}: {quota:?} of {period:?}", path.display())),
    }
}
