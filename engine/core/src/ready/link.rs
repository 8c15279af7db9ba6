//! The intrusive link of what can be ready, and the tagged pointer that stands for it.
//!
//! Groups and shards begin with a [`Link`]. A [`Unit`] at rest in a list *is* the run token (of a group) or the
//! duty to look (at a shard): it cannot be copied, and exactly one exists while the group or shard is busy.

use std::ptr::{self, NonNull};

use crate::sync::{AtomicPtr, Ordering};

/// First field of everything that can be ready; used by the one list in which the unit rests.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Link(AtomicPtr<()>);

impl Link {
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

/// A shard or a group at rest. See the module text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unit(NonNull<()>);

// SAFETY: a unit is a token; it moves between threads by design, and whoever holds it may touch what it stands for.
unsafe impl Send for Unit {}

/// What a unit stands for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shard(NonNull<Link>),
    Group(NonNull<Link>),
}

const SHARD: usize = 1;

impl Unit {
    pub(crate) fn shard(link: NonNull<Link>) -> Self {
        Self(link.cast::<()>().map_addr(|addr| addr | SHARD))
    }

    pub(crate) fn group(link: NonNull<Link>) -> Self {
        Self(link.cast())
    }

    /// What it is. Consumes the unit: the caller now is its one holder.
    pub(crate) fn open(self) -> Kind {
        let link = self.link();
        if self.0.addr().get() & SHARD != 0 { Kind::Shard(link) } else { Kind::Group(link) }
    }

    /// The group that it stands for, to look at.
    pub(crate) fn as_group(&self) -> Option<NonNull<Link>> {
        (self.0.addr().get() & SHARD == 0).then(|| self.link())
    }

    /// It is the token of this group.
    pub(crate) fn is_group(&self, link: NonNull<Link>) -> bool {
        self.0 == link.cast()
    }

    fn link(&self) -> NonNull<Link> {
        let clean = self.0.as_ptr().map_addr(|addr| addr & !SHARD).cast::<Link>();
        // SAFETY: links are at least 8-aligned and not null, so clearing the tag leaves a non-null pointer.
        unsafe { NonNull::new_unchecked(clean) }
    }

    /// Lists only: the pointer, and later the unit back.
    pub(super) fn into_raw(self) -> *mut () {
        self.0.as_ptr()
    }

    /// # Safety
    /// `raw` came from [`Unit::into_raw`] and is turned back once.
    pub(super) unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { NonNull::new_unchecked(raw) })
    }

    /// Lists only: the raw pointer that follows `raw` in its list.
    ///
    /// # Safety
    /// `raw` is a unit in a list that the caller owns, and its group or shard is alive.
    pub(super) unsafe fn next_of(raw: *mut ()) -> *mut () {
        let link = raw.map_addr(|addr| addr & !SHARD).cast::<Link>();
        // SAFETY: the caller's promise. Relaxed: the list's own hand-over orders it.
        unsafe { (*link).0.load(Ordering::Relaxed) }
    }

    /// Lists only: sets what follows `raw`.
    ///
    /// # Safety
    /// As [`Unit::next_of`], and no other thread walks this part of the list.
    pub(super) unsafe fn set_next(raw: *mut (), next: *mut ()) {
        let link = raw.map_addr(|addr| addr & !SHARD).cast::<Link>();
        // SAFETY: the caller's promise. Relaxed, as in `next_of`.
        unsafe { (*link).0.store(next, Ordering::Relaxed) };
    }
}

/// A private list of units, first in, first out. Dropping it with units inside would lose them: it says so in tests.
#[derive(Debug)]
pub(crate) struct Chain {
    first: *mut (),
    last: *mut (),
    len: usize,
}

// SAFETY: the chain owns its units.
unsafe impl Send for Chain {}

impl Default for Chain {
    fn default() -> Self {
        Self { first: ptr::null_mut(), last: ptr::null_mut(), len: 0 }
    }
}

impl Chain {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, unit: Unit) {
        let raw = unit.into_raw();
        // SAFETY: the unit was handed to us; its group or shard lives as long as the engine.
        unsafe { Unit::set_next(raw, ptr::null_mut()) };
        if self.last.is_null() {
            self.first = raw;
        } else {
            // SAFETY: `last` is in this chain, which we own.
            unsafe { Unit::set_next(self.last, raw) };
        }
        self.last = raw;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Unit> {
        let raw = self.first;
        if raw.is_null() {
            return None;
        }
        // SAFETY: `raw` is in this chain, which we own.
        self.first = unsafe { Unit::next_of(raw) };
        if self.first.is_null() {
            self.last = ptr::null_mut();
        }
        self.len -= 1;
        // SAFETY: it came from `into_raw` in `push` and leaves the chain here.
        Some(unsafe { Unit::from_raw(raw) })
    }

    /// Takes the token of this group out, by a walk over the chain.
    pub(crate) fn remove(&mut self, group: NonNull<Link>) -> Option<Unit> {
        let wanted = group.cast::<()>().as_ptr();
        let (mut before, mut raw) = (ptr::null_mut(), self.first);
        while !raw.is_null() && raw != wanted {
            before = raw;
            // SAFETY: `raw` is in this chain, which we own.
            raw = unsafe { Unit::next_of(raw) };
        }
        if raw.is_null() {
            return None;
        }
        // SAFETY: as above.
        let next = unsafe { Unit::next_of(raw) };
        if before.is_null() {
            self.first = next;
        } else {
            // SAFETY: as above.
            unsafe { Unit::set_next(before, next) };
        }
        if next.is_null() {
            self.last = before;
        }
        self.len -= 1;
        // SAFETY: it came from `into_raw` in `push` and leaves the chain here.
        Some(unsafe { Unit::from_raw(raw) })
    }

    /// The group whose token is the first of the chain, to look at; `None` also where the first is a shard.
    pub(crate) fn first_group(&self) -> Option<NonNull<Link>> {
        let first = NonNull::new(self.first)?;
        (first.addr().get() & SHARD == 0).then(|| first.cast())
    }

    /// Puts a unit before what is here.
    pub(crate) fn push_first(&mut self, unit: Unit) {
        // SAFETY: it was a unit, and is one again when it leaves the chain.
        unsafe { self.push_front(unit.into_raw()) };
    }

    /// Moves all of `other` behind what is here.
    pub(crate) fn append(&mut self, other: &mut Chain) {
        if other.first.is_null() {
            return;
        }
        if self.last.is_null() {
            self.first = other.first;
        } else {
            // SAFETY: both chains are ours.
            unsafe { Unit::set_next(self.last, other.first) };
        }
        self.last = other.last;
        self.len += other.len;
        *other = Chain::default();
    }

    /// Puts `raw` before what is here (for lists that are built backwards).
    ///
    /// # Safety
    /// `raw` came from [`Unit::into_raw`] and belongs to the caller.
    pub(super) unsafe fn push_front(&mut self, raw: *mut ()) {
        // SAFETY: the caller's promise.
        unsafe { Unit::set_next(raw, self.first) };
        self.first = raw;
        if self.last.is_null() {
            self.last = raw;
        }
        self.len += 1;
    }
}
