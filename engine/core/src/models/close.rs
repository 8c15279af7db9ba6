//! Close after a halt (lifecycle/close.rs): what a submit called accepted is in the report, or has run.

use loom::thread;

use super::{check_seen, tiny::tiny};
use crate::{engine::Control, front::Patience};

/// A submitter between its reservation and its publication while the engine is halted and collected.
#[test]
fn halt_and_submit() {
    check_seen(3, || {
        let (core, mut worker, log) = tiny(10);
        let theirs = core.clone();
        let submitter = thread::spawn(move || {
            (0..2).filter(|task| theirs.front.submit(1, *task, Patience::None).is_ok()).count()
        });
        worker.step();
        core.refuse();
        let report = core.stop(None);
        let accepted = submitter.join().unwrap();
        let ran = log.lock().unwrap().len();
        assert_eq!(ran + report.left_tasks(), accepted, "{ran} ran, {:?}", report.left);
        assert!(report.left.len() <= 1, "one queue a key");
    });
}
