//! The processes that the guardian has started and not reaped yet: leaders of groups.

use std::collections::HashMap;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use super::cgroup::Cgroup;

/// A running leader.
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) token: u64,
    pub(super) cgroup: Option<Cgroup>,
}

/// Leaders by number and by token; and the groups of leaders that ended before the rest of their group.
///
/// A token is in `leaders` and `pids` from the start of its process until it is reaped, and in `left` afterwards if
/// somebody of its group was still there.
#[derive(Debug, Default)]
pub(super) struct Table {
    leaders: HashMap<i32, Leader>,
    pids: HashMap<u64, Pid>,
    left: HashMap<u64, Left>,
    /// Look through `left` when it has grown to this.
    look: usize,
}

/// A group without its leader.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) group: Pid,
    pub(super) cgroup: Option<Cgroup>,
}

impl Table {
    pub(super) fn enter(&mut self, pid: Pid, leader: Leader) {
        self.pids.insert(leader.token, pid);
        self.leaders.insert(pid.as_raw_nonzero().get(), leader);
    }

    /// A child was reaped. Answers its token if it was a leader.
    pub(super) fn reaped(&mut self, pid: i32) -> Option<(u64, bool)> {
        let mut leader = self.leaders.remove(&pid)?;
        let group = self.pids.remove(&leader.token)?;
        let oom = leader.cgroup.as_ref().is_some_and(Cgroup::oom_killed);
        let cgroup = leader.cgroup.take().and_then(Cgroup::remove);
        // Nothing is signalled: whether somebody is left in the group, whose number stays taken by that.
        if cgroup.is_some() || test_kill_process_group(group).is_ok() {
            self.left.insert(leader.token, Left { group, cgroup });
            self.prune();
        }
        Some((leader.token, oom))
    }

    /// Forgets groups in which nobody is left.
    fn prune(&mut self) {
        if self.left.len() > self.look.max(64) {
            self.left.retain(|_, left| {
                let cgroup = left.cgroup.take().and_then(Cgroup::remove);
                left.cgroup = cgroup;
                left.cgroup.is_some() || test_kill_process_group(left.group).is_ok()
            });
            self.look = 2 * self.left.len();
        }
    }

    pub(super) fn pid(&self, token: u64) -> Option<Pid> {
        self.pids.get(&token).copied()
    }

    pub(super) fn is_leader(&self, pid: i32) -> bool {
        self.leaders.contains_key(&pid)
    }

    pub(super) fn left(&self, token: u64) -> Option<&Left> {
        self.left.get(&token)
    }

    /// Nothing is left of this token.
    pub(super) fn forget(&mut self, token: u64) {
        if let Some(left) = self.left.get_mut(&token) {
            left.cgroup = left.cgroup.take().and_then(Cgroup::remove);
            if left.cgroup.is_none() {
                self.left.remove(&token);
            }
        }
    }

    /// Signals the group of a leader, and the leader, if it has not been reaped.
    pub(super) fn signal(&self, token: u64, signal: Signal) {
        if let Some(pid) = self.pid(token) {
            let _ = kill_process_group(pid, signal);
            // It may have moved to another group.
            if rustix::process::getpgid(Some(pid)) != Ok(pid) {
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Kills the cgroup of a token, if it has one.
    pub(super) fn kill_cgroup(&self, token: u64) {
        let of_leader = self.pid(token).and_then(|pid| {
            self.leaders.get(&pid.as_raw_nonzero().get()).and_then(|leader| leader.cgroup.as_ref())
        });
        let of_left = || self.left.get(&token).and_then(|left| left.cgroup.as_ref());
        if let Some(cgroup) = of_leader.or_else(of_left) {
            cgroup.kill();
        }
    }

    /// All leaders' tokens.
    pub(super) fn tokens(&self) -> Vec<u64> {
        self.pids.keys().copied().collect()
    }
}
