//! Which engines this thread works for right now, and which group of each it runs.
//!
//! A worker thread sits down once and for all; a virtual worker for each of its steps. A handler may itself step a [`Sim`](crate::Sim),
//! so the seats of a thread are a stack. What group is run is not noted here: the worker's hand says it (core.rs), so a
//! dispatch costs nothing.

use std::{cell::RefCell, marker::PhantomData};

/// A worker's place, by the addresses of its front and of its hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) front: usize,
    /// Address of the `Hand` that belongs to the worker; good while the seat is taken.
    pub(crate) hand: *const (),
}

crate::sync::thread_local! {
    static SEATS: RefCell<Vec<Seat>> = const { RefCell::new(Vec::new()) };
}

/// Takes a seat until the guard goes.
pub(crate) fn sit(seat: Seat) -> Seated {
    let taken = SEATS.try_with(|seats| seats.borrow_mut().push(seat)).is_ok();
    Seated { taken, stays_on_its_thread: PhantomData }
}

/// The hands of this thread that belong to the front at this address, innermost first.
pub(crate) fn hands(front: usize) -> Vec<*const ()> {
    SEATS
        .try_with(|seats| {
            let seats = seats.borrow();
            seats.iter().rev().filter(|seat| seat.front == front).map(|seat| seat.hand).collect()
        })
        .unwrap_or_default()
}

/// This thread works for the front at this address.
pub(crate) fn is_taken(front: usize) -> bool {
    SEATS.try_with(|seats| seats.borrow().iter().any(|seat| seat.front == front)).unwrap_or(false)
}

/// The innermost seat of this thread, for threads that work for it while it waits for them.
#[cfg(feature = "rayon")]
pub(crate) fn shared() -> Shared {
    let innermost = SEATS.try_with(|seats| seats.borrow().last().copied());
    Shared(innermost.ok().flatten())
}

/// See [`shared`].
#[cfg(feature = "rayon")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared(Option<Seat>);

// SAFETY: a hand is read by any thread (core.rs), and it lives: the worker waits for whoever takes its seat meanwhile.
#[cfg(feature = "rayon")]
unsafe impl Send for Shared {}
// SAFETY: as above.
#[cfg(feature = "rayon")]
unsafe impl Sync for Shared {}

#[cfg(feature = "rayon")]
impl Shared {
    /// Sits down beside the worker.
    pub(crate) fn sit(self) -> Option<Seated> {
        self.0.map(sit)
    }
}

/// Gives the seat up.
pub(crate) struct Seated {
    taken: bool,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        if self.taken {
            let _ = SEATS.try_with(|seats| seats.borrow_mut().pop());
        }
    }
}
