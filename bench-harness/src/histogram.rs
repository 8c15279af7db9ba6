//! Latencies of a run: each thread records into its own histogram, which joins the others when the thread ends or
//! [`take`] is called on it.

use std::{cell::RefCell, sync::Mutex};

use hdrhistogram::Histogram;

static ALL: Mutex<Option<Histogram<u64>>> = Mutex::new(None);

/// One minute in ns: longer waits count as this.
const MOST: u64 = 60_000_000_000;

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MOST, 3).expect("the bounds are valid")
}

struct Local(Histogram<u64>);

impl Drop for Local {
    fn drop(&mut self) {
        join(&self.0);
    }
}

fn join(local: &Histogram<u64>) {
    let mut all = ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.get_or_insert_with(empty).add(local).expect("the same bounds");
}

thread_local! {
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
}

/// Records a latency in ns on this thread.
#[inline]
pub fn record(nanos: u64) {
    LOCAL.with_borrow_mut(|local| {
        local.get_or_insert_with(|| Local(empty())).0.saturating_record(nanos.clamp(1, MOST));
    });
}

/// What all threads have recorded, forgotten afterwards. The recording threads must have ended (or be this one).
pub fn take() -> Histogram<u64> {
    LOCAL.with_borrow_mut(|local| drop(local.take()));
    let mut all = ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.take().unwrap_or_else(empty)
}

/// The percentiles that the tables show, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// 99.99 %.
    pub p9999: f64,
    /// The longest.
    pub max: f64,
    /// How many.
    pub count: u64,
}

impl Percentiles {
    /// Of a histogram in ns.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let micros = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            p50: micros(0.5),
            p99: micros(0.99),
            p999: micros(0.999),
            p9999: micros(0.9999),
            max: histogram.max() as f64 / 1e3,
            count: histogram.len(),
        }
    }
}
