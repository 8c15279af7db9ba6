//! How a run ends, and what must be true then.

use super::{
    oracle::Out,
    setup::lock,
    stage::{KEYS, Stage},
};

/// Seconds without a dispatch. The slowest rate lets a full batch of 64 go after as many, and a queue may have to be walked through
/// past groups that were paused in it.
const PATIENCE: u32 = 2_000;

impl Stage {
    /// By the bits of `how`: 1, everything that may still run has its time; 2, groups that stand go on first; 4, leases that
    /// are out come back only after the close.
    pub(super) fn end(mut self, how: u8) {
        if how & 1 != 0 {
            self.run_out(how & 2 != 0);
        } else if how & 4 == 0 {
            self.all_come_back(0);
        }
        self.close();
        if !lock(&self.shelf).is_empty() {
            self.all_come_back(how >> 3);
            self.close();
        }
        let mut oracle = lock(&self.oracle);
        assert_eq!(oracle.left(), 0, "tasks that nobody gave back");
        oracle.check_tickets(true);
        assert_eq!(self.sim.engine().limits().in_flight, 0, "a permit is missing");
    }

    /// Whatever waits for a rate, a retry, a sink or a lease has its time.
    fn run_out(&mut self, resume: bool) {
        self.refuse();
        let (mut begun, mut since) = (0, 0);
        loop {
            for key in (0..KEYS).filter(|_| resume) {
                self.resume(key, false);
            }
            self.all_come_back(0);
            self.settle();
            self.check();
            let kept = if resume { 0 } else { lock(&self.oracle).held() };
            let out = lock(&self.shelf).len();
            if self.sim.stats().backlog() == kept && out == 0 {
                let limits = self.sim.engine().limits();
                assert_eq!(limits.in_flight, 0, "a permit is missing");
                // A group that was paused while it waited for a permit or the rate leaves the queue when its turn comes.
                if limits.waiting == 0 {
                    return;
                }
                assert!(kept > 0, "a token waits and its group has no task: {limits:?}");
            }
            self.pass(1_003);
            let now = lock(&self.oracle).begun;
            since = if now == begun { since + 1 } else { 0 };
            begun = now;
            assert!(since < PATIENCE, "something waits for ever; {:?}", self.sim.engine().limits());
        }
    }

    /// What the engine did is what the oracle has seen, and what is left comes back.
    fn close(&mut self) {
        let report = self.sim.close();
        self.fail_on_finding();
        let mut oracle = lock(&self.oracle);
        oracle.at_rest();
        let out = lock(&self.shelf).len();
        assert_eq!((report.running, report.leased), (0, out), "running, leased");
        let figures = (report.done, report.failed, report.retries);
        assert_eq!(figures, (oracle.done, oracle.failed, oracle.retries), "figures of the report");
        for left in report.left {
            let ids: Vec<u32> = left.tasks.iter().map(|script| script.id).collect();
            assert!(!ids.is_empty(), "key {} has nothing left", left.key);
            oracle.given_back(left.key, &ids);
        }
        let under_leases = oracle.groups.values().filter(|group| group.out == Out::Leased);
        let tasks: u64 = under_leases.map(|group| group.queue.len() as u64).sum();
        assert_eq!(oracle.left(), tasks, "tasks that nobody gave back");
        oracle.check_tickets(true);
    }
}
