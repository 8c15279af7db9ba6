//! What the fuzz targets need of the inside. Exists under `--cfg fuzzing` only, which `cargo fuzz` sets: the public
//! interface of every other build knows nothing of it.
//!
//! * [`Sim::live`]: a virtual worker that also sleeps and is woken, with the code of the worker threads.
//! * [`Ring`], [`Lane`], [`Segments`], [`Wheel`], [`Map`]: the parts with a target of their own.
//! * [`set_files`]: what the topology finds in `/sys` and `/proc`.
//!
//! Nothing here checks anything: the oracles are in the targets (`fuzz/`).

mod life;
mod parts;

use std::{cell::RefCell, collections::BTreeMap, io, path::Path, path::PathBuf};

pub(crate) use self::life::Life;
pub use self::parts::{Lane, Map, Pools, Refused, Ring, Segments, Wheel};
#[cfg(doc)]
use crate::sim::Sim;

thread_local! {
    static FILES: RefCell<BTreeMap<PathBuf, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The files that [`Snapshot::read_from`](crate::topology::Snapshot::read_from) finds on this thread; there are no
/// others.
pub fn set_files(files: BTreeMap<PathBuf, Vec<u8>>) {
    FILES.set(files);
}

/// Stands for `std::fs::read`.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let found = FILES.with_borrow(|files| files.get(path).cloned());
    found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}
