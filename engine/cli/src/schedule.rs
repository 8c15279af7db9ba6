//! The engine, as this program uses it: the only module that knows it.
//!
//! | here | engine |
//! |---|---|
//! | `--jobs` | workers that may block, not pinned |
//! | `--batch` | batch size of a dispatch |
//! | `--backoff` | retry policy without a limit of attempts: [`Work`] counts them |
//! | halted group | not the engine's: [`Work`] lets its records pass unrun, so that a halted group can neither fill the engine nor be forgotten |
//! | stop | `halt` |

use std::sync::Arc;
use std::time::Duration;

use bgrp::{Batch, Engine, Exhausted, Failure, OnExhausted, Outcome, Retry, Verdict, Workers};

use crate::control::Control;
use crate::key::Key;
use crate::options::Backoff;
use crate::plan::UsageError;
use crate::record::Record;
use crate::work::{Aftermath, Answer, Members, Work};

/// As long as it takes.
const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The settings of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Commands at once.
    pub jobs: usize,
    /// Records per command, at most.
    pub batch: usize,
    /// The wait before a retry.
    pub backoff: Backoff,
}

impl Settings {
    /// Records between reading and the end of their command. The more, the more groups run at once where
    /// the input is sorted by key; their bytes are bounded elsewhere (budget.rs).
    fn capacity(&self) -> usize {
        (64 * self.jobs).max(16 * 1024).max(4 * self.batch)
    }

    fn retry(&self) -> Retry {
        let Backoff { first, max } = self.backoff;
        if first == max { Retry::fixed(first) } else { Retry::exponential(first, max) }
            .with_jitter()
            .attempts(u32::MAX)
    }
}

impl Members for Batch<'_, Key, Record> {
    fn key(&self) -> &Key {
        Batch::key(self)
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.iter()
    }

    fn records_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.iter_mut()
    }
}

/// Submits a record, or gives it back once the run stops.
pub type Submit<'a> = dyn Fn(Key, Record) -> Result<(), Box<(Key, Record)>> + 'a;

/// Runs everything that `feed` submits, and waits for its end. `feed` gets a function that submits and
/// gives a record back once the run stops.
///
/// Gives back what `feed` gives, and the records that were not finished, in the order of the input.
///
/// # Errors
/// The engine refuses the settings.
pub fn run<R>(
    settings: Settings,
    work: &Arc<Work>,
    control: &Control,
    feed: impl FnOnce(&Submit<'_>) -> R,
) -> Result<(R, Vec<(Key, Record)>), UsageError> {
    let (judge, worker) = (Arc::clone(work), Arc::clone(work));
    let engine = Engine::<Key, Record>::builder()
        .workers(Workers::fixed(settings.jobs))
        // A command inherits the affinity of the thread that starts it.
        .pin(false)
        .batch_size(settings.batch)
        .capacity(settings.capacity())
        .group_capacity(settings.capacity())
        .retry(settings.retry())
        .on_exhausted(OnExhausted::with(move |failed: Exhausted<'_, Key, Record>| {
            match judge.exhausted(failed.key, failed.task, failed.failure.reason()) {
                Aftermath::GoOn => Verdict::Skip,
                Aftermath::Stop => Verdict::HaltEngine,
                Aftermath::AskAgain(wait) => Verdict::Hold(wait),
            }
        }))
        .handler(move |_: &mut (), batch: &mut Batch<'_, Key, Record>| {
            worker.handle(batch).into_iter().map(outcome).collect::<Vec<_>>()
        })
        .build()
        .map_err(|error| UsageError::Engine(error.to_string()))?;
    let (fed, left) = std::thread::scope(|scope| {
        scope.spawn(|| {
            if control.wait() {
                engine.halt();
            }
        });
        let fed = feed(&|key, record| {
            engine.submit(key, record).map_err(|refused| Box::new((refused.key, refused.task)))
        });
        let left = engine.close(NO_LIMIT).left;
        control.finish();
        (fed, left)
    });
    let mut left: Vec<(Key, Record)> = left
        .into_iter()
        .flat_map(|left| left.tasks.into_iter().map(move |record| (left.key.clone(), record)))
        .collect();
    left.sort_by_key(|(_, record)| record.seq);
    Ok((fed, left))
}

fn outcome(answer: Answer) -> Outcome {
    match answer {
        Answer::Done => Outcome::Done,
        Answer::Retry(reason) => Outcome::Retry(Failure::new(reason)),
        Answer::Again => Outcome::NotRun,
        Answer::Fail(reason) => Outcome::Fail(Failure::new(reason)),
    }
}
