//! A turn of a group whose batches leave the worker (lease/mod.rs), and the end of that turn when the lease has come back.

use std::{
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::Arc,
};

use super::{Worker, settle::Settled};
use crate::{
    exact::Weighed,
    flow::share::Class,
    group::{
        block::{Block, Group, Place},
        token::RunToken,
    },
    handler::Work,
    lease::{Grip, Home, Lease, Leased},
    outcome::{Failure, FailureKind, Outcome, drop_quietly},
    sync::mutant,
    watch::stats::add,
};

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Lends up to `most` of the `count` tasks of the group, which is in hand, with what it was admitted with. From the call of the handler on the token is the lease's.
    pub(crate) fn lend(&mut self, token: RunToken<'_, K, T>, most: u32, count: u32, since: u32) {
        let core = self.core();
        let group = token.as_ptr();
        let mut tasks = most;
        let mut settled = Settled::default();
        // SAFETY: we hold the token of a live group, here and below.
        let (key, mut head) = unsafe { (group.as_ref().key(), group.as_ref().head_end()) };
        if head.trouble().is_some() {
            tasks = self.resolve_held(key, &mut head, most, &mut settled);
            // SAFETY: as above; it may have moved.
            unsafe { group.as_ref().set_head(head) };
        }
        if tasks == 0 || settled.removed > 0 {
            // Held tasks went, or still hold the head: that was all of this turn.
            self.end_troubled(token, &settled, count > settled.removed, since);
            return;
        }
        // SAFETY: as above.
        let (begun, waited) = self.begin_lease(unsafe { group.as_ref() }, head, tasks);
        let mut record = head.trouble().take().unwrap_or_default();
        let admitted = self.admitted.take();
        let outcomes = Vec::new();
        record.lease = Some(Leased { tasks, count, since, waited, admitted, outcomes });
        if let Err(failure) = self.open_state(group) {
            // As if its first task had been asked, and had failed.
            if let Some(leased) = &mut record.lease {
                leased.tasks = 1;
                leased.outcomes.push(Outcome::Retry(failure));
            }
            *head.trouble() = Some(record);
            self.settle_in_hand(token);
            return;
        }
        // SAFETY: as above; from here on the token is in the grip.
        unsafe { group.as_ref() }.set_place(Place::Lease);
        if mutant("lease-token-twice") {
            self.queue(token.rest());
        } else {
            token.gone();
        }
        add(&self.post().counters.lent, 1);
        let home: Arc<dyn Home<K, T>> = self.share();
        // SAFETY: token and record are those of the group, whose core this is.
        let lease = Lease::new(unsafe { Grip::new(group, record, home) });
        // A panic drops the lease, or leaves it to where it was sent: either way it is none of ours any more.
        let lent = catch_unwind(AssertUnwindSafe(|| core.work.lend(lease)));
        drop_quietly(lent);
        drop(begun);
    }

    /// The end of a turn whose batch was lent.
    pub(crate) fn take_back(&mut self, token: RunToken<'_, K, T>) {
        if !self.take_in_hand(token.as_ptr()) {
            // The engine is halted: close settles it.
            token.gone();
            return;
        }
        let core = self.core();
        let shares = &core.settings.shares;
        // SAFETY: we hold the token of a live group.
        let bulk = shares.has_any() && shares.class(unsafe { token.group().key() }) == Class::Bulk;
        let before = bulk.then(|| self.post().counters.ended());
        self.lease_is_back(token.group());
        self.settle_in_hand(token);
        if let Some(before) = before {
            self.post().counters.add_bulk(before);
        }
        if self.admitted.is_some() {
            self.leave();
        }
        self.hand().lay_down();
    }

    fn settle_in_hand(&mut self, token: RunToken<'_, K, T>) {
        let core = self.core();
        self.weighed = Weighed::of_lease(token.group(), &self.pool);
        let (settled, leased) =
            core.settle_lease(token.group(), &mut self.pool, &mut self.random, &mut self.endings);
        self.admitted = leased.admitted.filter(|_| !mutant("lease-keeps-permit"));
        self.end_lease(token.group(), leased.waited, &settled);
        let left = leased.count > settled.removed;
        self.end_troubled(token, &settled, left, leased.since);
    }

    fn open_state(&self, group: NonNull<Group<K, T>>) -> Result<(), Failure> {
        // SAFETY: blocks live as long as the core, and this one has a state of this type.
        let block = unsafe { group.cast::<Block<K, T, W::State>>().as_ref() };
        if block.group.is_open() {
            return Ok(());
        }
        // SAFETY: the caller holds the token of a live group.
        let key = unsafe { block.group.key() };
        let work = &self.core().work;
        let opened = catch_unwind(AssertUnwindSafe(|| work.open(key)))
            .map_err(|payload| Failure::from_panic(payload, FailureKind::StatePanicked))?;
        // SAFETY: the caller holds the token; the slot is empty.
        unsafe { (*block.state()).write(opened) };
        block.group.set_open(true);
        Ok(())
    }
}
