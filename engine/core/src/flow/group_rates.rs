//! The rate of each single group.
//!
//! A bucket that is full is the same as no bucket (flow/rate.rs), so only groups that ran lately are remembered: one table a shard, which
//! drops the full buckets whenever it has doubled. A group that has used its rate up waits in the timer, and its worker goes on.
//!
//! Only the holder of a group's token asks about it, so between the look ([`GroupRates::ready_at`]) and the use
//! ([`GroupRates::take`]) nobody else takes from its bucket.

use std::collections::HashMap;

use ahash::RandomState;

use super::rate::{Bucket, Meter, Rate};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// Buckets that a table may hold before the full ones are dropped.
const FEW: usize = 64;

/// See the module text.
#[derive(Debug)]
pub(crate) struct GroupRates {
    active: AtomicBool,
    meter: Mutex<Option<Meter>>,
    /// How often the rate was changed.
    setting: AtomicU32,
    shards: Box<[Mutex<Table>]>,
}

#[derive(Debug, Default)]
struct Table {
    buckets: HashMap<usize, Bucket, RandomState>,
    sweep_at: usize,
}

impl GroupRates {
    pub(crate) fn new(shards: usize, rate: Option<Rate>) -> Self {
        Self {
            active: AtomicBool::new(rate.is_some()),
            meter: Mutex::new(rate.as_ref().map(Meter::new)),
            setting: AtomicU32::new(0),
            shards: (0..shards).map(|_| Mutex::new(Table::default())).collect(),
        }
    }

    /// Dispatches must ask. Relaxed: one that misses a new rate runs as one that began before it.
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// How often the rate was changed: who found that it must wait looks again behind the timer's lock.
    pub(crate) fn setting(&self) -> u32 {
        self.setting.load(Ordering::Relaxed)
    }

    /// Who waits in the timer must be let go after this.
    pub(crate) fn set(&self, rate: Option<Rate>) {
        *self.meter.lock() = rate.as_ref().map(Meter::new);
        // Relaxed: the caller takes the timer's lock after it, and so does who asks for the number.
        self.setting.fetch_add(1, Ordering::Relaxed);
        for shard in &self.shards {
            shard.lock().buckets.clear();
        }
        self.active.store(rate.is_some(), Ordering::Relaxed);
    }

    /// The group (by the address of its block) may dispatch so many of `wanted` tasks at this time, in ns.
    pub(crate) fn ready_at(&self, shard: usize, group: usize, wanted: u32) -> (u32, u64) {
        let Some(meter) = *self.meter.lock() else { return (wanted, 0) };
        let tasks = meter.most(wanted);
        let table = self.shards[shard].lock();
        let at = table.buckets.get(&group).map_or(0, |bucket| meter.ready_at(bucket, tasks));
        (tasks, at)
    }

    /// The group dispatches so many tasks.
    pub(crate) fn take(&self, shard: usize, group: usize, tasks: u32, now: u64) {
        let Some(meter) = *self.meter.lock() else { return };
        let mut table = self.shards[shard].lock();
        let table = &mut *table;
        meter.take(table.buckets.entry(group).or_default(), tasks, now);
        if table.buckets.len() > table.sweep_at.max(FEW) {
            table.buckets.retain(|_, bucket| !Meter::is_full(bucket, now));
            table.sweep_at = 2 * table.buckets.len();
        }
    }

    /// Buckets that are remembered.
    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().buckets.len()).sum()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn groups_that_ran_long_ago_are_forgotten() {
        let rates = GroupRates::new(1, Some(Rate::per_second(1_000).burst(2)));
        for group in 0..100_000usize {
            let now = group as u64 * 1_000_000;
            let (tasks, at) = rates.ready_at(0, group, 5);
            assert!(tasks == 2 && at <= now);
            rates.take(0, group, 2, now);
        }
        assert!(rates.remembered() <= 2 * FEW, "{}", rates.remembered());
    }

    #[test]
    fn a_group_does_not_pay_for_another() {
        let rates = GroupRates::new(2, Some(Rate::per_second(1).burst(1)));
        rates.take(0, 7, 1, 0);
        assert_eq!(rates.ready_at(0, 7, 1), (1, 1_000_000_000));
        assert_eq!(rates.ready_at(0, 8, 1), (1, 0));
        rates.set(None);
        assert_eq!(rates.ready_at(0, 7, 9), (9, 0));
    }
}
