//! Memory that lies on the node of those who use it, whoever touches it first.
//!
//! | memory | made by | how it comes to its node |
//! |---|---|---|
//! | control blocks of a shard's groups, with their state | whoever looks at the shard, or takes a handle | [`Home`] of the shard: pages bound before the first touch |
//! | segments of queues | the worker that needs one | [`Home`] of the worker; a segment at rest goes back to its node |
//! | ring of a shard | the builder | [`on_node_of`]: made by a thread on the node |
//! | map of a shard, worker's buffers | who looks at the shard; the worker | first touch |
//!
//! Binding is a preference (`mbind`, preferred): a node that is full is no error. Some containers refuse the call; then
//! everything lies where it is first touched, which is the right node as long as nobody steals, and a note says so.
//! Where all workers are on one node, or tied to none, nothing is bound and the ordinary allocator serves.
//!
//! Invariants:
//! * I1: what a [`Home`] gives out stays valid as long as a clone of it lives, and is not moved.
//! * I2: bound memory goes back to the system when the last `Home` of its engine goes, not before: blocks and segments
//!   are kept until then anyway.
//!
//! Cost: two system calls for each 2 MB.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::pin::pin_current_thread;
use super::plan::Plan;

/// Memory is asked from the system in pieces of this size.
const EXTENT: usize = 2 << 20;
const PAGE: usize = 4096;

/// Where memory shall lie. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Home(Option<(Arc<NodeMemory>, usize)>);

impl Home {
    /// Wherever the allocator has some.
    pub(crate) fn anywhere() -> Self {
        Self(None)
    }

    /// A home for each node of the plan; or why there is none, with homes that are anywhere.
    pub(crate) fn of_nodes(plan: &Plan) -> (Vec<Self>, Option<String>) {
        let anywhere = || vec![Self::anywhere(); plan.nodes];
        if !plan.pinned || plan.nodes < 2 {
            return (anywhere(), None);
        }
        match NodeMemory::new(&plan.node_ids) {
            Ok(memory) => {
                let memory = Arc::new(memory);
                ((0..plan.nodes).map(|node| Self(Some((memory.clone(), node)))).collect(), None)
            }
            Err(why) => {
                let note = format!(
                    "memory is not bound to nodes, but lies where it is first touched: {why}"
                );
                (anywhere(), Some(note))
            }
        }
    }

    /// Memory for `layout`, not initialised.
    ///
    /// # Safety
    /// The layout is not empty.
    pub(crate) unsafe fn alloc(&self, layout: Layout) -> NonNull<u8> {
        let memory = match &self.0 {
            Some((memory, node)) => memory.alloc(*node, layout),
            // SAFETY: the caller's promise.
            None => NonNull::new(unsafe { alloc(layout) }),
        };
        memory.unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// Takes memory back (I2).
    ///
    /// # Safety
    /// It came from `alloc` of this home or of a clone, with this layout, and is not used any more.
    pub(crate) unsafe fn free(&self, memory: NonNull<u8>, layout: Layout) {
        if self.0.is_none() {
            // SAFETY: the caller's promise.
            unsafe { dealloc(memory.as_ptr(), layout) };
        }
    }
}

/// Bound memory of one engine.
#[derive(Debug)]
struct NodeMemory(Box<[Mutex<Arena>]>);

impl NodeMemory {
    /// For nodes with these numbers of the kernel.
    fn new(nodes: &[usize]) -> io::Result<Self> {
        let arena = |&node| {
            let mut arena = Arena { node, extents: Vec::new(), used: 0 };
            // The first extent shows whether the system binds memory at all.
            arena.extents.push(Extent::bound(EXTENT, node)?);
            Ok(Mutex::new(arena))
        };
        Ok(Self(nodes.iter().map(arena).collect::<io::Result<_>>()?))
    }

    fn alloc(&self, node: usize, layout: Layout) -> Option<NonNull<u8>> {
        self.0[node].lock().unwrap_or_else(PoisonError::into_inner).alloc(layout)
    }
}

/// Bound memory on one node, given out from front to back.
#[derive(Debug)]
struct Arena {
    node: usize,
    extents: Vec<Extent>,
    /// Bytes given out of the last extent.
    used: usize,
}

impl Arena {
    fn alloc(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        // Extents begin at a page; who wants more gets room to find its place.
        let spare = if layout.align() > PAGE { layout.align() } else { 0 };
        let need = layout.size().checked_add(spare)?;
        if need > EXTENT / 4 {
            let extent = Extent::preferring(need.next_multiple_of(PAGE), self.node)?;
            let place = extent.place(0, layout)?.0;
            // Behind the one that is in use.
            let at = self.extents.len() - 1;
            self.extents.insert(at, extent);
            return Some(place);
        }
        if let Some((place, used)) = self.extents.last()?.place(self.used, layout) {
            self.used = used;
            return Some(place);
        }
        self.extents.push(Extent::preferring(EXTENT, self.node)?);
        let (place, used) = self.extents.last()?.place(0, layout)?;
        self.used = used;
        Some(place)
    }
}

/// A piece of memory from the system.
#[derive(Debug)]
struct Extent {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an extent owns its memory and is only given out from.
unsafe impl Send for Extent {}

impl Extent {
    /// The place of `layout` at or behind `used`, and where it ends.
    fn place(&self, used: usize, layout: Layout) -> Option<(NonNull<u8>, usize)> {
        let at = (self.start.addr().get() + used).next_multiple_of(layout.align());
        let from = at - self.start.addr().get();
        let to = from.checked_add(layout.size())?;
        // SAFETY: inside the extent.
        (to <= self.len).then(|| (unsafe { self.start.add(from) }, to))
    }

    /// Bound memory; what is left to first touch if the system does not bind it.
    fn preferring(len: usize, node: usize) -> Option<Self> {
        let extent = Self::map(len).ok()?;
        // The first extent was bound; that this one is not costs speed only.
        let _ = extent.bind(node);
        Some(extent)
    }

    fn bound(len: usize, node: usize) -> io::Result<Self> {
        let extent = Self::map(len)?;
        extent.bind(node)?;
        Ok(extent)
    }
}

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
impl Extent {
    fn map(len: usize) -> io::Result<Self> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Pages that are not touched yet shall come from `node`, as long as it has some.
    fn bind(&self, node: usize) -> io::Result<()> {
        const WORD_BITS: usize = libc::c_ulong::BITS as usize;
        let mut nodes: Vec<libc::c_ulong> = vec![0; node / WORD_BITS + 1];
        nodes[node / WORD_BITS] = 1 << (node % WORD_BITS);
        // The kernel reads one bit less than it is told.
        let bits = nodes.len() * WORD_BITS + 1;
        // SAFETY: the kernel reads `bits - 1` bits from `nodes`, which are its length, and sets a policy on pages that
        // are ours; no memory is written.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.len,
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                bits,
                0,
            )
        };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
impl Drop for Extent {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever had memory of it is gone with the last home (I1).
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
impl Extent {
    fn map(_len: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bind(&self, _node: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Whether this system lets a process bind memory to a NUMA node; if not, why. Engines on several nodes do.
///
/// ```
/// match bgrp::topology::can_bind_memory(0) {
///     Ok(()) => println!("memory can be bound to node 0"),
///     Err(why) => println!("memory lies where it is first touched: {why}"),
/// }
/// ```
///
/// # Errors
/// The answer of the system; "operation not permitted" comes from the filter of a container.
pub fn can_bind_memory(node: usize) -> io::Result<()> {
    if node > super::list::MAX_ID {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Extent::bound(PAGE, node).map(drop)
}

/// Makes `count` things, each on the node of the worker that `worker` names for it: by a thread that runs there, so
/// that whatever it writes is first touched there. All in order, and where workers are on one node just here.
pub(crate) fn on_node_of<R: Send>(
    plan: &Plan,
    count: usize,
    worker: impl Fn(usize) -> usize,
    make: impl Fn() -> R + Sync,
) -> Vec<R> {
    if !plan.pinned || plan.nodes < 2 {
        return (0..count).map(|_| make()).collect();
    }
    let node_of = |n: usize| plan.workers[worker(n)].node;
    let mut made: Vec<Option<R>> = (0..count).map(|_| None).collect();
    // One node after the other: pages that hold things of two nodes are few then.
    for node in 0..plan.nodes {
        let cpu = plan.workers.iter().find(|w| w.node == node).and_then(|w| w.cpu);
        let mine: Vec<usize> = (0..count).filter(|n| node_of(*n) == node).collect();
        let make_mine = || {
            if let Some(cpu) = cpu {
                // In vain if the CPU is gone; the worker will say so.
                let _ = pin_current_thread(cpu);
            }
            mine.iter().map(|_| make()).collect::<Vec<R>>()
        };
        let things = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("bgrp-memory".to_owned())
                .spawn_scoped(scope, make_mine)
                .ok()
                .and_then(|thread| thread.join().ok())
        });
        // Without a thread they are made here, wherever that is.
        let things = things.unwrap_or_else(|| mine.iter().map(|_| make()).collect());
        for (n, thing) in mine.into_iter().zip(things) {
            made[n] = Some(thing);
        }
    }
    made.into_iter().flatten().collect()
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
