//! A worker looks at a shard: claim, demux, publish, release the claim, and only then does anything run.

use std::{hash::Hash, ptr::NonNull};

use super::Worker;
use crate::{
    front::Door,
    group::{block::Group, state::Published, token::RunToken},
    handler::Work,
    outcome::{Failure, drop_quietly},
    ready::link::Unit,
    shard::{
        back::Back,
        demux::{Demux, Grown},
    },
    sync::Ordering,
    time::timers::Entry,
    wait::cell::Ended,
    watch::stats::add,
};

/// Looks that find nothing before a shard with lanes is let to rest: its next record then costs a wake, and where the shard was
/// busy the rest itself a system call.
const EMPTY_LOOKS: u32 = 8;

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// The caller holds the duty to look at the shard (its unit).
    #[inline(never)]
    pub(crate) fn look(&mut self, shard: usize) {
        let core = self.core();
        let door: &Door<K, T> = &core.front.doors[shard];
        if core.front.status.stops() {
            // Nothing starts any more. The records stay where they are; close takes them from there.
            return;
        }
        if self.allowance == 0 && !self.add_up() {
            core.starved.add(door.unit());
            core.feed_starved();
            return;
        }
        let now = core.front.ready.clock.now();
        let most = self.chunk.begin(now).min(u32::try_from(self.allowance).unwrap_or(u32::MAX));
        self.pace.now = now;
        let mut back = core.backs[shard].lock();
        #[cfg(feature = "measure")]
        let holding = crate::watch::claims::Holding::start();
        let mut demux =
            Demux { door, back: &mut back, pool: &mut self.pool, scratch: &mut self.scratch, now };
        let taken = demux.chunk(most);
        self.chunk.took(taken, self.scratch.touched.len());
        self.sample(taken);
        let held = self.publish(door);
        core.tend(&mut back, &mut self.pool, &mut self.scratch, taken);
        let more = !self.let_rest(door, &mut back, taken);
        back.left_at = if more { now } else { 0 };
        let gone_lanes = std::mem::take(&mut back.gone_lanes);
        let wanted = back.wants_spare();
        #[cfg(feature = "measure")]
        holding.end();
        drop(back);
        if !gone_lanes.is_empty() {
            core.lanes.retire(gone_lanes);
        }
        door.gate.wake_due();
        if held {
            // Not under the claim, which who waits for a drain takes next.
            self.core().watch.notify();
        }

        self.allowance = self.allowance.saturating_sub(u64::from(taken));
        add(&self.post().counters.taken, u64::from(taken));
        add(&self.post().counters.looks, 1);
        if more || !self.fresh.is_empty() {
            self.run_row(more.then(|| door.unit()));
        }
        core.put_by(shard, wanted);
        self.clean_up();
    }

    /// Decides whether the shard rests. `true`: its unit is gone.
    fn let_rest(&self, door: &Door<K, T>, back: &mut Back<K, T, W::State>, taken: u32) -> bool {
        let barrier = self.core().front.barrier;
        if door.ring.is_published(back.head) || back.any_lane() {
            back.empty_looks = 0;
            return false;
        }
        if back.lanes.is_empty() {
            return door.flag.rest(&door.ring, back.head, barrier, None);
        }
        back.empty_looks = if taken > 0 { 0 } else { back.empty_looks + 1 };
        if back.empty_looks < EMPTY_LOOKS {
            return false;
        }
        back.empty_looks = 0;
        let head = back.head;
        let mut look = || {
            back.mode.pay(&door.fenced, barrier);
            back.any_lane()
        };
        door.flag.rest(&door.ring, head, barrier, Some(&mut look))
    }

    /// Makes the chunk's tasks countable; what becomes busy goes to `fresh`.
    /// `true`: some of the tasks went to groups that are halted.
    fn publish(&mut self, door: &Door<K, T>) -> bool {
        let mut held = false;
        let core = self.core();
        let linger = self.lingers && !core.front.status.refuses();
        let now = if linger { core.front.ready.clock.now() } else { 0 };
        for i in 0..self.scratch.touched.len() {
            let touched = self.scratch.touched[i];
            let group = touched.group;
            if !linger && let Some(added) = touched.activate() {
                if added > core.settings.group_capacity {
                    self.note_full(door, group);
                }
                // SAFETY: the group was quiet, so its one token is ours.
                self.fresh.push(unsafe { token(group, &core.front.ready) });
                continue;
            }
            let grown = touched.publish();
            let count = u32::try_from(grown.count).unwrap_or(u32::MAX);
            if matches!(grown.meaning, Published::Token) && !touched.was_quiet() {
                // It went idle after it was touched.
                // SAFETY: the publish made the group busy, and its token is ours.
                unsafe { group.as_ref().head_end() }.set_stamp(self.pace.now);
            }
            if count > core.settings.group_capacity {
                self.note_full(door, group);
            }
            match grown.meaning {
                Published::Busy => {}
                Published::Held => {
                    // ORDERING: SeqCst, see `Core::is_drained`.
                    core.held.tasks.fetch_add(u64::from(grown.added), Ordering::SeqCst);
                    held = true;
                }
                Published::Token if linger && count < core.settings.batch => {
                    self.linger_anew(group, now);
                }
                Published::Token => {
                    if linger {
                        // Less than a batch may be left after the turn, and then waits from now on.
                        // SAFETY: the publish made the group busy, and its token is ours.
                        *unsafe { group.as_ref().head_end() }.since() = (now / 1_000_000) as u32;
                    }
                    // SAFETY: as above; this is the one token.
                    self.fresh.push(unsafe { token(group, &core.front.ready) });
                }
                Published::Lingering => self.end_linger(group, &grown),
            }
        }
        self.scratch.touched.clear();
        self.insert_lingers();
        held
    }

    fn note_full(&self, door: &Door<K, T>, group: NonNull<Group<K, T>>) {
        // SAFETY: blocks live as long as the engine.
        let hash = unsafe { group.as_ref() }.hash();
        door.gate.close_group(
            &self.core().front.filter,
            hash,
            group,
            self.core().settings.low_mark(),
        );
    }

    /// A group that has just become busy with less than a batch: its token goes into its word.
    fn linger_anew(&mut self, group: NonNull<Group<K, T>>, now: u64) {
        // SAFETY: the publish made the group busy, and its token is ours.
        let reference = unsafe { group.as_ref() };
        // SAFETY: as above.
        *unsafe { reference.head_end() }.since() = (now / 1_000_000) as u32;
        match reference.word.linger(self.core().settings.batch) {
            Ok(sequence) => {
                let deadline = now + self.core().settings.flush.as_nanos() as u64;
                self.waits.push(Entry::Linger(group, sequence, deadline));
            }
            // SAFETY: the token stayed ours.
            Err(_) => self.fresh.push(unsafe { token(group, &self.core().front.ready) }),
        }
    }

    fn end_linger(&mut self, group: NonNull<Group<K, T>>, grown: &Grown) {
        if grown.count < u64::from(self.core().settings.batch) {
            return;
        }
        // SAFETY: blocks live as long as the engine.
        if unsafe { group.as_ref() }.word.end_linger(None) {
            // SAFETY: who clears LINGER owns the token.
            self.fresh.push(unsafe { token(group, &self.core().front.ready) });
        }
    }

    /// A token whose group holds less than a batch after a turn waits for more. `since`: when its oldest task came,
    /// at the latest.
    pub(crate) fn linger_again(&mut self, token: RunToken<'_, K, T>, since: u32) {
        let core = self.core();
        let now = core.front.ready.clock.now();
        let waited = ((now / 1_000_000) as u32).wrapping_sub(since);
        let flush = core.settings.flush.as_nanos() as u64;
        let left = flush.saturating_sub(u64::from(waited) * 1_000_000);
        if left == 0 || core.front.status.refuses() {
            self.queue(token.rest());
            return;
        }
        // SAFETY: we hold the token.
        *unsafe { token.group().head_end() }.since() = since;
        match token.group().word.linger(core.settings.batch) {
            Ok(sequence) => {
                let group = token.as_ptr();
                token.gone();
                self.waits.push(Entry::Linger(group, sequence, now + left));
                self.insert_lingers();
            }
            Err(_) => self.queue(token.rest()),
        }
    }

    fn insert_lingers(&mut self) {
        if self.waits.is_empty() {
            return;
        }
        let core = self.core();
        core.put_in_timer(self.waits.drain(..), || core.front.status.refuses());
    }

    /// Adds up the backlog. `false`: the engine holds all the tasks it may.
    fn add_up(&mut self) -> bool {
        if self.core().front.status.refuses() {
            // What was accepted is bounded already, and all of it must come through.
            self.allowance = u64::from(u32::MAX);
            return true;
        }
        let room = self.core().settings.room.saturating_sub(self.core().in_groups());
        self.allowance =
            if room == 0 { 0 } else { (room / self.seen.len() as u64).clamp(1, 4_096) };
        room > 0
    }

    /// Drops what came out of the claim, and reports the tasks whose keys could not be compared.
    fn clean_up(&mut self) {
        if !self.scratch.rejected.is_empty() {
            self.report_rejected();
        }
        if !self.scratch.garbage_keys.is_empty() {
            self.scratch.garbage_keys.drain(..).for_each(drop_quietly);
        }
        if !self.scratch.garbage_states.is_empty() {
            self.scratch.garbage_states.drain(..).for_each(drop_quietly);
        }
    }

    #[cold]
    fn report_rejected(&mut self) {
        for (key, mut task, failure) in std::mem::take(&mut self.scratch.rejected) {
            let failure = Failure::with_kind(
                format!("comparing keys panicked: {}", failure.reason()),
                failure.kind(),
            );
            // The task belongs to no group, so nothing but a skip can follow.
            let _ = self.core().settings.on_exhausted.verdict(crate::Exhausted {
                key: &key,
                task: &mut task,
                attempts: 0,
                failure: &failure,
            });
            drop_quietly((key, task));
            add(&self.post().counters.failed, 1);
        }
        for tracked in self.scratch.rejected_tickets.drain(..) {
            let failure =
                Failure::with_kind("comparing keys panicked", crate::FailureKind::Panicked);
            tracked.end(Ended::Failed { failure, attempts: 0 });
        }
    }
}

/// # Safety
/// The caller has just become the holder of the group's token.
unsafe fn token<K, T>(group: NonNull<Group<K, T>>, ready: &crate::ready::Ready) -> Unit {
    // SAFETY: the caller's promise.
    unsafe { RunToken::new(group, ready) }.rest()
}
