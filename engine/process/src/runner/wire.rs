//! What the runner says to a worker, as frames at the end of its queue.

use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

use super::{
    hand::{Answer, Judge},
    item::Key,
    worker::Worker,
};
use crate::{
    frame::{self, Encoding, Group, Init, Payload, Tasks, Text, Type},
    result::{Ended, TaskResult},
    task::Value,
};

/// How often a worker that runs a long task is to say that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The longest time that a result may wait in the worker.
const FLUSH: Duration = Duration::from_millis(5);
/// A frame of tasks is closed when its arguments have so many bytes.
const BYTES: usize = 1 << 20;

pub(super) fn init(worker: &mut Worker, run: &str) {
    let init = Init {
        version: frame::VERSION,
        encoding: worker.encoding.name().to_owned(),
        run: run.to_owned(),
        worker: worker.number,
        heartbeat_ms: HEARTBEAT.as_millis() as u64,
        flush_ms: FLUSH.as_millis() as u64,
    };
    frame::write(&mut worker.out, Type::Init, Encoding::Json, &init);
}

pub(super) fn cancel(worker: &mut Worker, number: u64) {
    frame::write(&mut worker.out, Type::Cancel, worker.encoding, &[number]);
}

pub(super) fn drain(worker: &mut Worker) {
    frame::write(&mut worker.out, Type::Drain, worker.encoding, &[0u8; 0]);
}

/// Sends up to `most` tasks of what the worker holds. Says how many.
pub(super) fn send_tasks(
    worker: &mut Worker,
    most: u32,
    judge: &Judge,
    timeout: Option<Duration>,
    now: Instant,
    results: &mut Vec<TaskResult>,
) -> u32 {
    let sent = worker.hand.send(most, BYTES, worker.number, judge);
    if sent == 0 {
        return 0;
    }
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut last = 0;
    for parcel in worker.hand.last(sent) {
        if parcel.opens {
            let key = match parcel.key {
                Key::Named(name) => Some(Text::from(name.as_str())),
                Key::Alone(_) => None,
            };
            groups.push(Group(key, judge.stops, Vec::new()));
        }
        let item = parcel.item;
        let limit = item.timeout.or(timeout).map_or(0, |limit| limit.as_millis().max(1) as u64);
        let task = frame::Parcel(
            parcel.number,
            Text::from(item.id.as_str()),
            item.name.as_deref().map(Text::from),
            parcel.attempt,
            limit,
            payload(&item.args),
        );
        last = parcel.number;
        groups.last_mut().expect("the first one opens it").2.push(task);
    }
    let fits = frame::write(&mut worker.out, Type::Tasks, worker.encoding, &Tasks(groups));
    if !fits {
        // Nothing was written. Too large ones are refused at the submit, so this is not to happen; if it does, it is said, and nothing waits for ever.
        for number in last + 1 - u64::from(sent)..=last {
            let ended = Ended::InputError("its arguments cannot be written as a frame".to_owned());
            worker.hand.answer(number, Answer::Lost(ended), judge, results);
        }
        return sent;
    }
    worker.sent_frame(sent, last, now);
    sent
}

fn payload(value: &Value) -> Payload<'_> {
    match value {
        Value::Json(json) => Payload::Json(Cow::Borrowed(json.get())),
        Value::Bytes(bytes) => Payload::Bytes(Cow::Borrowed(bytes)),
    }
}
