//! C10: `bgrp doctor` tells what the machine is, where workers go, and what holds the engine back.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn doctor(dir: &TempDir, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bgrp"))
        .current_dir(dir.path())
        .arg("doctor")
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Two sockets of two cores with two threads, and a third node that has memory only.
const TWO_SOCKETS: &str = "\
bgrp-machine 1
cpu 0 core 0 package 0 l3 0 node 0
cpu 1 core 1 package 0 l3 0 node 0
cpu 2 core 2 package 1 l3 2 node 1
cpu 3 core 3 package 1 l3 2 node 1
cpu 4 core 0 package 0 l3 0 node 0
cpu 5 core 1 package 0 l3 0 node 0
cpu 6 core 2 package 1 l3 2 node 1
cpu 7 core 3 package 1 l3 2 node 1 offline
node 0 cpus 0-1,4-5 distance 10 21 17
node 1 cpus 2-3,6 distance 21 10 28
node 4 cpus - distance 17 28 10
mask 0-6
";

#[test]
fn a_saved_machine_is_planned_for() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("machine.txt"), TWO_SOCKETS).unwrap();
    let output = doctor(&dir, &["--topology", "machine.txt"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let expected = "\
machine in machine.txt
  7 CPUs online (1 offline), 4 cores, 2 level-3 caches, 2 packages, 3 nodes
  mask: 0-6
  quota: none
  node 0: CPUs 0-1,4-5, distances [10, 21, 17]
  node 1: CPUs 2-3,6, distances [21, 10, 28]
  node 4: memory only, distances [17, 28, 10]

plan: 7 workers on 7 CPUs, pinned; they spin a moment before they sleep
  worker  CPU  node  steals from (near ones first)
       0    0     0  same core: 4; same L3: 1,5; distance 21: 2-3,6
       1    1     0  same core: 5; same L3: 0,4; distance 21: 2-3,6
       2    2     1  same core: 6; same L3: 3; distance 21: 0-1,4-5
       3    3     1  same L3: 2,6; distance 21: 0-1,4-5
       4    4     0  same core: 0; same L3: 1,5; distance 21: 2-3,6
       5    5     0  same core: 1; same L3: 0,4; distance 21: 2-3,6
       6    6     1  same core: 2; same L3: 3; distance 21: 0-1,4-5

nothing was checked: the machine is another one
";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn another_number_of_workers() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("machine.txt"), TWO_SOCKETS).unwrap();
    let report = |workers: &str| -> Value {
        let output = doctor(&dir, &["--topology", "machine.txt", "--json", "--workers", workers]);
        assert_eq!(output.status.code(), Some(0));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let two = report("2");
    assert_eq!(two["plan"]["nodes"], serde_json::json!([0]));
    let cpus = |report: &Value| -> Vec<u64> {
        let workers = report["plan"]["workers"].as_array().unwrap();
        workers.iter().filter_map(|worker| worker["cpu"].as_u64()).collect()
    };
    assert_eq!(cpus(&two), [0, 1]);
    assert_eq!(two["plan"]["workers"][0]["steals"][0]["near"], "same L3");
    assert_eq!(two["machine"]["offline"], serde_json::json!([7]));
    assert_eq!(two["limits"], Value::Null);

    let many = report("64");
    assert_eq!(many["plan"]["pinned"], false);
    assert_eq!(many["plan"]["workers"].as_array().unwrap().len(), 64);
    let note = many["plan"]["notes"][0].as_str().unwrap();
    assert!(note.contains("64 workers are more than 7 CPUs"), "{note}");
    // Text says so too, and lists no CPUs that nobody has.
    let output = doctor(&dir, &["--topology", "machine.txt", "-w64"]);
    let text = text(&output.stdout);
    assert!(
        text.contains("not pinned; they sleep at once\n  workers are not pinned: 64"),
        "{text}"
    );
    assert!(text.contains("all run on any CPU"), "{text}");
}

#[test]
fn a_saved_machine_is_the_machine_that_was_seen() {
    let dir = TempDir::new().unwrap();
    let here = doctor(&dir, &["--json", "--save", "here.txt"]);
    assert!(matches!(here.status.code(), Some(0 | 1)), "{}", text(&here.stderr));
    let here: Value = serde_json::from_slice(&here.stdout).unwrap();
    let there = doctor(&dir, &["--json", "--topology", "here.txt", "--save", "again.txt"]);
    let there: Value = serde_json::from_slice(&there.stdout).unwrap();
    assert_eq!(here["plan"], there["plan"]);
    assert_eq!(here["machine"]["nodes"], there["machine"]["nodes"]);
    assert_eq!(there["machine"]["file"], "here.txt");
    let read = |name| fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(read("here.txt"), read("again.txt"));
    assert!(read("here.txt").starts_with("bgrp-machine 1\n"));
}

#[test]
fn this_machine_is_checked_and_the_exit_code_counts_the_warnings() {
    let dir = TempDir::new().unwrap();
    let output = doctor(&dir, &["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    for what in ["pinning", "barrier", "memory of nodes", "end of commands", "process groups"] {
        assert!(checks.iter().any(|check| check["what"] == what), "{what} in {report:#}");
    }
    let warnings = checks.iter().filter(|check| check["level"] == "warning").count();
    assert_eq!(report["warnings"].as_u64(), Some(warnings as u64));
    assert_eq!(output.status.code(), Some(i32::from(warnings > 0)));
    assert!(report["limits"].is_object());
    assert!(!report["machine"]["cpus"].as_array().unwrap().is_empty());

    let plain = doctor(&dir, &[]);
    let plain = text(&plain.stdout);
    for part in ["this machine\n", "\nplan: ", "\nlimits\n  open files: ", "\nchecks\n"] {
        assert!(plain.contains(part), "{part:?} in {plain}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn few_open_files_are_a_warning() {
    let dir = TempDir::new().unwrap();
    let bgrp = env!("CARGO_BIN_EXE_bgrp");
    let script = format!("ulimit -n 40 && exec {bgrp} doctor --workers 8");
    let output = Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    let text = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let says = "WARNING  open files: 40 allowed, about 128 needed for 8 workers";
    assert!(text.contains(says), "{text}");
}

#[test]
fn wrong_use_names_the_file_and_the_line() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("odd.txt"), "bgrp-machine 1\ncpu 0 core 0\n").unwrap();
    let wrong = |args: &[&str]| {
        let output = doctor(&dir, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "");
        text(&output.stderr).to_owned()
    };
    let odd = wrong(&["--topology", "odd.txt"]);
    let says = "bgrp: odd.txt: no snapshot of a machine: line 2: \"package\" is missing\n";
    assert_eq!(odd, says);
    assert!(wrong(&["--topology", "none.txt"]).contains("cannot read none.txt"));
    assert!(wrong(&["--save", "no/such/dir"]).contains("cannot write no/such/dir"));
    assert!(wrong(&["--workers", "0"]).contains("1..=1024"));
}
