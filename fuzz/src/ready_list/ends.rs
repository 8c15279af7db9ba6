//! How a run ends: drained, closed, halted or dropped; and what must be true then.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use bgrp::SubmitReason;

use super::{
    drive::Drive,
    leases,
    model::{self, with},
    setup::End,
    values::{Arms, KEYS, Key, Task, at_work, bury, with_handles},
};

impl Drive {
    /// The end that the settings name, unless the engine is closed already.
    pub(super) fn end(mut self) {
        if !self.is_closed() {
            match self.setup.end {
                End::Drain => drain(&mut self),
                End::Close => close(&mut self),
                End::Halt => {
                    self.halt();
                    close(&mut self);
                }
                End::Drop => {}
            }
        }
        // None outlives its engine here: what is left of its group would be dropped with a message.
        leases::all_come_back();
        with(|model| model.closing = true);
        let sim = self.sim.take();
        let lanes = std::mem::take(&mut self.lanes);
        let handles_last = self.setup.handles_last;
        // Tasks whose drop panics are among those that go with the engine.
        let dropped = at_work(Arms::default(), || {
            catch_unwind(AssertUnwindSafe(|| {
                if handles_last {
                    drop(sim);
                    drop(lanes);
                    drop_handles();
                } else {
                    drop_handles();
                    drop(lanes);
                    drop(sim);
                }
            }))
        });
        assert!(dropped.is_ok(), "the drop of the engine panics");
        bury();
    }
}

fn drop_handles() {
    // Outside of the list: the last handle may drop the engine, and that asks the list.
    let handles = with_handles(std::mem::take);
    drop(handles);
}

/// The engine's figures are the oracle's.
pub(super) fn compare(drive: &Drive) {
    if drive.setup.leases && with(|model| model.halted) {
        // What comes back now is settled by the close.
        return;
    }
    let stats = drive.sim().stats();
    with(|model| {
        let seen = model::Figures {
            accepted: stats.accepted,
            done: stats.done,
            failed: stats.failed,
            retries: stats.retries,
        };
        assert_eq!(seen, model.figures, "figures");
        if !model.halted && !model.is_crowded() {
            assert_eq!(stats.held, model.held() as u64, "held tasks");
            assert_eq!(stats.backlog(), (model.held() + model.waiting()) as u64, "backlog");
        }
        assert!(stats.groups <= stats.groups_made, "more groups than were made");
    });
}

/// Everything runs to its end, which must come.
fn drain(drive: &mut Drive) {
    drive.refuse();
    drive.rest();
    let mut rounds = 0;
    while with(|model| !model.halted && model.waiting() > 0) {
        rounds += 1;
        let waiting = with(|model| model.waiting());
        assert!(rounds < 100_000, "{waiting} tasks never end");
        leases::all_come_back();
        drive.advance(Duration::from_millis(60));
        drive.rest();
    }
    close(drive);
}

/// Closes, and compares what comes back.
pub(super) fn close(drive: &mut Drive) {
    drive.refuse();
    drive.rest();
    while leases::out() > 0 {
        leases::all_come_back();
        drive.rest();
    }
    with(|model| model.closing = true);
    let sim = drive.sim.as_mut().expect("the engine is there until the end");
    // Leases that came back to a halted engine are settled here: drops of their tasks may panic.
    let report = at_work(Arms::default(), || sim.close());
    assert_eq!((report.running, report.leased), (0, 0), "nobody runs anything");
    with(|model| {
        let figures = model.figures;
        assert_eq!(
            (report.done, report.failed, report.retries),
            (figures.done, figures.failed, figures.retries),
            "figures of the report"
        );
        let left = report.left_tasks() as u64;
        assert_eq!(figures.done + figures.failed + left, figures.accepted, "lost or run twice");
        let keys: BTreeSet<u8> = report.left.iter().map(|left| left.key.n).collect();
        assert_eq!(keys.len(), report.left.len(), "a key comes back in two pieces");
        for left in &report.left {
            let tasks: Vec<_> = left.tasks.iter().map(|task| (task.id, task.source)).collect();
            model.give_back(left.key.n, &tasks);
        }
        assert_eq!(model.waiting() + model.held(), 0, "tasks that nobody gave back");
        model.halted = true;
    });
    model::check();
    drop(report);
    after_the_close(drive);
}

/// Nothing runs, nothing comes in, and nothing is left to give back.
fn after_the_close(drive: &mut Drive) {
    let figures = with(|model| model.figures);
    for worker in 0..drive.setup.workers {
        drive.step(worker, Arms::default());
    }
    for key in 0..KEYS {
        let Some(task) = Task::new(0, 0) else { break };
        let refused = drive.sim().submit(Key::new(key), task).expect_err("closed");
        assert_eq!(refused.reason, SubmitReason::Closed);
    }
    with_handles(|handles| {
        for handle in handles.iter().flatten() {
            let Some(task) = Task::new(0, 0) else { break };
            let refused = handle.try_submit(task).expect_err("closed");
            assert_eq!(refused.reason, SubmitReason::Closed);
        }
    });
    for (way, lane) in drive.lanes.iter_mut().flatten() {
        let Some(task) = Task::new(*way, 0) else { break };
        let refused = lane.try_submit(Key::new(0), task).expect_err("closed");
        assert_eq!(refused.reason, SubmitReason::Closed);
    }
    let sim = drive.sim.as_mut().expect("the engine is there until the end");
    let again = sim.close();
    assert!(again.is_complete(), "the second close gives back {:?}", again.left);
    assert_eq!((again.done, again.failed), (figures.done, figures.failed));
    assert_eq!(with(|model| model.figures), figures);
}
