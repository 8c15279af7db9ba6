//! Groups without order inside a batch: its tasks run at the same time on rayon's threads.
//!
//! Batches of a group still run one after another, each after the last task of the one before. Nothing of the engine knows about it:
//! to a turn it is a batch handler that answers with one outcome for each task.

use std::{
    hash::Hash,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
};

use rayon::iter::{
    IndexedParallelIterator, IntoParallelIterator, ParallelIterator,
    plumbing::{Consumer, Producer, ProducerCallback, UnindexedConsumer, bridge},
};

use crate::{
    batch::{Batch, Slots},
    builder::{Builder, Configured},
    handler::{Phase, Turn, Work},
    outcome::{Failure, FailureKind, Outcome},
    task::Task,
    wait::seat,
};

/// The tasks of a [`Batch`], to be run at the same time: see [`Batch::par_iter_mut`].
#[derive(Debug)]
pub struct ParIterMut<'a, T> {
    slots: Slots<T>,
    tasks: PhantomData<&'a mut T>,
}

// SAFETY: a `&mut` of tasks.
unsafe impl<T: Send> Send for ParIterMut<'_, T> {}

impl<K, T> Batch<'_, K, T> {
    /// The tasks as a parallel iterator, for a handler that does not care in which order they run: rayon's threads take them. Batches of a group still
    /// run one after another. A panic of one of them is a panic of the handler, and fails the batch; with
    /// [`Builder::unordered_handler`] it fails its own task only. Needs the feature `rayon`.
    ///
    /// ```
    /// use bgrp::{Engine, Outcome};
    /// use rayon::prelude::*;
    /// let engine = Engine::<u32, u64>::builder()
    ///     .handler(|_, batch| {
    ///         batch.par_iter_mut().map(|task| Outcome::from(check(task))).collect::<Vec<_>>()
    ///     })
    ///     .build()?;
    /// # fn check(task: &mut u64) -> Result<(), String> { if *task > 9 { Err("too large".to_owned()) } else { Ok(()) } }
    /// # engine.submit(1, 10)?;
    /// # assert_eq!(engine.close(std::time::Duration::MAX).failed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn par_iter_mut(&mut self) -> ParIterMut<'_, T> {
        ParIterMut { slots: self.slots(), tasks: PhantomData }
    }
}

impl<'a, K, T: Send> IntoParallelIterator for &'a mut Batch<'_, K, T> {
    type Iter = ParIterMut<'a, T>;
    type Item = &'a mut T;
    fn into_par_iter(self) -> ParIterMut<'a, T> {
        self.par_iter_mut()
    }
}

impl<'a, T: Send> ParallelIterator for ParIterMut<'a, T> {
    type Item = &'a mut T;
    fn drive_unindexed<C: UnindexedConsumer<&'a mut T>>(self, consumer: C) -> C::Result {
        bridge(self, consumer)
    }
    fn opt_len(&self) -> Option<usize> {
        Some(self.len())
    }
}

impl<'a, T: Send> IndexedParallelIterator for ParIterMut<'a, T> {
    fn len(&self) -> usize {
        self.slots.left as usize
    }
    fn drive<C: Consumer<&'a mut T>>(self, consumer: C) -> C::Result {
        bridge(self, consumer)
    }
    fn with_producer<B: ProducerCallback<&'a mut T>>(self, callback: B) -> B::Output {
        callback.callback(self)
    }
}

impl<'a, T: Send> Producer for ParIterMut<'a, T> {
    type Item = &'a mut T;
    type IntoIter = Part<'a, T>;
    fn into_iter(self) -> Part<'a, T> {
        Part(self)
    }
    fn split_at(self, index: usize) -> (Self, Self) {
        let (left, right) = self.slots.split_at(index as u32);
        (Self { slots: left, tasks: PhantomData }, Self { slots: right, tasks: PhantomData })
    }
}

/// A part of the tasks, on one thread.
#[derive(Debug)]
pub struct Part<'a, T>(ParIterMut<'a, T>);

impl<'a, T> Iterator for Part<'a, T> {
    type Item = &'a mut T;
    fn next(&mut self) -> Option<&'a mut T> {
        // SAFETY: one of the tasks that the batch borrows for 'a; parts do not overlap, and each slot comes once.
        self.0.slots.next().map(|slot| unsafe { &mut *slot })
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.slots.size_hint()
    }
}

impl<T> ExactSizeIterator for Part<'_, T> {}

impl<T> DoubleEndedIterator for Part<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        // SAFETY: as in `next`: the slot leaves the part.
        self.0.slots.next_back().map(|slot| unsafe { &mut *slot })
    }
}

/// A handler that is called for all tasks of a batch at the same time.
struct EachUnordered<K, T, S, O, F> {
    open: O,
    handler: F,
    types: PhantomData<fn(&K, &mut T, S)>,
}

impl<K, T, S, O, F, R> Work<K, T> for EachUnordered<K, T, S, O, F>
where
    K: Sync + 'static,
    T: Send + 'static,
    S: Send + Sync + 'static,
    O: Fn(&K) -> S + Send + Sync + 'static,
    F: Fn(&S, &mut Task<'_, K, T>) -> R + Send + Sync + 'static,
    R: Into<Outcome>,
{
    type State = S;

    fn open(&self, key: &K) -> S {
        (self.open)(key)
    }

    fn run(&self, state: &mut S, turn: &mut Turn<'_, K, T>) {
        turn.phase = Phase::Batch;
        turn.outcomes.clear();
        let (key, state) = (turn.key, &*state);
        let marks = turn.trouble.map_or(&[][..], |trouble| &trouble.marks);
        let us = seat::shared();
        let call = |(at, value): (usize, &mut T)| {
            // A submit that would wait for this very engine must be refused here too.
            let _seated = us.sit();
            let attempt = 1 + marks.get(at).map_or(0, |mark| mark.attempts);
            let called = catch_unwind(AssertUnwindSafe(|| {
                (self.handler)(state, &mut Task { key, value, attempt }).into()
            }));
            called.unwrap_or_else(|payload| {
                Outcome::Retry(Failure::from_panic(payload, FailureKind::Panicked))
            })
        };
        // SAFETY: `planned` tasks are counted behind the head, and this token holder owns them during the call.
        let mut batch = unsafe { Batch::new(key, *turn.head, turn.planned, turn.trouble) };
        if turn.planned == 1 {
            // Not worth a walk to another thread.
            turn.outcomes.extend(batch.iter_mut().enumerate().map(call));
        } else {
            batch.par_iter_mut().enumerate().map(call).collect_into_vec(turn.outcomes);
        }
        if turn.outcomes.iter().all(|outcome| *outcome == Outcome::Done) {
            turn.outcomes.clear();
        }
        turn.phase = Phase::Between;
        turn.batched = true;
    }
}

impl<K, T, S> Builder<K, T, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    S: Send + Sync + 'static,
{
    /// Declares that the order of tasks **within a batch** does not matter: the handler is called for all of them at the same time, on the threads of
    /// rayon's global pool. Batches of a group still run one after another, and so do the attempts of a task: what a batch did happens before the
    /// next one. For groups that are few and whose tasks compute; the state is shared between the tasks, hence `&S`.
    ///
    /// Each task has its own outcome; a panic fails its own task. Tasks that are to be retried keep their order at the head of the group, and
    /// the next batch begins with them. Needs the feature `rayon`. For another pool, or a handler that needs the whole batch, use
    /// [`handler`](Self::handler) with [`Batch::par_iter_mut`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// use bgrp::Engine;
    /// let engine = Engine::<String, Vec<u8>>::builder()
    ///     .batch_size(256)
    ///     .unordered_handler(|_, image| compress(image))
    ///     .build()?;
    /// # fn compress(_: &mut Vec<u8>) {}
    /// engine.submit("album 7".to_owned(), vec![0; 1_000])?;
    /// assert_eq!(engine.close(Duration::from_secs(10)).done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unordered_handler<F, R>(self, handler: F) -> Configured<K, T>
    where
        F: Fn(&S, &mut Task<'_, K, T>) -> R + Send + Sync + 'static,
        R: Into<Outcome> + 'static,
    {
        self.with_work(|open| EachUnordered { open, handler, types: PhantomData })
    }
}
