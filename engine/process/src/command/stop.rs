//! Stopping a run from another thread, in stages: what Ctrl-C once, twice and three times ask for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// How far a stop has gone. It only ever goes further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Commands run as they like.
    #[default]
    Calm,
    /// No further one starts; those that run come to their end.
    Draining,
    /// Those that run were asked to end (TERM), and are killed after their grace.
    Asked,
    /// They were killed, with all that they started.
    Killed,
}

/// Raises the stage of a run. Copies raise the same one.
#[derive(Clone, Debug)]
pub struct Stopper {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    stage: Mutex<Stage>,
    bell: OwnedFd,
}

impl Stopper {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { stage: Mutex::default(), bell }) })
    }

    /// Raises the stage, unless it is there already or further.
    pub fn raise(&self, stage: Stage) {
        {
            let mut now = self.shared.stage.lock().unwrap_or_else(PoisonError::into_inner);
            *now = stage.max(*now);
        }
        // It can only fail when it is full, which rings as well.
        let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
    }

    /// How far it has gone.
    #[must_use]
    pub fn stage(&self) -> Stage {
        *self.shared.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// The bell was heard.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
    }
}
