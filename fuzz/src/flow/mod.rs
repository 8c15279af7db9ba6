//! Limits, rates, throttled downstreams, retries, dead letters, leases, tickets and calls on single groups together: the whole
//! engine on virtual workers and a virtual clock.
//!
//! Checked in each dispatch: order per key, attempts, back-off, the size of a batch, no call while the downstream is throttled, no
//! rate exceeded in any window, no dispatch of a group that is paused, halted or closed, one batch of a group at a time. Checked
//! after each operation: permits in use are within the limit, or were before it went down; each ticket says what has become of its
//! task. Checked at rest: permits = leases that are out; each group with work is reported with what keeps it, and that is true;
//! the figures. At the end, whatever happened: each task ended once (done, failed, written as a dead letter, given back in order),
//! each ticket has told once, no permit is missing, and nothing waits that nothing keeps.

mod ends;
mod groups;
mod leases;
mod oracle;
mod setup;
mod stage;
mod watch;

use oracle::{Answer, Limit, Script};
use stage::Stage;

use crate::bytes::Bytes;

/// Tasks of one input, at most.
const TASKS: u32 = 400;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mut stage = Stage::new(&mut bytes);
    let mut submitted = 0;
    while !bytes.is_empty() && submitted < TASKS {
        let op = bytes.u8();
        let arg = op >> 4;
        match op & 15 {
            0..=3 => {
                for _ in 0..=arg {
                    let way = bytes.u8();
                    stage.submit(way, script(submitted, &mut bytes));
                    submitted += 1;
                }
            }
            4 => stage.lease_comes_back(arg, bytes.u8()),
            5 => stage.step(arg),
            6 | 14 => stage.call(arg, bytes.u8()),
            7 => stage.settle(),
            8 | 9 => {
                let ms = [0, 1, 2, 5, 10, 50, 100, 1_000][usize::from(arg & 7)];
                stage.pass(ms + u64::from(bytes.u8() & 3));
            }
            10 => stage.ask(arg, bytes.u8()),
            11 => stage.limit_in_flight(arg, bytes.u8()),
            12 => stage.set_rate(limit(arg, bytes.u8())),
            13 => stage.set_group_rate(limit(arg, bytes.u8())),
            _ => match arg {
                15 => break,
                14 => stage.refuse(),
                _ => stage.settle(),
            },
        }
        stage.check();
    }
    stage.end(bytes.u8());
}

fn script(id: u32, bytes: &mut Bytes<'_>) -> Script {
    let (first, more) = (bytes.u8(), bytes.u8());
    Script {
        id,
        answers: [first, more & 15, 0].map(answer),
        bad_writes: more >> 4 & 3,
        waits: more & 64 != 0,
    }
}

fn answer(byte: u8) -> Answer {
    match byte & 15 {
        0..=6 => Answer::Done,
        7 => Answer::NotRun,
        8 | 9 => Answer::Retry,
        10 => Answer::After(byte >> 4),
        11 => Answer::Fail,
        12..=14 => Answer::Throttled(byte >> 3),
        _ => Answer::Panic,
    }
}

fn limit(kind: u8, burst: u8) -> Option<Limit> {
    let per_second = [0, 1, 2, 10, 50, 333, 1_000, 100_000][usize::from(kind & 7)];
    let burst = 1 + u64::from(burst & 31);
    (per_second > 0).then_some(Limit { per_second, burst, batches: kind & 8 != 0 })
}
