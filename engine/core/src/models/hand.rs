//! What a worker has in hand when the engine is halted (core.rs `Hand`, lifecycle/close.rs): close touches a group
//! only when no worker does or will.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::{ALL, check_plain};
use crate::{
    core::Hand,
    group::block::Group,
    ingress::barrier::Barrier,
    lifecycle::status::Status,
    sync::{Ordering, UnsafeCell, yield_now},
};

struct World {
    hand: Hand<u32, u32>,
    status: Status,
    /// What the token holder of each of two groups owns.
    groups: [UnsafeCell<u32>; 2],
}

// SAFETY: loom watches each access to the cells.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    /// Stands for the address of a group's block, which nobody follows here.
    fn address(&self, index: usize) -> NonNull<Group<u32, u32>> {
        NonNull::from(&self.groups[index]).cast()
    }
}

/// A worker runs one group after the other while close halts the engine; what is not in hand then is taken back.
#[test]
fn close_and_turns() {
    check_plain(ALL, || {
        let barrier = Barrier::Symmetric;
        let world = Arc::new(World {
            hand: Hand::new(),
            status: Status::new(),
            groups: [(); 2].map(|()| UnsafeCell::new(0)),
        });
        let theirs = world.clone();
        let worker = thread::spawn(move || {
            for index in 0..2 {
                if !theirs.hand.take(theirs.address(index), barrier, &theirs.status) {
                    break;
                }
                // SAFETY: the group is in hand.
                theirs.groups[index].with_mut(|runs| unsafe { *runs += 1 });
                theirs.hand.lay_down();
            }
            // ORDERING: SeqCst, as in worker/pool.rs: pairs with the loads of close.
            theirs.hand.gone.store(true, Ordering::SeqCst);
        });
        // `Core::halt` and `Core::hands_at_rest`.
        world.status.halt();
        barrier.heavy();
        // ORDERING: SeqCst, as in lifecycle/close.rs: pairs with the stores of the worker.
        let gone = || world.hand.gone.load(Ordering::SeqCst);
        while !gone() && world.hand.holds().is_none() {
            yield_now();
        }
        let running = if gone() { None } else { world.hand.holds() };
        for index in 0..2 {
            if running != Some(world.address(index)) {
                // SAFETY: in no hand, and the engine is halted.
                world.groups[index].with_mut(|runs| unsafe { *runs += 10 });
            }
        }
        worker.join().unwrap();
    });
}
