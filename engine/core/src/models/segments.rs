//! Segments (group/ring.rs) change hands: the token holder gives them back while the claim holder takes them for another
//! group. The slots are plain memory, which loom does not see: a cell of loom's stands beside each of them.

use std::{collections::HashMap, ptr::NonNull, sync::Arc};

use loom::thread;

use super::{ALL, check_seen};
use crate::{
    group::{
        ring::End,
        segment::{Pool, SharedPool},
        state::{Published, Word},
    },
    sync::UnsafeCell,
};

/// One watched cell for each slot that was ever used, by address.
#[derive(Default)]
struct Watched(std::sync::Mutex<HashMap<usize, Arc<UnsafeCell<u32>>>>);

#[allow(clippy::arc_with_non_send_sync, reason = "loom runs all threads of a model on one")]
impl Watched {
    /// The caller owns the slot: nobody else may touch it without an order between the two.
    fn touch(&self, slot: *mut u32) {
        let cell = self
            .0
            .lock()
            .unwrap()
            .entry(slot.addr())
            .or_insert_with(|| Arc::new(UnsafeCell::new(0)))
            .clone();
        // SAFETY: loom checks that nobody else is at it.
        cell.with_mut(|count| unsafe { *count += 1 });
    }
}

struct Group {
    word: Word,
    tail: UnsafeCell<End<u32>>,
    head: UnsafeCell<End<u32>>,
}

struct World {
    groups: [Group; 2],
    shared: Arc<SharedPool<u32>>,
    watched: Watched,
}

// SAFETY: loom watches each access to the cells.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        let group = || Group {
            word: Word::new(),
            tail: UnsafeCell::new(End::detached()),
            head: UnsafeCell::new(End::detached()),
        };
        Arc::new(Self {
            groups: [group(), group()],
            shared: SharedPool::new(),
            watched: Watched::default(),
        })
    }

    /// Claim holder: `n` tasks for the group, as `Demux::append` and `Touched::publish`. `true`: the token is the
    /// caller's.
    fn append(&self, index: usize, pool: &mut Pool<u32>, n: u32) -> bool {
        let group = &self.groups[index];
        let state = group.word.load();
        // SAFETY: the claim is ours.
        group.tail.with_mut(|tail| unsafe {
            let tail = &mut *tail;
            if tail.is_detached() {
                *tail = End::attached(pool);
                let start = *tail;
                group.head.with_mut(|head| *head = start);
            } else if state.is_quiet() {
                group.head.with_mut(|head| End::rewind(tail, &mut *head));
            }
            for task in 0..n {
                tail.push(pool, task);
                let mut written = *tail;
                written.step_back();
                self.watched.touch(written.peek(1).0);
            }
        });
        if state.is_quiet() {
            group.word.activate(state, n);
            return true;
        }
        group.word.publish(n).1 == Published::Token
    }

    /// Token holder: everything that is there, until the group is idle.
    fn run(&self, index: usize, pool: &mut Pool<u32>) {
        let group = &self.groups[index];
        loop {
            let count = group.word.load().count();
            // SAFETY: the token is ours.
            group.head.with_mut(|head| unsafe {
                let mut left = count;
                while left > 0 {
                    let (slots, n) = (*head).run(pool, left);
                    for i in 0..n as usize {
                        self.watched.touch(slots.add(i));
                    }
                    (*head).pass(n);
                    left -= n;
                }
            });
            if group.word.settle(count).is_idle() {
                return;
            }
        }
    }

    /// Claim holder: takes the segment of an idle group, as `Back::cool`.
    fn cool(&self, index: usize, pool: &mut Pool<u32>) {
        let group = &self.groups[index];
        if !group.word.load().is_quiet() {
            return;
        }
        // SAFETY: quiet under the claim: both sides are ours.
        group.tail.with_mut(|tail| unsafe {
            group.head.with_mut(|head| End::detach(&mut *tail, &mut *head, pool));
        });
    }
}

/// The claim holder takes a group's segment as soon as the token holder has given the group up, and fills it with the
/// tasks of another group.
#[test]
fn of_an_idle_group() {
    check_seen(ALL, || {
        let world = World::new();
        let mut pool = Pool::new(world.shared.clone());
        assert!(world.append(0, &mut pool, 2));
        let theirs = world.clone();
        let worker = thread::spawn(move || {
            let mut pool = Pool::new(theirs.shared.clone());
            theirs.run(0, &mut pool);
        });
        world.cool(0, &mut pool);
        if world.append(1, &mut pool, 2) {
            world.run(1, &mut pool);
        }
        worker.join().unwrap();
    });
}

/// The token holder passes from segment to segment and gives back what it has used up, through the shared pool, while
/// the claim holder extends the same group and takes segments for another one.
#[test]
fn used_up() {
    check_seen(4, || {
        let world = World::new();
        let mut pool = Pool::new(world.shared.clone());
        // Segments of 2, 4 and 8.
        assert!(world.append(0, &mut pool, 3));
        let theirs = world.clone();
        let worker = thread::spawn(move || {
            let mut pool = Pool::new(theirs.shared.clone());
            theirs.run(0, &mut pool);
        });
        let token = world.append(0, &mut pool, 5);
        assert!(world.append(1, &mut pool, 3));
        world.run(1, &mut pool);
        if token {
            world.run(0, &mut pool);
        }
        worker.join().unwrap();
        world.cool(0, &mut pool);
        world.cool(1, &mut pool);
    });
}
