//! Exact capacities: the submitter puts the task into its group itself.
//!
//! By default a submitter touches one ring and no group, so what it knows of a group is old, and a group may exceed its capacity
//! by what is on its way (flow/gate.rs). Here the submitter takes the claim of the shard, as a worker does to
//! empty the ring: it looks the group up, reads how many tasks are inside, appends the task, and publishes it. So the number
//! that bounds the group is the count in the group's own word, which every path that ends a task settles anyway: there is no
//! second number that could differ from it. The ring is not used.
//!
//! | step | where | what may end it |
//! |---|---|---|
//! | weigh the task | submit.rs, without a lock | its weight is more than all; a panic |
//! | claim; look the group up | enter.rs | closed; a panic in `Eq` |
//! | is there a place in the group? | flow/line.rs | full: its line |
//! | is there room in the engine? | flow/room.rs | full: the one line of the engine |
//! | append, publish; release the claim | enter.rs | nothing |
//!
//! Invariants:
//!
//! * **I1** Places taken are tasks inside: a group's word never counts more than the capacity, and what [`Room`] has taken is
//!   the sum over all groups, plus what is under way between the two.
//! * **I2** Order is real-time order: who returned before another began held the claim before it.
//! * **I3** A submitter that waits holds nothing, neither a place nor room, and stands in one line. So a full group holds up
//!   nobody who does not want into it, and whoever is first in the engine's line gets in as soon as the room is there.
//! * **I4** Under the claim no user code runs but `Eq` of keys, whose panic is caught there: key and task go back.
//!
//! [`Room`]: crate::flow::room::Room
//!
//! Progress: blocking, also where there is room: a submitter that the system suspends under the claim delays its shard.
//! Cost: a lock, a look into the map, a read-modify-write where the group is busy, two short locks for the room of the
//! engine (one when the task comes, one for each dispatch); `submit_many` pays this for each task. Nothing is allocated while
//! there is room. An engine without exact capacities pays one look at a setting for each dispatch.

mod enter;
mod leave;
mod submit;

pub(crate) use leave::Weighed;
pub(crate) use submit::Link;

use std::{ptr::NonNull, sync::Arc, task::Waker};

use crate::{
    error::SubmitReason,
    flow::line::Seat,
    group::{block::Group, segment::Pool},
    ingress::ring::Address,
    shard::demux::Scratch,
    wait::cell::Cell,
    watch::hot_keys::Sampler,
    worker::Random,
};

/// What a task weighs: the function of the user.
pub(crate) type Weigher<K, T> = Arc<dyn Fn(&K, &T) -> usize + Send + Sync>;

/// A task on its way in.
pub(crate) struct Record<K, T> {
    pub(crate) hash: u32,
    pub(crate) address: Address<K>,
    pub(crate) task: T,
    /// What it weighs.
    pub(crate) bytes: u32,
    /// Its ticket.
    pub(crate) cell: Option<Arc<Cell>>,
}

/// Why it did not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Waiting would not help.
    Never(SubmitReason),
    /// There is no room now. Where a waker was given, it stands in a line now.
    NoRoom(SubmitReason),
}

/// What submitters need of the core.
pub(crate) trait Exact<K, T>: Send + Sync {
    /// What the task weighs. `block` is that of its group, pinned, where the address is by group.
    fn weigh(
        &self,
        address: &Address<K>,
        block: Option<NonNull<Group<K, T>>>,
        task: &T,
    ) -> Result<u32, SubmitReason>;

    /// Puts the task into its group, if there is room for it, and leaves nothing in `record`. If there is none, and there is a
    /// `waker`, it is woken when to try again.
    fn enter(
        &self,
        record: &mut Option<Record<K, T>>,
        seat: &mut Seat<K, T>,
        waker: Option<Waker>,
    ) -> Result<(), Refused>;

    /// Who has this seat waits no more.
    fn leave(&self, seat: &mut Seat<K, T>);
}

/// Buffers of the submitters of one shard, under its claim.
pub(crate) struct Desk<K, T, S> {
    pool: Pool<T>,
    scratch: Scratch<K, T, S>,
    /// Each task is a look of its own.
    sampler: Sampler,
    random: Random,
}
