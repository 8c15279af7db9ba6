//! The call of the handler: up to so many tasks of a group whose token is in hand.

use std::{
    any::Any,
    hash::Hash,
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
};

use super::{
    Worker,
    settle::{Settled, settle},
};
use crate::{
    group::{
        block::{Block, Group},
        ring::End,
    },
    handler::{Budget, Phase, Turn, Work},
    outcome::{Outcome, Trouble},
};

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Calls the handler for up to `most` tasks. `Some`: that is how many are done, and there is nothing else to settle. `None`: what
    /// came of it is in `settled`.
    #[inline(always)]
    pub(super) fn dispatch(
        &mut self,
        group: &Group<K, T>,
        head: &mut End<T>,
        most: u32,
    ) -> Option<u32> {
        let core = self.core();
        // SAFETY: we hold the token of a live group.
        let key = unsafe { group.key() };
        let mut planned = most;
        let mut trouble = None;
        let marked = head.trouble().is_some();
        if marked {
            self.hand().note_attempt(head.trouble().as_deref());
            // What is settled before the call lies apart: a group without trouble has no part in it.
            let mut before = Settled::default();
            planned = self.resolve_held(key, head, most, &mut before);
            self.settled = before;
            if planned == 0 {
                return None;
            }
            trouble = head.trouble().take();
        }
        debug_assert!(self.outcomes.is_empty(), "whoever settles a batch empties it");
        let mut turn = Turn {
            key,
            head,
            pool: &mut self.pool,
            trouble: trouble.as_deref(),
            planned,
            budget: Budget::new(&core.front.ready.clock, &core.settings.budget),
            status: &core.front.status,
            word: &group.word,
            phase: Phase::Between,
            done: 0,
            failed: None,
            outcomes: &mut self.outcomes,
            batched: false,
            endings: &mut self.endings,
        };
        // SAFETY: this block belongs to an engine with this kind of work, so its state is of this type.
        let state =
            unsafe { NonNull::from(group).cast::<Block<K, T, W::State>>().as_ref() }.state();
        let run = catch_unwind(AssertUnwindSafe(|| {
            if !group.is_open() {
                turn.phase = Phase::Batch;
                // SAFETY: we hold the token; the slot is empty.
                unsafe { open(&core.work, key, state) };
                group.set_open(true);
                turn.phase = Phase::Between;
            }
            // SAFETY: we hold the token and the state is open.
            core.work.run(unsafe { (*state).assume_init_mut() }, &mut turn);
        }));
        if run.is_ok() && !turn.batched && turn.failed.is_none() && !marked {
            return Some(turn.done);
        }
        let left = Left {
            planned: turn.planned,
            phase: turn.phase,
            done: turn.done,
            failed: turn.failed,
            batched: turn.batched,
            marked,
        };
        self.settle_dispatch(group, head, trouble, left, run.err());
        None
    }

    /// Settles a dispatch that did not simply end. A turn of its own, so that the one of a dispatch that does lives in registers.
    #[cold]
    #[inline(never)]
    fn settle_dispatch(
        &mut self,
        group: &Group<K, T>,
        head: &mut End<T>,
        trouble: Option<Box<Trouble>>,
        left: Left,
        panicked: Option<Box<dyn Any + Send>>,
    ) {
        let core = self.core();
        let mut settled =
            if left.marked { std::mem::take(&mut self.settled) } else { Settled::default() };
        // A copy, since the turn borrows the original; only a failure comes here.
        let marks = trouble.clone();
        let mut turn = Turn {
            // SAFETY: we hold the token of a live group.
            key: unsafe { group.key() },
            head,
            pool: &mut self.pool,
            trouble: trouble.as_deref(),
            planned: left.planned,
            budget: Budget::new(&core.front.ready.clock, &core.settings.budget),
            status: &core.front.status,
            word: &group.word,
            phase: left.phase,
            done: left.done,
            failed: left.failed,
            outcomes: &mut self.outcomes,
            batched: left.batched,
            endings: &mut self.endings,
        };
        let panicked = panicked.map(|payload| (payload, group.is_open()));
        let random = &mut self.random;
        let marks = settle(&core.settings, &mut turn, panicked, marks, random, &mut settled);
        *head.trouble() = marks;
        self.settled = settled;
    }
}

/// What a handler left of a dispatch that did not simply end.
struct Left {
    planned: u32,
    phase: Phase,
    done: u32,
    failed: Option<Outcome>,
    batched: bool,
    /// The group had marks before.
    marked: bool,
}

/// Opens the state of a group.
///
/// # Safety
/// The slot is the caller's, and empty.
#[cold]
#[inline(never)]
unsafe fn open<K, T, W: Work<K, T>>(work: &W, key: &K, state: *mut MaybeUninit<W::State>) {
    let opened = work.open(key);
    // SAFETY: the caller's promise.
    unsafe { (*state).write(opened) };
}
