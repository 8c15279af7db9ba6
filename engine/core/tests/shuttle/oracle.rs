//! What happened to each task, and whether it may have: nothing in here is seen by the scheduler, so that no look of the
//! oracle's orders what the engine does not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bgrp::CloseReport;

pub(crate) type Key = u64;

/// How a task came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Key,
    Handle,
    Many,
    /// A future, which may be dropped on the way.
    Future,
    /// Order within one lane only.
    Lane,
}

#[derive(Clone, Debug, Default)]
struct Fate {
    /// Way, lane (of its submitter), key.
    submit: Option<(Way, usize, Key)>,
    /// Stamps of the begin and the end of its submit.
    began: u64,
    returned: u64,
    accepted: bool,
    runs: u32,
    ended: u32,
    left: u32,
    drops: u32,
}

#[derive(Debug, Default)]
struct Seen {
    stamp: u64,
    fates: Vec<Fate>,
    running: BTreeSet<Key>,
    /// Per key: each run, in order.
    runs: BTreeMap<Key, Vec<usize>>,
    /// What a group holds at most, and what all tasks weigh together at most.
    bounds: Option<(usize, usize)>,
    /// Groups that are being emptied by a call.
    emptied: BTreeSet<Key>,
    faults: Vec<String>,
}

impl Seen {
    /// Counts who certainly is inside: he runs, or his submit has returned, and nothing has ended him.
    fn look_inside(&mut self, key: Key) {
        let Some((group, bytes)) = self.bounds else { return };
        let (mut tasks, mut weighs) = (0, 0);
        for (id, fate) in self.fates.iter().enumerate() {
            let Some((_, _, own)) = fate.submit else { continue };
            let out = fate.ended + fate.left > 0 || self.emptied.contains(&own);
            if (fate.accepted || fate.runs > 0) && !out {
                tasks += usize::from(own == key);
                weighs += weight(id);
            }
        }
        if tasks > group {
            self.faults.push(format!("{tasks} tasks in group {key}, which takes {group}"));
        }
        if weighs > bytes {
            self.faults.push(format!("the tasks inside weigh {weighs}, where {bytes} may be"));
        }
    }
}

/// See the module text.
#[derive(Clone, Debug)]
pub(crate) struct Oracle(Arc<Mutex<Seen>>);

/// A task of a scenario.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) id: usize,
    oracle: Oracle,
}

impl Item {
    /// From 1 to 3.
    pub(crate) fn weight(&self) -> usize {
        weight(self.id)
    }
}

fn weight(id: usize) -> usize {
    1 + id % 3
}

impl Drop for Item {
    fn drop(&mut self) {
        self.oracle.seen().fates[self.id].drops += 1;
    }
}

impl Oracle {
    pub(crate) fn new(tasks: usize) -> Self {
        let seen = Seen { fates: vec![Fate::default(); tasks], ..Seen::default() };
        Self(Arc::new(Mutex::new(seen)))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn item(&self, id: usize) -> Item {
        Item { id, oracle: self.clone() }
    }

    pub(crate) fn fault(&self, text: String) {
        self.seen().faults.push(text);
    }

    /// The submit of `item` begins.
    pub(crate) fn begins(&self, id: usize, way: Way, lane: usize, key: Key) {
        let mut seen = self.seen();
        seen.stamp += 1;
        let stamp = seen.stamp;
        let fate = &mut seen.fates[id];
        fate.submit = Some((way, lane, key));
        fate.began = stamp;
    }

    /// It has returned.
    pub(crate) fn returned(&self, id: usize, accepted: bool) {
        let mut seen = self.seen();
        seen.stamp += 1;
        let stamp = seen.stamp;
        let fate = &mut seen.fates[id];
        fate.returned = stamp;
        fate.accepted = accepted;
    }

    /// The handler has the task; others may run before `stops`.
    pub(crate) fn starts(&self, key: Key, id: usize) {
        let mut seen = self.seen();
        if !seen.running.insert(key) {
            seen.faults.push(format!("two tasks of group {key} at once"));
        }
        if seen.fates[id].submit.is_none_or(|(_, _, wanted)| wanted != key) {
            seen.faults.push(format!("task {id} runs in group {key}"));
        }
        seen.fates[id].runs += 1;
        seen.runs.entry(key).or_default().push(id);
        seen.look_inside(key);
    }

    /// Row F1: at every start no more are inside than that. Groups of so many tasks, and all tasks weighing so much.
    pub(crate) fn bound(&self, group: usize, bytes: usize) {
        self.seen().bounds = Some((group, bytes));
    }

    /// A call that gives waiting tasks of this group back is under way: which, only the engine knows.
    pub(crate) fn empties(&self, key: Key, empties: bool) {
        let emptied = &mut self.seen().emptied;
        if empties {
            emptied.insert(key)
        } else {
            emptied.remove(&key)
        };
    }

    /// The handler is about to return. `for_good`: no attempt follows.
    pub(crate) fn stops(&self, key: Key, id: usize, for_good: bool) {
        let mut seen = self.seen();
        seen.running.remove(&key);
        seen.fates[id].ended += u32::from(for_good);
    }

    /// Tasks that were accepted.
    pub(crate) fn accepted(&self) -> u64 {
        self.seen().fates.iter().filter(|fate| fate.accepted).count() as u64
    }

    /// All tasks that ever were are dropped.
    pub(crate) fn all_dropped(&self) -> bool {
        self.seen().fates.iter().all(|fate| fate.drops > 0)
    }

    /// What a close gave back goes behind what ran.
    pub(crate) fn given_back(&self, report: &CloseReport<Key, Item>) {
        let mut keys = BTreeSet::new();
        for left in &report.left {
            if !keys.insert(left.key) {
                self.fault(format!("two live queues for key {}", left.key));
            }
            for item in &left.tasks {
                let mut seen = self.seen();
                seen.fates[item.id].left += 1;
                // A task that failed and waited for its next attempt was at the head, and still is.
                let runs = seen.runs.entry(left.key).or_default();
                if runs.last() != Some(&item.id) {
                    runs.push(item.id);
                }
            }
        }
    }

    /// Given back while the engine runs. Where in the order, only the engine knows: another may run before this is told.
    pub(crate) fn cancelled(&self, items: &[Item]) {
        for item in items {
            self.seen().fates[item.id].left += 1;
        }
    }

    /// Everybody is gone. Each task has one fate, and each key its order.
    pub(crate) fn check(&self) {
        let seen = self.seen();
        assert!(seen.faults.is_empty(), "{:?}", seen.faults);
        for (id, fate) in seen.fates.iter().enumerate() {
            if fate.submit.is_none() {
                continue;
            }
            let fates = fate.ended + fate.left;
            assert_eq!(fates, u32::from(fate.accepted), "task {id}, once: {fate:?}");
            assert!(fate.accepted || fate.runs == 0, "task {id} was refused and runs: {fate:?}");
            assert_eq!(fate.drops, 1, "task {id}: {fate:?}");
        }
        for (key, runs) in &seen.runs {
            let mut order = runs.clone();
            // Attempts of one task stand side by side.
            order.dedup();
            let once: BTreeSet<usize> = order.iter().copied().collect();
            assert_eq!(
                once.len(),
                order.len(),
                "group {key}: another task between attempts: {runs:?}"
            );
            for (at, later) in order.iter().enumerate() {
                for earlier in &order[..at] {
                    assert!(
                        !must_precede(&seen.fates, *later, *earlier),
                        "group {key}: task {later} must come before task {earlier}: {runs:?}"
                    );
                }
            }
        }
    }
}

/// Row E1: the submit of `first` had returned when that of `second` began; or both came by one lane.
fn must_precede(fates: &[Fate], first: usize, second: usize) -> bool {
    let (Some((way, lane, _)), Some((other, from, _))) =
        (fates[first].submit, fates[second].submit)
    else {
        return false;
    };
    let comparable = match (way, other) {
        (Way::Lane, Way::Lane) => lane == from,
        (Way::Lane, _) | (_, Way::Lane) => false,
        _ => true,
    };
    comparable && fates[first].returned < fates[second].began
}
