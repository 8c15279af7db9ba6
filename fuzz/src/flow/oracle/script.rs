//! What is to become of a task, as its input says.

use std::time::Duration;

/// A task, with all that will become of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Its number.
    pub(crate) id: u32,
    /// What the handler answers at which attempt.
    pub(crate) answers: [Answer; 3],
    /// So often the dead-letter sink fails for it.
    pub(crate) bad_writes: u8,
    /// Its handler waits for a ticket first.
    pub(crate) waits: bool,
}

impl Script {
    /// What it weighs. Some weigh more than all tasks may.
    pub(crate) fn weight(&self) -> usize {
        if self.id % 31 == 30 { 101 } else { self.id as usize % 8 * 3 }
    }

    /// What the handler answers at this try; done after the last that is written.
    pub(super) fn answer(&self, tries: usize) -> Answer {
        self.answers.get(tries).copied().unwrap_or(Answer::Done)
    }
}

/// What the handler answers. After the third time it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done.
    Done,
    /// To be retried as the policy says.
    Retry,
    /// To be retried after so many milliseconds.
    After(u8),
    /// Failed for good.
    Fail,
    /// The downstream has had enough for so many milliseconds.
    Throttled(u8),
    /// It was not begun.
    NotRun,
    /// The handler panics. Of a lease: whoever has it does.
    Panic,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Done.
    Done,
    /// Failed for good, after so many attempts.
    Failed(u32),
    /// Given back by a call or by the close.
    GivenBack,
}

/// How a dispatch is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// As the scripts of its tasks say; a panic if one of them says so.
    Scripts,
    /// Not at all: every task counts as retried.
    Lost,
    /// With one outcome too many: every task fails.
    WrongCount,
}

/// How the engine of this run is set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Attempts of a task.
    pub(crate) attempts: u32,
    /// The wait before a retry.
    pub(crate) delay: Duration,
    /// Groups whose keys are a multiple of this halt when a task fails for good; 0: none.
    pub(crate) halts: u8,
    /// Tasks that failed for good go to a sink, which fails now and then.
    pub(crate) sink: bool,
    /// Batches leave as leases.
    pub(crate) leases: bool,
    /// Handlers wait for tickets where scripts say so.
    pub(crate) waits: bool,
}

/// Between two writes of a dead letter.
pub(crate) const HOLD: Duration = Duration::from_millis(7);
