//! Which groups there are and which took longest, in bounded memory.
//!
//! Distinct keys are counted exactly up to [`EXACT`] and estimated beyond (HyperLogLog, Flajolet and others
//! 2007, standard error 0.8 %). Times are kept for [`KEPT`] groups; when there are more, the half that took
//! least, or as long as the middle one, is forgotten.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ahash::RandomState;

use crate::key::Key;

/// Keys that are counted exactly.
pub const EXACT: usize = 1 << 18;
/// Groups whose times are kept.
pub const KEPT: usize = 1 << 14;

const REGISTER_BITS: u32 = 14;

/// Counts distinct keys.
#[derive(Debug)]
pub struct Distinct {
    hasher: RandomState,
    exact: HashSet<u64, RandomState>,
    registers: Vec<u8>,
    own: u64,
}

impl Default for Distinct {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            exact: HashSet::default(),
            registers: Vec::new(),
            own: 0,
        }
    }
}

impl Distinct {
    /// Sees a key.
    pub fn see(&mut self, key: &Key) {
        if matches!(key, Key::Own(_) | Key::InTurn) {
            // The group of one record is seen once.
            self.own += 1;
            return;
        }
        let hash = self.hasher.hash_one(key);
        if self.registers.is_empty() {
            self.exact.insert(hash);
            if self.exact.len() > EXACT {
                self.registers = vec![0; 1 << REGISTER_BITS];
                for hash in std::mem::take(&mut self.exact) {
                    register(&mut self.registers, hash);
                }
            }
        } else {
            register(&mut self.registers, hash);
        }
    }

    /// How many there are, and whether that is exact.
    #[must_use]
    pub fn count(&self) -> (u64, bool) {
        if self.registers.is_empty() {
            return (self.own + self.exact.len() as u64, true);
        }
        let m = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|&rank| (-f64::from(rank)).exp2()).sum();
        let alpha = 0.7213 / (1.0 + 1.079 / m);
        (self.own + (alpha * m * m / sum).round() as u64, false)
    }
}

fn register(registers: &mut [u8], hash: u64) {
    let index = (hash >> (64 - REGISTER_BITS)) as usize;
    let rank = ((hash << REGISTER_BITS) | 1).leading_zeros() as u8 + 1;
    registers[index] = registers[index].max(rank);
}

/// What a group has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time in commands, all attempts.
    pub busy: Duration,
    /// Commands.
    pub commands: u64,
    /// Commands that failed.
    pub failures: u64,
}

/// What each group has cost.
#[derive(Debug, Default)]
pub struct Spending(HashMap<Key, Spent, RandomState>);

impl Spending {
    /// A command of the group of `key` has ended.
    pub fn add(&mut self, key: &Key, wall: Duration, ok: bool) {
        if let Some(spent) = self.0.get_mut(key) {
            spent.busy += wall;
            spent.commands += 1;
            spent.failures += u64::from(!ok);
            return;
        }
        if self.0.len() >= KEPT {
            let mut times: Vec<Duration> = self.0.values().map(|spent| spent.busy).collect();
            let (_, &mut middle, _) = times.select_nth_unstable(KEPT / 2);
            // Where many took equally long, nobody is worth more than the others: all of them go.
            self.0.retain(|_, spent| spent.busy > middle);
        }
        let spent = Spent { busy: wall, commands: 1, failures: u64::from(!ok) };
        self.0.insert(key.clone(), spent);
    }

    /// The `n` groups that took longest, the slowest first.
    #[must_use]
    pub fn slowest(&self, n: usize) -> Vec<(Key, Spent)> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_unstable_by(|(a, x), (b, y)| y.busy.cmp(&x.busy).then_with(|| a.cmp(b)));
        all.into_iter().take(n).map(|(key, spent)| (key.clone(), *spent)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::Text(n.to_string().into_bytes().into())
    }

    #[test]
    fn few_keys_are_counted_exactly_and_many_nearly() {
        let mut distinct = Distinct::default();
        for n in 0..1000 {
            distinct.see(&key(n % 100));
            distinct.see(&Key::Own(n as u64));
        }
        assert_eq!(distinct.count(), (1100, true));
        let mut distinct = Distinct::default();
        let many = 2 * EXACT;
        for n in 0..2 * many {
            distinct.see(&key(n % many));
        }
        let (count, exact) = distinct.count();
        let off = (count as f64 / many as f64 - 1.0).abs();
        assert!(!exact && off < 0.05, "{count} for {many}");
    }

    #[test]
    fn the_slowest_survive_any_number_of_groups() {
        let mut spending = Spending::default();
        spending.add(&Key::Shared, Duration::from_secs(9), false);
        for n in 0..3 * KEPT {
            spending.add(&key(n), Duration::from_millis(1), true);
        }
        spending.add(&Key::Shared, Duration::from_secs(1), true);
        assert!(spending.0.len() <= KEPT);
        let slowest = spending.slowest(2);
        let spent = Spent { busy: Duration::from_secs(10), commands: 2, failures: 1 };
        assert_eq!(slowest[0], (Key::Shared, spent));
        assert_eq!(slowest.len(), 2);
    }
}
