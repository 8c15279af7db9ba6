//! Who comes most often, in constant memory: Space-Saving (Metwally, Agrawal and El Abbadi 2005), with weights and with decay.
//!
//! [`ROOM`] counters. What has one is counted; what has none takes over the least one, with its count, which from then on is its
//! possible error. So a count is never too low, and too high by its `error` at most, which is never above
//! `total / ROOM`: whatever makes up more than that of all is here.
//!
//! Everything is halved once in each [`HALF_LIFE`] that passes, so the past is forgotten. The worker feeds samples (worker/look.rs);
//! [`Sketch::draws`] says how many independent ones they are worth, for the error that comes of sampling.
//!
//! Cost: one scan of 64 words for each sample, two for one that has no counter.

/// Counters.
pub(crate) const ROOM: usize = 64;
/// After this time, in ns, a sample counts half.
pub(crate) const HALF_LIFE: u64 = 10_000_000_000;

/// See the module text. `Id` names what is counted.
#[derive(Clone, Debug)]
pub(crate) struct Sketch<Id> {
    ids: Vec<Id>,
    counts: Vec<Counted>,
    total: u64,
    /// The sum of the squares of the weights of independent draws.
    squares: f64,
    decayed_at: u64,
}

/// What is known of one id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// At most this much.
    pub(crate) most: u64,
    /// At least this much less.
    pub(crate) error: u64,
}

impl<Id: Copy + PartialEq> Sketch<Id> {
    pub(crate) fn new() -> Self {
        Self {
            ids: Vec::with_capacity(ROOM),
            counts: Vec::with_capacity(ROOM),
            total: 0,
            squares: 0.0,
            decayed_at: 0,
        }
    }

    /// The independent draw whose samples follow weighs so much in all.
    pub(crate) fn draw(&mut self, weight: u64, now: u64) {
        self.decay(now);
        self.squares += (weight as f64) * (weight as f64);
    }

    /// A sample of this weight.
    pub(crate) fn add(&mut self, id: Id, weight: u64) {
        self.total += weight;
        if let Some(at) = self.ids.iter().position(|other| *other == id) {
            self.counts[at].most += weight;
        } else if self.ids.len() < ROOM {
            self.ids.push(id);
            self.counts.push(Counted { most: weight, error: 0 });
        } else if let Some(at) = self.least() {
            let error = self.counts[at].most;
            self.ids[at] = id;
            self.counts[at] = Counted { most: error + weight, error };
        }
    }

    fn least(&self) -> Option<usize> {
        let counts = self.counts.iter().enumerate();
        counts.min_by_key(|(_, counted)| counted.most).map(|(at, _)| at)
    }

    /// Halves everything once for each half-life since the last time.
    pub(crate) fn decay(&mut self, now: u64) {
        let halvings = now.saturating_sub(self.decayed_at) / HALF_LIFE;
        if halvings == 0 {
            return;
        }
        self.decayed_at += halvings * HALF_LIFE;
        let by = halvings.min(63) as u32;
        self.squares *= 0.5f64.powi(by as i32);
        self.total >>= by;
        for counted in &mut self.counts {
            // Up, so that a count stays an upper bound.
            counted.most = counted.most.div_ceil(1 << by);
            counted.error = counted.error.div_ceil(1 << by);
        }
        let mut at = 0;
        while at < self.ids.len() {
            // As good as nothing, and never less for the rounding.
            if self.counts[at].most <= 1 {
                self.ids.swap_remove(at);
                self.counts.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// All samples together.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The sum of the squares of the weights of draws.
    pub(crate) fn squares(&self) -> f64 {
        self.squares
    }

    /// What an id that has no counter here may have come to, at most.
    pub(crate) fn unseen(&self) -> u64 {
        if self.ids.len() < ROOM { 0 } else { self.least().map_or(0, |at| self.counts[at].most) }
    }

    pub(crate) fn get(&self, id: Id) -> Option<Counted> {
        self.ids.iter().position(|other| *other == id).map(|at| self.counts[at])
    }

    /// All that have a counter.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, Counted)> + '_ {
        self.ids.iter().copied().zip(self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn counts_are_never_too_low_and_too_high_by_their_error_at_most() {
        let (mut sketch, mut exact) = (Sketch::new(), HashMap::new());
        let mut state = 9;
        for _ in 0..100_000 {
            // Skewed: small ids come far more often.
            let id = random(&mut state) % (1 + random(&mut state) % 500);
            let weight = 1 + random(&mut state) % 9;
            sketch.add(id, weight);
            *exact.entry(id).or_insert(0u64) += weight;
        }
        let total: u64 = exact.values().sum();
        assert_eq!(sketch.total(), total);
        assert!(sketch.unseen() <= total / ROOM as u64);
        for (id, counted) in sketch.iter() {
            let exact = exact[&id];
            assert!(counted.most >= exact && counted.most - counted.error <= exact, "{id}");
            assert!(counted.error <= total / ROOM as u64);
        }
        for (id, exact) in exact {
            assert!(sketch.get(id).is_some() || exact <= sketch.unseen(), "{id} is missing");
        }
    }

    #[test]
    fn the_past_is_forgotten() {
        let mut sketch = Sketch::new();
        sketch.draw(1_000, 0);
        sketch.add(1, 1_000);
        sketch.draw(1_000, HALF_LIFE * 3);
        sketch.add(2, 1_000);
        assert_eq!(sketch.get(1), Some(Counted { most: 125, error: 0 }));
        assert_eq!(sketch.total(), 1_125);
        sketch.decay(HALF_LIFE * 100);
        assert_eq!(sketch.iter().count(), 0);
        assert_eq!(sketch.total(), 0);
    }
}
