//! Rows P1 to P4: one final result for each task, order per key over processes, crashes and retries.
//!
//! The workers are this very program: a constructor takes over where it was started as one.

mod common;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bgrp::Retry;
use bgrp_process::{
    Ended, OnFailure, Program, Refused, Results, Runner, Server, Task, TaskResult, Value,
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

#[ctor::ctor(unsafe)]
fn worker() {
    Server::new()
        .task("echo", |_, value: serde_json::Value| Ok::<_, String>(value))
        .task("pid", |_, (): ()| Ok::<_, String>(std::process::id()))
        .task("fail", |_, why: String| Err::<(), _>(why))
        .task("panic", |_, (): ()| -> Result<(), String> { panic!("on purpose") })
        .task("fail_until", |context, attempts: u32| {
            if context.attempt() < attempts { Err("not yet") } else { Ok(context.attempt()) }
        })
        .task("kill_until", |context, attempts: u32| {
            if context.attempt() < attempts {
                kill_self();
            }
            Ok::<_, String>(context.attempt())
        })
        .task("sleep", |_, ms: u64| {
            std::thread::sleep(Duration::from_millis(ms));
            Ok::<_, String>(ms)
        })
        .task("eat", |_, megabytes: usize| {
            let mut all = Vec::new();
            for _ in 0..megabytes {
                all.push(vec![1u8; 1 << 20]);
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(LONG);
            Ok::<_, String>(all.len())
        })
        .task("large", |_, bytes: usize| Ok::<_, String>("x".repeat(bytes)))
        .task("large_error", |_, bytes: usize| Err::<(), _>("y".repeat(bytes)))
        .task("exit", |_, code: i32| -> Result<(), String> { std::process::exit(code) })
        .run_if_worker();
}

fn kill_self() -> ! {
    let me = rustix::process::getpid();
    let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    unreachable!("killed")
}

fn task(id: u32, key: &str, name: &str, args: impl serde::Serialize) -> Task {
    Task::new(id.to_string(), key, Value::json(&args).expect("JSON")).named(name)
}

fn builder() -> bgrp_process::Builder {
    Runner::builder(Program::this())
}

/// All results of a run that is closed with all its tasks done. Nothing of it is left.
fn finish(runner: Runner) -> (bgrp_process::Report, Vec<TaskResult>) {
    let (results, mark) = (runner.results(), format!("BGRP_TOKEN={}-", runner.run_id()));
    let report = runner.close(LONG);
    assert_eq!(common::with_text(&mark), [0i32; 0], "processes of the run");
    (report, results.collect())
}

fn by_id(results: Vec<TaskResult>) -> HashMap<String, TaskResult> {
    let mut map = HashMap::new();
    for result in results {
        let before = map.insert(result.id.to_string(), result);
        assert!(before.is_none(), "two results: {before:?}");
    }
    map
}

#[test]
fn every_task_has_one_result_and_keys_keep_their_order() {
    let runner = builder().workers(3).start().expect("a runner");
    let results = runner.results();
    for n in 0..3_000u32 {
        let key = format!("key-{}", n % 17);
        runner.submit(task(n, &key, "echo", n)).expect("room");
    }
    let report = runner.close(LONG);
    assert_eq!((report.ok, report.failed, report.left, report.error), (3_000, 0, 0, None));
    let mut last: HashMap<_, i64> = HashMap::new();
    let mut count = 0;
    for result in results {
        let n: i64 = result.id.parse().expect("a number");
        let before = last.insert(result.key.clone(), n).unwrap_or(-1);
        assert!(before < n, "{:?}: {n} after {before}", result.key);
        let Ended::Ok(value) = result.ended else { panic!("{:?}", result.ended) };
        assert_eq!(value.to::<i64>().expect("a number"), n);
        count += 1;
    }
    assert_eq!(count, 3_000);
}

/// Recipe P1 (cpython #66587).
#[test]
fn cpython_66587_a_task_that_kills_its_process_costs_itself_alone() {
    let begin = Instant::now();
    let runner = builder().workers(2).start().expect("a runner");
    for n in 0..8 {
        let name = if n == 2 { "kill_until" } else { "echo" };
        runner.submit(task(n, &n.to_string(), name, 99)).expect("room");
    }
    let (report, results) = finish(runner);
    assert_eq!((report.ok, report.failed), (7, 1));
    let killed = &by_id(results)["2"];
    let Ended::Crashed(crash) = &killed.ended else { panic!("{:?}", killed.ended) };
    assert_eq!((crash.signal, crash.code, crash.times, killed.attempts), (Some(9), None, 1, 1));
    assert!(begin.elapsed() < LONG, "the close does not hang");
}

/// Recipe P8 (HyperQueue #306).
#[test]
fn hyperqueue_306_a_task_that_always_kills_its_worker_is_given_up() {
    let retry = Retry::fixed(Duration::ZERO).attempts(10);
    let runner = builder().workers(2).retry(retry).crash_limit(3).start().expect("a runner");
    for n in 0..40 {
        let name = if n == 5 { "kill_until" } else { "echo" };
        runner.submit(task(n, &(n % 4).to_string(), name, 99)).expect("room");
    }
    let (report, results) = finish(runner);
    assert_eq!((report.ok, report.failed, report.retries), (39, 1, 2));
    let results = by_id(results);
    let Ended::Crashed(crash) = &results["5"].ended else { panic!("{:?}", results["5"]) };
    assert_eq!((crash.times, results["5"].attempts), (3, 3));
    assert!((0..40).filter(|n| *n != 5).all(|n| results[&n.to_string()].attempts == 1));
}

/// Recipe P7 (cpython #115634).
#[test]
fn cpython_115634_one_worker_that_is_replaced_after_every_two_tasks() {
    let runner = builder().workers(1).recycle_after(2).start().expect("a runner");
    for n in 0..10 {
        runner.submit(task(n, "a", "pid", ())).expect("room");
    }
    let (report, results) = finish(runner);
    assert_eq!(report.ok, 10);
    let mut pids = HashMap::<u32, u32>::new();
    for result in results {
        let Ended::Ok(value) = result.ended else { panic!("{:?}", result.ended) };
        *pids.entry(value.to().expect("a number")).or_default() += 1;
    }
    assert!(pids.len() >= 5 && pids.values().all(|tasks| *tasks <= 2), "{pids:?}");
}

#[test]
fn a_failing_task_keeps_the_head_of_its_key() {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let retry = Retry::fixed(Duration::from_millis(5)).attempts(3);
    let runner = builder().workers(2).retry(retry).start().expect("a runner");
    runner.submit(task(1, "a", "fail_until", 3)).expect("room");
    for n in 2..20 {
        runner.submit(task(n, "a", "echo", n)).expect("room");
    }
    runner.submit(task(20, "a", "panic", ())).expect("room");
    runner.submit(task(21, "a", "echo", 21)).expect("room");
    let (report, results) = finish(runner);
    assert_eq!((report.ok, report.failed, report.retries), (20, 1, 4));
    for result in &results {
        ran.lock().expect("no panic").push(result.id.to_string());
    }
    let want: Vec<String> = (1..22).map(|n| n.to_string()).collect();
    assert_eq!(*ran.lock().expect("no panic"), want, "results in the order of the key");
    assert_eq!(results[0].attempts, 3);
    let Ended::Error(error) = &results[19].ended else { panic!("{:?}", results[19]) };
    assert_eq!((error.class.as_str(), error.message.as_str()), ("panic", "on purpose"));
}

/// Recipes P4 and P5 (celery #5120, mpire #56).
#[test]
fn celery_5120_large_values_and_errors_of_a_worker_that_ends_are_delivered() {
    let runner = builder().workers(1).recycle_after(1).start().expect("a runner");
    runner.submit(task(1, "a", "large", 5_000_000)).expect("room");
    runner.submit(task(2, "a", "large_error", 2_000_000)).expect("room");
    runner.submit(task(3, "a", "large", 20_000_000)).expect("room");
    let (report, results) = finish(runner);
    assert_eq!((report.ok, report.failed, report.retries), (2, 1, 0));
    let Ended::Ok(value) = &results[0].ended else { panic!("not ok") };
    assert_eq!(value.to::<String>().expect("text").len(), 5_000_000);
    let Ended::Error(error) = &results[1].ended else { panic!("not an error") };
    assert!(error.message.starts_with("yyy") && error.message.ends_with("bytes were cut]"));
    let Ended::Ok(value) = &results[2].ended else { panic!("not ok") };
    assert_eq!(value.to::<String>().expect("text").len(), 20_000_000);
}

#[test]
fn a_task_over_its_time_is_stopped_and_the_others_are_not() {
    let runner = builder().workers(2).start().expect("a runner");
    for n in 0..6u32 {
        let sleep = if n == 2 { 60_000u64 } else { 1 };
        let task = task(n, &n.to_string(), "sleep", sleep).timeout(Duration::from_millis(300));
        runner.submit(task).expect("room");
    }
    let (report, results) = finish(runner);
    assert_eq!((report.ok, report.failed), (5, 1));
    let late = &by_id(results)["2"];
    let Ended::Timeout { limit, survivors } = &late.ended else { panic!("{:?}", late.ended) };
    assert_eq!((*limit, survivors.len()), (Duration::from_millis(300), 0));
}

#[test]
fn a_worker_over_its_memory_is_ended_and_its_task_is_named() {
    let limit = 200 << 20;
    let runner = builder().workers(2).memory_limit(limit).start().expect("a runner");
    for n in 0..6 {
        let (name, args) = if n == 2 { ("eat", 4_000) } else { ("echo", n) };
        runner.submit(task(n, &n.to_string(), name, args)).expect("room");
    }
    let (report, results) = finish(runner);
    assert_eq!((report.ok, report.failed), (5, 1));
    let over = &by_id(results)["2"].ended;
    assert!(matches!(over, Ended::OutOfMemory { limit: said, .. } if *said == limit), "{over:?}");
}

#[test]
fn who_runs_what_can_be_seen_and_how_far_it_is() {
    let runner = builder().workers(1).start().expect("a runner");
    let mut results = runner.results();
    runner.submit(task(0, "a", "pid", ())).expect("room");
    let Some(Ended::Ok(pid)) = results.next().map(|result| result.ended) else { panic!("no pid") };
    runner.submit(task(1, "merchant", "sleep", 60_000)).expect("room");
    runner.submit(task(2, "merchant", "echo", 2)).expect("room");
    let running = loop {
        let running = runner.running();
        if running.iter().any(|worker| worker.task.is_some()) {
            break running;
        }
        std::thread::yield_now();
    };
    let one = &running[0];
    assert_eq!((running.len(), one.worker, one.state, one.answered), (1, 1, "ready", 1));
    assert_eq!(one.pid, Some(pid.to::<u32>().expect("a number")));
    assert_eq!((one.task.as_deref(), one.key.as_deref()), (Some("1"), Some("merchant")));
    let progress = runner.progress();
    assert_eq!((progress.total, progress.ok, progress.running + progress.waiting), (3, 1, 2));
    drop(runner);
    let left: Vec<_> = results.map(|result| (result.id.to_string(), result.ended)).collect();
    assert_eq!(left, [("1".to_owned(), Ended::Cancelled), ("2".to_owned(), Ended::Cancelled)]);
}

#[test]
fn a_key_with_long_tasks_does_not_keep_a_worker_from_others() {
    let runner = builder().workers(1).start().expect("a runner");
    for n in 0..40 {
        runner.submit(task(n, "long", "sleep", 30)).expect("room");
    }
    runner.submit(task(40, "other", "echo", 1)).expect("room");
    let (report, results) = finish(runner);
    assert_eq!(report.ok, 41);
    let at = results.iter().position(|result| result.id == "40").expect("it ran");
    assert!(at < 20, "the other key came after {at} tasks of the first");
    let long = results.iter().filter(|result| result.id != "40");
    assert!(long.clone().all(|result| result.attempts == 1), "giving way is no attempt");
    let ids: Vec<u32> = long.map(|result| result.id.parse().expect("a number")).collect();
    assert!(ids.is_sorted());
}

#[test]
fn arguments_that_are_too_large_are_refused_and_nothing_else_is_lost() {
    let runner = builder().workers(1).start().expect("a runner");
    runner.submit(task(1, "a", "echo", 1)).expect("room");
    let large = task(2, "a", "echo", "x".repeat(9 << 20));
    let refused = runner.submit(large).expect_err("too large");
    assert!(matches!(refused.reason, Refused::TooLarge(bytes) if bytes > 9 << 20), "{refused}");
    assert_eq!(refused.task.id, "2");
    runner.submit(task(3, "a", "echo", "x".repeat(7 << 20))).expect("room");
    let bytes = Task::new("4", "a", Value::Bytes(vec![0xC0; 7 << 20].into())).named("echo");
    runner.submit(bytes).expect("room");
    let (report, results) = finish(runner);
    assert_eq!((report.ok, report.failed), (2, 1));
    let Ended::Error(error) = &results[2].ended else { panic!("{:?}", results[2].id) };
    assert_eq!(error.class, "bad_arguments", "they arrived, and are no MessagePack");
}

#[test]
fn workers_that_end_at_the_close_are_not_replaced() {
    let starts = tempfile::NamedTempFile::new().expect("a file");
    let script = r#"echo >>"$STARTS"; exec "$0""#;
    let program = Program::new("sh")
        .arg("-c")
        .arg(script)
        .arg(std::env::current_exe().expect("its path"))
        .env("STARTS", starts.path())
        .env("BGRP_ROLE", "worker");
    let runner = Runner::builder(program).workers(8).start().expect("a runner");
    for n in 0..100 {
        runner.submit(task(n, &n.to_string(), "echo", n)).expect("room");
    }
    let (report, _) = finish(runner);
    assert_eq!(report.ok, 100);
    let lines = std::fs::read(starts.path()).expect("the file").len();
    assert!(lines <= 8, "{lines} workers were started, and 8 were asked for");
}

/// Recipe P9 (livekit/agents-js #1748).
#[test]
fn agents_js_1748_what_never_gets_ready_ends_the_run_with_a_clear_error() {
    let cases: [(&str, &str); 4] = [
        ("exit 1", "exit status: 1"),
        ("echo no module named bgrp >&2; exit 3", "no module named bgrp"),
        ("exec sleep 60", "not ready within"),
        ("printf 'hello there, worker' >&3; exec sleep 60", "no frame"),
    ];
    for (script, want) in cases {
        let runner = Runner::builder(Program::new("sh").arg("-c").arg(script))
            .start_timeout(Duration::from_millis(300))
            .kill_grace(Duration::from_millis(100))
            .start_attempts(2)
            .start()
            .expect("a runner");
        runner.submit(task(1, "a", "echo", 1)).expect("room");
        let mut results = runner.results();
        let report = runner.close(LONG);
        let error = report.error.expect("it cannot run");
        assert!(error.contains("(2 times)") && error.contains(want), "{script}: {error}");
        let result = results.next().expect("the task has a result");
        assert_eq!((result.ended, report.left), (Ended::Cancelled, 1), "{script}");
        assert_eq!(results.next(), None);
    }
    let runner = Runner::builder(Program::new("/no/such/worker"))
        .start_attempts(2)
        .start()
        .expect("a runner");
    runner.submit(task(1, "a", "echo", 1)).expect("room");
    let error = runner.close(LONG).error.expect("it cannot run");
    assert!(error.contains("/no/such/worker") && error.contains("No such file"), "{error}");
}

#[test]
fn a_submit_after_the_failure_of_the_run_says_why() {
    let program = Program::new("false");
    let runner = Runner::builder(program).start_attempts(1).start().expect("a runner");
    runner.submit(task(1, "a", "echo", 1)).expect("room");
    let error = (2..1_000_000).find_map(|n| {
        std::thread::yield_now();
        runner.submit(task(n, "a", "echo", 1)).err()
    });
    let Refused::Failed(why) = error.expect("it fails").reason else { panic!("no reason") };
    assert!(why.contains("false does not start"), "{why}");
}

#[test]
fn a_failure_halts_its_key_or_everything() {
    for (on_failure, ok) in [(OnFailure::HaltGroup, 10), (OnFailure::Halt, 5)] {
        let runner =
            builder().workers(1).frame_tasks(1).on_failure(on_failure).start().expect("a runner");
        let mut results = runner.results();
        for n in 0..5 {
            runner.submit(task(n, "a", "echo", n)).expect("room");
        }
        let mut got: Vec<TaskResult> = results.by_ref().take(5).collect();
        runner.submit(task(5, "a", "fail", "no")).expect("room");
        got.extend(results.next());
        let mut refused = 0;
        for n in 6..16 {
            let key = if n % 2 == 0 { "a" } else { "b" };
            // Once it has halted it takes no more.
            refused += u32::from(runner.submit(task(n, key, "echo", n)).is_err());
        }
        let report = runner.close(LONG);
        got.extend(results);
        let count = |word: &str| got.iter().filter(|result| result.ended.word() == word).count();
        assert_eq!((count("ok"), count("error")), (ok, 1), "{on_failure:?}");
        assert_eq!(count("skipped") as u32 + refused, 15 - ok as u32, "{on_failure:?}: {got:?}");
        assert_eq!(report.left as usize, count("skipped"));
    }
}

#[test]
fn closing_with_a_deadline_cancels_what_is_left() {
    let grace = Duration::from_millis(100);
    let runner = builder().workers(1).kill_grace(grace).start().expect("a runner");
    let mut results = runner.results();
    runner.submit(task(0, "a", "echo", 0)).expect("room");
    assert!(results.next().expect("the first").ended.is_ok());
    for n in 1..20 {
        runner.submit(task(n, "a", "sleep", 60_000)).expect("room");
    }
    let report = runner.close(Duration::from_millis(200));
    assert_eq!((report.ok, report.left, report.error), (1, 19, None));
    let left: Vec<TaskResult> = results.collect();
    assert!(left.iter().all(|result| result.ended == Ended::Cancelled), "{left:?}");
    let ids: Vec<String> = left.iter().map(|result| result.id.to_string()).collect();
    assert_eq!(ids, (1..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn results_that_nobody_takes_are_said() {
    let runner = builder().capacity(64).results_capacity(10).start().expect("a runner");
    let refused = (0..10_000).find_map(|n| runner.submit(task(n, "a", "echo", n)).err());
    assert_eq!(refused.expect("it would wait for ever").reason, Refused::NobodyTakesResults);
    let results: Results = runner.results();
    let taker = std::thread::spawn(move || results.count());
    let report = runner.close(LONG);
    assert_eq!(taker.join().expect("no panic") as u64, report.ok);
}

/// A worker is killed every now and then: each task still has one result, and keys keep their order.
#[test]
fn order_and_results_hold_while_workers_are_killed() {
    let retry = Retry::fixed(Duration::ZERO).attempts(100);
    let runner = builder().workers(3).retry(retry).crash_limit(100).start().expect("a runner");
    let mut results = runner.results();
    let total = 5_000u32;
    let submitted = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..total {
                let key = (n % 23).to_string();
                // Some of them end their worker, in the middle of whatever it has.
                let (name, args) = if n % 97 == 50 { ("kill_until", 3) } else { ("echo", n) };
                runner.submit(task(n, &key, name, args)).expect("room");
            }
        });
        results.by_ref().take(total as usize).collect::<Vec<_>>()
    });
    let mut last = HashMap::new();
    for result in &submitted {
        let n: i64 = result.id.parse().expect("a number");
        assert!(result.ended.is_ok(), "{result:?}");
        let before = last.insert(result.key.clone(), n).unwrap_or(-1);
        assert!(before < n, "{:?}: {n} after {before}", result.key);
        assert_eq!(result.attempts, if n % 97 == 50 { 3 } else { 1 }, "task {n}");
    }
    let report = runner.close(LONG);
    assert_eq!((report.ok, report.failed), (u64::from(total), 0));
    assert_eq!(results.next(), None);
}
