//! What workers say and print.

use std::time::{Duration, Instant, SystemTime};

use super::{
    hand::{Answer, Hint},
    reactor::Reactor,
    wire,
    worker::{Can, Source, State, Worker},
};
use crate::{
    frame::{
        self, Encoding, Failed, FrameError, Hello, Logged, Ready, ReplyBody, Results, Retry, Type,
    },
    log::{Log, Origin},
    result::{TaskError, cut},
    task::Text,
};

/// The longest text of an error that is kept; what is cut off is said.
const LONGEST_TEXT: usize = 64 * 1024;

impl Reactor {
    /// One of a worker's descriptors is ready.
    pub(super) fn take_in(&mut self, at: usize, source: Source) {
        match source {
            Source::Socket => self.take_in_frames(at),
            Source::Stream(stream) => {
                let mut lines = Vec::new();
                self.workers[at].streams[stream].read(|line| lines.push(line));
                self.say(at, stream, lines);
            }
        }
    }

    fn take_in_frames(&mut self, at: usize) {
        let now = Instant::now();
        if self.workers[at].wants_write() {
            self.workers[at].write();
        }
        if !self.workers[at].read() {
            return;
        }
        // Out of the worker while it is read from.
        let mut decoder = std::mem::take(&mut self.workers[at].decoder);
        let heard = loop {
            match decoder.next() {
                Ok(Some((kind, place, body))) => {
                    if let Err(error) = self.hear(at, kind, place, body, now) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let worker = &mut self.workers[at];
        worker.decoder = decoder;
        if let Err(error) = heard {
            // Nothing that it says can be read any more.
            worker.socket = None;
            let number = worker.number;
            self.last_line = format!("what it says is no frame: {error}");
            self.note(
                number,
                Origin::Logged(Text::const_new("error")),
                self.last_line.clone().into_bytes(),
            );
            self.kill(at);
        }
    }

    fn hear(
        &mut self,
        at: usize,
        kind: Type,
        place: u64,
        body: &[u8],
        now: Instant,
    ) -> Result<(), FrameError> {
        let worker = &mut self.workers[at];
        let encoding = worker.encoding;
        let wrong = |why: &str| Err(FrameError::Body { at: place, kind, why: why.to_owned() });
        match kind {
            Type::Hello => {
                let hello: Hello = frame::read(kind, Encoding::Json, place, body)?;
                if !hello.versions.contains(&frame::VERSION) {
                    return wrong(&format!(
                        "it speaks {:?}, and version {} is wanted",
                        hello.versions,
                        frame::VERSION
                    ));
                }
                let known = hello.encodings.iter().filter_map(|name| Encoding::of_name(name));
                let Some(encoding) = known.max_by_key(|e| *e == Encoding::MessagePack) else {
                    return wrong(&format!(
                        "it writes {:?}; json or msgpack is wanted",
                        hello.encodings
                    ));
                };
                worker.encoding = encoding;
                wire::init(worker, self.guardian.run());
                worker.write();
            }
            Type::Ready => {
                let ready: Ready = frame::read(kind, Encoding::Json, place, body)?;
                worker.can = Can { cell: ready.cell, batch: ready.batch };
                if matches!(worker.state, State::Starting(_)) {
                    worker.state = State::Ready;
                    worker.moved = now;
                }
            }
            Type::Results => {
                let Results(replies) = frame::read(kind, encoding, place, body)?;
                let count = replies.len() as u32;
                for reply in replies {
                    let answer = answer(reply.body);
                    worker.hand.answer(reply.number, answer, &self.judge, &mut self.results);
                }
                if count > 0 {
                    self.starts.worked();
                }
                worker.has_answered(count, now);
            }
            Type::Started => {
                let [number]: [u64; 1] = frame::read(kind, encoding, place, body)?;
                worker.said = Some((number, now));
            }
            Type::Log => {
                let Logged(level, text, number) = frame::read(kind, encoding, place, body)?;
                let task =
                    worker.hand.find(number).map(|(key, item)| (key.name(), item.id.clone()));
                let (key, task) = task.map_or((None, None), |(key, id)| (key, Some(id)));
                let origin = Origin::Logged(Text::from(&*level.0));
                let (worker, line) = (worker.number, text.0.as_bytes().to_vec());
                self.log(Log { at: SystemTime::now(), worker, task, key, origin, line });
            }
            Type::Progress | Type::Heartbeat => {}
            Type::Bye => worker.socket = None,
            Type::Init | Type::Tasks | Type::Cancel | Type::Recall | Type::Drain => {
                return wrong("only the runner says this");
            }
        }
        Ok(())
    }

    /// Lines of one of its streams.
    fn say(&mut self, at: usize, stream: usize, lines: Vec<Vec<u8>>) {
        let number = self.workers[at].number;
        if let Some(last) =
            lines.last().filter(|_| matches!(self.workers[at].state, State::Starting(_)))
        {
            self.last_line = String::from_utf8_lossy(last).into_owned();
        }
        if self.settings.on_log.is_none() {
            return;
        }
        let worker = &self.workers[at];
        let running = worker.runs(Instant::now()).and_then(|(number, _)| worker.hand.find(number));
        let (task, key) =
            running.map_or((None, None), |(key, item)| (Some(item.id.clone()), key.name()));
        for line in lines {
            let (task, key) = (task.clone(), key.clone());
            let origin = origin(stream);
            self.log(Log { at: SystemTime::now(), worker: number, task, key, origin, line });
        }
    }

    /// Of a worker that is gone: what is left in its pipes now.
    pub(super) fn say_rest(&mut self, worker: &mut Worker, stream: usize) {
        let mut lines = Vec::new();
        let pipe = &mut worker.streams[stream];
        let mut before = usize::MAX;
        // What it wrote is there; what others still write is not waited for.
        while pipe.pipe.is_some() && before != lines.len() {
            before = lines.len();
            pipe.read(|line| lines.push(line));
        }
        pipe.close(|line| lines.push(line));
        if let Some(last) = lines.last() {
            self.last_line = String::from_utf8_lossy(last).into_owned();
        }
        for line in lines {
            self.note(worker.number, origin(stream), line);
        }
    }

    fn note(&self, worker: u32, origin: Origin, line: Vec<u8>) {
        self.log(Log { at: SystemTime::now(), worker, task: None, key: None, origin, line });
    }

    fn log(&self, log: Log) {
        if let Some(on_log) = &self.settings.on_log {
            // A panic of the caller's ends there.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_log(log)));
        }
    }
}

fn origin(stream: usize) -> Origin {
    if stream == 0 { Origin::Stdout } else { Origin::Stderr }
}

fn answer(body: ReplyBody<'_>) -> Answer {
    match body {
        ReplyBody::NotRun => Answer::NotRun,
        ReplyBody::Ok(payload) => match payload.into_value() {
            Ok(value) => Answer::Ok(value),
            Err(why) => Answer::Error(
                TaskError {
                    class: Text::const_new("ValueLost"),
                    message: format!("its value is lost: {why}"),
                    trace: String::new(),
                },
                Hint::Policy,
            ),
        },
        ReplyBody::Error(Failed(class, message, trace, retry)) => {
            let hint = match retry {
                Retry::NEVER => Hint::Never,
                Retry(ms @ 0..) => Hint::After(Duration::from_millis(ms as u64)),
                _ => Hint::Policy,
            };
            let error = TaskError {
                class: Text::from(&*class.0),
                message: cut(&message.0, LONGEST_TEXT),
                trace: cut(&trace.0, LONGEST_TEXT),
            };
            Answer::Error(error, hint)
        }
    }
}
