//! Tokens that wait for a time: back-off, linger, and the alarms of admission.
//!
//! | entry | the run token is | when it fires |
//! |---|---|---|
//! | `BackOff` | in the entry | the unit goes to the tail of the ready list |
//! | `Rate` | in the entry | as `BackOff`; at once when the rate is changed |
//! | `Linger` | in the group's word (LINGER) | whoever clears LINGER with the entry's sequence owns the token |
//! | `Alarm` | in the queue of admission | whoever fired it pumps that queue (flow/admission.rs) |
//!
//! One wheel with ticks of 1 ms under a lock that only workers take. Workers look at `next` (one relaxed load) every
//! few steps. While workers sleep, one of them is the *keeper*: it parks until `next` at the latest.
//!
//! Race: a worker puts an entry in whose deadline is before the one that the keeper sleeps for. It stores `next`,
//! fences, and looks for a keeper to nudge; the keeper announces itself, fences, and looks at `next`. If there is no
//! keeper, it wakes a sleeper, who becomes the keeper. A keeper resigns, fences, and looks at `next` too; if something
//! waits there and it finds a unit to run, it wakes a successor first.
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | `add`: store of `next`, fence, load of `keeper` | SeqCst | the two below | models::timers, mutant `timer-no-fence-add` |
//! | `keep`: CAS of `keeper`, fence, load of `next` | SeqCst | `add` | models::timers, mutant `timer-no-fence-keep` |
//! | `unkeep`: CAS of `keeper`, fence, load of `next` | SeqCst | `add` | models::timers `a_keeper_that_leaves`, mutant `timer-no-fence-unkeep` |

use std::{ptr::NonNull, time::Duration};

use super::{
    lingers::{Fired, Lingers},
    wheel::Wheel,
};
use crate::{
    group::block::Group,
    ready::link::{Chain, Unit},
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, mutant},
};

/// Nanoseconds of a tick.
const TICK: u64 = 1_000_000;
const NEVER: u64 = u64::MAX;
const NOBODY: usize = usize::MAX;

/// What waits for a time.
#[derive(Debug)]
pub(crate) enum Entry<K, T> {
    /// With its deadline in ns.
    BackOff(Unit, u64),
    /// With the sequence of the word, and its deadline in ns.
    Linger(NonNull<Group<K, T>>, u32, u64),
    /// The rate of the group does not let it go on; with its deadline in ns.
    Rate(Unit, u64),
    /// With its deadline in ns.
    Alarm(u64),
}

// SAFETY: the pointer is to a block that lives as long as the engine; only its word is touched without a token.
unsafe impl<K: Send, T: Send> Send for Entry<K, T> {}

impl<K, T> Entry<K, T> {
    fn deadline(&mut self) -> &mut u64 {
        let (Self::BackOff(_, deadline)
        | Self::Linger(_, _, deadline)
        | Self::Rate(_, deadline)
        | Self::Alarm(deadline)) = self;
        deadline
    }
}

/// What the lock of the timers guards.
struct Waiting<K, T> {
    wheel: Wheel<Entry<K, T>>,
    lingers: Lingers<K, T>,
    /// A buffer for what the wheel fires.
    due: Vec<Entry<K, T>>,
}

impl<K, T> Waiting<K, T> {
    fn insert(&mut self, mut entry: Entry<K, T>) {
        let deadline = *entry.deadline();
        self.wheel.insert(tick_from(deadline), entry);
    }
}

/// What follows from a new entry for the keeper of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum KeeperCall {
    /// Nothing: it wakes early enough.
    None,
    /// It sleeps too long: unpark it.
    Nudge(usize),
    /// There is none: a sleeper, if any, must become it.
    Appoint,
}

/// See the module text.
pub(crate) struct Timers<K, T> {
    waiting: Mutex<Waiting<K, T>>,
    /// The tick at which somebody should look; `NEVER` when nothing waits.
    next: AtomicU64,
    keeper: AtomicUsize,
}

/// The tick that has begun at `now` ns.
fn tick(now: u64) -> u64 {
    now / TICK
}

/// The first tick that begins at or after `at` ns.
fn tick_from(at: u64) -> u64 {
    at.div_ceil(TICK)
}

impl<K, T> Timers<K, T> {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                wheel: Wheel::new(tick(now)),
                lingers: Lingers::new(),
                due: Vec::new(),
            }),
            next: AtomicU64::new(NEVER),
            keeper: AtomicUsize::new(NOBODY),
        }
    }

    /// Adds entries, and says what the keeper must be told. `hurry` is asked under the
    /// lock: entries of linger and of rates then fire at once.
    pub(crate) fn add(
        &self,
        entries: impl IntoIterator<Item = Entry<K, T>>,
        hurry: impl FnOnce() -> bool,
    ) -> KeeperCall {
        let mut waiting = self.waiting.lock();
        let hurry = hurry();
        for mut entry in entries {
            if hurry && matches!(entry, Entry::Linger(..) | Entry::Rate(..)) {
                *entry.deadline() = 0;
            }
            if let Entry::Linger(group, sequence, deadline) = entry
                && !waiting.lingers.begin(group, sequence, deadline)
            {
                continue;
            }
            waiting.insert(entry);
        }
        let before = self.next.load(Ordering::Relaxed);
        let next = waiting.wheel.next_deadline().unwrap_or(NEVER);
        self.next.store(next, Ordering::Relaxed);
        drop(waiting);
        if !mutant("timer-no-fence-add") {
            // ORDERING: SeqCst fence between the store of `next` and the look for a keeper; pairs with `keep`.
            fence(Ordering::SeqCst);
        }
        match self.keeper.load(Ordering::Relaxed) {
            NOBODY => KeeperCall::Appoint,
            keeper if next < before => KeeperCall::Nudge(keeper),
            _ => KeeperCall::None,
        }
    }

    /// Something is due at `now` ns.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.next.load(Ordering::Relaxed) <= tick(now)
    }

    /// Something waits.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.next.load(Ordering::Relaxed) != NEVER
    }

    /// Fires what is due; the units that become ready go into `out`. Does nothing when another worker is at it. `true`: an
    /// alarm was among it.
    pub(crate) fn fire(&self, now: u64, out: &mut Chain) -> bool {
        let Some(mut waiting) = self.waiting.try_lock() else { return false };
        let Waiting { wheel, lingers, due } = &mut *waiting;
        wheel.advance(tick(now), due);
        let mut alarm = false;
        for entry in due.drain(..) {
            match entry {
                Entry::Linger(group, sequence, at) => match lingers.fire(group, at) {
                    Fired::Ends(sequence) => end_linger(group, sequence, out),
                    Fired::Again(at) => {
                        wheel.insert(tick_from(at), Entry::Linger(group, sequence, at));
                    }
                    Fired::Nothing => {}
                },
                Entry::BackOff(unit, _) | Entry::Rate(unit, _) => out.push(unit),
                Entry::Alarm(_) => alarm = true,
            }
        }
        self.note_next(wheel);
        alarm
    }

    /// Ends every linger (the engine drains). The rest stays.
    pub(crate) fn end_lingers(&self, out: &mut Chain) {
        self.sift(|entry, lingers| {
            let Entry::Linger(group, ..) = entry else { return Some(entry) };
            if let Some(sequence) = lingers.end(group) {
                end_linger(group, sequence, out);
            }
            None
        });
    }

    /// Ends every wait for the rate of a group: it was changed.
    pub(crate) fn end_rates(&self, out: &mut Chain) {
        self.sift(|entry, _| {
            let Entry::Rate(unit, _) = entry else { return Some(entry) };
            out.push(unit);
            None
        });
    }

    /// Shows every entry to `keep`; what it hands back stays.
    fn sift(&self, mut keep: impl FnMut(Entry<K, T>, &mut Lingers<K, T>) -> Option<Entry<K, T>>) {
        let mut waiting = self.waiting.lock();
        for entry in waiting.wheel.drain() {
            if let Some(entry) = keep(entry, &mut waiting.lingers) {
                waiting.insert(entry);
            }
        }
        self.note_next(&waiting.wheel);
    }

    /// Takes the token of this group out, where it waits for a time. Looks at every entry: for what is done by hand.
    pub(crate) fn take(&self, group: NonNull<Group<K, T>>) -> Option<Unit> {
        let mut waiting = self.waiting.lock();
        let taken = waiting.wheel.remove(|entry| match entry {
            Entry::BackOff(unit, _) | Entry::Rate(unit, _) => unit.is_group(group.cast()),
            Entry::Linger(..) | Entry::Alarm(_) => false,
        });
        self.note_next(&waiting.wheel);
        match taken {
            Some(Entry::BackOff(unit, _) | Entry::Rate(unit, _)) => Some(unit),
            _ => None,
        }
    }

    /// Under the lock of this wheel.
    fn note_next(&self, wheel: &Wheel<Entry<K, T>>) {
        self.next.store(wheel.next_deadline().unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// For the watch: shows each group whose token lies here, with the attempts of its first task so far and its deadline, until
    /// `show` says that it has seen enough. The lock is held meanwhile.
    pub(crate) fn look(&self, mut show: impl FnMut(NonNull<Group<K, T>>, u32, u64) -> bool) {
        let waiting = self.waiting.lock();
        for entry in waiting.wheel.iter() {
            let (Entry::BackOff(unit, deadline) | Entry::Rate(unit, deadline)) = entry else {
                continue;
            };
            let Some(group) = unit.as_group() else { continue };
            let group = group.cast::<Group<K, T>>();
            // SAFETY: the token lies here and we hold the lock: the consumer side is ours.
            let mut head = unsafe { group.as_ref().head_end() };
            let first = head.trouble().as_ref().and_then(|trouble| trouble.marks.first());
            if !show(group, first.map_or(0, |mark| mark.attempts), *deadline) {
                return;
            }
        }
    }

    /// Worker `id` is about to park: may it keep the time, and how long may it sleep at most?
    pub(crate) fn keep(&self, id: usize, now: u64) -> Option<Duration> {
        let keeper = self.keeper.compare_exchange(NOBODY, id, Ordering::Relaxed, Ordering::Relaxed);
        if keeper.is_err() {
            return None;
        }
        if !mutant("timer-no-fence-keep") {
            // ORDERING: SeqCst fence between the announcement and the look at `next`; pairs with `add`.
            fence(Ordering::SeqCst);
        }
        let next = self.next.load(Ordering::Relaxed);
        (next != NEVER && !mutant("timer-no-alarm"))
            .then(|| Duration::from_nanos((next * TICK).saturating_sub(now)))
    }

    /// Worker `id` is awake. `true`: it was the keeper, and something still waits for a time.
    pub(crate) fn unkeep(&self, id: usize) -> bool {
        let was = self.keeper.compare_exchange(id, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
        if was.is_err() {
            return false;
        }
        if !mutant("timer-no-fence-unkeep") {
            // ORDERING: SeqCst fence between the resignation and the look at `next`; pairs with `add`: it finds
            // nobody and has a keeper appointed, or we see its entry.
            fence(Ordering::SeqCst);
        }
        self.any()
    }
}

/// The linger with this sequence is over, unless it has ended otherwise.
fn end_linger<K, T>(group: NonNull<Group<K, T>>, sequence: u32, out: &mut Chain) {
    // SAFETY: blocks live as long as the engine; the word is atomic.
    if unsafe { group.as_ref() }.word.end_linger(Some(sequence)) {
        out.push(Unit::group(group.cast()));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::group::block::Block;

    const MS: u64 = TICK;

    fn fired(timers: &Timers<u32, u32>, now: u64) -> usize {
        let mut out = Chain::default();
        timers.fire(now, &mut out);
        let n = out.len();
        while let Some(unit) = out.pop() {
            unit.open();
        }
        n
    }

    /// Batches that fill up early leave one entry of their group in the wheel, not one each; and the last linger ends at its own time.
    #[test]
    fn lingers_that_end_early_leave_one_entry() {
        let timers = Timers::<u32, u32>::new(0);
        let block = Block::<u32, u32, ()>::new();
        let (group, word) = (NonNull::from(&block.group), &block.group.word);
        word.publish(1);
        for begun in 0..1_000 {
            let sequence = word.linger(10).expect("one of ten");
            let _ = timers.add([Entry::Linger(group, sequence, (begun + 5_000) * MS)], || false);
            assert_eq!(timers.waiting.lock().wheel.len(), 1);
            if begun < 999 {
                assert!(word.end_linger(None), "as if the batch had filled up");
            }
        }
        assert_eq!(fired(&timers, 5_998 * MS), 0, "an earlier linger would have ended");
        assert_eq!(timers.waiting.lock().wheel.len(), 1);
        assert_eq!(fired(&timers, 5_999 * MS), 1);
        assert!(!timers.any());
    }

    /// What is hurried stays so when all entries are looked at (a drain, a change of rates).
    #[test]
    fn a_hurried_entry_is_not_put_back_at_its_own_time() {
        let timers = Timers::<u32, u32>::new(0);
        let block = Block::<u32, u32, ()>::new();
        let (group, word) = (NonNull::from(&block.group), &block.group.word);
        word.publish(1);
        let sequence = word.linger(10).expect("one of ten");
        let _ = timers.add([Entry::Linger(group, sequence, 5_000 * MS)], || true);
        timers.end_rates(&mut Chain::default());
        assert_eq!(fired(&timers, MS), 1);
    }
}
