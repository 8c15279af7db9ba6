//! Hot keys: which groups get most of the tasks.
//!
//! Each worker feeds a sketch (sketch.rs) with samples of what it takes out of the ingress: at one look in [`GAP`] on average (a look
//! counts once for each [`LOOK`] tasks that it takes), in a random rhythm so that no shard is favoured, up to [`POINTS`] tasks at equal
//! distances. A sample stands for the tasks that were passed over; whether a task is sampled does not depend on its group, so
//! shares are right on average.
//!
//! The error that is told has two parts: that of the sketch, which is certain, and three standard deviations of the sampling, with each
//! look counted as one draw (tasks of one look may belong together).
//!
//! Cost: a handful of instructions a look; at a sampled one a walk over the groups of the chunk and four updates of 64 counters.

use std::{
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
};

use crossbeam_utils::CachePadded;

use super::sketch::{Counted, HALF_LIFE, ROOM, Sketch};
use crate::{
    Engine,
    group::block::Group,
    handler::Work,
    outcome::drop_quietly,
    sync::Mutex,
    worker::{Random, Worker},
};

/// Looks of which one is sampled, on average.
pub(crate) const GAP: u64 = 8;
/// A look that takes more tasks counts as several.
const LOOK: u64 = 256;
/// Samples of one look, at most.
const POINTS: u64 = 4;

/// A group, by its block; with the hash bits by which a late look knows whether the block still is that group's.
pub(crate) struct Id<K, T> {
    pub(crate) group: NonNull<Group<K, T>>,
    pub(crate) hash: u32,
}

impl<K, T> Id<K, T> {
    pub(crate) fn of(group: &Group<K, T>) -> Self {
        Self { group: NonNull::from(group), hash: group.hash() }
    }
}

impl<K, T> Clone for Id<K, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, T> Copy for Id<K, T> {}

impl<K, T> PartialEq for Id<K, T> {
    fn eq(&self, other: &Self) -> bool {
        (self.group, self.hash) == (other.group, other.hash)
    }
}

// SAFETY: the pointer is to a block that lives as long as the engine; it is followed under the claim of its shard only.
unsafe impl<K: Send, T: Send> Send for Id<K, T> {}

/// What one worker has seen.
pub(crate) struct Sketches<K, T> {
    /// Tasks that came.
    pub(crate) load: Sketch<Id<K, T>>,
    /// Attempts that failed.
    pub(crate) failures: Sketch<Id<K, T>>,
}

/// Its lock is a leaf: the worker tries it and goes on without, a reader holds it for one copy.
pub(crate) type SketchesOfWorker<K, T> = CachePadded<Mutex<Sketches<K, T>>>;

impl<K, T> Clone for Sketches<K, T> {
    fn clone(&self) -> Self {
        Self { load: self.load.clone(), failures: self.failures.clone() }
    }
}

impl<K, T> Sketches<K, T> {
    pub(crate) fn new() -> Self {
        Self { load: Sketch::new(), failures: Sketch::new() }
    }
}

/// Which looks a worker samples.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Looks of [`LOOK`] tasks until the next one that is sampled, that one included.
    left: u64,
}

impl Sampler {
    pub(crate) fn new() -> Self {
        // A model has enough to order without it.
        Self { left: if cfg!(loom) { u64::MAX } else { 1 } }
    }

    /// So many looks came. How many samples fall into them: none, as a rule.
    #[inline(always)]
    pub(crate) fn draws(&mut self, looks: u64, random: &mut Random) -> u64 {
        if self.left > looks {
            self.left -= looks;
            return 0;
        }
        self.draws_in(looks, random)
    }

    #[cold]
    fn draws_in(&mut self, mut looks: u64, random: &mut Random) -> u64 {
        let mut draws = 0;
        while self.left <= looks {
            looks -= self.left;
            draws += 1;
            // 1 to 15: the mean is the gap.
            self.left = 1 + random.next() % (2 * GAP - 1);
        }
        self.left -= looks;
        draws
    }
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Claim holder: a look has taken so many records, and nothing of it is published yet.
    #[inline(always)]
    pub(crate) fn sample(&mut self, taken: u32) {
        let taken = u64::from(taken);
        let looks = taken.div_ceil(LOOK);
        let draws = self.sampler.draws(looks, &mut self.random);
        if draws > 0 {
            self.sample_touched(taken, looks, draws);
        }
    }

    #[inline(never)]
    fn sample_touched(&mut self, taken: u64, looks: u64, draws: u64) {
        // Tasks for which one stands, in tasks of the chunk.
        let stands_for = |tasks: u64| tasks * GAP * draws / looks;
        let Some(mut sketches) = self.core().sketches[self.id].try_lock() else { return };
        let step = taken.div_ceil(POINTS);
        sketches.load.draw(stands_for(taken), self.pace.now);
        let mut next = self.random.next() % step;
        let mut passed = 0;
        for touched in &self.scratch.touched {
            let group = touched.group();
            // SAFETY: we hold the claim.
            passed += u64::from(unsafe { *group.producer().pending });
            let mut weight = 0;
            while next < passed {
                next += step;
                weight += step;
            }
            if weight > 0 {
                sketches.load.add(Id::of(group), stands_for(weight));
            }
        }
    }
}

/// A group that gets a good part of all tasks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HotKey<K> {
    /// The key of the group.
    pub key: K,
    /// Its share of all tasks that came lately, 0 to 1. What came 10 s ago counts half.
    pub share: f64,
    /// The true share is not farther from it than this, but for one case in some hundreds.
    pub error: f64,
}

impl<K: std::fmt::Debug> std::fmt::Display for HotKey<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (share, error) = (self.share * 100.0, self.error * 100.0);
        write!(f, "{:?}: {share:.1} % of the tasks (within {error:.1})", self.key)
    }
}

/// What several sketches say together.
pub(crate) struct Merged<K, T> {
    pub(crate) ids: Vec<(Id<K, T>, Counted)>,
    pub(crate) total: u64,
    /// Independent draws.
    draws: f64,
}

/// Adds sketches up; where one has no counter for an id, what it may have come to there is error (Agarwal and others
/// 2012). The largest first.
pub(crate) fn merge<'a, K: 'a, T: 'a>(
    sketches: impl Iterator<Item = &'a Sketch<Id<K, T>>> + Clone,
) -> Merged<K, T> {
    let mut ids: Vec<(Id<K, T>, Counted)> = Vec::with_capacity(ROOM);
    let mut squares = 0.0;
    let mut total = 0;
    for sketch in sketches.clone() {
        total += sketch.total();
        squares += sketch.squares();
        for (id, _) in sketch.iter() {
            if ids.iter().any(|(other, _)| *other == id) {
                continue;
            }
            let mut sum = Counted::default();
            for sketch in sketches.clone() {
                let unseen = sketch.unseen();
                let here = sketch.get(id).unwrap_or(Counted { most: unseen, error: unseen });
                sum.most += here.most;
                sum.error += here.error;
            }
            ids.push((id, sum));
        }
    }
    ids.sort_by_key(|(_, counted)| std::cmp::Reverse(2 * counted.most - counted.error));
    let draws = if squares > 0.0 { (total as f64).powi(2) / squares } else { 0.0 };
    Merged { ids, total, draws }
}

impl<K, T> Merged<K, T> {
    /// The share of what was counted so, and its error.
    pub(crate) fn share(&self, counted: Counted) -> (f64, f64) {
        let total = self.total.max(1) as f64;
        let sketch = counted.error as f64 / 2.0 / total;
        let middle = 2 * counted.most - counted.error;
        let share = (middle as f64 / 2.0 / total).clamp(0.0, 1.0);
        // Of a share that is near 0 or 1 the draws say less than their formula does.
        let odds = (share * (1.0 - share)).max(1.0 / self.draws.max(1.0)).min(0.25);
        (share, (sketch + 3.0 * (odds / self.draws.max(1.0)).sqrt()).min(1.0))
    }
}

impl<K: Clone, T> Engine<K, T> {
    /// The groups that get most of the tasks, at most `n` of them, the hottest first: found by constant memory (64 counters a
    /// worker), from samples of what came in the last ten seconds or so. Whatever makes up more than 1/64 of all is found.
    ///
    /// Takes the lock of a shard for the time of one clone of a key, for each of the `n`.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// let mut sim = Engine::<u64, u64>::builder().task_handler(|_, _| ()).build_sim(1)?;
    /// for n in 0..20_000 {
    ///     sim.submit(if n % 5 == 0 { n % 1_000 } else { 7_777 }, n)?;
    ///     if n % 100 == 0 {
    ///         sim.run();
    ///     }
    /// }
    /// sim.run();
    /// let hot = &sim.engine().hot_keys(1)[0];
    /// assert_eq!(hot.key, 7_777);
    /// assert!((hot.share - 0.8).abs() <= hot.error, "{hot}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hot_keys(&self, n: usize) -> Vec<HotKey<K>> {
        let control = &self.shared.control;
        let sketches = control.sketches();
        let merged = merge(sketches.iter().map(|sketches| &sketches.load));
        let mut hot = Vec::new();
        for (id, counted) in &merged.ids {
            if hot.len() == n {
                break;
            }
            let (share, error) = merged.share(*counted);
            control.show(id.group, id.hash, &mut |key, _| {
                hot.extend(clone_of(key).map(|key| HotKey { key, share, error }));
            });
        }
        hot
    }
}

/// A clone of a key, under a lock: a panic in it ends here.
pub(crate) fn clone_of<K: Clone>(key: &K) -> Option<K> {
    catch_unwind(AssertUnwindSafe(|| key.clone())).map_err(drop_quietly).ok()
}

const _: () = assert!(HALF_LIFE == 10_000_000_000, "as the documentation says");
