//! Loom's atomics, with every load seen.
//!
//! Loom tries another order of two accesses only if it knows of both, and it remembers one access of each object. A
//! thread that loads a word before it changes it (every loop around a compare-and-swap) takes the place of another
//! thread's earlier load, and the order "change, then that load" is never tried (tokio-rs/loom #166, #392).
//!
//! So each atomic has one more object for each thread that ever loads it. The load changes that object, a change of the
//! atomic by another thread loads it: two accesses that depend on each other, and nobody takes their place. They are
//! relaxed, and so order nothing.
//!
//! That makes loom try many more orders: minutes for models that took seconds. So it is on where a model asks for it
//! ([`SEEN`]), or the environment variable `BGRP_LOOM_SEEN` asks for it in all.

use std::sync::Mutex;

use loom::{
    sync::atomic::{self, Ordering},
    thread::{ThreadId, current},
};

std::thread_local! {
    /// Loads are seen. Loom runs all threads of a model on the thread that called it.
    pub(crate) static SEEN: std::cell::Cell<bool> =
        std::cell::Cell::new(std::env::var_os("BGRP_LOOM_SEEN").is_some());
}

/// Threads of one model, at most.
const THREADS: usize = 4;

/// One object for each thread, and whose they are: the first that is free becomes that of a thread that loads. All are
/// made with the atomic, since loom wants whoever uses an object to know of its making.
#[derive(Debug)]
struct Loads {
    objects: [atomic::AtomicUsize; THREADS],
    owners: Mutex<Vec<ThreadId>>,
}

impl Loads {
    fn new() -> Self {
        Self {
            objects: std::array::from_fn(|_| atomic::AtomicUsize::new(0)),
            owners: Mutex::default(),
        }
    }

    /// The calling thread is about to load.
    fn load(&self) {
        if !SEEN.get() {
            return;
        }
        let id = current().id();
        let own = {
            let mut owners = self.owners.lock().unwrap();
            let known = owners.iter().position(|other| *other == id);
            known.unwrap_or_else(|| {
                owners.push(id);
                owners.len() - 1
            })
        };
        self.objects[own].fetch_add(1, Ordering::Relaxed);
    }

    /// The calling thread is about to change the atomic.
    fn change(&self) {
        if !SEEN.get() {
            return;
        }
        let id = current().id();
        // A copy: loom may switch to another thread inside the loop.
        let owners = self.owners.lock().unwrap().clone();
        for (object, _) in self.objects.iter().zip(&owners).filter(|(_, other)| **other != id) {
            object.load(Ordering::Relaxed);
        }
    }
}

macro_rules! seen {
    ($name:ident $(<$generic:ident>)?, $inner:ty, $value:ty $(, $method:ident)*) => {
        /// See the module text.
        #[derive(Debug)]
        pub(crate) struct $name $(<$generic>)? {
            inner: $inner,
            loads: Loads,
        }

        impl $(<$generic>)? $name $(<$generic>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self { inner: <$inner>::new(value), loads: Loads::new() }
            }
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.loads.load();
                self.inner.load(order)
            }
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.loads.change();
                self.inner.store(value, order);
            }
            pub(crate) fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                done: Ordering,
                not: Ordering,
            ) -> Result<$value, $value> {
                self.loads.change();
                self.inner.compare_exchange(from, to, done, not)
            }
            pub(crate) fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                done: Ordering,
                not: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, done, not)
            }
            $(
                pub(crate) fn $method(&self, value: $value, order: Ordering) -> $value {
                    self.loads.change();
                    self.inner.$method(value, order)
                }
            )*
        }
    };
}

seen!(AtomicBool, atomic::AtomicBool, bool, swap);
seen!(AtomicPtr<T>, atomic::AtomicPtr<T>, *mut T, swap);
seen!(AtomicU8, atomic::AtomicU8, u8);
seen!(AtomicU32, atomic::AtomicU32, u32, swap, fetch_add, fetch_sub, fetch_max, fetch_or);
seen!(AtomicU64, atomic::AtomicU64, u64, swap, fetch_add, fetch_sub, fetch_or, fetch_and);
seen!(AtomicUsize, atomic::AtomicUsize, usize, swap, fetch_add, fetch_sub);

impl AtomicU32 {
    pub(crate) fn fetch_update(
        &self,
        done: Ordering,
        not: Ordering,
        mut to: impl FnMut(u32) -> Option<u32>,
    ) -> Result<u32, u32> {
        let mut seen = self.load(not);
        while let Some(next) = to(seen) {
            match self.compare_exchange(seen, next, done, not) {
                Ok(before) => return Ok(before),
                Err(now) => seen = now,
            }
        }
        Err(seen)
    }
}

impl Default for AtomicUsize {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Default for AtomicU32 {
    fn default() -> Self {
        Self::new(0)
    }
}
