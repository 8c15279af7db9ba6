//! What an engine may hold, counted exactly: tasks, and what they weigh. Only engines whose groups have an exact capacity, or
//! whose tasks are weighed, have one.
//!
//! Rule: who finds nobody waiting and room for his task takes it. Otherwise he waits in one line, first come, first served,
//! whatever he brings: a heavy task at its head lets no light one pass, so it gets in as soon as enough has ended, and is not
//! starved.
//!
//! | who | does | under |
//! |---|---|---|
//! | submitter, with the claim of its shard | takes room, or joins the line | the lock |
//! | who settled tasks, after the word | gives room back, wakes the first if it fits | the lock |
//!
//! Invariants:
//!
//! * **I1** What is taken is what the tasks inside need: room is taken before a task is counted in its group's word, and
//!   given back after it was settled there. So it is never less, and the same where nothing is under way.
//! * **I2** Nobody waits while there is room for the first: who makes room, enters or goes away looks at the first in line.
//!
//! Tasks of groups that stand do not count as tasks (they must not hold up others, and their groups bound them), but
//! what they weigh does: the memory is in use. The lock is a leaf.

use std::task::Waker;

use super::line::{Line, Seat, Wakes};
use crate::{
    error::SubmitReason,
    sync::{Mutex, mutant},
};

/// See the module text.
#[derive(Debug)]
pub(crate) struct Room {
    inside: Mutex<Inside>,
    tasks: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Inside {
    tasks: u64,
    bytes: u64,
    line: Line,
}

impl Room {
    pub(crate) fn new(tasks: u64, bytes: u64) -> Self {
        Self { inside: Mutex::default(), tasks, bytes }
    }

    /// There is no room for a task of this weight, whatever else is there.
    pub(crate) fn can_never(&self, bytes: u32) -> Option<SubmitReason> {
        let capacity = narrow(self.bytes);
        (u64::from(bytes) > self.bytes).then_some(SubmitReason::TooLarge { bytes, capacity })
    }

    /// Why a task of this weight does not fit; `held`: tasks in groups that stand.
    fn lacks(&self, inside: &Inside, bytes: u64, held: u64) -> Option<SubmitReason> {
        if inside.tasks.saturating_sub(held) >= self.tasks {
            return Some(SubmitReason::EngineFull);
        }
        (bytes > self.bytes - inside.bytes).then(|| self.bytes_full(inside, bytes))
    }

    fn bytes_full(&self, inside: &Inside, bytes: u64) -> SubmitReason {
        SubmitReason::BytesFull { bytes: narrow(bytes), free: narrow(self.bytes - inside.bytes) }
    }

    fn pass_on(&self, inside: &mut Inside, held: u64, wakes: &mut Wakes) {
        if let Some(need) = inside.line.first_need()
            && self.lacks(inside, need, held).is_none()
        {
            inside.line.wake_first(wakes);
        }
    }

    /// Claim holder: takes room for a task. If there is none, or somebody was here before, and there is a `waker`, he
    /// stands in the line from now on; the caller sees to it that he stands in no other.
    pub(crate) fn take<K, T>(
        &self,
        bytes: u64,
        held: u64,
        seat: &mut Seat<K, T>,
        waker: &mut Option<Waker>,
        wakes: &mut Wakes,
    ) -> Result<(), SubmitReason> {
        let mut inside = self.inside.lock();
        let lack = self.lacks(&inside, bytes, held);
        if lack.is_none() && inside.line.is_first(seat.ticket) {
            inside.tasks += 1;
            inside.bytes += bytes;
            if seat.in_room() {
                inside.line.leave(seat.ticket, wakes);
                seat.stands_nowhere();
            }
            self.pass_on(&mut inside, held, wakes);
            return Ok(());
        }
        if let Some(waker) = waker.take() {
            inside.line.join(seat.ticket, bytes, waker, wakes);
            seat.stands_in_room();
        }
        // Whoever is before him waits for one of the two.
        Err(lack.unwrap_or(if self.bytes == u64::MAX {
            SubmitReason::EngineFull
        } else {
            self.bytes_full(&inside, bytes)
        }))
    }

    /// He waits no more.
    pub(crate) fn leave(&self, ticket: u64, held: u64, wakes: &mut Wakes) {
        let mut inside = self.inside.lock();
        inside.line.leave(ticket, wakes);
        if !mutant("room-leave-no-wake") {
            self.pass_on(&mut inside, held, wakes);
        }
    }

    /// So many tasks, of this weight together, are inside no more; or, with none, more of them stand.
    pub(crate) fn give_back(&self, tasks: u64, bytes: u64, held: u64, wakes: &mut Wakes) {
        let mut inside = self.inside.lock();
        debug_assert!(inside.tasks >= tasks && inside.bytes >= bytes, "I1");
        inside.tasks = inside.tasks.saturating_sub(tasks);
        inside.bytes = inside.bytes.saturating_sub(bytes);
        self.pass_on(&mut inside, held, wakes);
    }

    /// The engine closes: all who wait look.
    pub(crate) fn tell_all(&self, wakes: &mut Wakes) {
        self.inside.lock().line.wake_all(wakes);
    }

    /// Tasks inside, and what they weigh.
    pub(crate) fn inside(&self) -> (u64, u64) {
        let inside = self.inside.lock();
        (inside.tasks, inside.bytes)
    }
}

/// Weights and their bound have 32 bits; where there is no bound, nothing is told.
fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    };

    use super::*;

    #[derive(Default)]
    struct Bell(AtomicBool);

    impl std::task::Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    struct Guest {
        seat: Seat<u32, u32>,
        bell: Arc<Bell>,
        bytes: u64,
    }

    impl Guest {
        fn new(ticket: u64, bytes: u64) -> Self {
            let mut seat = Seat::default();
            seat.ticket = ticket;
            Self { seat, bell: Arc::default(), bytes }
        }

        fn tries(&mut self, room: &Room) -> bool {
            let mut wakes = Wakes::default();
            let mut waker = Some(Waker::from(self.bell.clone()));
            let taken = room.take(self.bytes, 0, &mut self.seat, &mut waker, &mut wakes).is_ok();
            wakes.wake();
            taken
        }

        fn rang(&self) -> bool {
            self.bell.0.swap(false, SeqCst)
        }
    }

    fn give_back(room: &Room, tasks: u64, bytes: u64) {
        let mut wakes = Wakes::default();
        room.give_back(tasks, bytes, 0, &mut wakes);
        wakes.wake();
    }

    #[test]
    fn i2_a_heavy_task_is_passed_by_no_light_one_and_gets_in_when_it_fits() {
        let room = Room::new(100, 100);
        assert!(Guest::new(u64::MAX, 90).tries(&room));
        let (mut heavy, mut light) = (Guest::new(1, 50), Guest::new(2, 1));
        assert!(!heavy.tries(&room));
        assert!(!light.tries(&room), "it would fit, but came later");
        assert!(!Guest::new(3, 0).tries(&room) && !light.rang());
        give_back(&room, 0, 30);
        assert!(!heavy.rang(), "40 are free");
        give_back(&room, 0, 10);
        assert!(heavy.rang() && !light.rang());
        assert!(heavy.tries(&room));
        assert_eq!(room.inside(), (2, 100));
        give_back(&room, 0, 1);
        assert!(light.rang() && light.tries(&room));
    }

    #[test]
    fn who_goes_away_passes_the_wake_on() {
        let room = Room::new(100, 10);
        assert!(Guest::new(u64::MAX, 10).tries(&room));
        let (mut first, mut second) = (Guest::new(1, 10), Guest::new(2, 5));
        assert!(!first.tries(&room) && !second.tries(&room));
        give_back(&room, 1, 10);
        assert!(first.rang() && !second.rang());
        let mut wakes = Wakes::default();
        room.leave(1, 0, &mut wakes);
        wakes.wake();
        assert!(second.rang() && second.tries(&room));
    }

    #[test]
    fn a_task_heavier_than_everything_is_told_so() {
        let room = Room::new(100, 10);
        assert_eq!(room.can_never(10), None);
        assert_eq!(room.can_never(11), Some(SubmitReason::TooLarge { bytes: 11, capacity: 10 }));
        assert_eq!(size_of::<SubmitReason>(), 16, "results of submits stay small");
    }

    #[test]
    fn tasks_that_stand_take_no_room_from_others() {
        let room = Room::new(1, u64::MAX);
        let (mut seat, mut wakes) = (Seat::<u32, u32>::default(), Wakes::default());
        let mut take = |held| room.take(0, held, &mut seat, &mut None, &mut wakes);
        assert_eq!(take(0), Ok(()));
        assert_eq!(take(0), Err(SubmitReason::EngineFull));
        assert_eq!(take(1), Ok(()));
    }
}
