//! Who pays for the store-load race between a lane and a shard that goes idle: its producers, or the claim holder.
//!
//! The race is that of shard/flag.rs: a producer pushes a record into its lane and looks at the flag; the claim holder finds
//! the lanes empty, stores IDLE, and looks at the lanes once more. A lane has no read-modify-write to hang the order on.
//! Where the shard is busy the producer should pay nothing, so the claim holder pays the heavy barrier (a system call that
//! interrupts all other threads of the process). But a shard with few records goes idle after every few of them, and
//! sixteen of them ate 40 % of the processor time beside one hot shard. So a shard has two modes:
//!
//! | mode | producer, between push and flag | claim holder, to let the shard rest |
//! |---|---|---|
//! | fenced (at first, and after a rest) | a fence | IDLE, a fence, another look |
//! | light (while looks find many records) | the light barrier | IDLE, fenced, heavy barrier, another look |
//!
//! Only the claim holder changes the mode, and a shard that rests is fenced.
//!
//! | operation | order | pairs with | proof |
//! |---|---|---|---|
//! | producer: push, fence, load of the flag | SeqCst fence | claim holder: IDLE, fence, look at the lanes | models::lane `idle_fenced`, mutants `fenced-no-fence`, `rest-no-fence` |
//! | claim holder: IDLE, fenced, heavy barrier, look at the lanes | fence | producer: push, light barrier, load of mode and flag | models::lane `idle`, mutants `barrier-light-missing`, `barrier-heavy-missing` |

use crate::{
    ingress::barrier::Barrier,
    sync::{AtomicBool, Ordering, fence, mutant},
};

/// What makes a shard light: so many records, not counting so many for each rest meanwhile. (A fence costs some 10 ns, a rest
/// of a light shard some microseconds.)
const MANY: u32 = 256;
const A_REST: u32 = 16;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Fenced(AtomicBool);

impl Fenced {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Producer, between the push and the load of the flag.
    #[inline(always)]
    pub(crate) fn after_push(&self, barrier: Barrier) {
        barrier.light();
        if self.0.load(Ordering::Relaxed) && !mutant("fenced-no-fence") {
            // ORDERING: SeqCst fence between the push and the load of the flag; pairs with the one in `Mode::pay`.
            fence(Ordering::SeqCst);
        }
    }

    /// Claim holder: producers need not fence while the shard is looked at again and again.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The claim holder's copy of the mode, and what it has seen lately.
#[derive(Debug)]
pub(crate) struct Mode {
    fenced: bool,
    /// Records since it became fenced, less those for its rests.
    score: u32,
}

impl Mode {
    pub(crate) fn new() -> Self {
        Self { fenced: true, score: 0 }
    }

    #[cfg(loom)]
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// After a look that took this many records through lanes.
    pub(crate) fn looked(&mut self, taken: u32, shard: &Fenced) {
        if !self.fenced {
            return;
        }
        self.score += taken;
        if self.score >= MANY {
            self.fenced = false;
            shard.clear();
        }
    }

    /// Between IDLE and the last look at the lanes.
    pub(crate) fn pay(&mut self, shard: &Fenced, barrier: Barrier) {
        if !self.fenced {
            *self = Self::new();
            // ORDERING: IDLE and this, heavy barrier, then the look at the lanes; a producer pushes, pays the light barrier,
            // and loads both.
            shard.0.store(true, Ordering::Relaxed);
            barrier.heavy();
            return;
        }
        self.score = self.score.saturating_sub(A_REST);
        if !mutant("rest-no-fence") {
            // ORDERING: SeqCst fence between IDLE and the look at the lanes; pairs with the one in `after_push`.
            fence(Ordering::SeqCst);
        }
    }
}
