//! Runs `bgrp` in a directory of its own and looks at what it did.
#![allow(dead_code, unreachable_pub)]

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A directory in which `bgrp` runs.
pub struct Place {
    dir: TempDir,
}

/// What a run did.
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub summary: Value,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.path(name), bytes).unwrap();
        self
    }

    /// The file as text; empty if there is none.
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn lines(&self, name: &str) -> Vec<String> {
        self.text(name).lines().map(str::to_owned).collect()
    }

    /// Copies an input of `tests/inputs` here.
    pub fn input(&self, name: &str) -> &Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inputs").join(name);
        self.write(name, std::fs::read(from).unwrap())
    }

    /// The dead letter as JSON values.
    pub fn letters(&self, name: &str) -> Vec<Value> {
        self.lines(name).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// `bgrp run` with these arguments, not started.
    pub fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bgrp"));
        command.current_dir(self.dir.path()).arg("run").args(args);
        command
    }

    /// Runs with nothing on standard input.
    pub fn run<A: AsRef<OsStr>>(&self, args: &[A]) -> Ran {
        self.run_with(args, b"")
    }

    /// Runs with `stdin`, and checks that every record ended in exactly one way.
    pub fn run_with<A: AsRef<OsStr>>(&self, args: &[A], stdin: &[u8]) -> Ran {
        let mut all: Vec<OsString> = vec!["--summary".into(), "summary.json".into()];
        all.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        let mut child = self
            .command(&all)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            // It may not read all of it.
            scope.spawn(move || drop(pipe.write_all(stdin)));
            child.wait_with_output().unwrap()
        });
        let summary = self.summary();
        if !summary.is_null() {
            assert_sums_up(&summary);
        }
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
            summary,
        }
    }

    /// The summary of the last run; null without one.
    pub fn summary(&self) -> Value {
        serde_json::from_str(&self.text("summary.json")).unwrap_or_default()
    }
}

pub fn assert_sums_up(summary: &Value) {
    let parts = ["ok", "failed", "input_errors", "skipped", "left"];
    let sum: u64 = parts.iter().map(|part| summary[part].as_u64().unwrap()).sum();
    assert_eq!(summary["total"], sum, "{summary}");
}

impl Ran {
    pub fn count(&self, name: &str) -> u64 {
        self.summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {}", self.stderr))
    }

    /// Total, ok, failed, input errors.
    pub fn counts(&self) -> [u64; 4] {
        ["total", "ok", "failed", "input_errors"].map(|name| self.count(name))
    }

    /// Lines of standard output, sorted: groups run in any order.
    pub fn sorted(&self) -> Vec<String> {
        let text = String::from_utf8(self.stdout.clone()).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    pub fn assert_says(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing in:\n{}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

/// Waits until process `pid` is gone, or dead and waiting for whoever started it.
pub fn assert_gone(pid: &str) {
    let stat = format!("/proc/{}/stat", pid.trim());
    let until = Instant::now() + Duration::from_secs(20);
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(Instant::now() < until, "{stat} is still there");
        std::thread::yield_now();
    }
}
