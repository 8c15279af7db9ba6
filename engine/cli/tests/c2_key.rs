//! C2: what a key is, and what becomes of records without one.

mod common;

use common::{Place, Ran};

/// Runs over `input` and shows keys and records.
fn keyed(place: &Place, input: &str, options: &[&str]) -> Ran {
    let head = ["-i", input, "-j1", "--dead-letter", "dead.jsonl"];
    let tail = ["--", "sh", "-c", r#"printf '[%s]%s\n' "$BGRP_KEY" "$1""#, "x", "{seq}"];
    place.input(input).run(&[&head, options, &tail].concat())
}

#[test]
fn empty_keys_of_csv() {
    let with = |policy: &[&str]| {
        keyed(&Place::new(), "empty_keys.csv", &[&["-k", "key"], policy].concat())
    };
    let ran = with(&[]);
    assert_eq!((ran.code, ran.counts()), (4, [3, 2, 0, 1]));
    assert_eq!(ran.sorted(), ["[ ]2", "[null]3"]);
    ran.assert_says(&["empty_keys.csv, line 2: the key is empty", "--empty-key"]);
    let ran = with(&["--empty-key", "own"]);
    assert_eq!((ran.code, ran.counts(), ran.count("groups")), (0, [3, 3, 0, 0], 3));
    let ran = with(&["--empty-key", "shared"]);
    assert_eq!((ran.code, ran.counts(), ran.count("groups")), (0, [3, 3, 0, 0], 3));
    let ran = with(&["--empty-key", "skip"]);
    assert_eq!((ran.code, ran.counts(), ran.count("skipped")), (0, [3, 2, 0, 0], 1));
}

#[test]
fn empty_keys_of_json() {
    let with = |policy: &[&str]| {
        keyed(&Place::new(), "empty_keys.jsonl", &[&["-k", "key"], policy].concat())
    };
    let ran = with(&[]);
    assert_eq!((ran.code, ran.counts()), (4, [4, 1, 0, 3]));
    assert_eq!(ran.sorted(), ["[0]4"]);
    ran.assert_says(&[
        "line 1: the key is missing",
        "line 2: the key is null",
        "line 3: the key is empty",
    ]);
    assert_eq!(with(&["--empty-key", "own"]).count("groups"), 4);
    assert_eq!(with(&["--empty-key", "shared"]).count("groups"), 2);
    let ran = with(&["--empty-key", "skip"]);
    assert_eq!((ran.count("groups"), ran.count("skipped")), (1, 3));
}

#[test]
fn big_numbers_and_strings_are_different_keys_unless_unified() {
    let ran = keyed(&Place::new(), "big_ids.jsonl", &["-k", "id"]);
    assert_eq!((ran.code, ran.count("groups")), (0, 3));
    let want = ["[50000000014435121]1", "[50000000014435121]3", "[50000000014435122]2"];
    assert_eq!(ran.sorted(), want);
    let ran = keyed(&Place::new(), "big_ids.jsonl", &["-k", "/id", "--unify-keys"]);
    assert_eq!((ran.code, ran.count("groups")), (0, 2));
}

#[test]
fn the_dead_letter_keeps_the_type_of_a_key() {
    let place = Place::new();
    let args = ["-i", "big_ids.jsonl", "-k", "id", "--dead-letter", "dead.jsonl", "--", "false"];
    let ran = place.input("big_ids.jsonl").run(&args);
    assert_eq!((ran.code, ran.counts()), (1, [3, 0, 3, 0]));
    let text = place.text("dead.jsonl");
    assert!(text.contains(r#""key":50000000014435121,"#), "{text}");
    assert!(text.contains(r#""key":"50000000014435121","#), "{text}");
}

#[test]
fn keys_from_templates() {
    let place = Place::new();
    let args =
        ["--key-template", "{dir}", "-j1", "--", "sh", "-c", "echo $BGRP_KEY:$1", "x", "{base}"];
    let ran = place.run_with(&args, b"a/b/one.txt\na/b/two.txt\nthree\n/four\n");
    assert_eq!(ran.count("groups"), 3);
    assert_eq!(ran.sorted(), [".:three", "/:four", "a/b:one.txt", "a/b:two.txt"]);
    let args = ["-f", "csv", "--key-template", "{a}-{b}", "--", "echo", "{key}"];
    assert_eq!(place.run_with(&args, b"a,b\n1,2\n1,3\n1,2\n").sorted(), ["1-2", "1-2", "1-3"]);
    let ran = place.run_with(&["--key-template", "{ext}", "--", "true"], b"a.gz\nb\n");
    assert_eq!((ran.code, ran.counts()), (4, [2, 1, 0, 1]));
}

#[test]
fn without_a_key_every_record_is_its_own_group() {
    let ran = Place::new().run_with(&["--", "true"], b"a\na\na\n");
    assert_eq!((ran.code, ran.count("groups")), (0, 3));
    let ran = Place::new().run_with(&["--batch", "5", "--", "echo", "{}"], b"a\na\na\n");
    assert_eq!(ran.count("commands"), 3, "a batch is of one group");
}

/// One job and no key: the order of the input, as with other tools of the kind.
#[test]
fn one_job_without_a_key_keeps_the_order_of_the_input() {
    let records: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let text = records.join("\n") + "\n";
    let args =
        ["-j1", "--on-failure", "halt-key", "--", "sh", "-c", "echo $1; [ $1 != 7 ]", "x", "{}"];
    let ran = Place::new().run_with(&args, text.as_bytes());
    assert_eq!((ran.code, ran.counts(), ran.count("groups")), (3, [200, 199, 1, 0], 200));
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), text);
}

#[test]
fn a_key_that_cannot_be_is_wrong_use() {
    let place = Place::new();
    place.write("a.csv", "a,b\n1,2\n").write("a.jsonl", "{}\n");
    for (args, says) in [
        (&["-i", "a.csv", "-k", "c"][..], &["\"c\"", "a, b"][..]),
        (&["-i", "a.csv", "-k", "#3"], &["\"#3\"", "a, b"]),
        (&["-i", "a.csv", "-k", "#0"], &["\"#0\""]),
        (&["-i", "a.jsonl", "-k", "#1"], &["\"#1\"", "JSON pointers"]),
        (&["-k", "a"], &["\"a\"", "{dir}"]),
        (&["--key-template", "{seq", "-i", "a.csv"], &["--key-template", "not closed"]),
        (&["--key-template", "{key}", "-i", "a.csv"], &["{key}"]),
        (&["--key-template", "{a}", "-k", "a"], &["cannot be used with"]),
    ] {
        let ran = place.run(&[args, &["--", "touch", "ran"]].concat());
        assert_eq!(ran.code, 2, "{args:?}");
        ran.assert_says(says);
    }
    assert!(!place.path("ran").exists());
}
