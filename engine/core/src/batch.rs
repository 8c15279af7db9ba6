//! Tasks of one group, handed to a batch handler together.

use std::{fmt, marker::PhantomData};

use crate::{group::ring::End, outcome::Trouble};

/// Up to `batch_size` tasks of one group, oldest first, in place in the group's ring.
///
/// The handler answers with one outcome for all or one for each (see [`IntoOutcomes`](crate::IntoOutcomes)). Tasks
/// that are to be retried keep their order and their place at the head of the group; those that are done are
/// dropped. A panic in the handler fails every task of the batch, since nobody can know how far it came.
pub struct Batch<'a, K, T> {
    key: &'a K,
    head: End<T>,
    len: u32,
    trouble: Option<&'a Trouble>,
    tasks: PhantomData<&'a mut T>,
}

impl<'a, K, T> Batch<'a, K, T> {
    /// # Safety
    /// `head` is followed by `len` tasks which nobody else touches for `'a`.
    pub(crate) unsafe fn new(
        key: &'a K,
        head: End<T>,
        len: u32,
        trouble: Option<&'a Trouble>,
    ) -> Self {
        Self { key, head, len, trouble, tasks: PhantomData }
    }

    /// The key of the group.
    pub fn key(&self) -> &K {
        self.key
    }

    /// The number of tasks; at least one.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Never true; here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Which attempt this is for the task at `index`: 1 for the first.
    pub fn attempt(&self, index: usize) -> u32 {
        1 + self.trouble.and_then(|trouble| trouble.marks.get(index)).map_or(0, |m| m.attempts)
    }

    /// The task at `index`, counted from the oldest. Costs a walk over `index / 256` segments.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.iter().nth(index)
    }

    /// The task at `index`, to change or to take out of.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.iter_mut().nth(index)
    }

    /// The tasks, oldest first.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { slots: self.slots(), tasks: PhantomData }
    }

    /// The tasks, oldest first, to change or to take out of.
    pub fn iter_mut(&mut self) -> IterMut<'_, T> {
        IterMut { slots: self.slots(), tasks: PhantomData }
    }

    /// As [`Batch::iter`], for all of the time that the batch borrows its tasks.
    pub(crate) fn into_refs(self) -> Iter<'a, T> {
        Iter { slots: self.slots(), tasks: PhantomData }
    }

    /// As [`Batch::iter_mut`], for all of the time that the batch borrows its tasks.
    pub(crate) fn into_muts(self) -> IterMut<'a, T> {
        IterMut { slots: self.slots(), tasks: PhantomData }
    }

    pub(crate) fn slots(&self) -> Slots<T> {
        Slots { at: self.head, left: self.len }
    }
}

// SAFETY: a batch is a `&mut` of its tasks and a `&` of its key. Futures keep it over an `await`.
unsafe impl<K: Sync, T: Send> Send for Batch<'_, K, T> {}
// SAFETY: by reference it shows tasks and key to read.
unsafe impl<K: Sync, T: Sync> Sync for Batch<'_, K, T> {}
// SAFETY: a `&` of tasks.
unsafe impl<T: Sync> Send for Iter<'_, T> {}
// SAFETY: as above; the walk itself changes only what it owns.
unsafe impl<T: Sync> Sync for Iter<'_, T> {}
// SAFETY: a `&mut` of tasks.
unsafe impl<T: Send> Send for IterMut<'_, T> {}
// SAFETY: by reference it shows nothing of the tasks.
unsafe impl<T: Sync> Sync for IterMut<'_, T> {}

impl<K: fmt::Debug, T: fmt::Debug> fmt::Debug for Batch<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("key", self.key)
            .field("tasks", &self.iter().collect::<Vec<_>>())
            .finish()
    }
}

/// A walk over initialised slots.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    pub(crate) at: End<T>,
    pub(crate) left: u32,
}

#[cfg(feature = "rayon")]
impl<T> Slots<T> {
    /// The first `n` and the rest. Costs a walk over `n / 256` segments.
    pub(crate) fn split_at(self, n: u32) -> (Self, Self) {
        let mut at = self.at;
        let mut left = n;
        while left > 0 {
            let (_, run) = at.peek(left);
            at.pass(run);
            left -= run;
        }
        (Self { at: self.at, left: n }, Self { at, left: self.left - n })
    }

    /// The last slot. Costs a walk over all segments.
    pub(crate) fn next_back(&mut self) -> Option<*mut T> {
        let before = self.left.checked_sub(1)?;
        let (_, mut last) = Self { at: self.at, left: self.left }.split_at(before);
        self.left = before;
        last.next()
    }
}

impl<T> Iterator for Slots<T> {
    type Item = *mut T;
    #[inline]
    fn next(&mut self) -> Option<*mut T> {
        if self.left == 0 {
            return None;
        }
        let (slot, _) = self.at.peek(1);
        self.at.pass(1);
        self.left -= 1;
        Some(slot)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

macro_rules! iterator {
    ($(#[$doc:meta])* $name:ident, $item:ty, $slot:ident => $deref:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a, T> {
            slots: Slots<T>,
            tasks: PhantomData<$item>,
        }
        impl<'a, T> Iterator for $name<'a, T> {
            type Item = $item;
            #[inline]
            fn next(&mut self) -> Option<$item> {
                // SAFETY: the slot is one of the batch's tasks, which the batch borrows for 'a; each slot comes once.
                self.slots.next().map(|$slot| unsafe { $deref })
            }
            fn size_hint(&self) -> (usize, Option<usize>) {
                self.slots.size_hint()
            }
        }
        impl<T> ExactSizeIterator for $name<'_, T> {}
    };
}

iterator! {
    /// The tasks of a [`Batch`], oldest first.
    Iter, &'a T, slot => &*slot
}
iterator! {
    /// The tasks of a [`Batch`], oldest first, to change.
    IterMut, &'a mut T, slot => &mut *slot
}

impl<'b, K, T> IntoIterator for &'b Batch<'_, K, T> {
    type Item = &'b T;
    type IntoIter = Iter<'b, T>;
    fn into_iter(self) -> Iter<'b, T> {
        self.iter()
    }
}

impl<'b, K, T> IntoIterator for &'b mut Batch<'_, K, T> {
    type Item = &'b mut T;
    type IntoIter = IterMut<'b, T>;
    fn into_iter(self) -> IterMut<'b, T> {
        self.iter_mut()
    }
}
