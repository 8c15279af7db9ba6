//! Peers in other languages: programs of their own, whose sources are part of this one and are built when they are first
//! asked for. Each makes the same streams from the same seed, checks the order in the task, and prints one JSON object:
//! `tasks`, `seconds`, `violations`, `sum`. The harness holds these against its own verdict, as for every other system.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use serde_json::Value;

use super::System;
use crate::{
    measure::Timed,
    oracle::{self, Verdict},
    workload::{Shape, Stream, Work, Workload, rounds_per_microsecond},
};

/// What a built program is called.
const PROGRAM: &str = "program";

/// A program in another language.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    /// Files by name, written to the program's directory.
    sources: &'static [(&'static str, &'static str)],
    /// Makes the program in that directory where the language needs it.
    build: Option<(&'static str, &'static [&'static str])>,
    /// What runs it in that directory; the parameters of the workload follow.
    run: &'static [&'static str],
    most_tasks: Option<usize>,
    ready: OnceLock<Result<PathBuf, String>>,
}

impl Program {
    /// A goroutine and a buffered channel for each key.
    pub const fn go() -> Self {
        Self {
            name: "go-channel",
            sources: &[
                ("go.mod", include_str!("../../peers/go/go.mod")),
                ("main.go", include_str!("../../peers/go/main.go")),
            ],
            build: Some(("go", &["build"])),
            run: &["./program"],
            most_tasks: None,
            ready: OnceLock::new(),
        }
    }

    /// A Boost.Asio strand for each key.
    pub const fn asio() -> Self {
        Self {
            name: "asio-strand",
            sources: &[("main.cpp", include_str!("../../peers/asio/main.cpp"))],
            build: Some(("g++", &["-O2", "-std=c++17", "-pthread", "main.cpp"])),
            run: &["./program"],
            most_tasks: None,
            ready: OnceLock::new(),
        }
    }

    /// The plain dispatcher: a deque for each key, one condition, a thread pool.
    pub const fn python() -> Self {
        Self {
            name: "python-dispatcher",
            sources: &[("dispatcher.py", include_str!("../../peers/python/dispatcher.py"))],
            build: None,
            run: &["python3", "dispatcher.py"],
            most_tasks: Some(100_000),
            ready: OnceLock::new(),
        }
    }

    /// The program's directory, with the program in it.
    fn ready(&self) -> Result<&Path, &str> {
        self.ready.get_or_init(|| self.make()).as_deref().map_err(String::as_str)
    }

    fn make(&self) -> Result<PathBuf, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        // Beside the harness, so that it goes with the build and nobody else writes there.
        let directory = own.with_file_name("peers").join(self.name);
        let Some((tool, arguments)) = self.build else {
            self.write(&directory)?;
            return output(self.run[0], ["--version"], &directory).map(|_| directory);
        };
        let program = directory.join(PROGRAM);
        if program.exists() && self.is_written(&directory) {
            return Ok(directory);
        }
        self.write(&directory)?;
        // Under another name first: a harness beside this one may be running the old program.
        let fresh = format!("{PROGRAM}-{}", std::process::id());
        output(tool, arguments.iter().copied().chain(["-o", &fresh]), &directory)?;
        std::fs::rename(directory.join(fresh), program).map_err(|error| error.to_string())?;
        Ok(directory)
    }

    fn is_written(&self, directory: &Path) -> bool {
        self.sources.iter().all(|(name, text)| {
            std::fs::read(directory.join(name)).is_ok_and(|found| found == text.as_bytes())
        })
    }

    fn write(&self, directory: &Path) -> Result<(), String> {
        std::fs::create_dir_all(directory)
            .and_then(|()| {
                self.sources
                    .iter()
                    .try_for_each(|(name, text)| std::fs::write(directory.join(name), text))
            })
            .map_err(|error| format!("cannot write {}: {error}", directory.display()))
    }
}

/// Standard output of a command that succeeds; otherwise why not, in one line.
fn output(
    tool: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    directory: &Path,
) -> Result<String, String> {
    let output = Command::new(tool)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("there is no {tool} here"),
            _ => format!("{tool}: {error}"),
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let telling = complaint.lines().find(|line| line.contains("rror")).or(complaint.lines().last());
    Err(format!("{tool} ended with {}: {}", output.status, telling.unwrap_or("nothing said")))
}

fn parameters(workload: &Workload) -> Vec<String> {
    let rounds = match workload.work {
        Work::Mix => 0,
        Work::Microsecond => rounds_per_microsecond(),
    };
    let (shape, parameter) = match workload.shape {
        Shape::Uniform => ("uniform", 0.0),
        Shape::Zipf(exponent) => ("zipf", exponent),
        Shape::Hot(share) => ("hot", share),
    };
    vec![
        workload.tasks.to_string(),
        workload.keys.to_string(),
        workload.producers.to_string(),
        workload.workers.to_string(),
        rounds.to_string(),
        shape.to_owned(),
        parameter.to_string(),
    ]
}

fn read(line: &str) -> Option<(Verdict, Duration)> {
    let value: Value = serde_json::from_str(line.trim()).ok()?;
    let number = |name: &str| value.get(name).and_then(Value::as_u64);
    let verdict =
        Verdict { tasks: number("tasks")?, sum: number("sum")?, violations: number("violations")? };
    Some((verdict, Duration::try_from_secs_f64(value.get("seconds")?.as_f64()?).ok()?))
}

impl System for Program {
    fn name(&self) -> &'static str {
        self.name
    }

    fn most_tasks(&self) -> Option<usize> {
        self.most_tasks
    }

    fn missing(&self) -> Option<String> {
        if let Err(why) = self.ready() {
            return Some(why.to_owned());
        }
        if let Some(most) = self.most_tasks {
            eprintln!("bgrp-bench: {} gets at most {most} tasks", self.name);
        }
        None
    }

    fn run(&self, workload: &Workload, _streams: &[Stream]) -> Timed {
        let ran = self.ready().map_err(str::to_owned).and_then(|directory| {
            let arguments = self.run[1..].iter().map(|a| (*a).to_owned());
            let line = output(self.run[0], arguments.chain(parameters(workload)), directory)?;
            read(&line).ok_or_else(|| format!("no result in {line:?}"))
        });
        match ran {
            Ok((verdict, elapsed)) => {
                oracle::add(verdict);
                Timed { elapsed, allocations: None }
            }
            Err(why) => {
                // No task is counted, so that the verdict refuses the run.
                eprintln!("bgrp-bench: {}: {why}", self.name);
                Timed { elapsed: Duration::ZERO, allocations: None }
            }
        }
    }
}
