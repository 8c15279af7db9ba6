//! Values that count their drops, so that a leak and a second drop are seen exactly.
//!
//! A witness also owns memory: the address sanitizer tells a second drop where it happens, and a read after it.

use std::cell::RefCell;

thread_local! {
    /// Drops of each witness that was made since [`start`].
    static DROPS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// See the module text.
#[derive(Debug, PartialEq, Eq)]
pub struct Witness(Box<u32>);

impl Witness {
    /// The next one; they are numbered from 0.
    pub fn new() -> Self {
        DROPS.with_borrow_mut(|drops| {
            drops.push(0);
            Self(Box::new(drops.len() as u32 - 1))
        })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        *self.0
    }
}

impl Default for Witness {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        DROPS.with_borrow_mut(|drops| {
            let drops = drops.get_mut(*self.0 as usize);
            let drops = drops.expect("a value that was never made is dropped");
            *drops += 1;
            assert_eq!(*drops, 1, "value {} is dropped again", *self.0);
        });
    }
}

/// Forgets all witnesses. Call it first in each run.
pub fn start() {
    DROPS.with_borrow_mut(Vec::clear);
}

/// Every witness that was made is gone, and went once.
///
/// # Panics
/// When one is not.
pub fn all_gone() {
    DROPS.with_borrow(|drops| {
        for (id, drops) in drops.iter().enumerate() {
            assert_eq!(*drops, 1, "value {id} leaked");
        }
    });
}
