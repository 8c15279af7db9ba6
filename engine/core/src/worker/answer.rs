//! A token whose group is wanted: its holder asks the table of held groups before a task runs (lifecycle/held.rs).

use std::hash::Hash;

use super::Worker;
use crate::{group::token::RunToken, handler::Work, lifecycle::held::After, wait::check::WaitHost};

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    /// Does what is wanted of the group. `Some`: it may run.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer<'e>(&mut self, token: RunToken<'e, K, T>) -> Option<RunToken<'e, K, T>> {
        let core = self.core();
        let group = token.as_ptr();
        let mut after = After::default();
        let token = core.decide(&mut core.held.table(), token, &mut self.pool, &mut after);
        if token.is_none() {
            self.give_up_permit();
        }
        core.follow_up(group, after);
        core.poke_waits();
        token
    }
}
