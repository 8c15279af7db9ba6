use std::io::{Read, Seek};
use std::os::fd::AsFd;

use super::*;

const FREE: Deadline = Deadline { timeout: None, grace: Duration::from_secs(2) };

fn shell(script: &str) -> Job {
    let args = ["sh", "-c", script].map(|arg| arg.as_bytes().to_vec()).to_vec();
    Job { args, env: Vec::new(), stdin: None }
}

fn text(mut capture: Capture) -> Vec<u8> {
    let mut file = tempfile::tempfile().unwrap();
    capture.write_to(file.as_fd()).unwrap();
    file.rewind().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn number(pid: &[u8]) -> Pid {
    let pid = std::str::from_utf8(pid).unwrap().trim().parse().unwrap();
    Pid::from_raw(pid).unwrap()
}

/// Waits until this process is gone or a zombie that somebody else has to reap; a signal that was sent
/// takes a moment to arrive.
fn assert_gone(pid: &[u8]) {
    let stat = format!("/proc/{}/stat", number(pid).as_raw_nonzero());
    let until = Instant::now() + Duration::from_secs(20);
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(Instant::now() < until, "{stat} is still there");
        std::thread::yield_now();
    }
}

#[test]
fn streams_and_status_are_the_commands_own() {
    let running = Running::default();
    let ended =
        run(&shell("printf '\\377\\376\\000'; echo e >&2; exit 7"), FREE, &running).unwrap();
    assert_eq!(describe(ended.status), "exit status 7");
    assert_eq!(text(ended.stdout), [0xFF, 0xFE, 0]);
    assert_eq!(text(ended.stderr), b"e\n");
    assert_eq!(running.count(), 0);
}

/// rust-lang #27152: both pipes full in turn.
#[test]
fn much_on_both_streams_does_not_lock_up() {
    let script = "i=0; while [ $i -lt 10 ]; do head -c 1000000 /dev/zero; \
                  head -c 1000000 /dev/zero >&2; i=$((i+1)); done";
    let ended = run(&shell(script), FREE, &Running::default()).unwrap();
    assert!(ended.status.success());
    assert_eq!(text(ended.stdout).len(), 10_000_000);
    assert_eq!(text(ended.stderr).len(), 10_000_000);
}

/// A large record on standard input of a command that writes as much back, or that does not read it.
#[test]
fn standard_input_is_given_whole_or_let_go() {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 253) as u8).collect();
    let mut job = shell("cat");
    job.stdin = Some(bytes.clone());
    let ended = run(&job, FREE, &Running::default()).unwrap();
    assert!(text(ended.stdout) == bytes);
    let mut job = shell("exec <&-; exit 0");
    job.stdin = Some(bytes);
    assert!(run(&job, FREE, &Running::default()).unwrap().status.success());
}

/// cpython #76116: a grandchild keeps the pipe open.
#[test]
fn a_grandchild_does_not_hold_the_task() {
    let ended = run(&shell("sleep 30 & echo $!"), FREE, &Running::default()).unwrap();
    let pid = text(ended.stdout);
    // A command may leave something behind on purpose: it is still there to be killed.
    rustix::process::kill_process(number(&pid), Signal::KILL).unwrap();
}

#[test]
fn the_deadline_stops_the_command_and_what_it_started() {
    let limit =
        Deadline { timeout: Some(Duration::from_millis(300)), grace: Duration::from_secs(9) };
    let ended = run(&shell("sleep 300 & echo $!; wait"), limit, &Running::default()).unwrap();
    assert!(ended.timed_out);
    assert_eq!(describe(ended.status), "killed by signal 15");
    assert_gone(&text(ended.stdout));
}

#[test]
fn a_command_that_ignores_term_is_killed() {
    let limit =
        Deadline { timeout: Some(Duration::from_millis(300)), grace: Duration::from_millis(50) };
    let script = "trap '' TERM; echo $$; while :; do sleep 300; done";
    let ended = run(&shell(script), limit, &Running::default()).unwrap();
    assert!(ended.timed_out);
    assert_eq!(describe(ended.status), "killed by signal 9");
    assert_gone(&text(ended.stdout));
}

#[test]
fn whoever_starts_after_the_stop_is_stopped() {
    let running = Running::default();
    running.raise(Stage::Killed);
    let ended = run(&shell("while :; do sleep 300; done"), FREE, &running).unwrap();
    assert!(ended.asked);
    assert_eq!(describe(ended.status), "killed by signal 9");
}

#[test]
fn what_never_starts_says_so() {
    let mut job = shell("");
    job.args[0] = b"/no/such/program".to_vec();
    let error = run(&job, FREE, &Running::default()).unwrap_err();
    assert!(matches!(error, RunError::Never(e) if e.kind() == io::ErrorKind::NotFound));
    let mut job = shell("");
    job.args.push(b"a\0b".to_vec());
    assert!(matches!(run(&job, FREE, &Running::default()), Err(RunError::Never(_))));
    let mut job = shell("");
    job.args.push(vec![b'x'; 10_000_000]);
    assert!(matches!(run(&job, FREE, &Running::default()), Err(RunError::Never(_))));
}
