//! Histograms of durations: log-linear buckets, one writer each, read by anybody.
//!
//! Below 64 ns each nanosecond has a bucket; above, each power of two is cut into 32 buckets, so a bucket is at most 1/32 of its
//! lower end wide and the middle of it, which is what a quantile answers, is off by 1.6 % at most. That is the layout
//! of HdrHistogram (Tene 2012) with five bits. The crate of that name records through `&mut` or through a lock or channel a
//! record; here a worker adds to a plain counter that only it writes, and whoever reads adds the workers up.
//!
//! | operation | order | why it is enough |
//! |---|---|---|
//! | `Recorder::record` | Relaxed loads and stores by the one writer | a reader sees each counter at some moment, none goes back |
//! | `Recorder::read` | Relaxed loads | count is the sum of the buckets that were read, so it never contradicts them |
//!
//! Cost: a record is three loads, three stores and a count of leading zeros; 10 KB for each histogram and worker.

use std::{
    fmt,
    // Plain atomics, also for the models: nothing is decided by them.
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// log2 of the buckets in a power of two.
const BITS: u32 = 5;
const SUB: usize = 1 << BITS;
/// Durations from 2^43 ns (2.4 hours) on share the last bucket.
const TOP: u32 = 43;
const BUCKETS: usize = (TOP - BITS + 1) as usize * SUB;

/// The bucket of a duration in ns.
fn index(nanos: u64) -> usize {
    let nanos = nanos.min((1 << TOP) - 1);
    if nanos < 2 * SUB as u64 {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - BITS;
    shift as usize * SUB + (nanos >> shift) as usize
}

/// The least duration of a bucket, in ns.
fn least(index: usize) -> u64 {
    if index < 2 * SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    ((index - shift * SUB) as u64) << shift
}

/// One worker's side. Only that worker records.
pub(crate) struct Recorder {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    /// `times` events took so long each.
    pub(crate) fn record(&self, nanos: u64, times: u64) {
        let add = |counter: &AtomicU64, n: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.buckets[index(nanos)], times);
        add(&self.sum, nanos.saturating_mul(times));
        if nanos > self.max.load(Ordering::Relaxed) {
            self.max.store(nanos, Ordering::Relaxed);
        }
    }

    pub(crate) fn read_into(&self, histogram: &mut Histogram) {
        for (sum, bucket) in histogram.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        histogram.sum += u128::from(self.sum.load(Ordering::Relaxed));
        histogram.max = histogram.max.max(self.max.load(Ordering::Relaxed));
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

/// How long something took, how often: a value, to be merged, compared and printed. See
/// [`Engine::histograms`](crate::Engine::histograms).
///
/// ```
/// use std::time::Duration;
/// let mut times = bgrp::Histogram::new();
/// for ms in 1..=100 {
///     times.record(Duration::from_millis(ms), 1);
/// }
/// assert_eq!(times.count(), 100);
/// assert_eq!(times.max(), Duration::from_millis(100));
/// let median = times.quantile(0.5).as_secs_f64();
/// assert!((median / 0.050 - 1.0).abs() < 0.016, "within 1.6 %");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[u64]>,
    sum: u128,
    max: u64,
}

/// Events between two durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// At least this long.
    pub from: Duration,
    /// Shorter than this. The last bucket has no end: then it is [`Duration::MAX`].
    pub to: Duration,
    /// How many.
    pub count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Nothing yet.
    pub fn new() -> Self {
        Self { buckets: vec![0; BUCKETS].into_boxed_slice(), sum: 0, max: 0 }
    }

    /// `times` events took so long each.
    pub fn record(&mut self, duration: Duration, times: u64) {
        if times > 0 {
            let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            self.buckets[index(nanos)] += times;
            self.sum += u128::from(nanos) * u128::from(times);
            self.max = self.max.max(nanos);
        }
    }

    /// Adds another one.
    pub fn merge(&mut self, other: &Self) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += bucket;
        }
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// What came since `earlier`, a value of the same histogram. Its maximum is that of all time, since nobody knows when it was.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&earlier.buckets);
        Self {
            buckets: buckets.map(|(now, then)| now.saturating_sub(*then)).collect(),
            sum: self.sum.saturating_sub(earlier.sum),
            max: self.max,
        }
    }

    /// Events in all.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All durations together.
    pub fn sum(&self) -> Duration {
        duration(self.sum)
    }

    /// The longest, exact.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The mean; zero when there is nothing.
    pub fn mean(&self) -> Duration {
        duration(self.sum.checked_div(u128::from(self.count())).unwrap_or(0))
    }

    /// The duration that a share `q` of the events (0 to 1) did not exceed, within 1.6 %; zero when there is nothing.
    pub fn quantile(&self, q: f64) -> Duration {
        let count = self.count();
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (i, bucket) in self.buckets.iter().enumerate() {
            below += bucket;
            if below >= rank {
                let last = least(i + 1) - 1;
                let middle = if i == BUCKETS - 1 { self.max } else { (least(i) + last) / 2 };
                return Duration::from_nanos(middle.min(self.max));
            }
        }
        Duration::ZERO
    }

    /// Events shorter than `bound`, to the bucket: those in the bucket of `bound` do not count.
    pub fn count_below(&self, bound: Duration) -> u64 {
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[..index(nanos)].iter().sum()
    }

    /// The buckets that hold something, shortest first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.buckets.iter().enumerate().filter(|(_, count)| **count > 0).map(|(i, count)| {
            let last = i == BUCKETS - 1;
            let to = if last { Duration::MAX } else { Duration::from_nanos(least(i + 1)) };
            Bucket { from: Duration::from_nanos(least(i)), to, count: *count }
        })
    }
}

fn duration(nanos: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let seconds = u64::try_from(nanos / SECOND).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanos % SECOND) as u32)
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({self})")
    }
}

/// Count, median, tail and maximum.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times", self.count())?;
        for (name, q) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)] {
            write!(f, ", {name} {:?}", self.quantile(q))?;
        }
        write!(f, ", max {:?}", self.max())
    }
}

/// The histograms of an engine, over its life. For a period, subtract an earlier value ([`Histogram::since`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Histograms {
    /// From when a group had work and nobody at it until its handler is called: since the worker that takes tasks in had
    /// found the group idle, or since the group's last dispatch ended with tasks left. Waits for permits, rates, back-off and
    /// linger are in it; the time in the ingress, before a worker takes the task in, is not.
    pub queue_wait: Histogram,
    /// From the call of the handler until what it did is settled: one dispatch, whatever the number of its tasks.
    pub batch_time: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_and_are_a_32nd_wide_at_most() {
        for i in 0..BUCKETS {
            assert_eq!(index(least(i)), i);
            assert_eq!(index(least(i + 1) - 1), i, "the last of bucket {i}");
            let width = least(i + 1) - least(i);
            assert!(width == 1 || width * 32 <= least(i), "bucket {i}");
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_random_durations_are_within_their_error_of_the_sorted_list() {
        let mut random = 7u64;
        let (mut histogram, mut all) = (Histogram::new(), Vec::new());
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Over nine orders of magnitude.
            let nanos = (random >> 40) << ((random >> 33) % 18);
            histogram.record(Duration::from_nanos(nanos), 1);
            all.push(nanos);
        }
        all.sort_unstable();
        for q in [0.0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = all[((q * all.len() as f64).ceil() as usize).max(1) - 1] as f64;
            let told = histogram.quantile(q).as_nanos() as f64;
            assert!((told - exact).abs() <= exact * 0.016 + 1.0, "{q}: {told} for {exact}");
        }
        assert_eq!(histogram.max().as_nanos(), u128::from(*all.last().unwrap()));
        assert_eq!(histogram.sum().as_nanos(), all.iter().map(|n| u128::from(*n)).sum());
    }

    #[test]
    fn merged_and_subtracted_is_as_recorded_in_one() {
        let at = |n: u64| Duration::from_nanos(n * n * n);
        let (mut a, mut b, mut both) = (Histogram::new(), Histogram::new(), Histogram::new());
        for n in 0..2_000 {
            both.record(at(n), 2);
            if n % 3 == 0 { a.record(at(n), 2) } else { b.record(at(n), 2) }
        }
        let mut merged = a.clone();
        merged.merge(&b);
        assert_eq!(merged, both);
        assert_eq!(merged.since(&a).count(), b.count());
        assert_eq!(merged.since(&a).sum(), b.sum());
        assert_eq!(both.buckets().map(|bucket| bucket.count).sum::<u64>(), 4_000);
        assert_eq!(
            both.count_below(at(1_000)),
            both.buckets().filter(|b| b.to <= at(1_000)).map(|b| b.count).sum()
        );
    }

    #[test]
    fn a_recorder_reads_as_what_was_recorded() {
        let (recorder, mut direct) = (Recorder::new(), Histogram::new());
        for n in [0u64, 1, 63, 64, 1_000_000, 1 << 50] {
            recorder.record(n, 3);
            direct.record(Duration::from_nanos(n), 3);
        }
        let mut read = Histogram::new();
        recorder.read_into(&mut read);
        assert_eq!(read, direct);
        assert_eq!(
            read.quantile(1.0),
            Duration::from_nanos(1 << 50),
            "the last bucket has no middle"
        );
    }
}
