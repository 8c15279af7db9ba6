//! The loop of a worker.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, FromRawFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use super::{Server, error, outbox::Outbox, page::Page};
use crate::{
    clock::monotonic_ns,
    frame::{
        self, Decoder, Encoding, Failed, Group, Hello, Init, Logged, Parcel, Payload, Ready, Reply,
        ReplyBody, Retry, Tasks, Type,
    },
    result::{TaskError, cut},
    task::Value,
};

const CHUNK: usize = 256 * 1024;
/// Larger values go by file.
const LARGE: usize = 4 << 20;
/// The longest text of an error.
const LONGEST_TEXT: usize = 256 * 1024;

/// What a task function is told beside its arguments.
pub struct Context<'a> {
    number: u64,
    id: &'a str,
    key: Option<&'a str>,
    attempt: u32,
    run: &'a str,
    limit: Option<Duration>,
    began: u64,
    outbox: &'a Outbox,
    retry: Cell<Retry>,
}

impl Context<'_> {
    /// The task's id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key
    }

    /// Which attempt this is: 1 for the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The same for all attempts of this task in this run, and for no other: whoever gets a request twice with it may drop the second one.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}-{}", self.run, self.id)
    }

    /// What is left of the time that this attempt may take; `None`: as long as it likes.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let spent = Duration::from_nanos(monotonic_ns().saturating_sub(self.began));
        self.limit.map(|limit| limit.saturating_sub(spent))
    }

    /// Says something in the log, with this task's name on it.
    pub fn log(&self, level: &str, text: &str) {
        self.outbox.say(Type::Log, &Logged(level.into(), text.into(), self.number));
    }

    /// If this attempt fails, no other one follows, whatever the policy.
    pub fn never_again(&self) {
        self.retry.set(Retry::NEVER);
    }

    /// If this attempt fails, the next one follows after this time, if the policy allows one.
    pub fn again_after(&self, after: Duration) {
        self.retry.set(Retry(i64::try_from(after.as_millis()).unwrap_or(i64::MAX)));
    }
}

/// Reads frames until there are no more.
struct Inbox {
    socket: OwnedFd,
    decoder: Decoder,
}

impl Inbox {
    /// Hands the next frame to `then`; `None` at the end of the stream.
    fn next<R>(
        &mut self,
        then: impl FnOnce(Type, u64, &[u8]) -> Result<R, frame::FrameError>,
    ) -> io::Result<Option<R>> {
        let bad = |error: frame::FrameError| {
            io::Error::new(io::ErrorKind::InvalidData, error.to_string())
        };
        // Twice, since what was found cannot be kept while more is read.
        while !self.decoder.has_frame().map_err(bad)? {
            match rustix::io::read(&self.socket, self.decoder.room(CHUNK)) {
                Ok(0) => return Ok(None),
                Ok(count) => self.decoder.filled(count),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.decoder.next().map_err(bad)? {
            Some((kind, at, body)) => then(kind, at, body).map(Some).map_err(bad),
            None => Ok(None),
        }
    }
}

/// Serves until the runner says that it is enough, or is gone.
pub(super) fn serve(server: &Server) -> io::Result<()> {
    let socket = take_fd("BGRP_FD")?.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "BGRP_FD is not set: a runner starts workers")
    })?;
    let page = take_fd("BGRP_CELL")?.map(|fd| Page::map(fd.as_fd())).transpose()?;
    let out = socket.try_clone()?;
    let mut inbox = Inbox { socket, decoder: Decoder::new() };
    let mut hello = Vec::new();
    let encodings = [Encoding::Json, Encoding::MessagePack].map(|e| e.name().to_owned()).to_vec();
    let sdk = concat!("rust ", env!("CARGO_PKG_VERSION")).to_owned();
    let body = Hello { versions: vec![frame::VERSION], encodings, sdk };
    frame::write(&mut hello, Type::Hello, Encoding::Json, &body);
    let mut rest = &hello[..];
    while !rest.is_empty() {
        let count = rustix::net::send(&out, rest, rustix::net::SendFlags::NOSIGNAL)?;
        rest = &rest[count..];
    }
    let init = inbox.next(|kind, at, body| frame::read::<Init>(kind, Encoding::Json, at, body))?;
    let Some(init) = init else { return Ok(()) };
    let encoding = Encoding::of_name(&init.encoding).unwrap_or_default();
    let [flush, heartbeat] =
        [init.flush_ms, init.heartbeat_ms].map(|ms| Duration::from_millis(ms.max(1)));
    let outbox = Outbox::start(out, encoding, flush, heartbeat)?;
    let mut tasks: Vec<String> = server.tasks.keys().map(ToString::to_string).collect();
    tasks.sort_unstable();
    outbox.say_json(Type::Ready, &Ready { tasks, cell: page.is_some(), batch: true });
    let worker = Worker { server, outbox: outbox.clone(), page, run: init.run };
    while let Some(over) = inbox.next(|kind, at, body| match kind {
        Type::Tasks => {
            let tasks: Tasks<'_> = frame::read(kind, encoding, at, body)?;
            worker.run(tasks);
            Ok(worker.outbox.is_lost())
        }
        Type::Drain => {
            worker.outbox.say(Type::Bye, &["drained"]);
            Ok(true)
        }
        // A task that runs cannot be asked: one runs at a time, and this is its thread.
        _ => Ok(false),
    })? {
        if over {
            break;
        }
    }
    Ok(())
}

struct Worker<'a> {
    server: &'a Server,
    outbox: Arc<Outbox>,
    page: Option<Page>,
    run: String,
}

impl Worker<'_> {
    fn run(&self, Tasks(groups): Tasks<'_>) {
        self.outbox.busy(true);
        for Group(key, stops, tasks) in groups {
            let mut failed = false;
            for task in tasks {
                if failed {
                    let reply = Reply { number: task.0, body: ReplyBody::NotRun };
                    self.outbox.push(reply, 0, Duration::ZERO);
                    continue;
                }
                let ok = self.run_one(key.as_ref().map(|key| &*key.0), task);
                failed = stops && !ok;
            }
        }
        self.outbox.busy(false);
    }

    fn run_one(&self, key: Option<&str>, task: Parcel<'_>) -> bool {
        let Parcel(number, id, name, attempt, limit, args) = task;
        let began = monotonic_ns();
        if let Some(page) = &self.page {
            page.begin(number, began);
        }
        let limit = (limit > 0).then(|| Duration::from_millis(limit));
        let (id, run, outbox) = (&*id.0, &*self.run, &*self.outbox);
        let retry = Cell::new(Retry::POLICY);
        let context = Context { number, id, key, attempt, run, limit, began, outbox, retry };
        let name = name.as_ref().map(|name| &*name.0);
        let ended = self.server.find(name).and_then(|function| {
            let args = args.into_value().map_err(|why| error("bad_arguments", why))?;
            catch_unwind(AssertUnwindSafe(|| function(&context, args)))
                .unwrap_or_else(|payload| Err(error("panic", words(&*payload))))
        });
        if let Some(page) = &self.page {
            page.end();
        }
        let took = Duration::from_nanos(monotonic_ns().saturating_sub(began));
        let ok = ended.is_ok();
        let (body, size) = match ended {
            Ok(value) => {
                let size = value.len();
                (payload(value), size)
            }
            Err(failed) => {
                let size = failed.message.len() + failed.trace.len();
                (refused(failed, context.retry.get()), size)
            }
        };
        self.outbox.push(Reply { number, body }, size, took);
        ok
    }
}

fn refused(failed: TaskError, retry: Retry) -> ReplyBody<'static> {
    let text = |text: String| frame::Text(cut(&text, LONGEST_TEXT).into());
    let class = frame::Text(failed.class.to_string().into());
    ReplyBody::Error(Failed(class, text(failed.message), text(failed.trace), retry))
}

fn payload(value: Value) -> ReplyBody<'static> {
    let large = value.len() > LARGE;
    let payload = match value {
        Value::Json(json) if large => {
            by_file(json.get().as_bytes()).map(|path| Payload::JsonFile(path.into()))
        }
        Value::Bytes(bytes) if large => by_file(&bytes).map(|path| Payload::BytesFile(path.into())),
        Value::Json(json) => Ok(Payload::Json(String::from(Box::<str>::from(json)).into())),
        Value::Bytes(bytes) => Ok(Payload::Bytes(Vec::from(bytes).into())),
    };
    match payload {
        Ok(payload) => ReplyBody::Ok(payload),
        Err(why) => {
            refused(error("bad_value", format!("its value has no place: {why}")), Retry::POLICY)
        }
    }
}

fn by_file(bytes: &[u8]) -> io::Result<String> {
    let mut file = tempfile::Builder::new().prefix("bgrp-value-").tempfile()?;
    io::Write::write_all(&mut file, bytes)?;
    let (_, path) = file.keep().map_err(|error| error.error)?;
    path.into_os_string().into_string().map_err(|_| io::Error::other("a path that is no text"))
}

fn words(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic with a payload that is not text".to_owned())
}

/// The descriptor whose number this variable has. What the process starts does not inherit it.
fn take_fd(name: &str) -> io::Result<Option<OwnedFd>> {
    let Ok(number) = std::env::var(name) else { return Ok(None) };
    let number: RawFd = number.parse().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{name}={number} is no descriptor"))
    })?;
    // SAFETY: the runner has opened it for this worker, and the variable says that it is ours; it is taken once, at the start.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(Some(fd))
}
