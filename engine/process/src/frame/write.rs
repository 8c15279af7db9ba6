//! Frames appended to a buffer. Nothing is allocated but the room of the buffer.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    Encoding, FrameError, HEADER, Hello, Init, Kind, Level, MAX_BODY, Ready, RetryHint, Status,
    Task, Value, transcode, value::tag,
};

/// A task to be written.
pub type WriteTask<'a> = Task<&'a str, Value<'a>>;
/// The end of a task to be written.
pub type WriteStatus<'a> = Status<&'a str, Value<'a>>;

/// MessagePack, piece by piece.
pub(crate) mod raw {
    #[inline]
    pub(crate) fn uint(out: &mut Vec<u8>, n: u64) {
        if n < 0x80 {
            out.push(n as u8);
        } else if let Ok(n) = u8::try_from(n) {
            out.extend_from_slice(&[0xcc, n]);
        } else if let Ok(n) = u16::try_from(n) {
            let [a, b] = n.to_be_bytes();
            out.extend_from_slice(&[0xcd, a, b]);
        } else if let Ok(n) = u32::try_from(n) {
            let [a, b, c, d] = n.to_be_bytes();
            out.extend_from_slice(&[0xce, a, b, c, d]);
        } else {
            out.push(0xcf);
            out.extend_from_slice(&n.to_be_bytes());
        }
    }

    #[inline]
    pub(crate) fn int(out: &mut Vec<u8>, n: i64) {
        match n {
            0.. => uint(out, n as u64),
            -32..0 => out.push(n as u8),
            _ => {
                out.push(0xd3);
                out.extend_from_slice(&n.to_be_bytes());
            }
        }
    }

    /// A text or (`bin`) bytes. Lengths fit 32 bits: a longer one makes the frame too large.
    #[inline]
    fn sized(out: &mut Vec<u8>, bytes: &[u8], bin: bool) {
        let n = bytes.len();
        match n {
            0..32 if !bin => out.push(0xa0 | n as u8),
            0..0x100 => out.extend_from_slice(&[if bin { 0xc4 } else { 0xd9 }, n as u8]),
            0x100..0x1_0000 => {
                out.push(if bin { 0xc5 } else { 0xda });
                out.extend_from_slice(&(n as u16).to_be_bytes());
            }
            _ => {
                out.push(if bin { 0xc6 } else { 0xdb });
                out.extend_from_slice(&(n as u32).to_be_bytes());
            }
        }
        out.extend_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
        sized(out, text.as_bytes(), false);
    }

    #[inline]
    pub(crate) fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
        sized(out, bytes, true);
    }
}

/// An array that is open: where its length goes, and how many elements it has.
#[derive(Clone, Copy, Debug)]
struct Open {
    mark: usize,
    count: u32,
}

/// Writes elements in either form.
#[derive(Debug)]
struct Out<'o> {
    buffer: &'o mut Vec<u8>,
    encoding: Encoding,
    start: usize,
}

impl<'o> Out<'o> {
    fn new(buffer: &'o mut Vec<u8>, encoding: Encoding, kind: Kind) -> Self {
        let start = buffer.len();
        buffer.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
        Self { buffer, encoding, start }
    }

    fn kind(&self) -> Option<Kind> {
        Kind::from_byte(self.buffer[self.start + 4])
    }

    /// The length is told. A body that is too large is taken back.
    fn finish(self) -> Result<(), FrameError> {
        let length = self.buffer.len() - self.start - HEADER;
        if length > MAX_BODY {
            let kind = self.kind();
            self.buffer.truncate(self.start);
            let what = format!("a body of {length} bytes; the most is {MAX_BODY}");
            return Err(FrameError { kind, offset: 0, what });
        }
        let place = &mut self.buffer[self.start..self.start + 4];
        place.copy_from_slice(&(length as u32).to_le_bytes());
        Ok(())
    }

    fn is_json(&self) -> bool {
        self.encoding == Encoding::Json
    }

    /// An array of so many elements, each to be preceded by [`sep`](Self::sep) in JSON but the first.
    #[inline]
    fn fixed(&mut self, count: u8) {
        debug_assert!(count < 16);
        self.buffer.push(if self.is_json() { b'[' } else { 0x90 | count });
    }

    #[inline]
    fn sep(&mut self) {
        if self.is_json() {
            self.buffer.push(b',');
        }
    }

    #[inline]
    fn end_fixed(&mut self) {
        if self.is_json() {
            self.buffer.push(b']');
        }
    }

    fn open(&mut self) -> Open {
        if self.is_json() {
            self.buffer.push(b'[');
        } else {
            self.buffer.extend_from_slice(&[0xdd, 0, 0, 0, 0]);
        }
        Open { mark: self.buffer.len(), count: 0 }
    }

    #[inline]
    fn element(&mut self, open: &mut Open) {
        if open.count > 0 {
            self.sep();
        }
        open.count += 1;
    }

    fn close(&mut self, open: Open) {
        if self.is_json() {
            self.buffer.push(b']');
        } else {
            self.buffer[open.mark - 4..open.mark].copy_from_slice(&open.count.to_be_bytes());
        }
    }

    #[inline]
    fn uint(&mut self, n: u64) {
        if !self.is_json() {
            return raw::uint(self.buffer, n);
        }
        let (mut digits, mut at, mut n) = ([0; 20], 20, n);
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.buffer.extend_from_slice(&digits[at..]);
    }

    #[inline]
    fn int(&mut self, n: i64) {
        if !self.is_json() {
            return raw::int(self.buffer, n);
        }
        if n < 0 {
            self.buffer.push(b'-');
        }
        self.uint(n.unsigned_abs());
    }

    #[inline]
    fn boolean(&mut self, is: bool) {
        if self.is_json() {
            self.buffer.extend_from_slice(if is { b"true" } else { b"false" });
        } else {
            self.buffer.push(0xc2 | u8::from(is));
        }
    }

    fn null(&mut self) {
        if self.is_json() {
            self.buffer.extend_from_slice(b"null");
        } else {
            self.buffer.push(0xc0);
        }
    }

    #[inline]
    fn text(&mut self, text: &str) {
        if !self.is_json() {
            return raw::text(self.buffer, text);
        }
        let plain = text.bytes().all(|byte| byte >= 32 && byte != b'"' && byte != b'\\');
        if plain {
            self.buffer.push(b'"');
            self.buffer.extend_from_slice(text.as_bytes());
            self.buffer.push(b'"');
        } else {
            // A string, into memory: there is nothing that could fail.
            let _ = serde_json::to_writer(&mut *self.buffer, text);
        }
    }

    /// The kind, and the value.
    #[inline]
    fn value(&mut self, value: Value<'_>) {
        let from = self.buffer.len();
        let kind = match value {
            Value::Json(_) if self.encoding == Encoding::Mixed => tag::TEXT,
            Value::Json(_) => tag::VALUE,
            Value::Bytes(_) => tag::BYTES,
            Value::JsonFile(_) => tag::JSON_FILE,
            Value::BytesFile(_) => tag::BYTES_FILE,
        };
        self.uint(kind);
        self.sep();
        match value {
            Value::Json(text) => match self.encoding {
                Encoding::Json => self.buffer.extend_from_slice(text.as_bytes()),
                Encoding::Mixed => raw::text(self.buffer, text),
                Encoding::Msgpack if transcode::to_pack(text, self.buffer) => {}
                Encoding::Msgpack => {
                    self.buffer.truncate(from);
                    self.uint(tag::TEXT);
                    raw::text(self.buffer, text);
                }
            },
            Value::Bytes(bytes) if self.is_json() => {
                self.buffer.push(b'"');
                let at = self.buffer.len();
                let most = bytes.len().div_ceil(3) * 4;
                self.buffer.resize(at + most, 0);
                let written = BASE64_STANDARD.encode_slice(bytes, &mut self.buffer[at..]);
                self.buffer.truncate(at + written.unwrap_or(0));
                self.buffer.push(b'"');
            }
            Value::Bytes(bytes) => raw::bytes(self.buffer, bytes),
            Value::JsonFile(path) | Value::BytesFile(path) => self.text(path),
        }
    }
}

/// HELLO.
pub fn hello(out: &mut Vec<u8>, hello: &Hello) -> Result<(), FrameError> {
    object(out, Kind::Hello, hello)
}

/// INIT.
pub fn init(out: &mut Vec<u8>, init: &Init) -> Result<(), FrameError> {
    object(out, Kind::Init, init)
}

fn object(
    buffer: &mut Vec<u8>,
    kind: Kind,
    what: &impl serde::Serialize,
) -> Result<(), FrameError> {
    let frame = Out::new(buffer, Encoding::Json, kind);
    // Structs of texts and numbers, into memory: there is nothing that could fail.
    let _ = serde_json::to_writer(&mut *frame.buffer, what);
    frame.finish()
}

/// READY.
pub fn ready(buffer: &mut Vec<u8>, encoding: Encoding, ready: &Ready) -> Result<(), FrameError> {
    let mut out = Out::new(buffer, encoding, Kind::Ready);
    out.fixed(2);
    match &ready.tasks {
        None => out.null(),
        Some(names) => texts(&mut out, names.iter().map(String::as_str)),
    }
    out.sep();
    let can = [("cell", ready.cell), ("batch", ready.batch), ("recall", ready.recall)];
    texts(&mut out, can.into_iter().filter(|(_, can)| *can).map(|(name, _)| name));
    out.end_fixed();
    out.finish()
}

fn texts<'a>(out: &mut Out<'_>, texts: impl Iterator<Item = &'a str>) {
    let mut open = out.open();
    for text in texts {
        out.element(&mut open);
        out.text(text);
    }
    out.close(open);
}

/// STARTED or CANCEL.
pub fn number(
    buffer: &mut Vec<u8>,
    encoding: Encoding,
    kind: Kind,
    number: u64,
) -> Result<(), FrameError> {
    let mut out = Out::new(buffer, encoding, kind);
    out.fixed(1);
    out.uint(number);
    out.end_fixed();
    out.finish()
}

/// HB, RECALL or DRAIN.
pub fn empty(buffer: &mut Vec<u8>, encoding: Encoding, kind: Kind) -> Result<(), FrameError> {
    let mut out = Out::new(buffer, encoding, kind);
    out.fixed(0);
    out.end_fixed();
    out.finish()
}

/// BYE.
pub fn bye(buffer: &mut Vec<u8>, encoding: Encoding, reason: &str) -> Result<(), FrameError> {
    let mut out = Out::new(buffer, encoding, Kind::Bye);
    out.fixed(1);
    out.text(reason);
    out.end_fixed();
    out.finish()
}

/// LOG. `fields` is a JSON object, or null.
pub fn log(
    buffer: &mut Vec<u8>,
    encoding: Encoding,
    (level, number): (Level, u64),
    text: &str,
    fields: Value<'_>,
) -> Result<(), FrameError> {
    let mut out = Out::new(buffer, encoding, Kind::Log);
    out.fixed(5);
    out.uint(level as u64);
    out.sep();
    out.uint(number);
    out.sep();
    out.text(text);
    out.sep();
    out.value(fields);
    out.end_fixed();
    out.finish()
}

/// PROGRESS.
pub fn progress(
    buffer: &mut Vec<u8>,
    encoding: Encoding,
    number: u64,
    (done, total): (u64, u64),
    note: &str,
) -> Result<(), FrameError> {
    let mut out = Out::new(buffer, encoding, Kind::Progress);
    out.fixed(4);
    for n in [number, done, total] {
        out.uint(n);
        out.sep();
    }
    out.text(note);
    out.end_fixed();
    out.finish()
}

/// A TASKS frame that grows: groups, and tasks of the last group.
#[derive(Debug)]
pub struct Tasks<'o> {
    out: Out<'o>,
    groups: Open,
    tasks: Option<Open>,
}

impl<'o> Tasks<'o> {
    /// Begins a frame at the end of the buffer.
    pub fn new(buffer: &'o mut Vec<u8>, encoding: Encoding) -> Self {
        let mut out = Out::new(buffer, encoding, Kind::Tasks);
        let groups = out.open();
        Self { out, groups, tasks: None }
    }

    /// Bytes of the body so far.
    pub fn len(&self) -> usize {
        self.out.buffer.len() - self.out.start - HEADER
    }

    /// No task was put in.
    pub fn is_empty(&self) -> bool {
        self.groups.count == 0
    }

    /// A group begins.
    pub fn group(&mut self, key: Option<&str>, stop: bool) {
        self.close_group();
        self.out.element(&mut self.groups);
        self.out.fixed(3);
        match key {
            Some(key) => self.out.text(key),
            None => self.out.null(),
        }
        self.out.sep();
        self.out.boolean(stop);
        self.out.sep();
        self.tasks = Some(self.out.open());
    }

    /// A task of the last group.
    ///
    /// # Panics
    /// When there is no group yet.
    #[inline]
    pub fn task(&mut self, task: &WriteTask<'_>) {
        let open = self.tasks.as_mut().expect("a task belongs to a group");
        let out = &mut self.out;
        out.element(open);
        out.fixed(7);
        out.uint(task.number);
        out.sep();
        out.text(task.id);
        out.sep();
        out.text(task.name);
        out.sep();
        out.uint(task.attempt.into());
        out.sep();
        out.uint(task.timeout_ms);
        out.sep();
        out.value(task.args);
        out.end_fixed();
    }

    fn close_group(&mut self) {
        if let Some(open) = self.tasks.take() {
            self.out.close(open);
            self.out.end_fixed();
        }
    }

    /// The frame is whole. If it is too large it is taken back from the buffer.
    pub fn end(mut self) -> Result<(), FrameError> {
        self.close_group();
        self.out.close(self.groups);
        self.out.finish()
    }
}

/// A RESULTS frame that grows.
#[derive(Debug)]
pub struct Results<'o> {
    out: Out<'o>,
    all: Open,
}

impl<'o> Results<'o> {
    /// Begins a frame at the end of the buffer.
    pub fn new(buffer: &'o mut Vec<u8>, encoding: Encoding) -> Self {
        let mut out = Out::new(buffer, encoding, Kind::Results);
        let all = out.open();
        Self { out, all }
    }

    /// Bytes of the body so far.
    pub fn len(&self) -> usize {
        self.out.buffer.len() - self.out.start - HEADER
    }

    /// No result was put in.
    pub fn is_empty(&self) -> bool {
        self.all.count == 0
    }

    /// How a task ended.
    #[inline]
    pub fn result(&mut self, number: u64, status: &WriteStatus<'_>) {
        let out = &mut self.out;
        out.element(&mut self.all);
        result(out, number, status);
    }

    /// The frame is whole. If it is too large it is taken back from the buffer.
    pub fn end(mut self) -> Result<(), FrameError> {
        self.out.close(self.all);
        self.out.finish()
    }
}

#[inline]
fn result(out: &mut Out<'_>, number: u64, status: &WriteStatus<'_>) {
    match *status {
        Status::Ok(value) => {
            out.fixed(4);
            out.uint(number);
            out.sep();
            out.uint(0);
            out.sep();
            out.value(value);
        }
        Status::Error { class, message, traceback, retry } => {
            out.fixed(6);
            out.uint(number);
            out.sep();
            out.uint(1);
            for text in [class, message, traceback] {
                out.sep();
                out.text(text);
            }
            out.sep();
            out.int(match retry {
                RetryHint::Default => -1,
                RetryHint::Never => -2,
                RetryHint::After(ms) => i64::try_from(ms).unwrap_or(i64::MAX),
            });
        }
        Status::NotRun => {
            out.fixed(2);
            out.uint(number);
            out.sep();
            out.uint(2);
        }
    }
    out.end_fixed();
}
