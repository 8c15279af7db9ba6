//! Who does not get on, since when, and why: the question of whoever is called at night.

use std::{fmt, time::Duration};

use super::{
    hot_keys::{clone_of, merge},
    walk::Sight,
};
use crate::Engine;

/// Groups of [`Engine::stuck`], at most.
const MOST: usize = 1_000;

/// What a group waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Its handler runs.
    Running {
        /// On this worker, by its number in [`Engine::plan`].
        worker: usize,
        /// With so many tasks.
        tasks: u32,
        /// For so long.
        time: Duration,
    },
    /// As much is in flight as may be.
    Permit {
        /// Dispatches (or tasks, if those are counted) in flight.
        in_flight: u32,
        /// How many may be.
        limit: u32,
    },
    /// The rate of the whole engine is used up.
    EngineRate {
        /// Until the next dispatch.
        left: Duration,
    },
    /// The downstream said when to come again.
    Throttled {
        /// Until then.
        left: Duration,
    },
    /// The rate of this group is used up.
    GroupRate {
        /// Until its next dispatch.
        left: Duration,
    },
    /// Its first task failed, and will be tried again.
    BackOff {
        /// Until then.
        left: Duration,
    },
    /// Its batch is leased out ([`Lease`](crate::Lease)).
    Leased {
        /// For so long.
        time: Duration,
    },
    /// It was halted by what follows used-up attempts.
    Halted,
    /// It was paused ([`Engine::pause_group`]).
    Paused,
    /// It was closed ([`Engine::close_group`]), and a submit that was under way put a task into it.
    Closed,
    /// It waits for a full batch.
    Linger {
        /// At most for so long.
        left: Duration,
    },
    /// It may run, or its lease has come back: no worker has come to it.
    Ready {
        /// So many groups and shards are ready, this one among them.
        behind: u64,
    },
    /// Its tasks have been submitted, and no worker has taken them in yet. The key is that of the first task of a shard, the backlog
    /// counts all that lie there.
    Ingress {
        /// The engine holds all the tasks that it may ([`Builder::capacity`](crate::Builder::capacity)).
        starved: bool,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { worker, tasks, time } => {
                write!(f, "running on worker {worker} for {}, {tasks} tasks", Short(*time))
            }
            Self::Permit { in_flight, limit } => {
                write!(f, "waiting for a permit, {in_flight} of {limit} in flight")
            }
            Self::EngineRate { left } => {
                write!(f, "over the rate of the engine, {} left", Short(*left))
            }
            Self::Throttled { left } => {
                write!(f, "throttled by the downstream, {} left", Short(*left))
            }
            Self::GroupRate { left } => write!(f, "over its own rate, {} left", Short(*left)),
            Self::BackOff { left } => write!(f, "in back-off, {} left", Short(*left)),
            Self::Leased { time } => write!(f, "leased out for {}", Short(*time)),
            Self::Halted => f.write_str("halted"),
            Self::Paused => f.write_str("paused"),
            Self::Closed => f.write_str("closed"),
            Self::Linger { left } => write!(f, "waiting for a full batch, {} left", Short(*left)),
            Self::Ready { behind } => write!(f, "ready, one of {behind} that wait for a worker"),
            Self::Ingress { starved: false } => f.write_str("in the ingress, not taken in yet"),
            Self::Ingress { starved: true } => {
                f.write_str("in the ingress, the engine is at its capacity")
            }
        }
    }
}

/// A duration with as many digits as anybody reads.
struct Short(Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            3_600.. => write!(f, "{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
            60.. => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            1.. => write!(f, "{:.1} s", self.0.as_secs_f64()),
            0 => write!(f, "{:.1} ms", self.0.as_secs_f64() * 1_000.0),
        }
    }
}

/// A group that has work and does not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck<K> {
    /// The key of the group.
    pub key: K,
    /// For how long: since it became busy, or since its last dispatch in which a task ended. While it runs or is leased out: since
    /// this dispatch began. May be too long by what its worker did in one go without reading the clock: 64 short dispatches
    /// and one long one.
    pub age: Duration,
    /// Tasks that have not ended, those that run included.
    pub backlog: u64,
    /// The attempt of its first task that runs, or is next, where that is known: while it runs, and in back-off.
    pub attempt: Option<u32>,
    /// What it waits for.
    pub why: Why,
}

impl<K: fmt::Debug> fmt::Display for Stuck<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, s) = (self.backlog, if self.backlog == 1 { "" } else { "s" });
        write!(
            f,
            "{:?}: {tasks} task{s}, no progress for {}: {}",
            self.key,
            Short(self.age),
            self.why
        )?;
        match self.attempt {
            Some(attempt) if attempt > 1 => write!(f, " (attempt {attempt})"),
            _ => Ok(()),
        }
    }
}

/// What [`Engine::top_groups`] goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum By {
    /// Tasks that have not ended.
    Backlog,
    /// How long the group has not got on.
    Age,
    /// Tasks that came lately ([`Engine::hot_keys`] tells shares).
    Rate,
    /// Attempts that failed lately.
    Failures,
}

/// A group of [`Engine::top_groups`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopGroup<K> {
    /// The key of the group.
    pub key: K,
    /// Tasks that have not ended.
    pub backlog: u64,
    /// How long it has not got on; zero when it has no work.
    pub age: Duration,
    /// By rate: its share of the tasks that came lately. By failures: its share of the attempts that failed lately.
    pub share: Option<f64>,
    /// What it waits for; `None` when it has no work.
    pub why: Option<Why>,
}

fn age(now: u64, sight: &Sight) -> Duration {
    Duration::from_nanos(sight.since.map_or(0, |since| now.saturating_sub(since)))
}

impl<K: Clone, T> Engine<K, T> {
    /// Groups that have work and have not got on for longer than `older_than`, the longest first: who, since when, why. At most
    /// 1,000; see [`Engine::stuck_at_most`].
    ///
    /// ```
    /// # use bgrp::{Engine, Retry, Why};
    /// # use std::time::Duration;
    /// let mut sim = Engine::<&str, u32>::builder()
    ///     .retry(Retry::fixed(Duration::from_secs(90)).attempts(5))
    ///     .task_handler(|_, task| if *task.key() == "bad" { Err("no") } else { Ok(()) })
    ///     .build_sim(1)?;
    /// sim.submit("good", 1)?;
    /// sim.submit("bad", 1)?;
    /// sim.run();
    /// sim.advance(Duration::from_secs(40));
    /// let stuck = sim.engine().stuck(Duration::from_secs(30));
    /// assert_eq!(stuck[0].to_string(), "\"bad\": 1 task, no progress for 40.0 s: in back-off, 50.0 s left (attempt 2)");
    /// assert_eq!(stuck.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Walks over all groups, some 10 ns each, with the lock of one shard for at most 512 of them at a time; no handler waits for it.
    /// Where groups are in back-off or over their rate, the lock of the timer is held for one pass over what lies in it.
    pub fn stuck(&self, older_than: Duration) -> Vec<Stuck<K>> {
        self.stuck_at_most(older_than, MOST)
    }

    /// As [`Engine::stuck`], with at most `most` groups: the longest stuck.
    pub fn stuck_at_most(&self, older_than: Duration, most: usize) -> Vec<Stuck<K>> {
        let mut found = self.best(most, |age, _| (age > older_than).then_some(age.as_nanos()));
        found.drain(..).map(|(key, age, sight)| stuck(key, age, sight)).collect()
    }

    /// The `n` groups that are first by what `by` says, the first first. Groups without work are found by rate and by failures
    /// only. Cost as [`Engine::stuck`] by backlog and age, as [`Engine::hot_keys`] by rate and failures.
    ///
    /// ```
    /// # use bgrp::{By, Engine};
    /// let mut sim = Engine::<u32, u32>::builder().task_handler(|_, _| ()).build_sim(1)?;
    /// for n in 0..100 {
    ///     sim.submit(if n < 80 { 7 } else { n }, n)?;
    /// }
    /// sim.run();
    /// assert_eq!(sim.engine().top_groups(By::Rate, 3)[0].key, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn top_groups(&self, by: By, n: usize) -> Vec<TopGroup<K>> {
        let of = |(key, age, sight): (K, Duration, Sight)| {
            let Stuck { key, age, backlog, why, .. } = stuck(key, age, sight);
            TopGroup { key, backlog, age, share: None, why: Some(why) }
        };
        match by {
            By::Backlog => {
                self.best(n, |_, sight| Some(sight.backlog.into())).into_iter().map(of).collect()
            }
            By::Age => self.best(n, |age, _| Some(age.as_nanos())).into_iter().map(of).collect(),
            By::Rate | By::Failures => self.top_of_sketches(by, n),
        }
    }

    fn top_of_sketches(&self, by: By, n: usize) -> Vec<TopGroup<K>> {
        let control = &self.shared.control;
        let sketches = control.sketches();
        let merged = match by {
            By::Failures => merge(sketches.iter().map(|sketches| &sketches.failures)),
            _ => merge(sketches.iter().map(|sketches| &sketches.load)),
        };
        let now = control.now();
        let mut top: Vec<(TopGroup<K>, Option<Sight>)> = Vec::new();
        for (id, counted) in &merged.ids {
            if top.len() == n {
                break;
            }
            let share = Some(merged.share(*counted).0);
            control.show(id.group, id.hash, &mut |key, sight| {
                let Some(key) = clone_of(key) else { return };
                let (backlog, age) =
                    sight.as_ref().map_or((0, Duration::ZERO), |s| (s.backlog, age(now, s)));
                top.push((TopGroup { key, backlog, age, share, why: None }, sight));
            });
        }
        control.explain(
            &mut top.iter_mut().filter_map(|(_, sight)| sight.as_mut()).collect::<Vec<_>>(),
        );
        top.into_iter()
            .map(|(group, sight)| TopGroup { why: sight.map(|sight| sight.why), ..group })
            .collect()
    }

    /// The groups for which `score` is highest, with their ages, explained.
    fn best(
        &self,
        most: usize,
        score: impl Fn(Duration, &Sight) -> Option<u128>,
    ) -> Vec<(K, Duration, Sight)> {
        let control = &self.shared.control;
        let now = control.now();
        let mut best: Vec<(u128, K, Duration, Sight)> = Vec::new();
        let mut bar = None;
        control.walk(&mut |key, sight| {
            let age = age(now, &sight);
            let Some(score) = score(age, &sight) else { return };
            if bar.is_some_and(|bar| score <= bar) {
                return;
            }
            let Some(key) = clone_of(key) else { return };
            best.push((score, key, age, sight));
            if best.len() >= 2 * most.max(8) {
                keep_best(&mut best, most);
                bar = best.last().map(|(score, ..)| *score);
            }
        });
        keep_best(&mut best, most);
        control.explain(&mut best.iter_mut().map(|(.., sight)| sight).collect::<Vec<_>>());
        best.into_iter().map(|(_, key, age, sight)| (key, age, sight)).collect()
    }
}

fn keep_best<K>(best: &mut Vec<(u128, K, Duration, Sight)>, most: usize) {
    best.sort_by_key(|(score, ..)| std::cmp::Reverse(*score));
    best.truncate(most);
}

fn stuck<K>(key: K, age: Duration, sight: Sight) -> Stuck<K> {
    Stuck { key, age, backlog: sight.backlog, attempt: sight.attempt, why: sight.why }
}
