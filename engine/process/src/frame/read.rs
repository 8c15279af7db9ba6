//! Bodies taken apart. Tasks and results are given one by one to a closure, borrowed from the body; what came before a
//! fault has been given by then.

use std::borrow::Cow;

use super::{
    Encoding, FrameError, Hello, Init, Kind, Level, ReadValue, Ready, RetryHint, Status, Task,
    json::Json,
    mutant,
    pack::Pack,
    source::{Read, Source},
    value::tag,
};

/// A task as read.
pub type ReadTask<'a> = Task<Cow<'a, str>, ReadValue<'a>>;
/// The end of a task as read.
pub type ReadStatus<'a> = Status<Cow<'a, str>, ReadValue<'a>>;

/// The group of the tasks that follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Group<'a> {
    /// Its place in the frame.
    pub index: usize,
    /// Its key.
    pub key: Option<Cow<'a, str>>,
    /// Later tasks of it are not run when one fails.
    pub stop: bool,
}

/// A log line.
#[derive(Clone, Debug, PartialEq)]
pub struct Log<'a> {
    /// How serious.
    pub level: Level,
    /// Which task wrote it; 0 for none.
    pub number: u64,
    /// What it says.
    pub text: Cow<'a, str>,
    /// What else it says.
    pub fields: ReadValue<'a>,
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Which task.
    pub number: u64,
    /// So much is done.
    pub done: u64,
    /// Of so much; 0 when it is not known.
    pub total: u64,
    /// In words.
    pub note: Cow<'a, str>,
}

/// Reads with the source that the encoding calls for, and names the frame in errors.
macro_rules! reading {
    ($kind:expr, $encoding:expr, $body:expr, $source:ident => $read:expr) => {{
        let outcome = match $encoding {
            Encoding::Json => Json::new($body).and_then(|mut json| {
                let $source = &mut json;
                let got = $read;
                json.end().map(|()| got)
            }),
            Encoding::Msgpack | Encoding::Mixed => (|| {
                let mut pack = Pack::new($body);
                let $source = &mut pack;
                let got = $read;
                pack.end().map(|()| got)
            })(),
        };
        outcome.map_err(|error: FrameError| error.within($kind))
    }};
}

/// HELLO: always JSON.
pub fn hello(body: &[u8]) -> Read<Hello> {
    object(Kind::Hello, body)
}

/// INIT: always JSON.
pub fn init(body: &[u8]) -> Read<Init> {
    object(Kind::Init, body)
}

fn object<T: serde::de::DeserializeOwned>(kind: Kind, body: &[u8]) -> Read<T> {
    serde_json::from_slice(body)
        .map_err(|error| FrameError::new(error.column(), error.to_string()).within(kind))
}

/// READY.
pub fn ready(encoding: Encoding, body: &[u8]) -> Read<Ready> {
    reading!(Kind::Ready, encoding, body, source => ready_from(source)?)
}

fn ready_from<'a>(source: &mut impl Source<'a>) -> Read<Ready> {
    let mut ready = Ready::default();
    let seq = &mut source.open()?;
    source.need(seq, "the names")?;
    if !source.null()? {
        let (mut tasks, mut names) = (Vec::new(), source.open()?);
        while source.more(&mut names)? {
            tasks.push(source.text()?.into_owned());
        }
        ready.tasks = Some(tasks);
    }
    source.need(seq, "what it can")?;
    let mut can = source.open()?;
    while source.more(&mut can)? {
        match &*source.text()? {
            "cell" => ready.cell = true,
            "batch" => ready.batch = true,
            "recall" => ready.recall = true,
            _ => {}
        }
    }
    source.rest(seq)?;
    Ok(ready)
}

/// TASKS.
pub fn tasks<'a>(
    encoding: Encoding,
    body: &'a [u8],
    mut each: impl FnMut(&Group<'a>, ReadTask<'a>),
) -> Read<()> {
    reading!(Kind::Tasks, encoding, body, source => tasks_from(source, &mut each)?)
}

fn tasks_from<'a>(
    source: &mut impl Source<'a>,
    each: &mut impl FnMut(&Group<'a>, ReadTask<'a>),
) -> Read<()> {
    let mut groups = source.open()?;
    let mut index = 0;
    while source.more(&mut groups)? {
        let fields = &mut source.open()?;
        source.need(fields, "the key")?;
        let key = source.text_or_null()?;
        source.need(fields, "the stop flag")?;
        let stop = source.boolean()?;
        let group = Group { index, key, stop };
        source.need(fields, "the tasks")?;
        let mut seq = source.open()?;
        while source.more(&mut seq)? {
            let task = task(source)?;
            each(&group, task);
        }
        source.rest(fields)?;
        index += 1;
    }
    Ok(())
}

#[inline]
fn task<'a>(source: &mut impl Source<'a>) -> Read<ReadTask<'a>> {
    let seq = &mut source.open()?;
    source.need(seq, "the number")?;
    let number = source.uint()?;
    source.need(seq, "the id")?;
    let id = source.text()?;
    source.need(seq, "the name")?;
    let name = source.text()?;
    source.need(seq, "the attempt")?;
    let attempt = source.uint()?;
    let attempt = u32::try_from(attempt).map_err(|_| source.fault(format!("attempt {attempt}")))?;
    source.need(seq, "the timeout")?;
    let timeout_ms = source.uint()?;
    source.need(seq, "the kind of the args")?;
    let kind = source.uint()?;
    source.need(seq, "the args")?;
    let args = value(source, kind)?;
    source.rest(seq)?;
    Ok(Task { number, id, name, attempt, timeout_ms, args })
}

#[inline]
fn value<'a>(source: &mut impl Source<'a>, kind: u64) -> Read<ReadValue<'a>> {
    Ok(match kind {
        tag::VALUE => ReadValue::Json(source.json()?),
        tag::BYTES => ReadValue::Bytes(source.bytes()?),
        tag::JSON_FILE => ReadValue::JsonFile(source.text()?),
        tag::BYTES_FILE => ReadValue::BytesFile(source.text()?),
        tag::TEXT => {
            let text = source.text()?;
            let mut inner = Json::over(&text);
            let valid = mutant("frames-text-unchecked")
                || inner.skip().and_then(|()| inner.end()).map(|()| true).map_err(|error| {
                    source.fault(format!("JSON text, byte {}: {}", error.offset, error.what))
                })?;
            debug_assert!(valid);
            ReadValue::Json(text)
        }
        other => return Err(source.fault(format!("there is no kind of value {other}"))),
    })
}

/// RESULTS: numbers, and how each ended.
pub fn results<'a>(
    encoding: Encoding,
    body: &'a [u8],
    mut each: impl FnMut(u64, ReadStatus<'a>),
) -> Read<()> {
    reading!(Kind::Results, encoding, body, source => results_from(source, &mut each)?)
}

fn results_from<'a>(
    source: &mut impl Source<'a>,
    each: &mut impl FnMut(u64, ReadStatus<'a>),
) -> Read<()> {
    let mut all = source.open()?;
    while source.more(&mut all)? {
        let seq = &mut source.open()?;
        source.need(seq, "the number")?;
        let number = source.uint()?;
        source.need(seq, "the status")?;
        let status = match source.uint()? {
            0 => {
                source.need(seq, "the kind of the value")?;
                let kind = source.uint()?;
                source.need(seq, "the value")?;
                Status::Ok(value(source, kind)?)
            }
            1 => {
                source.need(seq, "the class")?;
                let class = source.text()?;
                source.need(seq, "the message")?;
                let message = source.text()?;
                source.need(seq, "the traceback")?;
                let traceback = source.text()?;
                source.need(seq, "the retry hint")?;
                let retry = match source.int()? {
                    -1 => RetryHint::Default,
                    -2 => RetryHint::Never,
                    ms @ 0.. => RetryHint::After(ms as u64),
                    other => return Err(source.fault(format!("retry hint {other}"))),
                };
                Status::Error { class, message, traceback, retry }
            }
            2 => Status::NotRun,
            other => return Err(source.fault(format!("there is no status {other}"))),
        };
        source.rest(seq)?;
        each(number, status);
    }
    Ok(())
}

/// STARTED and CANCEL: the number of a task.
pub fn number(kind: Kind, encoding: Encoding, body: &[u8]) -> Read<u64> {
    reading!(kind, encoding, body, source => number_from(source)?)
}

fn number_from<'a>(source: &mut impl Source<'a>) -> Read<u64> {
    let seq = &mut source.open()?;
    source.need(seq, "the number")?;
    let number = source.uint()?;
    source.rest(seq)?;
    Ok(number)
}

/// HB, RECALL, DRAIN: an array, empty so far.
pub fn empty(kind: Kind, encoding: Encoding, body: &[u8]) -> Read<()> {
    reading!(kind, encoding, body, source => empty_from(source)?)
}

fn empty_from<'a>(source: &mut impl Source<'a>) -> Read<()> {
    let seq = &mut source.open()?;
    source.rest(seq)
}

/// BYE: the reason.
pub fn bye(encoding: Encoding, body: &[u8]) -> Read<Cow<'_, str>> {
    reading!(Kind::Bye, encoding, body, source => bye_from(source)?)
}

fn bye_from<'a>(source: &mut impl Source<'a>) -> Read<Cow<'a, str>> {
    let seq = &mut source.open()?;
    source.need(seq, "the reason")?;
    let reason = source.text()?;
    source.rest(seq)?;
    Ok(reason)
}

/// LOG.
pub fn log(encoding: Encoding, body: &[u8]) -> Read<Log<'_>> {
    reading!(Kind::Log, encoding, body, source => log_from(source)?)
}

fn log_from<'a>(source: &mut impl Source<'a>) -> Read<Log<'a>> {
    let seq = &mut source.open()?;
    source.need(seq, "the level")?;
    let level = match source.uint()? {
        0 => Level::Trace,
        1 => Level::Debug,
        2 => Level::Info,
        3 => Level::Warn,
        4 => Level::Error,
        other => return Err(source.fault(format!("there is no level {other}"))),
    };
    source.need(seq, "the number")?;
    let number = source.uint()?;
    source.need(seq, "the text")?;
    let text = source.text()?;
    source.need(seq, "the kind of the fields")?;
    let kind = source.uint()?;
    source.need(seq, "the fields")?;
    let fields = value(source, kind)?;
    source.rest(seq)?;
    Ok(Log { level, number, text, fields })
}

/// PROGRESS.
pub fn progress(encoding: Encoding, body: &[u8]) -> Read<Progress<'_>> {
    reading!(Kind::Progress, encoding, body, source => progress_from(source)?)
}

fn progress_from<'a>(source: &mut impl Source<'a>) -> Read<Progress<'a>> {
    let seq = &mut source.open()?;
    source.need(seq, "the number")?;
    let number = source.uint()?;
    source.need(seq, "what is done")?;
    let done = source.uint()?;
    source.need(seq, "the total")?;
    let total = source.uint()?;
    source.need(seq, "the note")?;
    let note = source.text()?;
    source.rest(seq)?;
    Ok(Progress { number, done, total, note })
}
