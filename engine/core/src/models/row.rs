//! A worker's row (ready/row.rs): each unit once, whoever takes it, and what was done to it before is seen.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::{ALL, check_plain};
use crate::{
    ingress::barrier::Barrier,
    ready::{
        link::{Kind, Link, Unit},
        row::{Place, Row},
    },
    sync::UnsafeCell,
};

#[repr(C)]
struct Item {
    link: Link,
    data: UnsafeCell<u32>,
}

struct World {
    items: [Item; 4],
    row: Row,
}

// SAFETY: loom watches each access to `data`.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

const BARRIER: Barrier = Barrier::Symmetric;

impl World {
    fn new() -> Arc<Self> {
        let items = [(); 4].map(|()| Item { link: Link::new(), data: UnsafeCell::new(0) });
        Arc::new(Self { items, row: Row::new() })
    }

    /// Owner: what it wrote to these items is seen by who takes them.
    fn fill(&self, place: &mut Place, items: std::ops::Range<usize>) {
        let mut units = items.map(|index| {
            let item = &self.items[index];
            // SAFETY: its unit does not exist yet, so it is the owner's.
            item.data.with_mut(|data| unsafe { *data = index as u32 + 1 });
            Unit::group(NonNull::from(item).cast())
        });
        self.row.fill(place, || units.next());
    }

    /// Whoever took the unit: what it says. Taken twice it says nothing, or loom sees two writers.
    fn open(&self, unit: Unit) -> u32 {
        let Kind::Group(link) = unit.open() else { unreachable!("groups only") };
        // SAFETY: it begins with its link; items live as long as the world.
        let item = unsafe { link.cast::<Item>().as_ref() };
        // SAFETY: the unit is ours.
        item.data.with_mut(|data| unsafe { std::mem::take(&mut *data) })
    }

    fn take_all(&self, place: &mut Place, seen: &mut Vec<u32>) {
        while let Some(unit) = self.row.take(place, BARRIER) {
            seen.push(self.open(unit));
        }
    }

    fn rob(&self) -> Vec<u32> {
        let mut seen = Vec::new();
        self.row.rob(BARRIER, |unit| seen.push(self.open(unit)));
        seen
    }
}

fn each_once(mut seen: Vec<u32>, robbed: Vec<u32>, all: u32) {
    assert!(seen.is_sorted() && robbed.is_sorted(), "order: {seen:?} {robbed:?}");
    seen.extend(robbed);
    seen.sort_unstable();
    assert_eq!(seen, (1..=all).collect::<Vec<_>>());
}

/// An owner and a thief at two units.
#[test]
fn thief() {
    check_plain(ALL, || {
        let world = World::new();
        let mut place = Place::default();
        world.fill(&mut place, 0..2);
        let theirs = world.clone();
        let thief = thread::spawn(move || theirs.rob());
        let mut seen = Vec::new();
        world.take_all(&mut place, &mut seen);
        each_once(seen, thief.join().unwrap(), 2);
    });
}

/// The thief comes while the row is filled: what it takes is whole.
#[test]
fn first_fill() {
    check_plain(ALL, || {
        let world = World::new();
        let theirs = world.clone();
        let thief = thread::spawn(move || theirs.rob());
        let (mut place, mut seen) = (Place::default(), Vec::new());
        world.fill(&mut place, 0..2);
        world.take_all(&mut place, &mut seen);
        each_once(seen, thief.join().unwrap(), 2);
    });
}

/// The owner is through with one row and fills the next while a thief is still at the first.
#[test]
fn refill() {
    check_plain(3, || {
        let world = World::new();
        let (mut place, mut seen) = (Place::default(), Vec::new());
        world.fill(&mut place, 0..2);
        let theirs = world.clone();
        let thief = thread::spawn(move || theirs.rob());
        world.take_all(&mut place, &mut seen);
        world.fill(&mut place, 2..4);
        world.take_all(&mut place, &mut seen);
        each_once(seen, thief.join().unwrap(), 4);
    });
}

/// Two thieves.
#[test]
fn two_thieves() {
    check_plain(2, || {
        let world = World::new();
        let (mut place, mut seen) = (Place::default(), Vec::new());
        world.fill(&mut place, 0..3);
        let thieves =
            [world.clone(), world.clone()].map(|theirs| thread::spawn(move || theirs.rob()));
        world.take_all(&mut place, &mut seen);
        let [mut first, second] = thieves.map(|thief| thief.join().unwrap());
        assert!(first.is_empty() || second.is_empty(), "one of them takes all that is left");
        first.extend(second);
        each_once(seen, first, 3);
    });
}
