//! The word of a group, as pure functions: who may run it, how much waits in it, and why it stands still.
//!
//! ```text
//!  63            40 39 37   36     35     34     33     32  31                0
//! +----------------+-----+-------+------+------+------+------+----------------+
//! |    sequence    |  -  |TRACKED|CALLED|HALTED| FULL |LINGER|     count      |
//! +----------------+-----+-------+------+------+------+------+----------------+
//! ```
//!
//! `count` is the number of tasks that were published to the group and are not settled yet. It is at the same time
//! the tail of the group's ring (the consumer reads no other index of the producer) and the run flag:
//!
//! | word | the run token is | who may change it |
//! |---|---|---|
//! | count = 0, no flag | nowhere: the group is idle | the claim holder (`activate`) |
//! | count > 0, no flag | in a hand, a deque, an inbox, the overflow list or the timer | claim holder adds, token holder settles |
//! | LINGER | in the word itself: who clears LINGER owns it | claim holder (batch full), timer, drain |
//! | HALTED | in the table of held groups | claim holder adds only; who takes the token out of the table releases it |
//! | CALLED | as without it, also with count = 0; its holder asks the table of held groups before it runs | set under claim and table's lock, or by the token holder; cleared by the token holder under that lock |
//! | FULL | as without it; submitters are told to wait | set by the claim holder, cleared by who relieves |
//! | TRACKED | as without it; some tasks may have tickets (wait/tickets.rs) | set by the claim holder, cleared by the token holder |
//!
//! Invariants (tests name them):
//!
//! * **I1** A run token exists if and only if the word is not idle.
//! * **I2** Only the claim holder takes a word from idle to busy, only the token holder from busy to idle.
//! * **I3** `count` never goes below zero and never loses a publish: both sides use one read-modify-write, so the
//!   claim holder's add and the token holder's give-up are ordered, and the later one sees the earlier.
//! * **I4** LINGER is set by a compare-and-swap that saw fewer tasks than a batch; whoever clears it owns the token;
//!   `sequence` goes up with each setting, so an old timer entry finds another number.
//!
//! Orderings:
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | `publish` (claim holder) | AcqRel RMW | `settle`, `Word::load` of the token holder | models::run_flag `turns`, mutant `publish-relaxed` |
//! | `settle` (token holder) | AcqRel RMW | `publish`, `load` of the next claim holder | models::run_flag `turns`, mutant `settle-relaxed` |
//! | `activate` (idle only) | Relaxed store | the hand-over of the token that follows | models::run_flag `turns`, mutant `activate-busy` |
//! | `load` | Acquire | `publish` and `settle` | models::run_flag `turns`, mutant `load-relaxed` |
//! | skipping the RMW because a load says busy | forbidden | | models::run_flag `turns`, mutant `publish-skips-rmw` |
//! | `linger` (token holder) | AcqRel CAS | `publish` of who takes the token out | models::run_flag `linger_again`, mutant `linger-relaxed` |
//! | `end_linger` | CAS on flag and sequence | `end_linger` of all others | models::run_flag `linger`, mutants `end-linger-no-cas`, `linger-any-sequence` |
//! | `call` (claim holder) | AcqRel CAS on the whole word | `settle`, `linger`, `end_linger` of the others | models::held `pause`, mutants `call-by-load`, `called-is-idle` |
//! | `hold`, `free`, `recall` (token holder, table's lock) | AcqRel RMW, whose result counts | `publish` | models::held `pause`, `halt`, mutants `halt-by-load`, `free-by-store` |
//! | `set_full` | RMW, whose result counts | `settle` | models::gate `full`, mutant `full-no-second-look` |
//!
//! What is not shown: the Acquire half of `end_linger`, `hold` and `set_full` (whoever gets the token loads the word
//! before it touches the group), and any order of `clear_full` (the gate's lock orders it).
//!
//! Cost: one RMW per (chunk, group) that is busy, none where it is idle, and one RMW per turn.

use crate::sync::{AtomicU64, Ordering, mutant};

/// Tasks that a group can hold at most.
pub(crate) const MAX_COUNT: u64 = COUNT;
const COUNT: u64 = (1 << 32) - 1;
const LINGER: u64 = 1 << 32;
const FULL: u64 = 1 << 33;
const HALTED: u64 = 1 << 34;
const CALLED: u64 = 1 << 35;
const TRACKED: u64 = 1 << 36;
const FLAGS: u64 = LINGER | FULL | HALTED | CALLED;
/// Without any of these, and without a task, nobody has a token.
const BUSY: u64 = COUNT | LINGER | HALTED | CALLED;
const SEQUENCE_SHIFT: u32 = 40;
const SEQUENCE_ONE: u64 = 1 << SEQUENCE_SHIFT;
/// A sequence is below this.
pub(crate) const SEQUENCES: u32 = 1 << (u64::BITS - SEQUENCE_SHIFT);

/// A value of the word. Every decision of the engine about a group is a function of such a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State(u64);

impl State {
    pub(crate) const fn count(self) -> u32 {
        (self.0 & COUNT) as u32
    }
    pub(crate) fn is_idle(self) -> bool {
        self.0 & if mutant("called-is-idle") { BUSY & !CALLED } else { BUSY } == 0
    }
    /// Idle and with no flag but TRACKED: the group may be activated by a plain store, or reclaimed.
    pub(crate) const fn is_quiet(self) -> bool {
        self.0 & (COUNT | FLAGS) == 0
    }
    pub(crate) const fn lingers(self) -> bool {
        self.0 & LINGER != 0
    }
    pub(crate) const fn is_full(self) -> bool {
        self.0 & FULL != 0
    }
    pub(crate) const fn is_halted(self) -> bool {
        self.0 & HALTED != 0
    }
    /// CALLED or TRACKED: a turn has more to do than to run tasks.
    #[inline(always)]
    pub(crate) const fn wants_care(self) -> bool {
        self.0 & (CALLED | TRACKED) != 0
    }
    /// No task, and nothing else to say but the sequence.
    #[inline(always)]
    pub(crate) const fn is_bare(self) -> bool {
        self.0 & (COUNT | FLAGS | TRACKED) == 0
    }
    /// The token holder is to ask the table of held groups what is wanted.
    #[inline(always)]
    pub(crate) const fn is_called(self) -> bool {
        self.0 & CALLED != 0
    }
    pub(crate) const fn is_tracked(self) -> bool {
        self.0 & TRACKED != 0
    }
    pub(crate) const fn sequence(self) -> u32 {
        (self.0 >> SEQUENCE_SHIFT) as u32
    }
    const fn activated(self, n: u32) -> Self {
        Self(self.0 + n as u64)
    }
    const fn lingering(self) -> Self {
        Self((self.0 | LINGER).wrapping_add(SEQUENCE_ONE))
    }
}

/// Of two settings of LINGER in one word, that with sequence `a` is the later one: fewer than half of all sequences lie between them.
pub(crate) fn is_later(a: u32, b: u32) -> bool {
    let ahead = a.wrapping_sub(b) % SEQUENCES;
    ahead != 0 && ahead < SEQUENCES / 2
}

/// What a publish means for the claim holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Published {
    /// The group was idle: the claim holder now holds its run token.
    Token,
    /// Somebody else holds the token and will see the tasks.
    Busy,
    /// The group lingers (the token is in the word); it may be taken if a batch is full.
    Lingering,
    /// The group is halted or paused: its tasks wait until it is resumed or given back.
    Held,
}

/// What a call means for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Called {
    /// The group was idle or lingering: the caller now holds its run token, and the word says HALTED.
    Token,
    /// Somebody else holds the token, and asks the table of held groups before a task runs.
    Busy,
    /// The token is in the table of held groups.
    Held,
}

/// Decides what a publish that found `before` means.
pub(crate) const fn published(before: State) -> Published {
    if before.is_halted() {
        Published::Held
    } else if before.lingers() {
        Published::Lingering
    } else if before.count() == 0 && !before.is_called() {
        Published::Token
    } else {
        Published::Busy
    }
}

/// The atomic word of one group.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn load(&self) -> State {
        // ORDERING: Acquire pairs with the AcqRel RMW of `publish` (the token holder then sees the tasks' bytes)
        // and of `settle` (the claim holder then sees the consumer's side of the ring at rest).
        let order = if mutant("load-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        State(self.0.load(order))
    }

    /// Claim holder, group quiet (see [`State::is_quiet`], read under this claim): makes it busy with `n` tasks.
    /// The caller now holds the run token.
    #[inline]
    pub(crate) fn activate(&self, quiet: State, n: u32) {
        debug_assert!(quiet.is_quiet() && n > 0);
        // Relaxed: nobody but the claim holder writes an idle word (I2); the token's hand-over publishes it.
        self.0.store(quiet.activated(n).0, Ordering::Relaxed);
    }

    /// Claim holder: adds `n` tasks, whose bytes are written, and returns the word before and its meaning.
    #[inline]
    pub(crate) fn publish(&self, n: u32) -> (State, Published) {
        if mutant("publish-skips-rmw") && !State(self.0.load(Ordering::Relaxed)).is_idle() {
            // The mutant of tokio #7589: "it says scheduled, so somebody will look".
            let seen = State(self.0.load(Ordering::Relaxed));
            self.0.fetch_add(u64::from(n), Ordering::AcqRel);
            return (seen, Published::Busy);
        }
        if mutant("halt-forgotten") {
            self.0.fetch_and(!HALTED, Ordering::AcqRel);
        }
        if mutant("activate-busy") {
            // What `activate` does, to a group that may be busy.
            let seen = State(self.0.load(Ordering::Relaxed));
            self.0.store(seen.activated(n).0, Ordering::Relaxed);
            return (seen, published(seen));
        }
        // ORDERING: Release publishes the slots to the token holder's `load` or `settle`; Acquire takes over the
        // consumer side when the group turned idle in between.
        let order = if mutant("publish-relaxed") { Ordering::Relaxed } else { Ordering::AcqRel };
        let before = State(self.0.fetch_add(u64::from(n), order));
        debug_assert!(u64::from(before.count()) + u64::from(n) <= MAX_COUNT);
        (before, published(before))
    }

    /// Token holder: `n` tasks are settled. Returns the word after; when it is idle the token is gone.
    #[inline]
    pub(crate) fn settle(&self, n: u32) -> State {
        // ORDERING: Release hands the consumer's side (head index, per-group state) to the next claim or token
        // holder; Acquire sees the slots of a publish that came before.
        let order = if mutant("settle-relaxed") { Ordering::Relaxed } else { Ordering::AcqRel };
        let before = State(self.0.fetch_sub(u64::from(n), order));
        debug_assert!(before.count() >= n);
        State(before.0 - u64::from(n))
    }

    /// Token holder: leaves the token in the word until a batch is full or the timer fires. `Ok` carries the
    /// sequence for the timer entry; from then on the caller owns nothing. `Err`: a batch is there, run it.
    pub(crate) fn linger(&self, batch: u32) -> Result<u32, State> {
        let mut seen = self.load();
        loop {
            if seen.count() >= batch || seen.0 & (HALTED | CALLED) != 0 {
                return Err(seen);
            }
            let next = seen.lingering();
            // ORDERING: Release hands the consumer side to whoever clears LINGER; Acquire as in `load`.
            let order = if mutant("linger-relaxed") { Ordering::Relaxed } else { Ordering::AcqRel };
            match self.0.compare_exchange_weak(seen.0, next.0, order, Ordering::Acquire) {
                Ok(_) => return Ok(next.sequence()),
                Err(now) => seen = State(now),
            }
        }
    }

    /// Takes the token out of the word. With a `sequence` only if that very setting still stands.
    /// `true`: the caller holds the run token.
    pub(crate) fn end_linger(&self, sequence: Option<u32>) -> bool {
        let mut seen = self.load();
        loop {
            let stale = sequence.is_some_and(|wanted| wanted != seen.sequence());
            if !seen.lingers() || (stale && !mutant("linger-any-sequence")) {
                return false;
            }
            if mutant("end-linger-no-cas") {
                self.0.fetch_and(!LINGER, Ordering::AcqRel);
                return true;
            }
            // ORDERING: Acquire pairs with the Release of `linger`; Release keeps the chain to the next holder.
            match self.0.compare_exchange_weak(
                seen.0,
                seen.0 & !LINGER,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => seen = State(now),
            }
        }
    }

    /// Claim holder, under the table's lock: takes the token where the group is idle or lingers, and leaves word for its
    /// holder where it is busy.
    pub(crate) fn call(&self) -> Called {
        let mut seen = self.load();
        loop {
            let (next, meaning) = if seen.is_halted() {
                return Called::Held;
            } else if seen.lingers() || (seen.count() == 0 && !seen.is_called()) {
                (seen.0 & !LINGER | HALTED, Called::Token)
            } else {
                (seen.0 | CALLED, Called::Busy)
            };
            if mutant("call-by-load") {
                self.0.fetch_and(!LINGER, Ordering::AcqRel);
                self.0.fetch_or(next & FLAGS, Ordering::AcqRel);
                return meaning;
            }
            // ORDERING: Acquire pairs with the Release of `settle` and `linger`: with the token comes the consumer side.
            // Release as in `settle`.
            match self.0.compare_exchange_weak(seen.0, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return meaning,
                Err(now) => seen = State(now),
            }
        }
    }

    /// Token holder, before it settles what ran: the table of held groups is asked before anything else runs.
    pub(crate) fn call_self(&self) {
        // ORDERING: AcqRel, as `settle`.
        self.0.fetch_or(CALLED, Ordering::AcqRel);
    }

    /// Token holder, under the table's lock: from now on publishes are held. Returns the word before: its count is what is
    /// held now.
    pub(crate) fn hold(&self) -> State {
        if mutant("halt-by-load") {
            let seen = self.load();
            self.0.fetch_or(HALTED, Ordering::AcqRel);
            self.0.fetch_and(!CALLED, Ordering::AcqRel);
            return seen;
        }
        let seen = self.load();
        if seen.is_halted() {
            // Under the claim, by a call that took the token: nobody publishes meanwhile.
            return seen;
        }
        debug_assert!(seen.is_called());
        // CALLED is set and HALTED is not, and only we change them: one addition turns one into the other.
        // ORDERING: AcqRel, as `settle`: one total order with the publishes decides which of them count as held.
        State(self.0.fetch_sub(CALLED - HALTED, Ordering::AcqRel))
    }

    /// Token holder, under the table's lock: nothing is wanted of the group any more. Returns the word after; when it is idle
    /// the token is gone.
    pub(crate) fn free(&self) -> State {
        if mutant("free-by-store") {
            let seen = self.load();
            self.0.store(seen.0 & !(CALLED | HALTED), Ordering::Release);
            return State(seen.0 & !(CALLED | HALTED));
        }
        // ORDERING: AcqRel, as `settle`: it may be what makes the group idle.
        let before = self.0.fetch_and(!(CALLED | HALTED), Ordering::AcqRel);
        State(before & !(CALLED | HALTED))
    }

    /// Token holder, under the table's lock: the group may run, but its holder asks again.
    pub(crate) fn recall(&self) {
        if self.load().is_halted() {
            // ORDERING: AcqRel, as `hold`.
            self.0.fetch_add(CALLED - HALTED, Ordering::AcqRel);
        }
    }

    /// Claim holder, before the task with a ticket is counted: dispatches look for tickets from now on.
    pub(crate) fn track(&self) {
        // Relaxed: the publish that follows is on the same word.
        self.0.fetch_or(TRACKED, Ordering::Relaxed);
    }

    /// Token holder, under the lock of the shard's tickets, of which none is the group's.
    pub(crate) fn untrack(&self) {
        // Relaxed: the lock orders it (wait/tickets.rs, I1).
        self.0.fetch_and(!TRACKED, Ordering::Relaxed);
    }

    /// Claim holder, under the gate's lock: submitters must wait. Returns the word before.
    pub(crate) fn set_full(&self) -> State {
        // ORDERING: AcqRel: ordered with `settle`, so that one of the two sides sees the other (flow/gate.rs).
        State(self.0.fetch_or(FULL, Ordering::AcqRel))
    }

    /// Under the gate's lock: submitters may go on.
    pub(crate) fn clear_full(&self) {
        // ORDERING: AcqRel, as `set_full`.
        self.0.fetch_and(!FULL, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn i1_and_i2_a_token_appears_once_and_goes_once() {
        let word = Word::new();
        assert!(word.load().is_quiet());
        word.activate(word.load(), 3);
        assert_eq!(word.publish(2).1, Published::Busy);
        assert!(!word.settle(4).is_idle());
        assert!(word.settle(1).is_idle());
        assert_eq!(word.publish(1).1, Published::Token);
    }

    #[test]
    fn i4_an_old_linger_entry_finds_another_sequence() {
        let word = Word::new();
        word.activate(word.load(), 1);
        let first = word.linger(10).expect("one of ten");
        assert_eq!(word.publish(1).1, Published::Lingering);
        assert!(word.end_linger(Some(first)));
        let second = word.linger(10).expect("two of ten");
        assert!(!word.end_linger(Some(first)), "stale entry");
        assert!(word.end_linger(Some(second)));
        assert!(!word.end_linger(None), "nobody else owns the token");
        word.publish(8);
        assert!(word.linger(10).is_err(), "a full batch does not wait");
    }

    #[test]
    fn the_sequence_wraps_without_touching_the_rest() {
        let word = Word(AtomicU64::new(u64::MAX << SEQUENCE_SHIFT));
        word.activate(word.load(), 1);
        assert_eq!(word.linger(2), Ok(0));
        assert_eq!(word.load().count(), 1);
        assert!(word.load().lingers());
    }

    #[test]
    fn a_held_group_is_never_idle_and_holds_what_comes() {
        let word = Word::new();
        word.activate(word.load(), 1);
        word.call_self();
        assert!(!word.settle(1).is_idle(), "the token is not gone before the table was asked");
        assert_eq!(word.hold().count(), 0);
        assert!(!word.load().is_idle(), "the token waits in the table of held groups");
        assert_eq!(word.publish(2).1, Published::Held);
        assert_eq!(word.call(), Called::Held);
        assert_eq!(word.free().count(), 2);
        assert!(word.settle(2).is_idle());
    }

    #[test]
    fn i2_a_call_takes_the_token_of_an_idle_or_lingering_group_and_of_no_other() {
        let word = Word::new();
        assert_eq!(word.call(), Called::Token);
        assert!(word.free().is_idle());
        word.activate(word.load(), 1);
        let sequence = word.linger(2).expect("one of two");
        assert_eq!(word.call(), Called::Token);
        assert!(!word.end_linger(Some(sequence)), "the token is the caller's");
        word.recall();
        assert_eq!(word.call(), Called::Busy);
        assert!(word.linger(2).is_err(), "its holder is called");
        assert!(!word.settle(1).is_idle());
        assert_eq!(
            word.publish(1).1,
            Published::Busy,
            "the token exists, though there was no task"
        );
        assert_eq!(word.free().count(), 1);
    }
}
