//! A lease comes back while close halts the engine and looks for it (lease/mod.rs): close touches a group only when its lease has ended,
//! and it is told when the last one has.

use std::sync::Arc;

use loom::thread;

use super::{ALL, check, check_plain};
use crate::{
    core::DrainWatch,
    group::block::{Block, Group, Place},
    ingress::barrier::Barrier,
    lease::back::Leases,
    lifecycle::status::Status,
    sync::{Ordering, UnsafeCell},
};

struct World {
    block: Block<u32, u32, ()>,
    /// What the holder of the token owns: tasks, state, and the record at the head.
    owned: UnsafeCell<u32>,
    leases: Leases,
    status: Status,
    watch: DrainWatch,
}

// SAFETY: loom watches each access to the cell; of the block only atomics are touched.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    /// A group whose lease is out.
    fn new() -> Arc<Self> {
        let world = Self {
            block: Block::new(),
            owned: UnsafeCell::new(0),
            leases: Leases::new(),
            status: Status::new(),
            watch: DrainWatch::new(),
        };
        world.group().set_place(Place::Lease);
        Arc::new(world)
    }

    fn group(&self) -> &Group<u32, u32> {
        &self.block.group
    }

    /// `Core::take_back`, but for the unit.
    fn lease_ends(&self) {
        // SAFETY: the token is the lease's.
        self.owned.with_mut(|owned| unsafe { *owned += 1 });
        self.group().return_lease();
        if self.leases.note(|| self.status.stops()) {
            self.watch.notify();
        }
    }
}

/// Close looks once, without waiting (its deadline is over): it takes the group or leaves it.
#[test]
fn close() {
    check_plain(ALL, || {
        let world = World::new();
        let theirs = world.clone();
        let owner = thread::spawn(move || theirs.lease_ends());
        world.status.halt();
        Barrier::Symmetric.heavy();
        if world.group().place_now() == Place::Returned {
            // SAFETY: the engine is halted, and the lease has ended.
            world.owned.with_mut(|owned| unsafe { *owned += 10 });
        }
        owner.join().unwrap();
    });
}

/// Close waits for the lease. A lost notification is a deadlock.
#[test]
fn wait() {
    check(ALL, || {
        let world = World::new();
        let theirs = world.clone();
        let owner = thread::spawn(move || theirs.lease_ends());
        world.status.halt();
        // As `Core::leases_at_rest`.
        let back = || world.leases.returned.load(Ordering::Acquire) == 1;
        assert!(world.watch.wait_until(None, back));
        assert_eq!(world.group().place_now(), Place::Returned);
        // SAFETY: as above.
        world.owned.with_mut(|owned| unsafe { *owned += 10 });
        owner.join().unwrap();
    });
}
