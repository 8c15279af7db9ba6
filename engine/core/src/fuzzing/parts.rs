//! Private parts of the engine behind public names, one to one.
//!
//! Who drives them keeps the promises that the engine keeps; where a broken one would be unsound, the method is
//! unsafe and names it.

use std::sync::Arc;

use crate::{
    group::{
        ring::End,
        segment::{Pool, SharedPool},
    },
    ingress::{
        lane,
        records::Records,
        ring::{self, Address},
    },
    shard::map,
    time::wheel,
    topology::memory::Home,
};

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No cell is free.
    Full,
    /// The ring is closed.
    Closed,
}

/// The ingress of a shard (ingress/ring.rs). A record is by key (`Some`), or by the index of a group.
#[derive(Debug)]
pub struct Ring<K, T>(ring::Ring<K, T>);

impl<K, T> Ring<K, T> {
    /// `capacity` cells, a power of two; the first position is `start`.
    pub fn new(capacity: usize, start: u64) -> Self {
        Self(ring::Ring::new(capacity, start))
    }

    /// Reserves up to `want` positions: the first, and how many.
    pub fn reserve(&self, want: u32) -> Result<(u64, u32), Refused> {
        self.0.reserve(want).map_err(|refused| match refused {
            ring::Refused::Full => Refused::Full,
            ring::Refused::Closed => Refused::Closed,
        })
    }

    /// Writes and publishes one position.
    ///
    /// # Safety
    /// It was reserved, and is filled once.
    pub unsafe fn fill(&self, position: u64, mark: u32, key: Option<K>, task: T) {
        let address = match key {
            Some(key) => Address::Key(mark, key),
            None => Address::Group(mark),
        };
        // SAFETY: the caller's promise.
        unsafe { self.0.fill(position, address, task) };
    }

    /// Hash bits or group index of the record, and whether it is by group; `None` if it is not published.
    pub fn peek(&self, position: u64) -> Option<(u32, bool)> {
        self.0.peek(position)
    }

    /// Moves a record out.
    ///
    /// # Safety
    /// `peek` has shown it, with this `by_group`, and it is taken once.
    pub unsafe fn take(&self, position: u64, by_group: bool) -> (Option<K>, T) {
        // SAFETY: the caller's promise.
        let key = (!by_group).then(|| unsafe { self.0.take_key(position) });
        // SAFETY: the caller's promise.
        (key, unsafe { self.0.take_task(position) })
    }

    /// All positions below are free.
    pub fn give_back(&self, head: u64) {
        self.0.give_back(head);
    }

    /// The position up to which records are given back.
    pub fn head(&self) -> u64 {
        self.0.head()
    }

    /// The next position to reserve, and whether the ring is closed.
    pub fn tail(&self) -> (u64, bool) {
        self.0.tail()
    }

    /// Refuses every reservation from now on.
    pub fn close(&self) {
        self.0.close();
    }
}

/// The private ingress of one producer (ingress/lane.rs), with the producer's copy of the head.
#[derive(Debug)]
pub struct Lane<K, T>(lane::Lane<K, T>, u64);

impl<K, T> Lane<K, T> {
    /// `capacity` cells, a power of two.
    pub fn new(capacity: usize) -> Self {
        Self(lane::Lane::new(capacity), 0)
    }

    /// One record, or back it comes.
    pub fn push(&mut self, hash: u32, key: K, task: T) -> Result<(), (K, T)> {
        self.0.begin();
        let pushed = self.0.push(&mut self.1, hash, key, task);
        self.0.end();
        pushed
    }

    /// Records ever pushed.
    pub fn tail(&self) -> u64 {
        self.0.tail()
    }

    /// Records ever given back.
    pub fn head(&self) -> u64 {
        self.0.head()
    }

    /// The hash bits of a record that was pushed and not given back.
    pub fn hash(&self, position: u64) -> u32 {
        self.0.up_to(self.0.tail()).peek(position).expect("a published record").0
    }

    /// Moves a record out.
    ///
    /// # Safety
    /// It lies between head and tail, and is taken once.
    pub unsafe fn take(&self, position: u64) -> (K, T) {
        let records = self.0.up_to(self.0.tail());
        // SAFETY: the caller's promise.
        unsafe { (records.take_key(position), records.take_task(position)) }
    }

    /// All positions below are free.
    pub fn give_back(&self, head: u64) {
        self.0.give_back(head);
    }

    /// The producer is gone.
    pub fn retire(&self) {
        self.0.retire();
    }

    /// The producer is gone and everything was given back.
    pub fn is_spent(&self) -> bool {
        self.0.is_spent()
    }
}

/// The ring of one group (group/ring.rs), and the count that the group's word keeps for it. Producer and consumer have
/// a pool each, as two workers do.
#[derive(Debug)]
pub struct Segments<T> {
    tail: End<T>,
    head: End<T>,
    count: u32,
    pools: [Pool<T>; 2],
}

impl<T> Segments<T> {
    /// An idle group without a segment.
    pub fn new(pools: &Pools<T>) -> Self {
        let pools = [Pool::new(pools.0.clone()), Pool::new(pools.0.clone())];
        Self { tail: End::detached(), head: End::detached(), count: 0, pools }
    }

    /// Tasks in it.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// No task is in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// As the claim holder does it.
    pub fn push(&mut self, task: T) {
        if self.tail.is_detached() {
            self.tail = End::attached(&mut self.pools[0]);
            self.head = self.tail;
        }
        self.tail.push(&mut self.pools[0], task);
        self.count += 1;
    }

    /// Shows up to `most` tasks at the head without taking them, as a batch does.
    pub fn look(&self, most: u32, mut see: impl FnMut(&T)) {
        let mut at = self.head;
        for _ in 0..most.min(self.count) {
            let (slot, _) = at.peek(1);
            at.pass(1);
            // SAFETY: a counted task, which nobody else touches meanwhile.
            see(unsafe { &*slot });
        }
    }

    /// Moves up to `most` tasks out at the head, as the token holder does.
    pub fn take(&mut self, most: u32) -> Vec<T> {
        let mut left = most.min(self.count);
        let mut tasks = Vec::with_capacity(left as usize);
        self.count -= left;
        while left > 0 {
            let (slots, n) = self.head.run(&mut self.pools[1], left);
            // SAFETY: counted tasks, each read once: the head passes them.
            tasks.extend((0..n as usize).map(|i| unsafe { slots.add(i).read() }));
            self.head.pass(n);
            left -= n;
        }
        tasks
    }

    /// The claim holder meets the group idle: back to the first slot. Nothing happens while there are tasks.
    pub fn rewind(&mut self) {
        if self.count == 0 && !self.tail.is_detached() {
            End::rewind(&mut self.tail, &mut self.head);
        }
    }

    /// The group gives its segment up. Nothing happens while there are tasks.
    pub fn detach(&mut self) {
        if self.count == 0 {
            End::detach(&mut self.tail, &mut self.head, &mut self.pools[0]);
        }
    }
}

impl<T> Drop for Segments<T> {
    fn drop(&mut self) {
        drop(self.take(u32::MAX));
        self.detach();
    }
}

/// What several [`Segments`] share.
#[derive(Debug)]
pub struct Pools<T>(Arc<SharedPool<T>>);

impl<T> Pools<T> {
    /// Nothing at rest.
    pub fn new() -> Self {
        Self(SharedPool::of_nodes(vec![Home::anywhere()], false))
    }
}

impl<T> Default for Pools<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The timing wheel (time/wheel.rs).
pub struct Wheel<E>(wheel::Wheel<E>);

impl<E> Wheel<E> {
    /// An empty wheel at tick `now`.
    pub fn new(now: u64) -> Self {
        Self(wheel::Wheel::new(now))
    }

    /// Adds an entry.
    pub fn insert(&mut self, deadline: u64, entry: E) {
        self.0.insert(deadline, entry);
    }

    /// Moves on to `now` and appends what is due to `out`.
    pub fn advance(&mut self, now: u64, out: &mut Vec<E>) {
        self.0.advance(now, out);
    }

    /// The least deadline held.
    pub fn next_deadline(&self) -> Option<u64> {
        self.0.next_deadline()
    }

    /// Takes every entry out.
    pub fn drain(&mut self) -> Vec<E> {
        self.0.drain().collect()
    }
}

impl<E> std::fmt::Debug for Wheel<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wheel").field("next", &self.next_deadline()).finish_non_exhaustive()
    }
}

/// The map of a shard (shard/map.rs).
#[derive(Default)]
pub struct Map(map::Map);

impl Map {
    /// Slots of the table being left that one operation visits at most.
    pub const MOVES_PER_OP: usize = map::MOVES_PER_OP;

    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// The index under `hash` that `eq` accepts.
    pub fn get(&self, hash: u32, eq: impl FnMut(u32) -> bool) -> Option<u32> {
        self.0.get(hash, eq)
    }

    /// Adds a pair that is absent.
    pub fn insert(&mut self, hash: u32, index: u32) {
        self.0.insert(hash, index);
    }

    /// Removes exactly this pair.
    pub fn remove(&mut self, hash: u32, index: u32) -> bool {
        self.0.remove(hash, index)
    }

    /// Goes on with a change of size.
    pub fn migrate(&mut self) -> bool {
        self.0.migrate()
    }

    /// A hint.
    pub fn prefetch(&self, hash: u32) {
        self.0.prefetch(hash);
    }

    /// Bytes allocated.
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map").field("heap_bytes", &self.heap_bytes()).finish()
    }
}
