//! Rows P2, P4, P5 and P7 for the Python SDK, through the runner: what a task does wrong costs that task alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bgrp::Retry;
use bgrp_process::{Builder, Ended, Log, Origin, Program, Runner, Task, TaskResult, Value};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn file(name: &str) -> String {
    format!("{}/tests/conformance/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Without Python there is nothing to test, which CI must not pass over.
fn builder() -> Option<Builder> {
    let there = std::process::Command::new("python3").arg("--version").output().is_ok();
    assert!(there || std::env::var_os("CI").is_none(), "CI has no python3");
    if !there {
        eprintln!("skipped: there is no python3");
        return None;
    }
    Some(Runner::builder(Program::new("python3").arg(file("sdk_faults.py"))))
}

fn task(id: &str, name: &str, args: impl serde::Serialize) -> Task {
    Task::new(id, id, Value::json(&args).expect("JSON")).named(name)
}

/// The results by id, each there once.
fn finish(runner: Runner) -> HashMap<String, TaskResult> {
    let results = runner.results();
    runner.close(LONG);
    let mut map = HashMap::new();
    for result in results {
        let before = map.insert(result.id.to_string(), result);
        assert!(before.is_none(), "two results: {before:?}");
    }
    map
}

fn assert_echoes(results: &HashMap<String, TaskResult>, count: u32) {
    for n in 0..count {
        let result = &results[&n.to_string()];
        let Ended::Ok(value) = &result.ended else { panic!("{result:?}") };
        assert_eq!((value.to::<u32>().expect("a number"), result.attempts), (n, 1));
    }
}

#[test]
fn a_worker_that_a_task_ends_or_cuts_off_costs_that_task_alone() {
    let Some(builder) = builder() else { return };
    let runner = builder.workers(2).start().expect("a runner");
    for n in 0..200u32 {
        runner.submit(task(&n.to_string(), "echo", n)).expect("room");
        match n {
            50 => runner.submit(task("exits", "exits_hard", 3)).expect("room"),
            100 => runner.submit(task("closes", "closes_all", ())).expect("room"),
            _ => {}
        }
    }
    let results = finish(runner);
    assert_echoes(&results, 200);
    let Ended::Crashed(crash) = &results["exits"].ended else { panic!("{:?}", results["exits"]) };
    assert_eq!((crash.code, crash.times), (Some(3), 1));
    let Ended::Crashed(crash) = &results["closes"].ended else { panic!("{:?}", results["closes"]) };
    assert_eq!((crash.code, crash.times), (Some(1), 1), "it cannot answer, and is given up");
}

#[test]
fn a_sleep_in_c_over_its_time_is_stopped() {
    let Some(builder) = builder() else { return };
    let runner =
        builder.workers(1).kill_grace(Duration::from_millis(200)).start().expect("a runner");
    let limit = Duration::from_millis(300);
    runner.submit(task("sleeps", "sleeps", 3_600).timeout(limit)).expect("room");
    for n in 0..20u32 {
        runner.submit(task(&n.to_string(), "echo", n)).expect("room");
    }
    let results = finish(runner);
    assert_echoes(&results, 20);
    assert_eq!(results["sleeps"].ended, Ended::Timeout { limit, survivors: Vec::new() });
}

/// Recipe P21 (fastmcp #51).
#[test]
fn fastmcp_51_what_is_printed_is_log_and_nothing_else() {
    let Some(builder) = builder() else { return };
    let logs = Arc::new(Mutex::new(Vec::new()));
    let kept = logs.clone();
    let runner = builder
        .workers(1)
        .on_log(move |log: Log| kept.lock().expect("no panic").push((log.origin, log.line)))
        .start()
        .expect("a runner");
    runner.submit(task("p", "prints", 7)).expect("room");
    for n in 0..20u32 {
        runner.submit(task(&n.to_string(), "echo", n)).expect("room");
    }
    let results = finish(runner);
    assert_echoes(&results, 20);
    assert!(results["p"].ended.is_ok(), "{:?}", results["p"]);
    let logs = logs.lock().expect("no panic");
    let printed: Vec<&[u8]> =
        logs.iter().filter(|log| log.0 == Origin::Stdout).map(|log| &*log.1).collect();
    let want: [&[u8]; 3] = [b"\xff\xfe raw", b"printed by p", b"\x05\0\0\0 no end of line"];
    assert_eq!(printed, want);
    let logged = (Origin::Logged("warn".into()), b"logged".to_vec());
    assert!(logs.contains(&logged), "{logs:?}");
}

#[test]
fn errors_say_what_and_where_and_whether_another_attempt_follows() {
    let Some(builder) = builder() else { return };
    let retry = Retry::fixed(Duration::ZERO).attempts(3);
    let runner = builder.workers(1).retry(retry).start().expect("a runner");
    for name in ["raises", "never", "later", "throttled"] {
        runner.submit(task(name, name, 0.01)).expect("room");
    }
    let results = finish(runner);
    let error = |id: &str| match &results[id].ended {
        Ended::Error(error) => (error.clone(), results[id].attempts),
        other => panic!("{id}: {other}"),
    };
    let (raised, attempts) = error("raises");
    assert_eq!(
        (raised.class.as_str(), raised.message.as_str(), attempts),
        ("KeyError", "'missing'", 3)
    );
    assert!(
        raised.trace.contains("sdk_faults.py") && raised.trace.contains("in raises"),
        "{}",
        raised.trace
    );
    let (never, attempts) = error("never");
    assert_eq!(
        (never.class.as_str(), never.message.as_str(), attempts),
        ("NeverAgain", "gone for good", 1)
    );
    assert!(
        results["later"].ended.is_ok() && results["later"].attempts == 2,
        "{:?}",
        results["later"]
    );
    // A hint that says no time leaves it to the policy.
    let (throttled, attempts) = error("throttled");
    assert_eq!((throttled.class.as_str(), attempts), ("Throttled", 3));
}

/// A hint beyond all bounds is an error of the task like any other; it had ended worker after worker.
#[test]
fn a_hint_that_no_number_can_hold_ends_no_worker() {
    let Some(builder) = builder() else { return };
    let runner = builder.workers(1).start().expect("a runner");
    runner.submit(task("f", "for_ever", ())).expect("room");
    let results = finish(runner);
    let Ended::Error(error) = &results["f"].ended else { panic!("{:?}", results["f"]) };
    assert_eq!(error.class, "RetryAfter");
}

#[test]
fn tasks_of_a_batch_have_each_their_own_end() {
    let Some(builder) = builder() else { return };
    let runner = builder.workers(1).start().expect("a runner");
    for n in 0..40u32 {
        let task = Task::new(n.to_string(), "k", Value::json(&n).expect("JSON")).named("some_fail");
        runner.submit(task).expect("room");
    }
    let results = finish(runner);
    for n in 0..40u32 {
        match &results[&n.to_string()].ended {
            Ended::Ok(value) => assert_eq!((value.to::<u32>().expect("a number"), n % 2), (n, 0)),
            Ended::Error(error) => assert_eq!((error.message.as_str(), n % 2), ("odd", 1)),
            other => panic!("{n}: {other}"),
        }
    }
}

#[test]
fn values_larger_than_a_pipe_go_both_ways() {
    let Some(builder) = builder() else { return };
    let runner = builder.workers(1).start().expect("a runner");
    let large = "\u{e4}x".repeat(1 << 20);
    assert!(runner.submit(task("l", "echo", &large)).is_ok(), "it is refused");
    let results = finish(runner);
    let Ended::Ok(value) = &results["l"].ended else { panic!("not ok") };
    assert!(value.to::<String>().expect("text") == large, "it came back changed");
}

#[test]
fn a_frame_that_came_while_a_task_ended_is_not_slept_over() {
    if builder().is_none() {
        return;
    }
    let ended = std::process::Command::new("python3").arg(file("sdk_wake.py")).output();
    let ended = ended.expect("it starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
