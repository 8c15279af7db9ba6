//! The processes of the example, and as much HTTP as it takes to talk to them.

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Once,
    thread,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Where cargo puts the example beside this test. Built here where this test is run alone.
fn binary() -> PathBuf {
    static BUILD: Once = Once::new();
    let this = env::current_exe().expect("a test");
    let profile = this.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let binary = profile.join("examples/notification_service");
    BUILD.call_once(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/notification_service");
        let written = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
        let newest = fs::read_dir(sources)
            .expect("the example")
            .filter_map(|file| written(&file.ok()?.path()).ok())
            .max()
            .unwrap_or(SystemTime::UNIX_EPOCH);
        if written(&binary).is_ok_and(|built| built >= newest) {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-p", "bgrp-engine", "--example", "notification_service"]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "the example does not build");
    });
    binary
}

/// A process of the example. Killed when it goes.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) url: String,
}

impl Process {
    pub(crate) fn downstream() -> Self {
        Self::start(&["downstream", "--listen", "127.0.0.1:0"])
    }

    pub(crate) fn serve(downstream: &str, dir: &Path, options: &[&str]) -> Self {
        let dir = dir.to_str().expect("a path of letters");
        let args = ["serve", "--listen", "127.0.0.1:0", "--downstream", downstream, "--dir", dir];
        // A client that is told to wait is told so at once.
        Self::start(&[&args[..], &["--patience", "0"], options].concat())
    }

    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut process = Self { child, lines, url: String::new() };
        process.url = process.next_line("listening on ").replace("listening on ", "");
        process
    }

    /// The next line, which contains `part`.
    pub(crate) fn next_line(&mut self, part: &str) -> String {
        let line = self.lines.next().expect("it has not ended").expect("text");
        assert!(line.contains(part), "{part:?} was to come, and not {line:?}");
        line
    }

    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it lives");
    }

    /// Waits until it ends by itself, in order. Its last line.
    pub(crate) fn report(mut self) -> String {
        let last = self.lines.by_ref().map(|line| line.expect("text")).last();
        until("the process ends", || self.child.try_wait().expect("a child").is_some());
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {last:?}");
        last.expect("a report")
    }

    pub(crate) fn stop(self) -> String {
        self.terminate();
        self.report()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "not within {LONG:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn notification(id: &str, merchant: &str, title: &str) -> String {
    format!(r#"{{"id":"{id}","merchant":"{merchant}","kind":"paid","title":"{title}"}}"#)
}

fn value(json: &str) -> serde_json::Value {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{json:?}: {error}"))
}

/// The first number under this name, at any depth.
pub(crate) fn figure(json: &str, name: &str) -> u64 {
    fn find(value: &serde_json::Value, name: &str) -> Option<u64> {
        match value {
            serde_json::Value::Object(fields) => fields
                .get(name)
                .and_then(serde_json::Value::as_u64)
                .or_else(|| fields.values().find_map(|value| find(value, name))),
            serde_json::Value::Array(values) => values.iter().find_map(|value| find(value, name)),
            _ => None,
        }
    }
    find(&value(json), name).unwrap_or_else(|| panic!("no {name} in {json}"))
}

/// The ids of the notifications in a file of JSON lines: dead letters have them in `payload`.
pub(crate) fn ids(lines: &str) -> Vec<String> {
    let id = |line| {
        let line = value(line);
        let notification = line.get("payload").unwrap_or(&line);
        notification["id"].as_str().expect("an id").to_owned()
    };
    lines.lines().map(id).collect()
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A text of the JSON object in it.
    pub(crate) fn text(&self, name: &str) -> String {
        value(&self.body)[name].as_str().unwrap_or_default().to_owned()
    }
}

/// One connection, kept alive.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(url: &str) -> Self {
        let address = url.strip_prefix("http://").expect("a URL");
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("a time limit");
        stream.set_nodelay(true).expect("no delay");
        Self(BufReader::new(stream))
    }

    pub(crate) fn get(&mut self, path: &str) -> Option<Answer> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n"))
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> Option<Answer> {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n");
        self.ask(&(head + body))
    }

    /// `None`: the connection was cut.
    fn ask(&mut self, request: &str) -> Option<Answer> {
        // A service that answers before it has read all may close the rest of the way.
        let _ = self.0.get_mut().write_all(request.as_bytes());
        let mut line = || {
            let mut line = String::new();
            let read = self.0.read_line(&mut line);
            read.ok().filter(|n| *n > 0).map(|_| line.trim_end().to_owned())
        };
        let first = line()?;
        let status = first.split(' ').nth(1)?.parse().expect("a status");
        let mut headers = Vec::new();
        while let Some((name, value)) = line()?.split_once(": ") {
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut answer = Answer { status, headers, body: String::new() };
        let length = answer.header("content-length").map_or(0, |n| n.parse().expect("a length"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        answer.body = String::from_utf8(body).expect("text");
        Some(answer)
    }
}
