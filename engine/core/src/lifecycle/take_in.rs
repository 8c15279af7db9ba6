//! A claim holder that is no worker: what was submitted before a call is in its groups before the call looks at them.

use std::{hash::Hash, time::Duration};

use crate::{
    core::Core,
    front::Door,
    group::{segment::Pool, state::Published, token::RunToken},
    handler::Work,
    outcome::{Failure, drop_quietly},
    ready::link::{Chain, Unit},
    shard::{
        back::Back,
        demux::{Demux, Scratch, Touched},
    },
    sync::Ordering,
    time::timers::Entry,
};

/// What a caller needs to do the work of a claim holder, for one call.
pub(crate) struct Desk<K, T, S> {
    pub(crate) pool: Pool<T>,
    scratch: Scratch<K, T, S>,
    /// Some of what was taken in went to groups that stand.
    held: bool,
}

impl<K, T, W> Core<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    pub(crate) fn desk(&self, shard: usize) -> Desk<K, T, W::State> {
        let node = self.plan.workers[self.front.home(shard)].node;
        let pool = Pool::on(self.segments.clone(), node);
        Desk { pool, scratch: Scratch::new(), held: false }
    }

    /// Under the claim: takes in what the shard's ring and lanes hold now. A record whose submit has not returned yet may
    /// stay there.
    pub(crate) fn take_in(
        &self,
        shard: usize,
        back: &mut Back<K, T, W::State>,
        desk: &mut Desk<K, T, W::State>,
    ) {
        let door = &*self.front.doors[shard];
        let laned: u64 = back.lanes.iter().map(|lane| lane.tail() - lane.head()).sum();
        let mut left = door.ring.tail().0 - back.head + laned;
        let mut ready = Chain::default();
        while left > 0 {
            let now = self.front.ready.clock.now();
            let (pool, scratch) = (&mut desk.pool, &mut desk.scratch);
            let taken = Demux { door, back, pool, scratch, now }.chunk(self.settings.chunk);
            self.publish_all(shard, desk, now, &mut ready);
            self.held.taken.fetch_add(u64::from(taken), Ordering::Relaxed);
            back.unpin_passed();
            if taken == 0 {
                break;
            }
            left = left.saturating_sub(u64::from(taken));
        }
        self.census(back);
        self.front.ready.spill(&mut ready);
    }

    /// As a worker does it after a chunk (worker/look.rs).
    fn publish_all(
        &self,
        shard: usize,
        desk: &mut Desk<K, T, W::State>,
        now: u64,
        ready: &mut Chain,
    ) {
        let door = &*self.front.doors[shard];
        for touched in std::mem::take(&mut desk.scratch.touched) {
            if let Some(unit) = self.publish_one(door, touched, now, &mut desk.held) {
                ready.push(unit);
            }
        }
    }

    /// Claim holder: makes the new tasks of a group countable. Returns its token, if it is ready now; `held`: it stands.
    pub(crate) fn publish_one(
        &self,
        door: &Door<K, T>,
        touched: Touched<K, T>,
        now: u64,
        held: &mut bool,
    ) -> Option<Unit> {
        let settings = &self.settings;
        let linger = settings.flush > Duration::ZERO && !self.front.status.refuses();
        let group = touched.group;
        // SAFETY: below, the caller has just become the holder of the group's token.
        let token = || unsafe { RunToken::new(group, &self.front.ready) }.rest();
        let grown = touched.publish();
        let count = u32::try_from(grown.count).unwrap_or(u32::MAX);
        let word = &touched.group().word;
        if count > settings.group_capacity {
            debug_assert!(!settings.exact, "a place for each task");
            let hash = touched.group().hash();
            door.gate.close_group(&self.front.filter, hash, group, settings.low_mark());
        }
        match grown.meaning {
            Published::Busy => None,
            Published::Held => {
                // ORDERING: SeqCst, see `Core::is_drained`.
                self.held.tasks.fetch_add(u64::from(grown.added), Ordering::SeqCst);
                *held = true;
                None
            }
            Published::Token => {
                // SAFETY: the publish made the group busy, and its token is ours.
                let mut head = unsafe { touched.group().head_end() };
                if !touched.was_quiet() {
                    // It went idle after it was touched.
                    head.set_stamp(now);
                }
                if linger {
                    *head.since() = (now / 1_000_000) as u32;
                }
                let lingers = if linger { word.linger(settings.batch).ok() } else { None };
                let Some(sequence) = lingers else { return Some(token()) };
                let deadline = now + settings.flush.as_nanos() as u64;
                let entry = Entry::Linger(group, sequence, deadline);
                self.put_in_timer([entry], || self.front.status.refuses());
                None
            }
            Published::Lingering => (count >= settings.batch && word.end_linger(None)).then(token),
        }
    }

    /// Without the claim: drops what came out of it, and tells what was not to be told under it.
    pub(crate) fn clear_desk(&self, shard: usize, mut desk: Desk<K, T, W::State>) {
        if desk.held {
            self.watch.notify();
        }
        self.front.doors[shard].gate.wake_due();
        desk.scratch.garbage_keys.drain(..).for_each(drop_quietly);
        desk.scratch.garbage_states.drain(..).for_each(drop_quietly);
        for (key, mut task, failure) in desk.scratch.rejected.drain(..) {
            let reason = format!("comparing keys panicked: {}", failure.reason());
            let failure = Failure::with_kind(reason, failure.kind());
            // The task belongs to no group, so nothing but a skip can follow.
            let _ = self.settings.on_exhausted.verdict(crate::Exhausted {
                key: &key,
                task: &mut task,
                attempts: 0,
                failure: &failure,
            });
            drop_quietly((key, task));
            // ORDERING: Release, see `Held::cancelled`.
            self.held.rejected.fetch_add(1, Ordering::Release);
        }
    }
}
