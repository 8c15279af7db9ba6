//! The inbox of a worker (ready/inbox.rs): each unit once, and what was written before the push is seen after the
//! take.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::check;
use crate::{
    ready::{
        inbox::Inbox,
        link::{Chain, Kind, Link, Unit},
    },
    sync::UnsafeCell,
};

#[repr(C)]
struct Item {
    link: Link,
    data: UnsafeCell<u32>,
}

impl Item {
    fn new() -> Self {
        Self { link: Link::new(), data: UnsafeCell::new(0) }
    }
}

struct World {
    items: [Item; 3],
    inbox: Inbox,
}

// SAFETY: loom watches each access to `data`.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn push(&self, index: usize) {
        let item = &self.items[index];
        // SAFETY: its unit does not exist yet, so it is the pusher's.
        item.data.with_mut(|data| unsafe { *data = index as u32 + 1 });
        self.inbox.push(Unit::group(NonNull::from(item).cast()));
    }

    /// Owner of the units: what each item says. Marks it as taken.
    fn open(&self, mut chain: Chain) -> Vec<u32> {
        let mut seen = Vec::new();
        while let Some(unit) = chain.pop() {
            let Kind::Group(link) = unit.open() else { unreachable!("groups only") };
            // SAFETY: it begins with its link; items live as long as the world.
            let item = unsafe { link.cast::<Item>().as_ref() };
            // SAFETY: the unit is ours.
            seen.push(item.data.with_mut(|data| unsafe { std::mem::take(&mut *data) }));
        }
        seen
    }
}

#[test]
fn each_unit_once() {
    check(5, || {
        let world = Arc::new(World { items: [(); 3].map(|()| Item::new()), inbox: Inbox::new() });
        let two = world.clone();
        let pusher = thread::spawn(move || {
            two.push(0);
            two.push(1);
        });
        let one = world.clone();
        let other = thread::spawn(move || one.push(2));
        let robbed = world.clone();
        let thief = thread::spawn(move || robbed.open(robbed.inbox.take()));
        let mut seen = vec![world.open(world.inbox.take())];
        pusher.join().unwrap();
        other.join().unwrap();
        seen.push(thief.join().unwrap());
        seen.push(world.open(world.inbox.take()));
        for taken in &seen {
            let order: Vec<_> = taken.iter().filter(|data| **data < 3).collect();
            assert!(order.is_sorted(), "the pushes of one thread leave in order: {taken:?}");
        }
        let mut all = seen.concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}
