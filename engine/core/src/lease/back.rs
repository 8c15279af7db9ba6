//! The way back: a completion, and what settles it where no worker does.

use std::{collections::HashSet, ptr::NonNull, time::Instant};

use super::{Home, Leased};
use crate::{
    core::Core,
    exact::Weighed,
    flow::admission::Feedback,
    group::{
        block::{Flags, Group, Place},
        segment::Pool,
    },
    handler::{Budget, Phase, Turn, Work},
    outcome::Trouble,
    ready::link::Unit,
    sync::{AtomicU64, Mutex, Ordering, fence, mutant},
    wait::turns::{self, Endings},
    watch::stats::Counters,
    worker::{
        Random,
        settle::{Settled, settle},
    },
};

/// Leases of one engine: how many came back, and what close did with those that came late.
#[derive(Debug)]
pub(crate) struct Leases {
    /// How many came back; how many went out stands in the workers' counters.
    pub(crate) returned: AtomicU64,
    /// Tasks that close settled, after the workers were gone.
    pub(crate) late: Counters,
    /// One close settles at a time.
    closing: Mutex<()>,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { returned: AtomicU64::new(0), late: Counters::new(), closing: Mutex::new(()) }
    }

    /// A lease has come back, and its group says so. `stopped`: the engine is halted, and who waits for leases must be told.
    pub(crate) fn note(&self, stops: impl FnOnce() -> bool) -> bool {
        // ORDERING: Release pairs with the Acquire of `Core::leases_out`: who finds none out finds every group `Returned`.
        self.returned.fetch_add(1, Ordering::Release);
        if !mutant("lease-no-fence") {
            // ORDERING: SeqCst fence between the count and the look at the status; pairs with that of a close, which halts, fences
            // (`DrainWatch::wait_until`) and then looks at the count.
            fence(Ordering::SeqCst);
        }
        stops() && !mutant("lease-no-notify")
    }
}

impl<K, T, W> Home<K, T> for Core<K, T, W>
where
    K: Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    unsafe fn take_back(&self, group: NonNull<Group<K, T>>, record: Box<Trouble>) {
        // SAFETY: blocks live as long as the core.
        let block = unsafe { group.as_ref() };
        let home = self.front.home(self.front.shard_of(block.hash()));
        // SAFETY: the caller has the token.
        *unsafe { block.head_end() }.trouble() = Some(record);
        block.return_lease();
        let tell = self.leases.note(|| self.front.status.stops());
        // From here on the group is another's. Its block stays a block, so the link of the unit is there to be written even when a close
        // has taken the group apart meanwhile.
        if mutant("lease-back-unheard") {
            self.front.ready.posts[home].inbox.push(Unit::group(group.cast()));
            return;
        }
        self.front.ready.send(home, Unit::group(group.cast()));
        if tell {
            self.watch.notify();
        }
    }
}

impl<K, T, W: Work<K, T>> Core<K, T, W> {
    /// Leases that are out now.
    pub(crate) fn leases_out(&self) -> u64 {
        // ORDERING: Acquire, see `Leases::note`. Read first: what is lent meanwhile counts as out.
        let returned = self.leases.returned.load(Ordering::Acquire);
        let posts = self.front.ready.posts.iter();
        posts.map(|post| post.counters.lent.load(Ordering::Acquire)).sum::<u64>() - returned
    }

    /// Close: waits until every lease is back, at most until `deadline`.
    pub(crate) fn leases_at_rest(&self, deadline: Option<Instant>) {
        if W::LEASES {
            self.watch.wait_until(deadline, || self.leases_out() == 0);
        }
    }

    /// Settles a lease that has come back: the code of a turn, with the outcomes of the lease. The caller has the token, and moves it and the
    /// count of the word on.
    pub(crate) fn settle_lease(
        &self,
        group: &Group<K, T>,
        pool: &mut Pool<T>,
        random: &mut Random,
        endings: &mut Endings,
    ) -> (Settled, Leased) {
        // SAFETY: the caller has the token. It is put back below.
        let mut head = unsafe { group.head_end() };
        let mut record = head.trouble().take().expect("a group that is Returned has its record");
        let mut leased = record.lease.take().expect("as above");
        group.set_place(Place::Ready);
        let mut turn = Turn {
            // SAFETY: as above; the group is live.
            key: unsafe { group.key() },
            head: &mut head,
            pool,
            trouble: None,
            planned: leased.tasks,
            budget: Budget::new(&self.front.ready.clock, &self.settings.budget),
            status: &self.front.status,
            word: &group.word,
            phase: Phase::Between,
            done: 0,
            failed: None,
            outcomes: &mut leased.outcomes,
            endings,
            batched: true,
        };
        let mut settled = Settled::default();
        let marks = (!record.marks.is_empty()).then_some(record);
        let marks = settle(&self.settings, &mut turn, None, marks, random, &mut settled);
        *head.trouble() = marks;
        // SAFETY: the caller has the token.
        unsafe { group.set_head(head) };
        (settled, leased)
    }

    /// Close, after a halt: settles the leases that have come back, but for groups that a worker has in hand. What is left of their groups
    /// can be given back then.
    pub(crate) fn settle_returned(&self, running: &HashSet<NonNull<Group<K, T>>>) {
        if !W::LEASES {
            return;
        }
        // User policies run here as on a worker: a close inside one must not wait for this one.
        let _adopted = self.front.adopt_closing_thread();
        let _closing = self.leases.closing.lock();
        let mut pool = Pool::new(self.segments.clone());
        let mut endings = Endings::new();
        let mut random = Random::new(self.front.ready.clock.now());
        for back in self.backs.iter().filter(|_| !mutant("lease-late-forgotten")) {
            // Settled without the claim: policies and drops are user code.
            let returned: Vec<_> = {
                let back = back.lock();
                let groups = (0..back.slab.used()).map(|index| back.group(index));
                let returned = groups.filter(|group| {
                    // SAFETY: we hold the claim.
                    let live = unsafe { group.producer() }.flags.has(Flags::LIVE);
                    live && group.place_now() == Place::Returned
                });
                returned.map(NonNull::from).collect()
            };
            for group in returned.into_iter().filter(|group| !running.contains(group)) {
                // SAFETY: as above.
                let block = unsafe { group.as_ref() };
                // The engine is halted and no worker has the group in hand: its token is ours (I4).
                let weighed = Weighed::of_lease(block, &pool);
                let (settled, leased) =
                    self.settle_lease(block, &mut pool, &mut random, &mut endings);
                let freed = weighed.freed(block, &pool, settled.removed);
                turns::tell(&mut endings);
                block.word.settle(settled.removed);
                self.give_room_back(settled.removed, freed);
                let late = &self.leases.late;
                // ORDERING: Release, as `watch::stats::add`.
                late.done.fetch_add(u64::from(settled.done), Ordering::Release);
                let failed = u64::from(settled.removed - settled.done);
                late.failed.fetch_add(failed, Ordering::Release);
                late.retries.fetch_add(u64::from(settled.retries), Ordering::Release);
                if let Some(admitted) = leased.admitted {
                    self.change_limits(|now, ready| {
                        self.admission.leave(Some(admitted), Feedback::default(), now, ready)
                    });
                }
            }
        }
    }
}
