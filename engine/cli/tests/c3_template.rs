//! C3: from template and record to the arguments of a command.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use common::Place;
use proptest::prelude::*;

#[test]
fn hostile_names_arrive_as_they_are() {
    let place = Place::new();
    place.input("hostile_names.txt");
    let want = place.text("hostile_names.txt");
    for tail in [&["x", "{}"][..], &["x"]] {
        // Without a placeholder the record is added as the last argument.
        let command = ["-i", "hostile_names.txt", "-j1", "--", "sh", "-c", r#"printf '%s\n' "$1""#];
        let ran = place.run(&[&command, tail].concat());
        assert_eq!((ran.code, ran.counts()), (0, [9, 9, 0, 0]), "{}", ran.stderr);
        assert_eq!(String::from_utf8(ran.stdout).unwrap(), want);
    }
    assert!(!place.path("PWNED").exists());
}

#[test]
fn placeholders() {
    let place = Place::new();
    place.write("a.csv", "title,merchant id,dir\nhello,m 1,d\n");
    let args = ["-i", "a.csv", "-k", "title", "--", "printf", "[%s]"];
    let words =
        ["{title}-{merchant id}", "{dir}", "{key}", "{seq}", "{attempt}", "{{}}", "{}", "{#1}"];
    let ran = place.run(&[&args[..], &words].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let want = "[hello-m 1][d][hello][1][1][{}][hello,m 1,d][hello]";
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), want);
}

#[test]
fn values_are_not_templates() {
    let ran = Place::new().run_with(&["-j1", "--", "printf", "%s\n", "{}"], b"{key}\n{{\n{x\n");
    assert_eq!(ran.stdout, b"{key}\n{{\n{x\n");
}

#[test]
fn an_unknown_placeholder_is_found_before_anything_runs() {
    let place = Place::new();
    place.write("a.csv", "title,kind\n1,2\n").write("b.csv", "title\n1\n");
    for (args, says) in [
        (&["-i", "a.csv", "--", "touch", "ran", "{titel}"][..], &["{titel}", "title, kind"][..]),
        (&["-i", "a.csv", "-i", "b.csv", "--", "touch", "ran", "{kind}"], &["b.csv", "{kind}"]),
        (&["--", "touch", "ran", "{title}"], &["{title}", "{dir}, {base}"]),
        (&["--", "touch", "ran", "{key}"], &["{key}", "--key"]),
        (&["--", "touch", "ran", "{"], &["not closed", "{{"]),
        (&["--", "touch", "ran", "}"], &["}}"]),
        (&["--", "sh", "-c", "echo ${HOME}"], &["{HOME}", "{{"]),
    ] {
        let ran = place.run_with(args, b"x\n");
        assert_eq!(ran.code, 2, "{args:?}");
        ran.assert_says(says);
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn standard_input_is_empty_unless_asked_for() {
    let place = Place::new();
    // odmpy #13: a command that reads must not eat the records.
    let ran = place.run_with(&["--", "sh", "-c", "cat", "x", "{}"], b"1\n2\n3\n");
    assert_eq!((ran.code, ran.counts()), (0, [3, 3, 0, 0]));
    assert_eq!(ran.stdout, b"");
    let ran = place.run_with(&["--stdin", "-j1", "--", "cat"], b"1\n2\n3\n");
    assert_eq!((ran.code, ran.counts()), (0, [3, 3, 0, 0]));
    assert_eq!(ran.stdout, b"123");
}

#[test]
fn a_batch_repeats_the_arguments_per_record() {
    let place = Place::new();
    // The first command holds the group while the rest of it is read.
    place.write("a.csv", "k,v\na,1\na,2\na,3\na,4\na,5\na,6\na,7\n");
    let script = r#"printf '%s,' "$@"; echo; [ "$BGRP_SEQ" != 1 ] || sleep 1"#;
    let args = ["-i", "a.csv", "-k", "k", "-j1", "--batch", "3", "--", "sh", "-c", script, "{{x"];
    let ran = place.run(&[&args[..], &["{k}", "{v}", "end"]].concat());
    assert_eq!((ran.code, ran.counts()), (0, [7, 7, 0, 0]), "{}", ran.stderr);
    let text = String::from_utf8(ran.stdout).unwrap();
    let mut seen = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.trim_end_matches(',').split(',').collect();
        assert_eq!(words.last(), Some(&"end"));
        let records = &words[..words.len() - 1];
        assert!(records.len().is_multiple_of(2) && (2..=6).contains(&records.len()), "{line}");
        for record in records.chunks(2) {
            assert_eq!(record[0], "a");
            seen.push(record[1].to_owned());
        }
    }
    assert_eq!(seen, ["1", "2", "3", "4", "5", "6", "7"]);
    assert!(text.lines().count() < 7, "records went together:\n{text}");
}

#[test]
fn a_batch_on_standard_input_has_terminators() {
    let place = Place::new();
    let args = ["--key-template", "{dir}", "-j1", "--batch", "9", "--stdin", "--", "cat"];
    assert_eq!(place.run_with(&args, b"1\n2\n3").stdout, b"1\n2\n3\n");
    let args = [&["-f", "nul"], &args[..]].concat();
    assert_eq!(place.run_with(&args, b"1\x002\x003").stdout, b"1\x002\x003\0");
}

/// 30 records of 100,000 bytes are more than one command can take, and none is lost or out of order.
#[test]
fn a_batch_is_split_at_the_limits_of_the_system() {
    let place = Place::new();
    let records: Vec<String> = (10..40).map(|n| format!("{n}{}", "x".repeat(100_000))).collect();
    let script = r#"for a; do echo "${{a%%x*}}"; done; echo end"#;
    let args =
        ["--key-template", "{dir}", "-j1", "--batch", "30", "--", "sh", "-c", script, "x", "{}"];
    let ran = place.run_with(&args, records.join("\n").as_bytes());
    assert_eq!((ran.code, ran.counts()), (0, [30, 30, 0, 0]), "{}", ran.stderr);
    let text = String::from_utf8(ran.stdout).unwrap();
    let seen: Vec<_> = text.lines().filter(|line| *line != "end").collect();
    let want: Vec<_> = (10..40).map(|n| n.to_string()).collect();
    assert_eq!(seen, want);
    let ran = place.run_with(&["--retries", "3", "--", "true", "{}"], &vec![b'x'; 200_000]);
    assert_eq!((ran.code, ran.counts(), ran.count("retried")), (1, [1, 0, 1, 0], 0));
    ran.assert_says(&["argument 1 has 200000 bytes", "131071", "--stdin"]);
}

#[test]
fn a_dry_run_prints_and_runs_nothing() {
    let place = Place::new();
    place.write("a.csv", "k,v\na,it's\nb,\na,\"x\ny\"\n");
    let args = ["-i", "a.csv", "-k", "k", "--dry-run", "--", "touch", "{k}", "{v}"];
    let ran = place.run(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // What is printed, a shell reads back as the same arguments.
    let script = String::from_utf8(ran.stdout).unwrap().replace("touch ", "printf '[%s]' ");
    let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
    assert_eq!(output.stdout, b"[a][it's][b][][a][x\ny]");
    assert!(!place.path("a").exists() && !place.path("summary.json").exists());
    let args = ["-i", "a.csv", "-k", "k", "--dry-run", "--batch", "2", "--", "touch", "{seq}"];
    assert_eq!(place.run(&args).stdout, b"touch 1 3\ntouch 2\n");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// Any bytes but NUL arrive as one argument, byte for byte.
    #[test]
    fn any_argument_is_exact(
        records in proptest::collection::vec(proptest::collection::vec(1u8.., 0..20), 1..6)
    ) {
        let place = Place::new();
        let args: Vec<&OsStr> = ["-f", "nul", "-j1", "--", "printf", "%s\\0", "{}"]
            .iter().map(|arg| OsStr::from_bytes(arg.as_bytes())).collect();
        let bytes: Vec<u8> = records
            .iter().flat_map(|record| record.iter().copied().chain([0])).collect();
        let ran = place.run_with(&args, &bytes);
        prop_assert_eq!(ran.code, 0, "{}", ran.stderr);
        prop_assert_eq!(ran.stdout, bytes);
    }
}
