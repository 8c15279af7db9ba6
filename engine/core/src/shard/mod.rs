//! A shard: a share of the keys. Its door is for submitters (front.rs), its back for the claim holder.

pub(crate) mod back;
pub(crate) mod demux;
pub(crate) mod fenced;
pub(crate) mod flag;
pub(crate) mod map;
pub(crate) mod reclaim;
pub(crate) mod spare;
mod table;
pub(crate) mod warm;
