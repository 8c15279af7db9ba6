//! A shard: one share of the keys, owned by one thread at a time.

pub(crate) mod map;
