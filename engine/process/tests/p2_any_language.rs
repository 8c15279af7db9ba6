//! Row P2: workers in other languages, and one in Rust, are what docs/reference/frames.md says.

mod conformance;

use bgrp_process::{Program, Runner, Server, Task, Value};

#[ctor::ctor(unsafe)]
fn worker() {
    Server::new()
        .raw_task("echo", |_, value| Ok(value))
        .raw_task("fail", |_, why| {
            let (class, message) = ("Error".into(), format!("{why:?}"));
            Err(bgrp_process::TaskError { class, message, trace: String::new() })
        })
        .task("noise", |_, value: serde_json::Value| {
            println!("{{[ no frame");
            Ok::<_, String>(value)
        })
        .run_if_worker();
}

fn example(name: &str) -> String {
    format!("{}/examples/workers/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A tool that is missing is a failure in CI, and a word elsewhere.
fn has(tool: &str) -> bool {
    let there = std::process::Command::new(tool).arg("--version").output().is_ok();
    assert!(there || std::env::var_os("CI").is_none(), "CI has no {tool}");
    if !there {
        eprintln!("skipped: there is no {tool}");
    }
    there
}

fn conforms(command: &[&str], env: &[(&str, &str)], least: usize) {
    let command: Vec<String> = command.iter().map(|part| (*part).to_owned()).collect();
    let found = conformance::check(&conformance::Candidate { command: &command, env });
    let failed: Vec<_> = found.iter().filter(|(_, outcome)| outcome.is_err()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let held = found.iter().filter(|(_, outcome)| *outcome == Ok(true)).count();
    assert!(held >= least, "only {held} checks were of use: {found:#?}");
}

#[test]
fn python() {
    if has("python3") {
        conforms(&["python3", &example("worker.py")], &[], 15);
    }
}

#[test]
fn node() {
    if has("node") {
        conforms(&["node", &example("worker.js")], &[], 15);
    }
}

#[test]
fn shell() {
    if has("bash") && has("jq") {
        conforms(&["bash", &example("worker.sh")], &[], 11);
    }
}

#[test]
fn rust_in_both_encodings() {
    let program = std::env::current_exe().expect("a program");
    let program = program.to_str().expect("text");
    conforms(&[program], &[("BGRP_ROLE", "worker")], 23);
}

#[test]
fn the_runner_has_all_of_them() {
    for (tool, file) in [("python3", "worker.py"), ("node", "worker.js"), ("bash", "worker.sh")] {
        if !has(tool) || !has("jq") {
            continue;
        }
        let runner = Runner::builder(Program::new(tool).arg(example(file)))
            .workers(2)
            .start()
            .expect("a runner");
        let results = runner.results();
        for n in 0..40 {
            let args = Value::json(&n).expect("JSON");
            let task = Task::new(n.to_string(), format!("k{}", n % 3), args).named("echo");
            runner.submit(task).expect("open");
        }
        runner.close(std::time::Duration::from_secs(60));
        let mut got: Vec<(u32, u32)> = results
            .map(|result| {
                let bgrp_process::Ended::Ok(value) = result.ended else {
                    panic!("{tool}: {} ended with {}", result.id, result.ended)
                };
                (result.id.parse().expect("a number"), value.to().expect("a number"))
            })
            .collect();
        got.sort_unstable();
        assert_eq!(got, (0..40).map(|n| (n, n)).collect::<Vec<_>>(), "{tool}");
    }
}

#[test]
fn python_tasks_that_misbehave_cost_themselves_only() {
    if !has("python3") {
        return;
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/sdk_cases.py");
    let runner = Runner::builder(Program::new("python3").arg(file)).workers(1).start();
    let runner = runner.expect("a runner");
    let results = runner.results();
    let submit = |id: &str, name: &str, args: u32| {
        let args = Value::json(&args).expect("JSON");
        runner.submit(Task::new(id, "k", args).named(name)).expect("open");
    };
    for (id, name, args) in [
        ("1", "exits", 0),
        ("2", "interrupts", 0),
        ("3", "large_error", 2_000_000),
        ("4", "no_json", 0),
        ("5", "grows", 1),
        ("6", "grows", 2),
        ("7", "forks", 0),
        ("8", "add_one", 1),
        ("9", "add_one", 2),
    ] {
        submit(id, name, args);
    }
    runner.close(std::time::Duration::from_secs(60));
    let got: Vec<(String, String)> = results
        .map(|result| {
            let what = match &result.ended {
                bgrp_process::Ended::Ok(value) => {
                    value.to::<serde_json::Value>().expect("JSON").to_string()
                }
                bgrp_process::Ended::Error(error) => {
                    let cut = if error.message.contains("were cut]") { ", cut" } else { "" };
                    format!("{}{cut}", error.class)
                }
                other => other.to_string(),
            };
            (result.id.to_string(), what)
        })
        .collect();
    let want = [
        ("1", "SystemExit"),
        ("2", "KeyboardInterrupt"),
        ("3", "ValueError, cut"),
        ("4", "TypeError"),
        ("5", "[1]"),
        ("6", "[1,2]"),
        ("7", "\"once\""),
        ("8", "2"),
        ("9", "3"),
    ];
    assert_eq!(got, want.map(|(id, what)| (id.to_owned(), what.to_owned())));
}
