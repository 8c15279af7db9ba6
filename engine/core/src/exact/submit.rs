//! The submitter's side: it tries, waits as long as it is ready to, and gets its task back if it may not enter.

use std::{hash::Hash, ptr::NonNull, sync::Arc};

use super::{Exact, Record, Refused};
use crate::{
    error::SubmitReason,
    flow::line::{Seat, Sleeper},
    front::{Front, Patience, Target},
    group::block::Group,
    ingress::ring::Address,
    wait::cell::Cell,
};

/// A task that was not accepted.
pub(crate) type Back<K, T> = (Address<K>, T, SubmitReason);

/// The core, as its submitters know it.
pub(crate) struct Link<K, T>(NonNull<dyn Exact<K, T>>);

// SAFETY: a reference to something that is `Sync`.
unsafe impl<K, T> Send for Link<K, T> {}
// SAFETY: as above.
unsafe impl<K, T> Sync for Link<K, T> {}

impl<K, T> std::fmt::Debug for Link<K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

impl<K, T> Front<K, T> {
    /// Submits go to this core, which owns a share of the front.
    pub(crate) fn link(&self, core: &(dyn Exact<K, T> + 'static)) {
        let linked = self.exact.set(Link(NonNull::from(core)));
        debug_assert!(linked.is_ok(), "a front has one core");
    }

    /// The core, where capacities are exact. The caller holds a share of the engine (its face, a handle), not of the front alone.
    #[inline]
    pub(crate) fn exact(&self) -> Option<&dyn Exact<K, T>> {
        // SAFETY: the core lives as long as any share of the engine, of which the caller has one: engines, handles, splits and
        // tickets' submitters keep it, and producers of such an engine do too (producer.rs).
        self.exact.get().map(|link| unsafe { link.0.as_ref() })
    }
}

impl<K: Hash + Eq, T> Front<K, T> {
    /// As [`Front::send`], where capacities are exact.
    pub(crate) fn send_exactly(
        &self,
        exact: &dyn Exact<K, T>,
        target: Target<K>,
        block: Option<NonNull<Group<K, T>>>,
        task: T,
        patience: Patience,
        cell: Option<&Arc<Cell>>,
    ) -> Result<(), Back<K, T>> {
        let Target { hash, address, .. } = target;
        let bytes = match exact.weigh(&address, block, &task) {
            Ok(bytes) => bytes,
            Err(reason) => return Err((address, task, reason)),
        };
        let mut record = Some(Record { hash, address, task, bytes, cell: cell.cloned() });
        let mut seat = Seat::default();
        let reason = match exact.enter(&mut record, &mut seat, None) {
            Ok(()) => return Ok(()),
            Err(Refused::Never(reason)) => reason,
            Err(Refused::NoRoom(why)) => match patience {
                Patience::None => why,
                _ if self.is_own_worker() => match &record {
                    Some(record) => {
                        self.name_own(SubmitReason::OwnWorker, why, &record.address, block)
                    }
                    None => why,
                },
                _ => match wait_and_enter(exact, &mut record, &mut seat, patience) {
                    Ok(()) => return Ok(()),
                    Err(reason) => reason,
                },
            },
        };
        let Record { address, task, .. } = record.expect("only what got in is gone");
        Err((address, task, reason))
    }
}

fn wait_and_enter<K, T>(
    exact: &dyn Exact<K, T>,
    record: &mut Option<Record<K, T>>,
    seat: &mut Seat<K, T>,
    patience: Patience,
) -> Result<(), SubmitReason> {
    let sleeper = Sleeper::new();
    let (end, asked) = match patience {
        Patience::Until(end, asked) => (Some(end), asked),
        _ => (None, std::time::Duration::ZERO),
    };
    loop {
        match exact.enter(record, seat, Some(sleeper.clone().into())) {
            Ok(()) => return Ok(()),
            Err(Refused::Never(reason)) => return Err(reason),
            Err(Refused::NoRoom(_)) => {
                if !sleeper.sleep(end) {
                    exact.leave(seat);
                    return Err(SubmitReason::TimedOut(asked));
                }
            }
        }
    }
}
