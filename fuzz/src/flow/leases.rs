//! Leases: a batch that is out comes back, in any order and in any way.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bgrp::Lease;

use super::{
    oracle::{Reply, Script},
    setup::{Wanted, lock},
    stage::Stage,
};

impl Stage {
    /// One of the leases that are out, if there is one.
    pub(super) fn lease_comes_back(&mut self, which: u8, how: u8) {
        let lease = {
            let mut shelf = lock(&self.shelf);
            let out = shelf.len();
            (out > 0).then(|| shelf.remove(usize::from(which) % out))
        };
        if let Some(lease) = lease {
            self.at_rest = false;
            self.give_back(lease, how);
        }
    }

    /// All of them, oldest first.
    pub(super) fn all_come_back(&mut self, how: u8) {
        let out = std::mem::take(&mut *lock(&self.shelf));
        self.at_rest &= out.is_empty();
        out.into_iter().for_each(|lease| self.give_back(lease, how));
    }

    fn give_back(&mut self, lease: Lease<u8, Script>, how: u8) {
        let reply = match how & 7 {
            0..=4 => Reply::Scripts,
            5 | 6 => Reply::Lost,
            _ => Reply::WrongCount,
        };
        let outcomes = lock(&self.oracle).answer(*lease.key(), lease.len(), reply);
        match outcomes {
            Some(outcomes) => lease.complete(outcomes),
            None if how & 7 == 5 => drop(lease),
            // Whoever had it is gone with a panic.
            None => drop(catch_unwind(AssertUnwindSafe(move || {
                let _owned = lease;
                resume_unwind(Box::new(Wanted));
            }))),
        }
    }
}
