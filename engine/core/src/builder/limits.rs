//! The settings of flow control: how much at a time, how much a second, and who goes first.

use super::Builder;
use crate::flow::{adaptive::InFlight, rate::Rate, share::Class};

impl<K, T, S> Builder<K, T, S> {
    /// How many dispatches (or tasks) may be in flight downstream, however many workers there are. A group that waits for a permit
    /// holds no worker; permits are given first come, first served. A plain number counts dispatches. Default: no limit. To change
    /// while running: [`Engine::set_in_flight`](crate::Engine::set_in_flight).
    pub fn in_flight(mut self, limit: impl Into<InFlight>) -> Self {
        self.draft.in_flight = Some(limit.into());
        self
    }

    /// How many tasks a second may be started, all groups together. Groups over the rate wait in order and hold no worker.
    /// Default: no limit. To change while running: [`Engine::set_rate`](crate::Engine::set_rate).
    pub fn rate(mut self, rate: Rate) -> Self {
        self.draft.rate = Some(rate);
        self
    }

    /// How many tasks a second each single group may start. A group over its rate slows no other. Default: no limit. To change while
    /// running: [`Engine::set_group_rate`](crate::Engine::set_group_rate).
    pub fn group_rate(mut self, rate: Rate) -> Self {
        self.draft.group_rate = Some(rate);
        self
    }

    /// Batches that a group may run in one round, one after the other, before it goes behind all that are ready: 1 (the default) to
    /// 1,000. Asked at each dispatch; a panic counts as 1.
    ///
    /// ```
    /// # use bgrp::Engine;
    /// let engine = Engine::<String, u32>::builder()
    ///     .weight(|merchant: &String| if merchant.starts_with("premium") { 4 } else { 1 })
    ///     .task_handler(|_, _| ())
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn weight(mut self, weight: impl Fn(&K) -> u32 + Send + Sync + 'static) -> Self {
        self.draft.shares.set_weight(weight);
        self
    }

    /// Which groups go first, for workers and for permits. Bulk groups run when no interactive one is ready, and one time in eight in any
    /// case. Asked at each dispatch; a panic counts as interactive. Default: all are interactive.
    pub fn class(mut self, class: impl Fn(&K) -> Class + Send + Sync + 'static) -> Self {
        self.draft.shares.set_class(class);
        self
    }
}
