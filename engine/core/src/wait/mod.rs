//! Waiting for the end of a task, and refusing the waits that could not end.
//!
//! A tracked submit takes the slow way and pays for itself; a task without a ticket pays nothing. Where the ticket of a
//! task is known, on the task's way through the engine:
//!
//! | the task is | its ticket is | who moves it on |
//! |---|---|---|
//! | in the ring of its shard | noted by its position ([`tickets`]); the cell says that there is a note | the claim holder, when it takes the record |
//! | in its group, behind the next dispatch | noted by its spot, a segment and an index ([`tickets`]); the group's word is TRACKED | the token holder, before a dispatch that reaches it |
//! | in the next dispatch, or held at the head | in the task's mark ([`Trouble`](crate::outcome::Trouble)), which moves with the task | whoever settles the task |
//! | over | told how it ended ([`cell`]) | - |
//!
//! A ticket whose engine side goes without a word says that its task was discarded, so no path can forget one.
//!
//! Who waits for what is kept in a graph ([`graph`]), under one lock that only waits take. A handler's wait is checked and
//! entered under that lock, so of two waits that close a cycle together one is refused, whatever the schedule.

pub(crate) mod cell;
pub(crate) mod check;
pub(crate) mod error;
pub(crate) mod graph;
pub(crate) mod picture;
pub(crate) mod seat;
pub(crate) mod submit;
pub(crate) mod tally;
pub(crate) mod ticket;
pub(crate) mod tickets;
pub(crate) mod turns;
