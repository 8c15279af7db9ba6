//! C9: Ctrl-C in three stages (concurrently #155), and nothing left behind.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, Stdio};

use common::{Place, assert_gone, assert_sums_up};
use rustix::process::{Pid, Signal, kill_process};

struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    fn start(place: &Place, args: &[&str], stdin: Stdio) -> Self {
        let head = ["--summary", "summary.json", "--dead-letter", "dead.jsonl"];
        let mut child = place
            .command(&[&head[..], args].concat())
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Reads messages up to the one that holds `part`.
    fn hear(&mut self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            assert_ne!(self.stderr.read_line(&mut line).unwrap(), 0, "{part:?} was not said");
        }
    }

    fn end(mut self) -> i32 {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        assert!(!rest.contains("panicked"), "{rest}");
        self.child.wait().unwrap().code().unwrap()
    }
}

fn fifo(place: &Place, name: &str) {
    let made = std::process::Command::new("mkfifo").arg(place.path(name)).status().unwrap();
    assert!(made.success());
}

#[test]
fn once_running_commands_finish_and_nothing_starts() {
    let place = Place::new();
    fifo(&place, "up");
    fifo(&place, "go");
    place.write("in", "1\n2\n3\n");
    // Each command says that it is up, then waits to be let go.
    let script = "echo $1 >up; cat go >/dev/null; echo $1 >>done";
    let args = ["-i", "in", "-j1", "--", "sh", "-c", script, "x", "{}"];
    let mut run = Running::start(&place, &args, Stdio::null());
    assert_eq!(place.text("up"), "1\n");
    run.signal(Signal::INT);
    run.hear("no further command is started");
    place.write("go", "");
    assert_eq!(run.end(), 130);
    assert_eq!(place.lines("done"), ["1"]);
    let summary = place.summary();
    assert_sums_up(&summary);
    assert_eq!((&summary["ok"], &summary["failed"]), (&1.into(), &0.into()));
    assert_eq!(summary["interrupted"], true);
    let letters = place.letters("dead.jsonl");
    assert_eq!(letters.len() as u64, summary["left"].as_u64().unwrap());
    assert!(letters.iter().all(|letter| letter["reason"] == "not run: interrupted"));
}

#[test]
fn twice_running_commands_are_asked() {
    let place = Place::new();
    fifo(&place, "up");
    let script = "sleep 300 & echo $! >pid; echo up >up; wait";
    let args = ["-j1", "--", "sh", "-c", script, "x", "{seq}"];
    place.write("in", "1\n");
    let stdin = std::fs::File::open(place.path("in")).unwrap();
    let mut run = Running::start(&place, &args, stdin.into());
    place.text("up");
    run.signal(Signal::TERM);
    run.hear("interrupted");
    run.signal(Signal::INT);
    assert_eq!(run.end(), 130);
    assert_gone(&place.text("pid"));
    assert_sums_up(&place.summary());
    assert_eq!(place.letters("dead.jsonl")[0]["reason"], "interrupted (killed by signal 15)");
}

#[test]
fn three_times_running_commands_are_killed() {
    let place = Place::new();
    fifo(&place, "up");
    let script = "trap '' TERM; echo $$ >pid; echo up >up; while :; do sleep 300; done";
    let args = ["-j1", "--retries", "3", "--", "sh", "-c", script, "x", "{seq}"];
    place.write("in", "1\n");
    let stdin = std::fs::File::open(place.path("in")).unwrap();
    let mut run = Running::start(&place, &args, stdin.into());
    place.text("up");
    // The command may be up before its start is noted here; it is signalled then, and counted as none.
    for said in ["interrupted: ", "TERM to ", "KILL to "] {
        run.signal(Signal::INT);
        run.hear(said);
    }
    assert_eq!(run.end(), 130);
    assert_gone(&place.text("pid"));
    let summary = place.summary();
    assert_sums_up(&summary);
    assert_eq!(summary["retried"], 0, "nothing starts any more: {summary}");
    let letters = place.letters("dead.jsonl");
    assert_eq!(letters.len(), 1);
    let reason = letters[0]["reason"].as_str().unwrap();
    assert!(reason.contains("killed by signal 9"), "{reason}");
}

#[test]
fn a_reader_that_waits_for_input_is_woken() {
    let place = Place::new();
    fifo(&place, "up");
    let mut run = Running::start(
        &place,
        &["-j1", "--", "sh", "-c", "echo up >up", "x", "{}"],
        Stdio::piped(),
    );
    let mut pipe = run.child.stdin.take().unwrap();
    pipe.write_all(b"1\n").unwrap();
    assert_eq!(place.text("up"), "up\n");
    run.signal(Signal::INT);
    run.hear("interrupted");
    assert_eq!(run.end(), 130);
    assert_sums_up(&place.summary());
    assert_eq!(place.summary()["total"], 1);
    drop(pipe);
}

#[test]
fn a_retry_that_waits_is_not_waited_for() {
    let place = Place::new();
    fifo(&place, "up");
    place.write("in", "1\n");
    let script = "echo up >up; false";
    let args = [
        "-i",
        "in",
        "-j1",
        "--retries",
        "1",
        "--backoff",
        "1h",
        "--",
        "sh",
        "-c",
        script,
        "x",
        "{}",
    ];
    let mut run = Running::start(&place, &args, Stdio::null());
    place.text("up");
    run.signal(Signal::INT);
    run.hear("interrupted");
    assert_eq!(run.end(), 130);
    let summary = place.summary();
    assert_sums_up(&summary);
    assert_eq!(summary["left"], 1);
    let reason = place.letters("dead.jsonl")[0]["reason"].as_str().unwrap().to_owned();
    assert_eq!(reason, "not run: interrupted; its last attempt: exit status 1");
}

/// A record is not given up because its dead letter cannot be written; only the user can decide that.
#[test]
fn a_dead_letter_that_cannot_be_written_holds_its_group() {
    let place = Place::new();
    place.write("in", "1\n");
    let mut command = place.command(&[
        "-i",
        "in",
        "--summary",
        "summary.json",
        "--dead-letter",
        "/dev/full",
        "--",
        "false",
    ]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut run = Running { child, stderr };
    run.hear("the dead letter cannot be written");
    run.signal(Signal::INT);
    run.hear("record 1 is missing in the dead letter");
    assert_eq!(run.end(), 130);
    assert_sums_up(&place.summary());
    assert_eq!(place.summary()["total"], 1);
}

/// Whoever reads the output may stand still: the third signal ends the run all the same.
#[test]
fn a_blocked_output_does_not_outlast_the_third_signal() {
    let place = Place::new();
    fifo(&place, "up");
    place.write("in", "1\n");
    let script = "head -c 3000000 /dev/zero; echo up >up";
    let mut command = place.command(&["-i", "in", "-j1", "--", "sh", "-c", script, "x", "{seq}"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let unread = child.stdout.take().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut run = Running { child, stderr };
    place.text("up");
    for said in ["interrupted: ", "TERM to ", "KILL to "] {
        run.signal(Signal::INT);
        run.hear(said);
    }
    assert_eq!(run.end(), 130);
    drop(unread);
}
