//! A segment, its size class and an index in it, in 8 bytes.
//!
//! ```text
//!  63      48 47                     3 2     0
//! +----------+------------------------+-------+
//! |  index   |  address of a segment  | class |      nowhere: no address, class 0, index 8 (at the end)
//! +----------+------------------------+-------+
//! ```
//!
//! Where pointers have 64 bits, addresses of user space have at most 48 (47 on x86-64 and, unless a program asks for
//! more, on all kernels that the engine knows); an allocator that hands out others is refused at the allocation
//! ([`Place::fits`]). The packed value stays a pointer, so its provenance is kept. Elsewhere the parts stand side by side.

#[cfg(target_pointer_width = "64")]
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{fmt, ptr};

use super::segment::Segment;

/// See the module text.
#[repr(transparent)]
pub(super) struct Place<T>(Packed<T>);

impl<T> Clone for Place<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Place<T> {}

impl<T> PartialEq for Place<T> {
    fn eq(&self, other: &Self) -> bool {
        self.segment() == other.segment() && self.index() == other.index()
    }
}

#[cfg(target_pointer_width = "64")]
type Packed<T> = *mut Segment<T>;

#[cfg(target_pointer_width = "64")]
const CLASS: usize = 0b111;
#[cfg(target_pointer_width = "64")]
const INDEX_SHIFT: u32 = 48;
#[cfg(target_pointer_width = "64")]
const INDEX_ONE: usize = 1 << INDEX_SHIFT;

#[cfg(target_pointer_width = "64")]
impl<T> Place<T> {
    pub(super) const NOWHERE: Self =
        Self(ptr::without_provenance_mut((super::segment::FIRST as usize) << INDEX_SHIFT));

    /// An address that can be packed.
    pub(super) fn fits(segment: *mut Segment<T>) -> bool {
        segment.addr() & (CLASS | !(INDEX_ONE - 1)) == 0
    }

    #[inline(always)]
    pub(super) fn start_of(segment: *mut Segment<T>, class: u8) -> Self {
        debug_assert!(Self::fits(segment));
        Self(segment.map_addr(|addr| addr | usize::from(class)))
    }

    #[inline(always)]
    pub(super) fn segment(self) -> *mut Segment<T> {
        self.0.map_addr(|addr| addr & (INDEX_ONE - 1) & !CLASS)
    }

    #[inline(always)]
    pub(super) fn class(self) -> u8 {
        (self.0.addr() & CLASS) as u8
    }

    #[inline(always)]
    pub(super) fn index(self) -> u32 {
        (self.0.addr() >> INDEX_SHIFT) as u32
    }

    #[inline(always)]
    pub(super) fn with_index(self, index: u32) -> Self {
        Self(self.0.map_addr(|addr| addr & (INDEX_ONE - 1) | (index as usize) << INDEX_SHIFT))
    }

    #[inline(always)]
    pub(super) fn pass(&mut self, n: u32) {
        self.0 = self.0.map_addr(|addr| addr + (n as usize) * INDEX_ONE);
    }
}

#[cfg(not(target_pointer_width = "64"))]
type Packed<T> = (*mut Segment<T>, u16, u8);

#[cfg(not(target_pointer_width = "64"))]
impl<T> Place<T> {
    pub(super) const NOWHERE: Self = Self((ptr::null_mut(), super::segment::FIRST as u16, 0));

    /// An address that can be packed.
    pub(super) fn fits(_: *mut Segment<T>) -> bool {
        true
    }
    pub(super) fn start_of(segment: *mut Segment<T>, class: u8) -> Self {
        Self((segment, 0, class))
    }
    pub(super) fn segment(self) -> *mut Segment<T> {
        self.0.0
    }
    pub(super) fn class(self) -> u8 {
        self.0.2
    }
    pub(super) fn index(self) -> u32 {
        u32::from(self.0.1)
    }
    pub(super) fn with_index(self, index: u32) -> Self {
        Self((self.0.0, index as u16, self.0.2))
    }
    pub(super) fn pass(&mut self, n: u32) {
        self.0.1 += n as u16;
    }
}

/// A place in memory that one thread owns and others may glance at: the head of a group.
#[cfg(target_pointer_width = "64")]
pub(super) struct Cell<T>(AtomicPtr<Segment<T>>);

#[cfg(target_pointer_width = "64")]
impl<T> Cell<T> {
    pub(super) fn new(place: Place<T>) -> Self {
        Self(AtomicPtr::new(place.0))
    }

    /// # Safety
    /// The caller is the owner.
    #[inline(always)]
    pub(super) unsafe fn get(&self) -> Place<T> {
        Place(self.0.load(Ordering::Relaxed))
    }

    /// # Safety
    /// The caller is the owner.
    #[inline(always)]
    pub(super) unsafe fn set(&self, place: Place<T>) {
        // Relaxed: what hands the ownership on orders it.
        self.0.store(place.0, Ordering::Relaxed);
    }

    /// Anybody: what the owner set last, as far as this thread has heard.
    pub(super) fn glance(&self) -> Option<Place<T>> {
        Some(Place(self.0.load(Ordering::Relaxed)))
    }
}

/// Where a place is more than one word nobody but its owner can read it.
#[cfg(not(target_pointer_width = "64"))]
pub(super) struct Cell<T>(std::cell::UnsafeCell<Place<T>>);

#[cfg(not(target_pointer_width = "64"))]
impl<T> Cell<T> {
    pub(super) fn new(place: Place<T>) -> Self {
        Self(std::cell::UnsafeCell::new(place))
    }
    pub(super) unsafe fn get(&self) -> Place<T> {
        // SAFETY: the caller is the owner.
        unsafe { *self.0.get() }
    }
    pub(super) unsafe fn set(&self, place: Place<T>) {
        // SAFETY: the caller is the owner.
        unsafe { *self.0.get() = place };
    }
    pub(super) fn glance(&self) -> Option<Place<T>> {
        None
    }
}

impl<T> fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cell")
    }
}

impl<T> Place<T> {
    /// Slots of the segment.
    #[inline(always)]
    fn capacity(self) -> u32 {
        Segment::<T>::capacity_of(self.class())
    }

    /// Behind the last slot, or nowhere.
    #[inline(always)]
    pub(super) fn is_at_end(self) -> bool {
        self.index() == self.capacity()
    }

    /// Slots from here to the end.
    #[inline(always)]
    pub(super) fn left(self) -> u32 {
        self.capacity() - self.index()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_parts_come_out_as_they_went_in() {
        let mut slot = 0u64;
        let segment = (&raw mut slot).cast::<Segment<u64>>();
        for class in 0..6u8 {
            let mut place = Place::start_of(segment, class);
            for index in 0..8u32 << class {
                assert_eq!(
                    (place.segment(), place.class(), place.index()),
                    (segment, class, index)
                );
                assert!(!place.is_at_end());
                place.pass(1);
            }
            assert!(place.is_at_end());
            assert!(place.with_index(0) == Place::start_of(segment, class));
        }
    }

    #[test]
    fn nowhere_is_at_its_end_and_has_no_segment() {
        assert!(Place::<u64>::NOWHERE.is_at_end());
        assert!(Place::<u64>::NOWHERE.segment().is_null());
    }
}
