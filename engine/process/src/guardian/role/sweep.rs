//! Sweeps: KILL to everything that one token has started, until a look finds nothing, at most 2 s.
//!
//! Found are, in each look:
//!
//! * the leader with its group and all its descendants, also those in sessions of their own;
//! * orphans, which came to the guardian because their parent has ended, if they carry the token's mark or are in its
//!   group, with all their descendants.
//!
//! A family is stopped before it is killed, and looked at again until it has stopped growing, so that none of it
//! gives birth unseen.
//!
//! Not found is an orphan that left the group *and* emptied its environment before its parent ended. It stays a
//! child of the guardian, and goes with the run.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::table::Table;
use crate::guardian::TOKEN;
use crate::guardian::tree::{self, Mark, Tree};

/// How long a sweep tries before it reports survivors.
const PATIENCE: Duration = Duration::from_secs(2);
/// From the first look to the second; doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often a family that keeps growing is looked at before it is killed as it is.
const LOOKS: usize = 8;
/// How often in a row it is looked again because somebody might belong to the token.
const DOUBTS: u32 = 4;

#[derive(Debug)]
struct Sweep {
    token: u64,
    until: Instant,
    next: Instant,
    pause: Duration,
    doubts: u32,
}

/// The sweeps that go on.
#[derive(Debug)]
pub(super) struct Sweeps {
    run: String,
    going: Vec<Sweep>,
}

impl Sweeps {
    pub(super) fn new(run: &str) -> Self {
        Self { run: run.to_owned(), going: Vec::new() }
    }

    pub(super) fn begin(&mut self, token: u64) {
        let now = Instant::now();
        self.going.push(Sweep {
            token,
            until: now + PATIENCE,
            next: now,
            pause: FIRST_PAUSE,
            doubts: 0,
        });
    }

    /// The leader has ended: the next look may find nothing.
    pub(super) fn hurry(&mut self, token: u64) {
        if self.going.is_empty() {
            return;
        }
        let now = Instant::now();
        for sweep in self.going.iter_mut().filter(|sweep| sweep.token == token) {
            sweep.next = now;
        }
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.going.iter().map(|sweep| sweep.next).min()
    }

    /// Looks where it is due; answers the sweeps that have ended, with their survivors.
    pub(super) fn carry_on(
        &mut self,
        now: Instant,
        table: &mut Table,
        tree: Tree,
    ) -> Vec<(u64, Vec<u32>)> {
        let mut ended = Vec::new();
        let run = &self.run;
        self.going.retain_mut(|sweep| {
            if sweep.next > now {
                return true;
            }
            let Found { alive, in_doubt } = look(run, sweep.token, table, tree);
            let doubtful = alive.is_empty() && in_doubt && sweep.doubts < DOUBTS;
            sweep.doubts = if doubtful { sweep.doubts + 1 } else { 0 };
            if alive.is_empty() && !doubtful {
                table.forget(sweep.token);
            } else if now < sweep.until {
                sweep.next = now + sweep.pause;
                sweep.pause = (sweep.pause * 2).min(LONGEST_PAUSE);
                return true;
            }
            ended.push((sweep.token, alive.into_iter().map(i32::unsigned_abs).collect()));
            false
        });
        ended
    }
}

/// What a look has found.
struct Found {
    /// Those who were still alive, or not reaped in the case of the leader.
    alive: Vec<i32>,
    /// Whether there was somebody who may belong to the token.
    in_doubt: bool,
}

/// Kills what there is of a token.
fn look(run: &str, token: u64, table: &Table, tree: Tree) -> Found {
    table.kill_cgroup(token);
    let leader = table.pid(token).map(|pid| pid.as_raw_nonzero().get());
    let mark = format!("{TOKEN}={run}-{token}\0");
    let group = table.left(token).map(|left| left.group.as_raw_nonzero().get());
    let mut roots: Vec<i32> = leader.into_iter().collect();
    let mut in_doubt = false;
    for pid in tree.own_children() {
        if table.is_leader(pid) {
            continue;
        }
        let Some(stat) = tree::stat(pid).filter(|stat| !stat.is_dead()) else {
            // It has ended just now, and may have left a child that is not in our list.
            in_doubt = true;
            continue;
        };
        match tree::mark(pid, mark.as_bytes()) {
            _ if Some(stat.group) == group => roots.push(pid),
            Mark::Found => roots.push(pid),
            Mark::Missing => {}
            Mark::Unclear => in_doubt = true,
        }
    }
    if roots.is_empty() {
        return Found { alive: roots, in_doubt };
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut family: HashSet<i32> = HashSet::from_iter(roots.iter().copied());
    family.extend(tree.descendants(&roots));
    if family.len() > 1 {
        table.signal(token, Signal::STOP);
        let mut stopped: HashSet<i32> = leader.into_iter().collect();
        for _ in 0..LOOKS {
            for &pid in family.difference(&stopped) {
                tree::signal_if(pid, Signal::STOP, |stat| {
                    stat.parent == own || family.contains(&stat.parent)
                });
            }
            stopped.extend(&family);
            family.extend(tree.descendants(&roots));
            if family.len() == stopped.len() {
                break;
            }
        }
    }
    table.signal(token, Signal::KILL);
    let mut alive: Vec<i32> = leader.into_iter().collect();
    for &pid in family.iter().filter(|&&pid| Some(pid) != leader) {
        // Its parent may have ended meanwhile, then it has come to us.
        if tree::signal_if(pid, Signal::KILL, |stat| {
            stat.parent == own || family.contains(&stat.parent)
        }) {
            alive.push(pid);
        }
    }
    Found { alive, in_doubt }
}
