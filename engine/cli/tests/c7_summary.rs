//! C7: the figures of a run, and what is said while it lasts.

mod common;

use common::Place;

#[test]
fn the_summary_file_has_the_figures() {
    let place = Place::new();
    place.write("a.csv", "k,v\na,1\na,2\nb,3\n,4\nc\nd,5\n");
    let args = [
        "-i",
        "a.csv",
        "-k",
        "k",
        "-j2",
        "--retries",
        "1",
        "--backoff",
        "1ms",
        "--",
        "test",
        "{v}",
        "-ne",
        "3",
    ];
    let ran = place.run(&args);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.counts(), [6, 3, 1, 2]);
    for (name, value) in
        [("skipped", 0), ("left", 0), ("retried", 1), ("groups", 3), ("commands", 5)]
    {
        assert_eq!(ran.count(name), value, "{name}");
    }
    assert_eq!(ran.summary["exit_code"], 1);
    assert_eq!(ran.summary["groups_exact"], true);
    assert_eq!(ran.summary["interrupted"], false);
    assert!(ran.summary["wall_s"].as_f64().unwrap() > 0.0);
    assert!(ran.summary["tasks_per_s"].as_f64().unwrap() > 0.0);
    let slowest = ran.summary["slowest_groups"].as_array().unwrap();
    let mut keys: Vec<_> = slowest.iter().map(|slow| slow["key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "d"]);
    let b = slowest.iter().find(|slow| slow["key"] == "b").unwrap();
    assert_eq!((&b["commands"], &b["failures"]), (&2.into(), &2.into()));
    ran.assert_says(&[
        "bgrp: 6 records: 3 ok, 1 failed, 2 input errors, 0 skipped, 0 left; 1 retried; 3 groups;",
        "tasks/s",
        "bgrp: slowest groups: ",
    ]);
}

#[test]
fn quiet_keeps_the_file_and_the_errors() {
    let place = Place::new();
    let ran = place.run_with(&["-q", "--", "true"], b"1\n2\n");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.counts(), [2, 2, 0, 0]);
    let ran = place.run_with(&["-q", "--", "false"], b"1\n");
    assert_eq!(ran.stderr, "bgrp: failed: standard input, line 1: exit status 1, attempt 1 of 1\n");
}

#[test]
fn an_empty_input_is_a_finished_run() {
    for format in ["csv", "tsv", "jsonl", "lines", "nul"] {
        let ran = Place::new().run(&["-f", format, "--", "false"]);
        assert_eq!((ran.code, ran.counts()), (0, [0; 4]), "{format}");
    }
}

#[test]
fn many_messages_of_a_kind_become_a_count() {
    let records: Vec<u8> = (0..100).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    let ran = Place::new().run_with(&["--", "false"], &records);
    assert_eq!(ran.count("failed"), 100);
    assert_eq!(ran.stderr.matches("bgrp: failed: ").count(), 21);
    ran.assert_says(&["from here they are only counted"]);
}

/// The NO_COLOR promise, and none of a terminal's own codes where there is no terminal.
#[test]
fn nothing_is_painted() {
    for how in ["auto", "bar", "plain", "none"] {
        let ran = Place::new().run_with(&["--progress", how, "--", "false"], b"1\n");
        assert!(!ran.stderr.contains('\x1b') && !ran.stderr.contains('\r'), "{:?}", ran.stderr);
    }
    let output = Place::new().command(&["--help"]).env("NO_COLOR", "1").output().unwrap();
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn a_summary_that_cannot_be_written_is_found_before_the_work() {
    let place = Place::new();
    let args = ["--summary", "no/such/dir.json", "--", "touch", "ran"];
    let output = place.command(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!place.path("ran").exists());
}

#[test]
fn help_tells_the_exit_codes() {
    let output = Place::new().command(&["--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for code in ["130  interrupted", "3    halted", "141  ", "4    some records could not be read"]
    {
        assert!(text.contains(code), "{code}");
    }
}
