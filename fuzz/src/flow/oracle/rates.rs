//! Rates, as levels that leak.

/// A rate, as far as the oracle counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Tasks or batches a second.
    pub(crate) per_second: u64,
    /// How many at once.
    pub(crate) burst: u64,
    /// Batches are counted.
    pub(crate) batches: bool,
}

impl Limit {
    /// What the engine promises as burst: at least what the rate gives within two milliseconds.
    fn size(&self) -> u64 {
        self.burst.max(self.per_second / 500)
    }
}

/// How much of a rate was used, leaking as time passes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    pub(super) at: u64,
    /// In billionths of a task.
    pub(super) used: u64,
}

impl Level {
    pub(super) fn start(&mut self, limit: &Limit, tasks: u64, now: u64) {
        self.used = self.used.saturating_sub((now - self.at) * limit.per_second);
        self.at = now;
        self.used += if limit.batches { 1 } else { tasks } * 1_000_000_000;
        // One interval of rounding.
        let most = (limit.size() * 1_000_000_000) + limit.per_second;
        assert!(self.used <= most, "{} started at once, {limit:?}", self.used / 1_000_000_000);
    }
}
