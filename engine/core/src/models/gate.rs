//! The gate (flow/gate.rs): a submitter that waits for room, and the FULL bit of a group. A lost wake is a deadlock.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::{ALL, check};
use crate::{
    flow::{filter::Filter, gate::Gate},
    group::block::{Block, Group},
    ingress::{
        records::Records,
        ring::{Address, Ring},
    },
};

struct World {
    gate: Gate<u32, u32>,
    filter: Filter,
    ring: Ring<u32, u32>,
    block: Block<u32, u32, ()>,
}

// SAFETY: the model touches a block's word and key only, as the gate does.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

const KEY: u32 = 7;
const HASH: u32 = 5;

impl World {
    fn new() -> Arc<Self> {
        let world = Self {
            gate: Gate::new(),
            filter: Filter::new(false),
            ring: Ring::new(2, 0),
            block: Block::new(),
        };
        // SAFETY: alone, and the block is not live yet.
        unsafe { world.block.group.set_key(HASH, KEY) };
        Arc::new(world)
    }

    fn group(&self) -> NonNull<Group<u32, u32>> {
        NonNull::from(&self.block.group)
    }
}

/// The ring is full; the claim holder gives cells back, twice; each submitter gets in.
#[test]
fn room() {
    check(4, || {
        let world = World::new();
        for task in [1, 2] {
            world.ring.push(Address::Key(HASH, KEY), task).expect("room");
        }
        let submitters = [3, 4].map(|task| {
            let world = world.clone();
            thread::spawn(move || {
                let mut gate = world.gate.enter();
                while world.ring.push(Address::Key(HASH, KEY), task).is_err() {
                    gate.sleep(None);
                }
            })
        });
        for head in 0..2 {
            assert!(world.ring.peek(head).is_some());
            // SAFETY: shown by `peek`, taken once.
            unsafe { world.ring.take_task(head) };
            world.ring.give_back(head + 1);
            world.gate.notify(|| true);
        }
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
        assert_eq!(world.ring.tail().0, 4);
    });
}

/// The claim holder finds the group over its capacity while the token holder settles its tasks; a submitter waits
/// while the group is full. In the end nobody waits, and FULL is clear.
#[test]
fn full() {
    const LOW: u32 = 1;
    check(ALL, || {
        let world = World::new();
        let word = &world.block.group.word;
        word.activate(word.load(), 2);
        let theirs = world.clone();
        let token_holder = thread::spawn(move || {
            for _ in 0..2 {
                let after = theirs.block.group.word.settle(1);
                if after.is_full() && after.count() <= LOW {
                    theirs.gate.relieve(&theirs.filter, theirs.group(), LOW);
                }
            }
        });
        let waiting = world.clone();
        let submitter = thread::spawn(move || {
            if waiting.filter.may_be_full(HASH) {
                let mut gate = waiting.gate.enter();
                while gate.bar_of_key(HASH, &KEY).is_some() {
                    gate.sleep(None);
                }
            }
        });
        world.gate.close_group(&world.filter, HASH, world.group(), LOW);
        token_holder.join().unwrap();
        submitter.join().unwrap();
        assert!(word.load().is_quiet(), "FULL for ever: {word:?}");
        assert!(!world.filter.may_be_full(HASH));
    });
}
