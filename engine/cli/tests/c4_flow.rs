//! C4: order, retries, failures, deadlines, and the output of commands (C5, grouped).

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::{Place, assert_gone};

/// The order oracle: whatever runs in parallel, the records of a merchant run in their order.
#[test]
fn records_of_a_key_run_in_order_and_none_is_lost() {
    let place = Place::new();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/samples/notifications.csv");
    let sample = std::fs::read_to_string(sample).unwrap();
    let part: Vec<&str> = sample.lines().take(2001).collect();
    place.write("n.csv", part.join("\n"));
    let script = r#"echo "$1 $2" >>out"#;
    let args = ["-i", "n.csv", "-k", "merchant_id", "-j16", "--", "sh", "-c", script, "x"];
    let ran = place.run(&[&args[..], &["{seq}", "{merchant_id}"]].concat());
    assert_eq!((ran.code, ran.counts()), (0, [2000, 2000, 0, 0]), "{}", ran.stderr);
    let mut last: HashMap<String, u64> = HashMap::new();
    let lines = place.lines("out");
    assert_eq!(lines.len(), 2000);
    for line in &lines {
        let (seq, merchant) = line.split_once(' ').unwrap();
        let seq = seq.parse().unwrap();
        let before = last.insert(merchant.to_owned(), seq);
        assert!(before.is_none_or(|before| before < seq), "{merchant}: {before:?} {seq}");
    }
    assert_eq!(ran.count("groups"), last.len() as u64);
}

#[test]
fn a_retry_keeps_its_place() {
    let place = Place::new();
    let script =
        r#"echo "$1$2" >>"log-$1"; echo "$1$2-$3" >>log; [ "$1$2" != A1 ] || [ "$3" = 3 ]"#;
    let args = [
        "-f",
        "csv",
        "-k",
        "k",
        "-j4",
        "--retries",
        "4",
        "--backoff",
        "1ms..5ms",
        "--",
        "sh",
        "-c",
    ];
    let args = [&args[..], &[script, "x", "{k}", "{n}", "{attempt}"]].concat();
    let ran = place.run_with(&args, b"k,n\nA,1\nB,1\nA,2\nB,2\nA,3\n");
    assert_eq!((ran.code, ran.counts(), ran.count("retried")), (0, [5, 5, 0, 0], 2));
    assert_eq!(place.lines("log-A"), ["A1", "A1", "A1", "A2", "A3"]);
    assert_eq!(place.lines("log-B"), ["B1", "B2"]);
    let log = place.lines("log");
    assert!(log.contains(&"A1-3".to_owned()) && log.contains(&"A2-1".to_owned()), "{log:?}");
}

/// nextflow #5868: retries are shown apart; done never exceeds the total.
#[test]
fn retries_are_counted_apart() {
    let place = Place::new();
    let args = ["-j4", "--retries", "1", "--backoff", "1ms", "--", "test", "{attempt}", "=", "2"];
    let ran = place.run_with(&args, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
    assert_eq!((ran.code, ran.counts()), (0, [10, 10, 0, 0]));
    assert_eq!((ran.count("retried"), ran.count("commands")), (10, 20));
}

/// A batch that is split: what stands behind the failed part waits for its retry, unrun.
#[test]
fn a_failed_part_of_a_batch_is_not_overtaken() {
    let place = Place::new();
    let records: Vec<String> = (10..40).map(|n| format!("{n}{}", "x".repeat(100_000))).collect();
    let script = r#"for a; do echo "${{a%%x*}}" >>log; done; [ -e once ] || { : >once; false; }"#
        .replace("|| { : >once; false; }", "|| {{ : >once; false; }}");
    let args =
        ["--key-template", "{dir}", "-j1", "--batch", "30", "--retries", "1", "--backoff", "1ms"];
    let args = [&args[..], &["--", "sh", "-c", &script, "x", "{}"]].concat();
    let ran = place.run_with(&args, records.join("\n").as_bytes());
    assert_eq!((ran.code, ran.counts()), (0, [30, 30, 0, 0]), "{}", ran.stderr);
    let log = place.lines("log");
    let first_part = log.len() - 30;
    assert!(first_part > 0 && log[..first_part].is_sorted(), "{log:?}");
    let want: Vec<_> = (10..40).map(|n| n.to_string()).collect();
    assert_eq!(log[first_part..], want);
    assert_eq!(ran.count("retried") as usize, first_part);
}

const FAIL_A1: &str = r#"echo "$1" >>log; [ "$1" != A1 ]"#;

fn with_failure(place: &Place, policy: &str) -> common::Ran {
    let options =
        ["-f", "csv", "-k", "k", "-j1", "--dead-letter", "dead.jsonl", "--on-failure", policy];
    let args = [&options[..], &["--", "sh", "-c", FAIL_A1, "x", "{k}{n}"]].concat();
    place.run_with(&args, b"k,n\nA,1\nB,1\nA,2\nB,2\nA,3\n")
}

#[test]
fn skip_goes_on() {
    let place = Place::new();
    let ran = with_failure(&place, "skip");
    assert_eq!((ran.code, ran.counts(), ran.count("left")), (1, [5, 4, 1, 0], 0));
    ran.assert_says(&["failed: standard input, line 2, key A: exit status 1, attempt 1 of 1"]);
    let letters = place.letters("dead.jsonl");
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter["outcome"], "failed");
    assert_eq!(letter["record"], "A,1");
    assert_eq!(letter["key"], "A");
    assert_eq!(letter["seq"], 1);
    assert_eq!(letter["line"], 2);
    assert_eq!(letter["attempts"], 1);
    assert_eq!(letter["reason"], "exit status 1");
    assert_eq!(letter["exit"], 1);
    assert!(letter["signal"].is_null());
}

#[test]
fn halt_key_halts_the_key() {
    let place = Place::new();
    let ran = with_failure(&place, "halt-key");
    assert_eq!((ran.code, ran.counts(), ran.count("left")), (3, [5, 2, 1, 0], 2));
    assert_eq!(ran.count("halted_groups"), 1);
    let log = place.lines("log");
    assert_eq!(log.iter().filter(|line| line.starts_with('A')).count(), 1);
    assert_eq!(log.iter().filter(|line| line.starts_with('B')).count(), 2);
    let letters = place.letters("dead.jsonl");
    let left: Vec<_> = letters.iter().filter(|letter| letter["outcome"] == "left").collect();
    assert_eq!(left.len(), 2);
    assert_eq!(left[0]["record"], "A,2");
    assert_eq!(left[1]["record"], "A,3");
    assert_eq!(left[0]["reason"], "not run: the group was halted by a failure");
}

/// A halted group with far more records than the engine holds does not hold up the others.
#[test]
fn a_halted_group_does_not_fill_the_engine() {
    let place = Place::new();
    let mut text = String::from("k\n");
    text.push_str(&"hot\n".repeat(20_000));
    text.push_str("cold\n");
    let args = [
        "-f",
        "csv",
        "-k",
        "k",
        "-j2",
        "--on-failure",
        "halt-key",
        "--",
        "test",
        "{k}",
        "=",
        "cold",
    ];
    let ran = place.run_with(&args, text.as_bytes());
    assert_eq!((ran.code, ran.counts(), ran.count("left")), (3, [20_001, 1, 1, 0], 19_999));
}

#[test]
fn halt_halts_everything() {
    let place = Place::new();
    let mut text = String::from("k,n\nA,1\n");
    for n in 0..5000 {
        text.push_str(&format!("B{n},1\n"));
    }
    let options =
        ["-f", "csv", "-k", "k", "-j1", "--dead-letter", "dead.jsonl", "--on-failure", "halt"];
    let args = [&options[..], &["--", "sh", "-c", FAIL_A1, "x", "{k}{n}"]].concat();
    let ran = place.run_with(&args, text.as_bytes());
    assert_eq!(ran.code, 3);
    assert_eq!((ran.count("failed"), ran.count("input_errors")), (1, 0));
    assert!(ran.count("ok") < 5000 && ran.count("left") > 0, "{}", ran.summary);
    let letters = place.letters("dead.jsonl");
    assert_eq!(letters.len() as u64, ran.count("failed") + ran.count("left"));
    let mut seqs: Vec<_> = letters.iter().map(|letter| letter["seq"].as_u64().unwrap()).collect();
    seqs.sort();
    seqs.dedup();
    assert_eq!(seqs.len(), letters.len(), "no record is told twice");
}

#[test]
fn the_dead_letter_is_added_to_and_keeps_bytes() {
    let place = Place::new();
    let args = ["--dead-letter", "dead.jsonl", "--", "false"];
    place.run_with(&args, b"caf\xe9\n");
    place.run_with(&args, b"two\n");
    let letters = place.letters("dead.jsonl");
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0]["record_base64"], "Y2Fm6Q==");
    assert_eq!(letters[1]["record"], "two");
}

#[test]
fn a_command_that_cannot_start_is_final_and_said_once() {
    let place = Place::new();
    let args = ["--retries", "5", "-j2", "--", "no-such-program", "{}"];
    let ran = place.run_with(&args, b"1\n2\n3\n");
    assert_eq!((ran.code, ran.counts(), ran.count("retried")), (1, [3, 0, 3, 0], 0));
    assert_eq!(ran.stderr.matches("bgrp: program \"no-such-program\" is not found").count(), 1);
    place.write("plain", "");
    let ran = place.run_with(&["--retries", "5", "--", "./plain"], b"1\n");
    assert_eq!((ran.code, ran.count("retried")), (1, 0));
    ran.assert_says(&["\"./plain\" may not be executed"]);
}

/// perl5 #12178: few descriptors and many jobs end well.
#[test]
fn a_shortage_of_descriptors_is_waited_out() {
    let place = Place::new();
    let args = ["-j", "16", "--summary", "summary.json", "--", "true", "{}"];
    let command = place.command(&args);
    let mut words = vec![command.get_program().to_owned()];
    words.extend(command.get_args().map(ToOwned::to_owned));
    let records: Vec<u8> = (0..200).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    place.write("in", records);
    let output = std::process::Command::new("sh")
        .args(["-c", r#"ulimit -n 40; exec "$@" <in"#, "x"])
        .args(words)
        .current_dir(place.path(""))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(place.summary()["ok"], 200);
    assert_eq!(place.summary()["retried"], 0, "a shortage is no attempt");
}

#[test]
fn the_deadline_ends_a_command_and_what_it_started() {
    let place = Place::new();
    let script = "sleep 300 & echo $! >pid; wait";
    let args =
        ["--timeout", "300ms", "--retries", "1", "--backoff", "1ms", "--dead-letter", "dead.jsonl"];
    let ran = place.run_with(&[&args[..], &["--", "sh", "-c", script, "x", "{}"]].concat(), b"1\n");
    assert_eq!((ran.code, ran.counts(), ran.count("retried")), (1, [1, 0, 1, 0], 1));
    let letter = &place.letters("dead.jsonl")[0];
    assert_eq!(letter["reason"], "timed out after 300ms (killed by signal 15)");
    assert_eq!((letter["attempts"].clone(), letter["signal"].clone()), (2.into(), 15.into()));
    assert_gone(&place.text("pid"));
    let script = "trap '' TERM; while :; do sleep 300; done";
    let args = ["--timeout", "300ms", "--kill-grace", "50ms", "--", "sh", "-c", script, "x", "{}"];
    let ran = place.run_with(&args, b"1\n");
    ran.assert_says(&["timed out after 300ms (killed by signal 9)"]);
}

/// cpython #76116: what a command leaves behind does not hold its task.
#[test]
fn a_grandchild_with_the_pipe_is_not_waited_for() {
    let place = Place::new();
    let ran =
        place.run_with(&["--", "sh", "-c", "sleep 300 & echo $! >pid; echo hi", "x", "{}"], b"1\n");
    assert_eq!((ran.code, &ran.stdout[..]), (0, &b"hi\n"[..]));
    let pid = place.text("pid").trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// pgbackrest #97: much output of many commands at once, on both streams, is never mixed.
#[test]
fn output_of_commands_is_not_mixed() {
    let place = Place::new();
    let script =
        r#"fill() { head -c 3000000 /dev/zero | tr '\0' "$1"; echo; }; fill "$1"; fill "$1" >&2"#
            .replace("{ head", "{{ head")
            .replace("; }", "; }}");
    let letters = "abcdefghijklmnopqrstuvwxyzABCD";
    let records: String = letters.chars().map(|c| format!("{c}\n")).collect();
    let args = ["-q", "-j4", "--", "sh", "-c", &script, "x", "{}"];
    let ran = place.run_with(&args, records.as_bytes());
    assert_eq!((ran.code, ran.counts()), (0, [30, 30, 0, 0]));
    for stream in [&ran.stdout[..], ran.stderr.as_bytes()] {
        let lines: Vec<&[u8]> =
            stream.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 30);
        for line in lines {
            assert!(line.len() == 3_000_000 && line.iter().all(|byte| *byte == line[0]));
        }
    }
}

/// colmena #75
#[test]
fn output_is_byte_exact() {
    let ran = Place::new().run_with(&["--", "printf", r"\377\376\000", "{{}}"], b"1\n");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, [0xFF, 0xFE, 0]);
}

/// xan #759: whoever reads us may stop.
#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let place = Place::new();
    let records: Vec<u8> = (0..100_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    place.write("in", records);
    let args = ["-i", "in", "-j2", "--summary", "summary.json", "--", "echo", "{}"];
    let mut child =
        place.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    common::assert_sums_up(&place.summary());
    assert!(place.summary()["total"].as_u64().unwrap() < 100_000);
}

#[test]
fn output_that_cannot_be_written_stops_the_run() {
    let place = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = place.command(&["--summary", "summary.json", "--", "echo", "{}"]);
    place.write("in", "1\n2\n3\n");
    let stdin = std::fs::File::open(place.path("in")).unwrap();
    let output = command.stdin(stdin).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot be kept or written"), "{stderr}");
}

#[test]
fn commands_know_their_record() {
    let place = Place::new();
    let script = r#"echo "$BGRP_KEY $BGRP_SEQ $BGRP_ATTEMPT" >>log; echo "$BGRP_IDEMPOTENCY_KEY" >>"id-$BGRP_SEQ"; [ "$BGRP_ATTEMPT" = 2 ]"#;
    let args = [
        "-f",
        "csv",
        "-k",
        "k",
        "-j1",
        "--retries",
        "1",
        "--backoff",
        "1ms",
        "--",
        "sh",
        "-c",
        script,
    ];
    for _ in 0..2 {
        assert_eq!(place.run_with(&args, b"k\nA\nA\n").code, 0);
    }
    let once = ["A 1 1", "A 1 2", "A 2 1", "A 2 2"];
    assert_eq!(place.lines("log"), [once, once].concat());
    // The same in every attempt and every run; another one for another record, also if it looks the same.
    let mut ids = [place.lines("id-1"), place.lines("id-2")].map(|mut ids| {
        assert_eq!(ids.len(), 4);
        ids.dedup();
        ids
    });
    assert!(ids.iter().all(|ids| ids.len() == 1 && ids[0].len() == 32), "{ids:?}");
    let second = ids[1].remove(0);
    assert_ne!(ids[0][0], second);
}

/// Workers that are pinned would hand their one CPU down.
#[test]
fn commands_may_use_every_cpu_that_we_may_use() {
    let ours = std::fs::read_to_string("/proc/self/status").unwrap();
    let ours = ours.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
    for jobs in ["-j1", "-j2", "-j3"] {
        let args = [jobs, "--", "sh", "-c", "grep Cpus_allowed_list: /proc/self/status", "x", "{}"];
        let ran = Place::new().run_with(&args, b"1\n2\n3\n4\n");
        assert_eq!(ran.sorted(), [ours; 4], "{jobs}");
    }
}
