//! The deque of a worker: first in, first out; its owner pushes and pops, others steal.
//!
//! It is `crossbeam-deque`. Loom and shuttle cannot see into that, so under them a stand-in takes its place, with no more
//! than what the engine relies on:
//!
//! * an element is handed out once, and what was done to it before the push is seen by who gets it;
//! * a thief takes at most half, in order, and while elements move to its own deque they are in neither;
//! * a thief that meets another one may be told to retry;
//! * `len` and `is_empty` are relaxed looks: who must not miss a push fences first (worker/idle.rs).

#[cfg(not(any(loom, shuttle)))]
pub(crate) use crossbeam_deque::{Steal, Stealer, Worker as Deque};

#[cfg(any(loom, shuttle))]
pub(crate) use stand_in::{Deque, Steal, Stealer};

#[cfg(any(loom, shuttle))]
mod stand_in {
    use std::{collections::VecDeque, sync::Arc};

    use crate::sync::{AtomicUsize, Mutex, Ordering};

    #[derive(Debug)]
    struct Shared<T> {
        elements: Mutex<VecDeque<T>>,
        len: AtomicUsize,
    }

    impl<T> Shared<T> {
        fn change<R>(
            &self,
            elements: &mut VecDeque<T>,
            how: impl FnOnce(&mut VecDeque<T>) -> R,
        ) -> R {
            let result = how(elements);
            self.len.store(elements.len(), Ordering::Relaxed);
            result
        }

        fn len(&self) -> usize {
            self.len.load(Ordering::Relaxed)
        }
    }

    /// The owner's end.
    #[derive(Debug)]
    pub(crate) struct Deque<T>(Arc<Shared<T>>);

    /// What a thief has of another worker's deque.
    #[derive(Debug)]
    pub(crate) struct Stealer<T>(Arc<Shared<T>>);

    /// What came of a steal.
    #[derive(Debug)]
    pub(crate) enum Steal<T> {
        Empty,
        Success(T),
        Retry,
    }

    impl<T> Deque<T> {
        pub(crate) fn new_fifo() -> Self {
            let elements = Mutex::new(VecDeque::new());
            Self(Arc::new(Shared { elements, len: AtomicUsize::new(0) }))
        }

        pub(crate) fn stealer(&self) -> Stealer<T> {
            Stealer(self.0.clone())
        }

        pub(crate) fn push(&self, element: T) {
            self.0.change(&mut self.0.elements.lock(), |elements| elements.push_back(element));
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.change(&mut self.0.elements.lock(), |elements| elements.pop_front())
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }

    impl<T> Stealer<T> {
        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Up to half of the elements, rounded up, and at most `limit`.
        fn half(&self, limit: usize) -> Steal<VecDeque<T>> {
            let Some(mut elements) = self.0.elements.try_lock() else { return Steal::Retry };
            let most = elements.len().div_ceil(2).min(limit);
            if most == 0 {
                return Steal::Empty;
            }
            Steal::Success(
                self.0.change(&mut elements, |elements| elements.drain(..most).collect()),
            )
        }

        pub(crate) fn steal_batch_with_limit(&self, dest: &Deque<T>, limit: usize) -> Steal<()> {
            match self.half(limit) {
                Steal::Success(batch) => {
                    batch.into_iter().for_each(|element| dest.push(element));
                    Steal::Success(())
                }
                Steal::Empty => Steal::Empty,
                Steal::Retry => Steal::Retry,
            }
        }

        pub(crate) fn steal_batch_with_limit_and_pop(
            &self,
            dest: &Deque<T>,
            limit: usize,
        ) -> Steal<T> {
            match self.half(limit) {
                Steal::Success(mut batch) => {
                    let first = batch.pop_front().expect("a batch is not empty");
                    batch.into_iter().for_each(|element| dest.push(element));
                    Steal::Success(first)
                }
                Steal::Empty => Steal::Empty,
                Steal::Retry => Steal::Retry,
            }
        }
    }
}
