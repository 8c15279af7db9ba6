//! The process groups of commands that run now, and how far the stop has gone.
//!
//! | stage | a command that starts or runs |
//! |---|---|
//! | calm | is left alone |
//! | asked | gets TERM |
//! | killed | gets KILL |
//!
//! I1: a group is signalled only between [`Running::enter`] and [`Running::leave`], and its leader is not
//! reaped in between, so its number cannot mean another process.
//!
//! I2: a command that enters after the stage was raised gets the signal of that stage on entry.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// How far the stop has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Commands run as they like.
    #[default]
    Calm,
    /// They were asked to end.
    Asked,
    /// They were killed.
    Killed,
}

impl Stage {
    fn signal(self) -> Option<Signal> {
        match self {
            Self::Calm => None,
            Self::Asked => Some(Signal::TERM),
            Self::Killed => Some(Signal::KILL),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    groups: HashSet<Pid>,
}

/// The process groups that run now.
#[derive(Debug, Default)]
pub struct Running {
    state: Mutex<State>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command has started; it leads the group with its own number.
    pub fn enter(&self, leader: Pid) {
        let mut state = self.lock();
        state.groups.insert(leader);
        if let Some(signal) = state.stage.signal() {
            send(leader, signal);
        }
    }

    /// A command has ended and is about to be reaped.
    pub fn leave(&self, leader: Pid) {
        self.lock().groups.remove(&leader);
    }

    /// Raises the stage and signals all groups; says how many there are.
    pub fn raise(&self, stage: Stage) -> usize {
        let mut state = self.lock();
        state.stage = state.stage.max(stage);
        if let Some(signal) = state.stage.signal() {
            for &leader in &state.groups {
                send(leader, signal);
            }
        }
        state.groups.len()
    }

    /// How many run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().groups.len()
    }

    /// How far the stop has gone.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.lock().stage
    }
}

/// Signals a whole group. A group that is gone is no fault: that is what the signal is for.
pub(super) fn send(leader: Pid, signal: Signal) {
    let _ = kill_process_group(leader, signal);
}
