//! What is to be done: streams of (key, number) made before the clock starts, the same for every system.

/// A task: its key, and its number within the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which key.
    pub key: u32,
    /// Counted from 0 within the key.
    pub number: u32,
}

/// What one producer submits, in order. Each key has one producer.
#[derive(Clone, Debug)]
pub struct Stream(pub Vec<Item>);

/// What a task does beside its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    Mix,
    /// One microsecond of arithmetic, calibrated once per process.
    Microsecond,
}

impl Work {
    /// Does it.
    #[inline(always)]
    pub fn spend(self) {
        if self == Self::Microsecond {
            spend_microsecond();
        }
    }
}

#[inline(never)]
fn spend_microsecond() {
    let rounds = rounds_per_microsecond();
    let mut x = 1u64;
    for _ in 0..rounds {
        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Rounds of arithmetic that take one microsecond here: the best of several calibrations.
pub fn rounds_per_microsecond() -> u64 {
    static ROUNDS: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *ROUNDS.get_or_init(|| {
        let rounds = 1_000_000u64;
        let best = (0..5)
            .map(|_| {
                let start = std::time::Instant::now();
                let mut x = 1u64;
                for _ in 0..rounds {
                    x = std::hint::black_box(
                        x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1),
                    );
                }
                start.elapsed().as_nanos() as u64
            })
            .min()
            .unwrap_or(1_000_000);
        (rounds * 1_000 / best.max(1)).max(1)
    })
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Each key as likely as any other.
    Uniform,
    /// Zipf with this exponent.
    Zipf(f64),
    /// This share of the tasks on key 0, the rest uniform.
    Hot(f64),
}

/// A workload by name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name on the command line and in the tables.
    pub name: &'static str,
    /// Tasks in all.
    pub tasks: usize,
    /// Keys in all.
    pub keys: usize,
    /// Threads that submit; key k belongs to producer k mod producers.
    pub producers: usize,
    /// Workers of the system.
    pub workers: usize,
    /// What a task does.
    pub work: Work,
    /// How keys are drawn.
    pub shape: Shape,
}

/// The workloads of the throughput command.
pub fn all() -> Vec<Workload> {
    let base = Workload {
        name: "uniform-200",
        tasks: 10_000_000,
        keys: 200,
        producers: 1,
        workers: 2,
        work: Work::Mix,
        shape: Shape::Uniform,
    };
    vec![
        base.clone(),
        Workload { name: "two-producers", producers: 2, ..base.clone() },
        Workload { name: "eight-producers", producers: 8, ..base.clone() },
        Workload { name: "million-keys", keys: 1_000_000, ..base.clone() },
        Workload { name: "zipf-100k", keys: 100_000, shape: Shape::Zipf(1.1), ..base.clone() },
        Workload { name: "hot-key", keys: 200, shape: Shape::Hot(0.8), ..base.clone() },
        Workload { name: "one-microsecond", tasks: 1_000_000, work: Work::Microsecond, ..base },
    ]
}

/// A small, fast generator (splitmix64): streams are the same on every run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Workload {
    /// The same workload with a share of the tasks (for a quick look).
    #[must_use]
    pub fn scaled(mut self, scale: f64) -> Self {
        self.tasks = ((self.tasks as f64 * scale) as usize).max(1_000);
        self
    }

    /// One stream for each producer.
    pub fn streams(&self) -> Vec<Stream> {
        let mut random = Random::new(42);
        let zipf = match self.shape {
            Shape::Zipf(exponent) => cumulative_zipf(self.keys, exponent),
            _ => Vec::new(),
        };
        let mut numbers = vec![0u32; self.keys];
        let each = self.tasks / self.producers + 1;
        let mut streams = vec![Stream(Vec::with_capacity(each)); self.producers];
        let spread = Spread::new(self.keys);
        for _ in 0..self.tasks {
            let key = match self.shape {
                Shape::Uniform => random.below(self.keys as u64) as usize,
                Shape::Zipf(_) => {
                    let at = random.unit() * zipf.last().copied().unwrap_or(1.0);
                    spread.at(zipf.partition_point(|sum| *sum <= at).min(self.keys - 1))
                }
                Shape::Hot(share) => {
                    if random.unit() < share {
                        0
                    } else {
                        random.below(self.keys as u64) as usize
                    }
                }
            };
            let number = &mut numbers[key];
            streams[key % self.producers].0.push(Item { key: key as u32, number: *number });
            *number += 1;
        }
        streams
    }
}

/// Ranks are spread over the keys, so that popular keys are not neighbours.
struct Spread {
    keys: usize,
    step: usize,
}

impl Spread {
    fn new(keys: usize) -> Self {
        let gcd = |mut a: usize, mut b: usize| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let step = (keys * 5 / 8 + 1..).find(|step| gcd(*step, keys) == 1).unwrap_or(1);
        Self { keys, step }
    }
    fn at(&self, rank: usize) -> usize {
        rank * self.step % self.keys
    }
}

fn cumulative_zipf(keys: usize, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=keys)
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_numbered_in_the_stream_of_its_one_producer() {
        for workload in all() {
            let workload = Workload { tasks: 50_000, ..workload };
            let mut next = vec![0u32; workload.keys];
            for (producer, stream) in workload.streams().iter().enumerate() {
                for item in &stream.0 {
                    assert_eq!(item.key as usize % workload.producers, producer);
                    assert_eq!(item.number, next[item.key as usize]);
                    next[item.key as usize] += 1;
                }
            }
            assert_eq!(next.iter().map(|n| *n as usize).sum::<usize>(), 50_000);
        }
    }

    #[test]
    fn the_hot_key_gets_its_share() {
        let workload = Workload { tasks: 100_000, ..all().swap_remove(5) };
        let hot = workload.streams()[0].0.iter().filter(|item| item.key == 0).count();
        assert!((79_000..82_000).contains(&hot), "{hot}");
    }
}
