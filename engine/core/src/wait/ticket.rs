//! A ticket: the right to hear how one task ends.

use std::{
    fmt,
    panic::Location,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::{
    cell::{Cell, Ended},
    check::{Entered, WaitHost},
    error::WaitError,
};

/// How often a handler that waits looks whether its wait can still end, where nothing tells it to.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Hears how one task ends. From [`Engine::submit_tracked`](crate::Engine::submit_tracked) and its kin.
///
/// Wait for it on any thread ([`Ticket::wait`]), ask now and then ([`Ticket::is_over`]), or `await` it on any runtime. Inside a
/// handler of the same engine a wait that could not end is refused at once, with the keys of the groups that would wait for
/// each other. Drop it if you do not care any more: the task goes on.
///
/// ```
/// use std::sync::OnceLock;
/// use bgrp::{Ended, Engine, Ticket, Workers};
///
/// let engine = Engine::<&str, u32>::builder().workers(Workers::fixed(2)).task_handler(|_, _| ()).build()?;
/// let ticket = engine.submit_tracked("merchant_1001", 7)?;
/// assert_eq!(ticket.wait()?, Ended::Done);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a ticket that nobody keeps tells nobody; use submit"]
pub struct Ticket {
    cell: Arc<Cell>,
    host: Weak<dyn WaitHost>,
    /// Where the task was submitted.
    made: &'static Location<'static>,
    /// As a future that was polled.
    entered: Option<Entered>,
}

impl Ticket {
    pub(crate) fn new(
        cell: Arc<Cell>,
        host: Weak<dyn WaitHost>,
        made: &'static Location<'static>,
    ) -> Self {
        Self { cell, host, made, entered: None }
    }

    /// The task is over: [`Ticket::wait`] would not block.
    pub fn is_over(&self) -> bool {
        self.cell.is_over()
    }

    /// How the task ended, if it did.
    pub fn ended(&self) -> Option<Ended> {
        self.cell.ended()
    }

    /// Blocks until the task is over.
    ///
    /// Inside a handler of the same engine the wait holds its worker, and its permit if there are any.
    ///
    /// # Errors
    /// Inside a handler of the same engine: the wait could never end, see [`WaitError`]. Elsewhere never.
    #[track_caller]
    pub fn wait(&self) -> Result<Ended, WaitError> {
        self.wait_by(None, Duration::MAX, Location::caller())
    }

    /// As [`Ticket::wait`], for at most so long.
    ///
    /// # Errors
    /// As [`Ticket::wait`], and when the time was up first.
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Ended, WaitError> {
        let deadline = crate::sync::instant().checked_add(timeout);
        self.wait_by(deadline, timeout, Location::caller())
    }

    fn wait_by(
        &self,
        deadline: Option<Instant>,
        timeout: Duration,
        at: &'static Location<'static>,
    ) -> Result<Ended, WaitError> {
        if let Some(ended) = self.cell.ended() {
            return Ok(ended);
        }
        // No share of the engine is kept while it waits: the engine's end ends the wait.
        let entered =
            self.host.upgrade().map(|host| host.enter(&self.cell, false, at)).transpose()?;
        let _leaves = entered.map(|entered| Leaves { id: entered.id, host: &self.host });
        let by_handler = entered.is_some_and(|entered| entered.by_handler);
        loop {
            let seen = by_handler.then(|| self.cell.pokes());
            if by_handler && let (Some(host), Some(entered)) = (self.host.upgrade(), entered) {
                host.look_again(entered.id)?;
            }
            let soon = by_handler.then(|| crate::sync::instant() + LOOK_AGAIN);
            let until = [deadline, soon].into_iter().flatten().min();
            if let Some(ended) = self.cell.sleep(until, seen) {
                return Ok(ended);
            }
            if deadline.is_some_and(|end| end <= crate::sync::instant()) {
                return Err(WaitError::TimedOut(timeout));
            }
        }
    }

    fn forget_wait(&mut self) {
        if let Some(entered) = self.entered.take()
            && let Some(host) = self.host.upgrade()
        {
            host.leave(entered.id);
        }
    }
}

/// Leaves the graph, whatever happens.
struct Leaves<'a> {
    id: u64,
    host: &'a Weak<dyn WaitHost>,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.host.upgrade() {
            host.leave(self.id);
        }
    }
}

/// Ready when the task is over, on any runtime. Polled inside a handler of the same engine it is a wait like [`Ticket::wait`],
/// and ends with an error where that would.
impl Future for Ticket {
    type Output = Result<Ended, WaitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(ended) = self.cell.ended() {
                self.forget_wait();
                return Poll::Ready(Ok(ended));
            }
            let seen = self.cell.pokes();
            if let Some(host) = self.host.upgrade() {
                let looked = match self.entered {
                    Some(entered) => host.look_again(entered.id),
                    None => host.enter(&self.cell, true, self.made).map(|entered| {
                        self.entered = Some(entered);
                    }),
                };
                if let Err(error) = looked {
                    self.entered = None;
                    return Poll::Ready(Err(error));
                }
            }
            match self.cell.poll(context.waker(), seen) {
                Some(Poll::Pending) => return Poll::Pending,
                // Over, or something has changed.
                _ => continue,
            }
        }
    }
}

impl Clone for Ticket {
    fn clone(&self) -> Self {
        Self { cell: self.cell.clone(), host: self.host.clone(), made: self.made, entered: None }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.forget_wait();
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("ended", &self.ended()).finish_non_exhaustive()
    }
}
