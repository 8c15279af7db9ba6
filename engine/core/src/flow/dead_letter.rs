//! Dead letters: where tasks go whose attempts are used up.
//!
//! A sink that fails loses nothing: the task keeps the head of its group and is offered again after a while; other groups go
//! on. Two sinks come with the engine: a file ([`FileSink`], flow/dead_letter/file.rs) and a bounded list in memory.

mod file;
mod json;

use std::{
    fmt,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

pub use self::{
    file::{Durability, FileSink},
    json::Json,
};
use super::exhausted::{Exhausted, OnExhausted};
use crate::outcome::Failure;

/// Takes tasks that failed for good. It is called on a worker, with the group in its hand, and from several workers at once.
pub trait DeadLetterSink<K, T>: Send + Sync {
    /// Why a task could not be taken.
    type Error: fmt::Display;

    /// Takes the task, or says why not: then it is held and offered again. After `Ok` it must be safe where it went.
    ///
    /// # Errors
    /// It could not be taken, not even in part.
    fn put(&self, failed: Exhausted<'_, K, T>) -> Result<(), Self::Error>;
}

impl<K, T, S: DeadLetterSink<K, T> + ?Sized> DeadLetterSink<K, T> for Arc<S> {
    type Error = S::Error;

    fn put(&self, failed: Exhausted<'_, K, T>) -> Result<(), Self::Error> {
        (**self).put(failed)
    }
}

impl<K, T> OnExhausted<K, T> {
    /// Gives the failed task to `sink` and goes on. While the sink fails, the task keeps its place and is offered again every
    /// `hold`; its group waits, others go on. For a closure as sink see [`OnExhausted::dead_letter`].
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use bgrp::{Engine, MemorySink, OnExhausted};
    /// let letters = Arc::new(MemorySink::new(1_000, |task: &mut String| std::mem::take(task)));
    /// let engine = Engine::<u32, String>::builder()
    ///     .on_exhausted(OnExhausted::dead_letter_to(Duration::from_secs(1), letters.clone()))
    ///     .task_handler(|_, task| if task.is_empty() { Ok(()) } else { Err("not today") })
    ///     .build()?;
    /// engine.submit(7, "hello".to_owned())?;
    /// engine.close(Duration::from_secs(10));
    /// let letter = letters.take().remove(0);
    /// assert_eq!((letter.key, letter.attempts, letter.payload.as_str()), (7, 1, "hello"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dead_letter_to(hold: Duration, sink: impl DeadLetterSink<K, T> + 'static) -> Self {
        Self::dead_letter(hold, move |failed| sink.put(failed))
    }
}

/// A task that failed for good, as a [`MemorySink`] keeps it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Letter<K, P> {
    /// When the attempts were used up.
    pub time: SystemTime,
    /// The key of its group.
    pub key: K,
    /// How often it was tried.
    pub attempts: u32,
    /// The last failure.
    pub failure: Failure,
    /// What the sink's function made of the task.
    pub payload: P,
}

/// Dead letters in memory, at most so many: a sink that is full fails, and tasks are held until letters are taken.
pub struct MemorySink<K, T, P> {
    most: usize,
    payload: Box<dyn Fn(&mut T) -> P + Send + Sync>,
    letters: std::sync::Mutex<Vec<Letter<K, P>>>,
}

/// A [`MemorySink`] holds as many letters as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkFull(usize);

impl fmt::Display for SinkFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dead letters wait in memory, and no more may; take them", self.0)
    }
}

impl std::error::Error for SinkFull {}

impl<K, T, P> MemorySink<K, T, P> {
    /// A sink for at most `most` letters. `payload` takes out of the task what a letter needs.
    pub fn new(most: usize, payload: impl Fn(&mut T) -> P + Send + Sync + 'static) -> Self {
        Self { most, payload: Box::new(payload), letters: std::sync::Mutex::default() }
    }

    /// Takes all letters, oldest first. Tasks that were held for want of room are offered again soon.
    pub fn take(&self) -> Vec<Letter<K, P>> {
        std::mem::take(&mut *self.letters())
    }

    /// The number of letters.
    pub fn len(&self) -> usize {
        self.letters().len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn letters(&self) -> std::sync::MutexGuard<'_, Vec<Letter<K, P>>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Send, T, P: Send> DeadLetterSink<K, T> for MemorySink<K, T, P> {
    type Error = SinkFull;

    fn put(&self, failed: Exhausted<'_, K, T>) -> Result<(), SinkFull> {
        let mut letters = self.letters();
        if letters.len() >= self.most {
            return Err(SinkFull(self.most));
        }
        letters.push(Letter {
            time: SystemTime::now(),
            key: failed.key.clone(),
            attempts: failed.attempts,
            failure: failed.failure.clone(),
            payload: (self.payload)(failed.task),
        });
        Ok(())
    }
}

impl<K, T, P> fmt::Debug for MemorySink<K, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySink")
            .field("letters", &self.len())
            .field("most", &self.most)
            .finish()
    }
}
