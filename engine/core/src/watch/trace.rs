//! The feature `tracing`: a span for each dispatch, events for what goes wrong.
//!
//! | what | level | when |
//! |---|---|---|
//! | span `dispatch` | DEBUG | around each call of a handler: `group` (hash bits), `key` if asked for, `tasks`, `attempt`; events of the handler lie in it |
//! | event "tasks will be retried" | DEBUG | a dispatch left tasks to be tried again |
//! | event "tasks failed for good" | WARN | attempts were used up |
//! | event "throttled" | DEBUG | the downstream asked for a pause |
//! | event "group halted", "engine halted" | ERROR | what follows used-up attempts stopped them |
//! | event "slow dispatch" | WARN | a dispatch took longer than asked for ([`Builder::slow_dispatch`](crate::Builder::slow_dispatch)) |
//!
//! Cost while nobody listens: a relaxed load and a few comparisons a dispatch. All are of the target `bgrp`.

use std::{
    fmt::{self, Debug},
    hash::Hash,
    time::Duration,
};

use tracing::{Level, span::EnteredSpan};

use super::pace::Timing;
use crate::{
    Builder,
    group::{block::Group, ring::End},
    handler::Work,
    worker::{
        Worker,
        settle::{Next, Settled},
    },
};

/// How a key is shown.
type Show<K> = fn(&K, &mut fmt::Formatter<'_>) -> fmt::Result;

/// What the builder was told.
pub(crate) struct Settings<K> {
    show: Option<Show<K>>,
    slow: Option<Duration>,
}

impl<K> Default for Settings<K> {
    fn default() -> Self {
        Self { show: None, slow: None }
    }
}

impl<K: Debug, T, S> Builder<K, T, S> {
    /// Spans and events carry the key of the group, not only its hash bits. Feature `tracing`.
    pub fn trace_keys(mut self) -> Self {
        self.draft.watch.trace.show = Some(K::fmt);
        self
    }
}

impl<K, T, S> Builder<K, T, S> {
    /// A dispatch that takes longer than this is told of in an event. Times every dispatch ([`Timing::EveryDispatch`]).
    /// Default: none is told of. Feature `tracing`.
    pub fn slow_dispatch(mut self, longer_than: Duration) -> Self {
        self.draft.watch.trace.slow = Some(longer_than);
        self.timing(Timing::EveryDispatch)
    }
}

/// The key of a group, as asked for.
struct Shown<'a, K>(&'a K, Option<Show<K>>);

impl<K> fmt::Display for Shown<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.map_or(Ok(()), |show| show(self.0, f))
    }
}

/// The span of a dispatch, entered, if anybody wants it.
pub(crate) struct DispatchSpan {
    // Left when it is dropped.
    entered: Option<EnteredSpan>,
}

impl<K, T, W> Worker<K, T, W>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
    W: Work<K, T>,
{
    #[inline(always)]
    pub(crate) fn begin_span(&self, group: &Group<K, T>, head: End<T>, tasks: u32) -> DispatchSpan {
        let wanted = tracing::enabled!(target: "bgrp", Level::DEBUG);
        DispatchSpan { entered: wanted.then(|| self.enter_span(group, head, tasks)) }
    }

    #[cold]
    fn enter_span(&self, group: &Group<K, T>, mut head: End<T>, tasks: u32) -> EnteredSpan {
        let show = self.core().settings.watch.trace.show;
        let first = head.trouble().as_ref().and_then(|trouble| trouble.marks.first());
        let attempt = 1 + first.map_or(0, |mark| mark.attempts);
        // SAFETY: we hold the token of a live group.
        let key = Shown(unsafe { group.key() }, show);
        let hash = group.hash();
        let span = if show.is_some() {
            tracing::debug_span!(target: "bgrp", "dispatch", group = hash, key = %key, tasks, attempt)
        } else {
            tracing::debug_span!(target: "bgrp", "dispatch", group = hash, tasks, attempt)
        };
        span.entered()
    }

    #[inline(always)]
    pub(crate) fn end_span(
        &self,
        group: &Group<K, T>,
        span: DispatchSpan,
        began: Option<u64>,
        troubled: Option<&Settled>,
    ) {
        self.tell_end(group, began, troubled);
        drop(span.entered);
    }

    /// Tells of a dispatch that is over, if there is something to tell.
    #[inline(always)]
    pub(crate) fn tell_end(
        &self,
        group: &Group<K, T>,
        began: Option<u64>,
        troubled: Option<&Settled>,
    ) {
        let trace = &self.core().settings.watch.trace;
        let took = began.map(|start| Duration::from_nanos(self.pace.now.saturating_sub(start)));
        let slow = trace.slow.zip(took).filter(|(limit, took)| took > limit);
        let loud = troubled.is_some_and(|settled| {
            settled.failures() > 0 || settled.throttled > 0 || settled.next != Next::Go
        });
        if loud || slow.is_some() {
            let none = Settled::default();
            self.tell(group, slow.map(|(_, took)| took), troubled.unwrap_or(&none));
        }
    }

    #[cold]
    fn tell(&self, group: &Group<K, T>, slow: Option<Duration>, settled: &Settled) {
        let hash = group.hash();
        // SAFETY: we hold the token of a live group.
        let key = Shown(unsafe { group.key() }, self.core().settings.watch.trace.show);
        if settled.retries > 0 {
            let tasks = settled.retries;
            let wait = if let Next::Wait(wait) = settled.next { wait } else { Duration::ZERO };
            tracing::debug!(target: "bgrp", group = hash, key = %key, tasks, ?wait, "tasks will be retried");
        }
        let failed = settled.removed - settled.done;
        if failed > 0 {
            tracing::warn!(target: "bgrp", group = hash, key = %key, tasks = failed, "tasks failed for good");
        }
        if settled.throttled > 0 {
            let pause = Duration::from_millis(settled.throttled.into());
            tracing::debug!(target: "bgrp", group = hash, key = %key, ?pause, "throttled");
        }
        match settled.next {
            Next::HaltGroup => {
                tracing::error!(target: "bgrp", group = hash, key = %key, "group halted");
            }
            Next::HaltEngine => {
                tracing::error!(target: "bgrp", group = hash, key = %key, "engine halted");
            }
            Next::Go | Next::Wait(_) => {}
        }
        if let Some(took) = slow {
            tracing::warn!(target: "bgrp", group = hash, key = %key, ?took, "slow dispatch");
        }
    }
}
