//! Row F6: dead letters go to a sink; one that fails holds the task, loses nothing, writes nothing twice, and stops nobody else.

mod common;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bgrp::{Durability, Engine, FileSink, Json, MemorySink, OnExhausted, Retry, Workers};
use common::{LONG, MS, until, watch};

/// A path of this test's own; the file goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bgrp-f6-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).expect("it is there");
        assert!(text.is_empty() || text.ends_with('\n'), "half a line: {text:?}");
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The value of a field, as the text that stands there.
fn field<'l>(line: &'l str, name: &str) -> &'l str {
    let start = line.find(&format!("\"{name}\":")).expect("the field is there") + name.len() + 3;
    let rest = &line[start..];
    rest.split(",\"").next().expect("something").trim_end_matches('}')
}

fn sink(file: &Scratch) -> std::io::Result<FileSink<String, u32>> {
    FileSink::open(&file.0, |key: &String| Json::text(key), |task: &u32| Json::number(*task))
}

fn engine(sink: FileSink<String, u32>) -> Arc<Engine<String, u32>> {
    let engine = Engine::<String, u32>::builder()
        .workers(Workers::fixed(2))
        .retry(Retry::fixed(Duration::ZERO).attempts(3))
        .on_exhausted(OnExhausted::dead_letter_to(5 * MS, sink))
        .task_handler(|_, task| if **task % 2 == 1 { Err("odd: \"no\"\n") } else { Ok(()) })
        .build()
        .expect("valid settings");
    Arc::new(engine)
}

#[test]
fn a_file_gets_one_line_for_each_dead_letter_with_what_is_known() {
    let file = Scratch::new("lines");
    for durability in [Durability::System, Durability::Disk] {
        let engine = engine(sink(&file).expect("a file").durability(durability));
        let _watch = watch("dead letters", &engine);
        for n in 0..20 {
            engine.submit(format!("k\"{}", n % 3), n).expect("open");
        }
        let report = engine.close(LONG);
        assert_eq!((report.done, report.failed), (10, 10));
        assert_eq!(engine.stats().dead_lettered, 10, "the figure that is exposed counts them too");
    }
    let lines = file.lines();
    assert_eq!(lines.len(), 20, "the second engine appends");
    for line in &lines {
        let task: u32 = field(line, "payload").parse().expect("a number");
        assert_eq!(task % 2, 1);
        assert_eq!(field(line, "key"), format!("\"k\\\"{}\"", task % 3));
        assert_eq!(field(line, "attempts"), "3");
        assert_eq!(field(line, "kind"), "\"reported\"");
        assert_eq!(field(line, "reason"), "\"odd: \\\"no\\\"\\n\"");
        assert!(line.starts_with("{\"time\":\"20") && line.ends_with('}'), "{line}");
    }
    // In each group, in order.
    for run in [&lines[..10], &lines[10..]] {
        for key in 0..3u32 {
            let tasks =
                run.iter().map(|line| field(line, "payload").parse::<u32>().expect("number"));
            assert!(tasks.filter(|task| task % 3 == key).is_sorted());
        }
    }
}

#[test]
fn a_record_that_a_power_cut_tore_is_cut_off_and_another_file_is_left_alone() {
    let file = Scratch::new("torn");
    let long = "x".repeat(10_000);
    let whole = format!("{{\"time\":\"2026\",\"reason\":\"{long}\"}}\n");
    for torn in [String::new(), "{\"ti".to_owned(), format!("{{\"time\":\"2026-{long}")] {
        for before in ["", whole.as_str()] {
            std::fs::write(&file.0, format!("{before}{torn}")).expect("written");
            drop(sink(&file).expect("a file of ours"));
            assert_eq!(std::fs::read_to_string(&file.0).expect("there"), before);
        }
    }
    std::fs::write(&file.0, "some\nother file").expect("written");
    let error = sink(&file).expect_err("not ours");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    assert_eq!(std::fs::read_to_string(&file.0).expect("there"), "some\nother file");
}

/// The file may not grow beyond some bytes for a while (as on a full disk): the record that does not fit leaves nothing, its
/// task is held, other groups go on, and with room again everything is written once.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_holds_the_tasks_and_leaves_no_half_line() {
    let name = "a_full_disk_holds_the_tasks_and_leaves_no_half_line";
    if common::in_own_process(name, |_| ()) {
        return;
    }
    let limit = |bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: plain calls of the system; the signal would end the process instead of failing the write.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
    };
    let file = Scratch::new("full");
    // Two records and a half.
    limit(300);
    let engine = engine(sink(&file).expect("a file"));
    let _watch = watch("full disk", &engine);
    for n in 0..10 {
        engine.submit("dead".to_owned(), 2 * n + 1).expect("open");
        engine.submit("alive".to_owned(), 2 * n).expect("open");
    }
    until(|| engine.stats().done == 10 && engine.stats().failed == 2);
    let lines = file.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    limit(libc::RLIM_INFINITY);
    assert!(engine.wait_drain(LONG));
    assert_eq!(engine.stats().failed, 10);
    let tasks = file.lines();
    let tasks = tasks.iter().map(|line| field(line, "payload").parse::<u32>().expect("number"));
    assert!(tasks.eq((0..10).map(|n| 2 * n + 1)), "each once, in order");
}

#[test]
fn a_full_memory_sink_holds_tasks_until_letters_are_taken() {
    let letters = Arc::new(MemorySink::new(3, |task: &mut u32| *task));
    let engine = Arc::new(
        Engine::<u32, u32>::builder()
            .workers(Workers::fixed(2))
            .on_exhausted(OnExhausted::dead_letter_to(MS, letters.clone()))
            .task_handler(|_, task| if *task.key() == 1 { Err("wanted") } else { Ok(()) })
            .build()
            .expect("valid settings"),
    );
    let _watch = watch("memory sink", &engine);
    for n in 0..8 {
        engine.submit(1, n).expect("open");
        engine.submit(2, n).expect("open");
    }
    until(|| letters.len() == 3 && engine.stats().done == 8);
    let mut all = Vec::new();
    while all.len() < 8 {
        let some = letters.take();
        assert!(some.len() <= 3, "bounded");
        all.extend(some);
        std::thread::yield_now();
    }
    assert!(all.iter().map(|letter| letter.payload).eq(0..8), "in order, each once");
    assert!(all.iter().all(|letter| letter.key == 1 && letter.failure.reason() == "wanted"));
    assert_eq!(engine.close(LONG).failed, 8);
}
