//! Tickets of a busy group (wait/tickets.rs, I1): the claim holder brings one while the token holder finds that none is left.

use std::{ptr::NonNull, sync::Arc};

use loom::thread;

use super::check;
use crate::{
    group::{
        block::Group,
        ring::End,
        segment::{Pool, SharedPool},
        state::{Published, Word},
    },
    sync::UnsafeCell,
    wait::{
        cell::{Cell, Ended, Tracked},
        tickets::Tickets,
    },
};

struct World {
    word: Word,
    tail: UnsafeCell<End<u32>>,
    head: UnsafeCell<End<u32>>,
    tickets: Tickets<u32, u32>,
    shared: Arc<SharedPool<u32>>,
}

// SAFETY: loom watches each access to the cells.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

/// The table knows groups by name only.
const GROUP: NonNull<Group<u32, u32>> = NonNull::dangling();

impl World {
    /// Claim holder: one more task, perhaps with a ticket, as `Demux` and `Touched::publish` do it where the group is busy.
    fn append(&self, pool: &mut Pool<u32>, task: u32, ticket: Option<&Arc<Cell>>) -> Published {
        let spot = self.tail.with_mut(|tail| {
            // SAFETY: the claim holder's.
            let tail = unsafe { &mut *tail };
            tail.push(pool, task);
            tail.last()
        });
        if let Some(cell) = ticket {
            self.tickets.place(GROUP, &self.word, spot, Tracked::new(cell.clone()));
        }
        self.word.publish(1).1
    }

    /// Token holder: one task a turn, as `Worker::turn` does it, until the group is idle.
    fn run(&self, pool: &mut Pool<u32>) {
        loop {
            let state = self.word.load();
            self.head.with_mut(|head| {
                // SAFETY: the token is ours.
                let head = unsafe { &mut *head };
                if state.is_tracked() {
                    let reached = self.tickets.reach(GROUP, &self.word, *head, 1, true, false);
                    for (at, tracked) in reached {
                        assert_eq!(at, 0, "one task a turn");
                        tracked.end(Ended::Done);
                    }
                }
                head.run(pool, 1);
                head.pass(1);
            });
            if self.word.settle(1).is_idle() {
                return;
            }
        }
    }
}

/// The group has a task with a ticket and one without; another one with a ticket comes while the second runs, whose turn finds
/// that no ticket is left. Every ticket is told, and none stays in the table.
#[test]
fn told() {
    check(3, || {
        let shared = SharedPool::new();
        let mut pool = Pool::new(shared.clone());
        let first = End::attached(&mut pool);
        let world = Arc::new(World {
            word: Word::new(),
            tail: UnsafeCell::new(first),
            head: UnsafeCell::new(first),
            tickets: Tickets::new(),
            shared,
        });
        let cells = [(); 2].map(|()| Arc::new(Cell::new(0, 0)));
        assert_eq!(world.append(&mut pool, 0, Some(&cells[0])), Published::Token);
        assert_eq!(world.append(&mut pool, 1, None), Published::Busy);
        let (theirs, cell) = (world.clone(), cells[1].clone());
        let claim = thread::spawn(move || {
            let mut pool = Pool::new(theirs.shared.clone());
            if theirs.append(&mut pool, 2, Some(&cell)) == Published::Token {
                theirs.run(&mut pool);
            }
        });
        world.run(&mut pool);
        claim.join().unwrap();
        assert!(cells.iter().all(|cell| cell.ended() == Some(Ended::Done)));
        assert!(world.tickets.lock().tidy(GROUP), "nothing is left in the table");
        let (mut tail, mut head) = (End::detached(), End::detached());
        world.tail.with(|end| tail = unsafe_copy(end));
        world.head.with(|end| head = unsafe_copy(end));
        End::detach(&mut tail, &mut head, &mut pool);
    });
}

fn unsafe_copy(end: *const End<u32>) -> End<u32> {
    // SAFETY: all threads have ended.
    unsafe { *end }
}
