//! Is a worker one of docs/reference/frames.md? Frames are written and read here by hand, so that this is a second reading
//! of the page. The worker knows the tasks `echo` (gives back its arguments) and `fail` (fails with them); with `noise`
//! (writes anything to stdout, and gives back its arguments) and `wait` (ends with "cancelled" once CANCEL came) more is
//! checked.

use std::{
    fs::File,
    io::{Read, Write},
    os::{fd::OwnedFd, unix::fs::FileExt, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);
const HELLO: u8 = 1;
const INIT: u8 = 2;
const READY: u8 = 3;
const TASKS: u8 = 4;
const RESULTS: u8 = 5;
const STARTED: u8 = 6;
const CANCEL: u8 = 10;
const RECALL: u8 = 11;
const DRAIN: u8 = 12;
const BYE: u8 = 13;

type Outcome = Result<(), String>;

/// How a worker is started.
pub(crate) struct Candidate<'a> {
    pub(crate) command: &'a [String],
    pub(crate) env: &'a [(&'a str, &'a str)],
}

/// What each check found: `Ok(true)`: it holds; `Ok(false)`: the worker does not offer it.
pub(crate) fn check(candidate: &Candidate<'_>) -> Vec<(String, Result<bool, String>)> {
    let (mut found, mut encodings) = (Vec::new(), Vec::new());
    let first = Worker::start(candidate, None).map(|worker| encodings = worker.encodings.clone());
    found.push(("HELLO, INIT, READY".to_owned(), first.map(|()| true)));
    for encoding in encodings.iter().filter(|name| ["json", "msgpack"].contains(&name.as_str())) {
        for (name, needs, check) in CHECKS {
            let outcome = Worker::start(candidate, Some(encoding)).and_then(|mut worker| {
                let offered = needs.iter().all(|need| worker.offers(need));
                if offered { check(&mut worker).map(|()| true) } else { Ok(false) }
            });
            found.push((format!("{encoding}: {name}"), outcome));
        }
    }
    found
}

type Check = fn(&mut Worker) -> Outcome;

const CHECKS: [(&str, &[&str], Check); 14] = [
    ("order in each group, each task once", &[], order),
    ("frames in pieces of one byte", &[], pieces),
    ("values of any kind come back as they were", &[], values),
    ("an error has a class and a message", &[], errors),
    ("with the stop flag nothing runs after a failure", &["batch"], stop),
    ("without it the others run", &["batch"], no_stop),
    ("an unknown task is an error result", &[], unknown),
    ("large values by file, both ways, and the files go", &[], large),
    ("what is printed is no frame", &["noise"], noise),
    ("DRAIN, BYE, exit code 0", &[], drain),
    ("ends when the runner is gone", &[], gone),
    ("a frame that is too long is refused", &[], oversize),
    ("CANCEL reaches a task that runs; who runs is told", &["wait"], cancel),
    ("RECALL gives back what was not begun", &["wait", "batch", "recall"], recall),
];

struct Worker {
    child: Child,
    stream: UnixStream,
    output: Option<JoinHandle<Vec<u8>>>,
    cell: File,
    packed: bool,
    encodings: Vec<String>,
    ready: Value,
    held: Vec<Value>,
    started: Vec<u64>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

impl Worker {
    fn start(candidate: &Candidate<'_>, encoding: Option<&String>) -> Result<Self, String> {
        let (ours, theirs) = UnixStream::pair().map_err(text)?;
        ours.set_read_timeout(Some(PATIENCE)).map_err(text)?;
        ours.set_write_timeout(Some(PATIENCE)).map_err(text)?;
        let cell = memfd_create("bgrp-cell", MemfdFlags::CLOEXEC).map_err(text)?;
        ftruncate(&cell, 4096).map_err(text)?;
        let cell = File::from(cell);
        // The shell moves the descriptors to where a worker looks for them.
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4<&2 0</dev/null 2>&1"#, "sh"])
            .args(candidate.command)
            .envs(candidate.env.iter().copied())
            .envs([("BGRP_FD", "3"), ("BGRP_CELL", "4"), ("BGRP_WORKER", "1")])
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(cell.try_clone().map_err(text)?)
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let mut pipe = child.stdout.take().ok_or("no pipe")?;
        let output = std::thread::spawn(move || {
            let mut all = Vec::new();
            let _ = pipe.read_to_end(&mut all);
            all
        });
        let mut worker = Self {
            child,
            stream: ours,
            output: Some(output),
            cell,
            packed: false,
            encodings: Vec::new(),
            ready: Value::Null,
            held: Vec::new(),
            started: Vec::new(),
        };
        worker.greet(encoding)?;
        Ok(worker)
    }

    fn greet(&mut self, encoding: Option<&String>) -> Outcome {
        let (kind, body) = self.frame()?;
        ensure(kind == HELLO, || format!("type {kind} where HELLO is wanted"))?;
        let hello: Value = serde_json::from_slice(&body).map_err(text)?;
        let versions = hello["versions"].as_array().ok_or("HELLO without versions")?;
        ensure(versions.contains(&json!(1)), || format!("versions {versions:?}"))?;
        let encodings = hello["encodings"].as_array().ok_or("HELLO without encodings")?;
        self.encodings = encodings.iter().filter_map(|e| e.as_str().map(str::to_owned)).collect();
        let chosen = encoding.or(self.encodings.first()).ok_or("no encodings")?.clone();
        let init = json!({"version": 1, "encoding": chosen, "run": "r", "worker": 1, "heartbeat_ms": 1000,
            "flush_ms": 5, "of_a_later_version": [1]});
        self.send_raw(INIT, &serde_json::to_vec(&init).map_err(text)?)?;
        let (kind, body) = self.frame()?;
        ensure(kind == READY, || format!("type {kind} where READY is wanted"))?;
        self.ready = serde_json::from_slice(&body).map_err(text)?;
        self.packed = chosen == "msgpack";
        Ok(())
    }

    fn flag(&self, name: &str) -> bool {
        self.ready[name] == json!(true)
    }

    /// A flag of READY, or a task.
    fn offers(&self, what: &str) -> bool {
        self.flag(what)
            || self.ready["tasks"].as_array().is_some_and(|names| names.contains(&json!(what)))
    }

    fn send_raw(&mut self, kind: u8, body: &[u8]) -> Outcome {
        self.stream.write_all(&framed(kind, body)).map_err(|error| format!("write: {error}"))
    }

    fn body(&self, body: &Value) -> Result<Vec<u8>, String> {
        if self.packed {
            rmp_serde::to_vec(body).map_err(text)
        } else {
            serde_json::to_vec(body).map_err(text)
        }
    }

    fn send(&mut self, kind: u8, body: &Value) -> Outcome {
        let body = self.body(body)?;
        self.send_raw(kind, &body)
    }

    fn frame(&mut self) -> Result<(u8, Vec<u8>), String> {
        let mut header = [0; 8];
        self.stream
            .read_exact(&mut header)
            .map_err(|error| format!("no frame where one is wanted: {error}"))?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        ensure(length <= 16 << 20 && header[5..] == [0, 0, 0], || format!("header {header:?}"))?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(|error| format!("inside a frame: {error}"))?;
        Ok((header[4], body))
    }

    /// The value as a task's arguments.
    fn payload(&self, value: &Value) -> Value {
        if self.packed { json!([0, value.to_string()]) } else { json!([0, value]) }
    }

    fn unpack(&self, payload: &Value) -> Result<Value, String> {
        ensure(payload[0] == json!(0), || format!("a value of kind {}", payload[0]))?;
        match &payload[1] {
            Value::String(inner) if self.packed => serde_json::from_str(inner).map_err(text),
            _ if self.packed => Err("kind 0 is text in MessagePack".to_owned()),
            value => Ok(value.clone()),
        }
    }

    fn task(&self, number: u64, name: &str, args: &Value) -> Value {
        json!([number, format!("id-{number}"), name, 1, 0, self.payload(args)])
    }

    /// In one frame, or one at a time where the worker wants that; results are added to `into`.
    fn run(&mut self, groups: &[(&str, bool, Vec<Value>)], into: &mut Vec<Value>) -> Outcome {
        if self.flag("batch") {
            self.send(TASKS, &json!(groups))?;
            let count = groups.iter().map(|(_, _, tasks)| tasks.len()).sum();
            return self.results(count, into);
        }
        for (key, stop, tasks) in groups {
            for task in tasks {
                self.send(TASKS, &json!([[key, stop, [task]]]))?;
                self.results(1, into)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, task: Value) -> Result<Value, String> {
        let mut results = Vec::new();
        self.run(&[("k", true, vec![task])], &mut results)?;
        Ok(results.remove(0))
    }

    fn results(&mut self, count: usize, into: &mut Vec<Value>) -> Outcome {
        let until = Instant::now() + PATIENCE;
        while self.held.len() < count {
            ensure(Instant::now() < until, || format!("{} of {count} results", self.held.len()))?;
            let (kind, body) = self.frame()?;
            let body: Value = if self.packed {
                rmp_serde::from_slice(&body).map_err(text)?
            } else {
                serde_json::from_slice(&body).map_err(text)?
            };
            match kind {
                RESULTS => {
                    self.held.extend(body.as_array().ok_or("RESULTS is no array")?.iter().cloned())
                }
                STARTED => self.started.push(body[0].as_u64().ok_or("STARTED without a number")?),
                BYE | HELLO | READY => return Err(format!("type {kind} while tasks run")),
                _ => {}
            }
        }
        into.extend(self.held.drain(..count));
        Ok(())
    }

    /// Until it has ended by itself; its exit code.
    fn end(&mut self) -> Result<Option<i32>, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().map_err(text)? {
                return Ok(status.code());
            }
            ensure(Instant::now() < until, || "it does not end".to_owned())?;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend([kind, 0, 0, 0]);
    frame.extend(body);
    frame
}

fn statuses(results: &[Value]) -> Vec<(u64, u64)> {
    results.iter().map(|r| (r[0].as_u64().unwrap_or(0), r[1].as_u64().unwrap_or(9))).collect()
}

fn order(worker: &mut Worker) -> Outcome {
    let keys = ["a", "b", "c", "d"];
    let mut groups = Vec::new();
    for (at, key) in keys.into_iter().enumerate() {
        let from = at as u64 * 5 + 1;
        let tasks = (from..from + 5).map(|n| worker.task(n, "echo", &json!({"n": n}))).collect();
        groups.push((key, at % 2 == 0, tasks));
    }
    let mut results = Vec::new();
    worker.run(&groups, &mut results)?;
    for group in 0..4 {
        let mine: Vec<u64> = statuses(&results)
            .into_iter()
            .map(|(number, _)| number)
            .filter(|number| (number - 1) / 5 == group)
            .collect();
        let wanted: Vec<u64> = (group * 5 + 1..group * 5 + 6).collect();
        ensure(mine == wanted, || format!("results {mine:?} where {wanted:?} are wanted"))?;
    }
    for result in &results {
        let value = worker.unpack(&result[2])?;
        ensure(value == json!({"n": result[0]}), || format!("result {result}"))?;
    }
    Ok(())
}

fn pieces(worker: &mut Worker) -> Outcome {
    let task = worker.task(1, "echo", &json!("piece"));
    let frame = framed(TASKS, &worker.body(&json!([["k", true, [task]]]))?);
    for byte in frame {
        worker.stream.write_all(&[byte]).map_err(text)?;
        std::thread::yield_now();
    }
    let mut results = Vec::new();
    worker.results(1, &mut results)?;
    let value = worker.unpack(&results[0][2])?;
    ensure(value == json!("piece"), || format!("{results:?}"))
}

fn values(worker: &mut Worker) -> Outcome {
    let values = [
        json!(null),
        json!([true, -1, 1.5, "", [], {}]),
        json!("a \"quoted\" \\ line\nand \u{e4}\u{1F600}\u{0}"),
        json!(9_007_199_254_740_991u64),
        json!({"a": {"b": [{"c": "d"}]}}),
    ];
    for (number, value) in (1..).zip(values) {
        let task = worker.task(number, "echo", &value);
        let result = worker.one(task)?;
        let got = worker.unpack(&result[2])?;
        ensure(got == value, || format!("{value} came back as {got}"))?;
    }
    if !worker.packed {
        let result = worker.one(json!([9, "id-9", "echo", 1, 0, [1, "AP8="]]))?;
        ensure(result == json!([9, 0, [1, "AP8="]]), || format!("bytes came back as {result}"))?;
    }
    Ok(())
}

fn errors(worker: &mut Worker) -> Outcome {
    let task = worker.task(1, "fail", &json!("on purpose"));
    let result = worker.one(task)?;
    ensure(result[1] == json!(1), || format!("result {result}"))?;
    let fields = result[2].as_array().ok_or("an error is [class, message, traceback, hint]")?;
    let texts = fields.len() >= 4 && fields[..3].iter().all(Value::is_string);
    ensure(texts && fields[3].is_i64() && fields[0] != json!(""), || format!("error {fields:?}"))?;
    let message = fields[1].as_str().unwrap_or_default();
    ensure(message.contains("on purpose"), || format!("message {message:?}"))
}

fn mixed(worker: &mut Worker, stop: bool) -> Result<Vec<(u64, u64)>, String> {
    let names = ["echo", "fail", "echo", "echo"];
    let tasks = (1..).zip(names).map(|(n, name)| worker.task(n, name, &json!("x"))).collect();
    let other = vec![worker.task(5, "echo", &json!("other group"))];
    let mut results = Vec::new();
    worker.run(&[("k", stop, tasks), ("l", stop, other)], &mut results)?;
    let mut statuses = statuses(&results);
    statuses.sort_unstable();
    Ok(statuses)
}

fn stop(worker: &mut Worker) -> Outcome {
    let got = mixed(worker, true)?;
    ensure(got == [(1, 0), (2, 1), (3, 2), (4, 2), (5, 0)], || format!("{got:?}"))
}

fn no_stop(worker: &mut Worker) -> Outcome {
    let got = mixed(worker, false)?;
    ensure(got == [(1, 0), (2, 1), (3, 0), (4, 0), (5, 0)], || format!("{got:?}"))
}

fn unknown(worker: &mut Worker) -> Outcome {
    let task = worker.task(1, "no such task", &json!(1));
    let result = worker.one(task)?;
    ensure(result[1] == json!(1), || format!("result {result}"))?;
    let task = worker.task(2, "echo", &json!(1));
    let result = worker.one(task)?;
    ensure(result[1] == json!(0), || format!("the next task: {result}"))
}

fn large(worker: &mut Worker) -> Outcome {
    let path = std::env::temp_dir().join(format!("bgrp-conformance-{}", std::process::id()));
    let path = path.to_str().ok_or("a temporary directory that is no text")?.to_owned();
    let value = json!("x".repeat(20 << 20)).to_string();
    std::fs::write(&path, &value).map_err(text)?;
    let result = worker.one(json!([1, "id-1", "echo", 1, 0, [2, path]]))?;
    ensure(result[2][0] == json!(2), || "a value of 20 MiB does not come by file".to_owned())?;
    let back = result[2][1].as_str().ok_or("a path is wanted")?;
    let got = std::fs::read_to_string(back).map_err(|error| format!("{back}: {error}"))?;
    std::fs::remove_file(back).map_err(text)?;
    ensure(got == value, || format!("{} bytes came back of {}", got.len(), value.len()))?;
    ensure(back == path || !std::path::Path::new(&path).exists(), || {
        "the file of the arguments is still there".to_owned()
    })
}

fn noise(worker: &mut Worker) -> Outcome {
    for number in 1..=3 {
        let task = worker.task(number, "noise", &json!(number));
        let result = worker.one(task)?;
        ensure(result[1] == json!(0), || format!("result {result}"))?;
    }
    drain(worker)?;
    let printed = worker.output.take().ok_or("twice")?.join().map_err(|_| "the reader failed")?;
    ensure(!printed.is_empty(), || "nothing came by stdout".to_owned())
}

fn drain(worker: &mut Worker) -> Outcome {
    worker.send(DRAIN, &json!([]))?;
    let (kind, _) = worker.frame()?;
    ensure(kind == BYE, || format!("type {kind} where BYE is wanted"))?;
    let code = worker.end()?;
    ensure(code == Some(0), || format!("exit code {code:?}"))
}

fn gone(worker: &mut Worker) -> Outcome {
    worker.stream.shutdown(std::net::Shutdown::Both).map_err(text)?;
    worker.end().map(drop)
}

fn oversize(worker: &mut Worker) -> Outcome {
    let header = [1, 0, 0, 1, TASKS, 0, 0, 0];
    worker.stream.write_all(&header).map_err(text)?;
    let code = worker.end()?;
    ensure(code != Some(0), || "it ended as if nothing was wrong".to_owned())
}

/// A task that waits runs, and the worker has said so; its number.
fn waiting(worker: &mut Worker, more: Vec<Value>) -> Outcome {
    let mut tasks = vec![worker.task(77, "wait", &json!(null))];
    tasks.extend(more);
    worker.send(TASKS, &json!([["k", false, tasks]]))?;
    if !worker.flag("cell") {
        let (kind, _) = worker.frame()?;
        return ensure(kind == STARTED, || format!("type {kind}, no cell, and no STARTED"));
    }
    let until = Instant::now() + PATIENCE;
    let mut words = [0; 16];
    while u64::from_le_bytes(*words.first_chunk().ok_or("short")?) != 77 {
        ensure(Instant::now() < until, || "the cell does not say that 77 runs".to_owned())?;
        worker.cell.read_exact_at(&mut words, 0).map_err(text)?;
        std::thread::yield_now();
    }
    ensure(words[8..] != [0; 8], || "the cell does not say since when".to_owned())
}

fn cancelled(worker: &mut Worker, more: usize) -> Result<Vec<Value>, String> {
    worker.send(CANCEL, &json!([77]))?;
    let mut results = Vec::new();
    worker.results(1 + more, &mut results)?;
    let waited = results.iter().find(|r| r[0] == json!(77)).ok_or("77 has no result")?;
    let value = worker.unpack(&waited[2])?;
    ensure(value == json!("cancelled"), || format!("77 ended with {value}"))?;
    Ok(results)
}

fn cancel(worker: &mut Worker) -> Outcome {
    waiting(worker, Vec::new())?;
    cancelled(worker, 0).map(drop)
}

fn recall(worker: &mut Worker) -> Outcome {
    let more = vec![worker.task(78, "echo", &json!(1))];
    waiting(worker, more)?;
    let later = worker.task(79, "echo", &json!(1));
    worker.send(TASKS, &json!([["l", false, [later]]]))?;
    worker.send(RECALL, &json!([]))?;
    let results = cancelled(worker, 2)?;
    let mut got = statuses(&results);
    got.sort_unstable();
    ensure(got == [(77, 0), (78, 2), (79, 2)], || format!("{got:?}"))?;
    // It goes on with what comes later.
    let task = worker.task(80, "echo", &json!(1));
    let result = worker.one(task)?;
    ensure(result[1] == json!(0), || format!("after a recall: {result}"))
}
