//! The example `notification_service`, as a process, seen from outside over plain sockets: its answers, and that everything that it told
//! "accepted" is accounted for when it is stopped under load.

#![cfg(all(unix, not(any(loom, shuttle))))]

mod service;

use std::{
    collections::HashSet,
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use service::{Connection, Process, figure, notification};

/// What the clients of a test saw, all together.
#[derive(Default)]
struct Seen {
    accepted: Mutex<HashSet<String>>,
    full: AtomicU64,
    draining: AtomicU64,
    /// Connections that ended with a request under way.
    cut: AtomicU64,
    stopped: AtomicBool,
}

impl Seen {
    /// One client with merchants of its own, until the service tells it to go, or is gone.
    fn client(&self, url: &str, merchant: &str) {
        let mut connection = Connection::open(url);
        let mut number = 1;
        loop {
            let id = format!("{merchant}#{number}");
            let title = if number % 20 == 0 { "this is forbidden" } else { "12 EUR" };
            let body = notification(&id, merchant, title);
            let Some(answer) = connection.post("/notifications", &body) else {
                assert!(self.stopped.load(SeqCst), "a connection was cut before the signal");
                self.cut.fetch_add(1, SeqCst);
                return;
            };
            match answer.status {
                202 => {
                    assert!(self.accepted.lock().expect("no panic").insert(id));
                    number += 1;
                }
                429 => {
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    let why = answer.text("error");
                    assert!(["merchant_full", "service_full"].contains(&why.as_str()), "{why}");
                    self.full.fetch_add(1, SeqCst);
                }
                503 => {
                    assert!(self.stopped.load(SeqCst), "no signal yet");
                    assert_eq!(answer.text("error"), "draining");
                    assert_eq!(answer.header("connection"), Some("close"));
                    self.draining.fetch_add(1, SeqCst);
                    return;
                }
                other => panic!("{other}: {}", answer.body),
            }
        }
    }
}

#[test]
fn a_wrong_notification_is_refused_with_the_field_its_value_and_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let downstream = Process::downstream();
    let service = Process::serve(&downstream.url, dir.path(), &[]);
    let mut connection = Connection::open(&service.url);
    let long = "x".repeat(201);
    for (body, field, tells) in [
        ("{", "body", "no JSON object"),
        ("[1]", "body", r#"the body is "[1]""#),
        (r#"{"merchant":"m","kind":"paid","title":"t"}"#, "id", "id is missing; give a text"),
        (&notification("1", "", "t"), "merchant", r#"merchant is "", 0 characters"#),
        (&notification("1", "m", &long), "title", "201 characters; give a text of 1 to 200"),
        (&notification("1", "m", "t").replace("paid", "payed"), "kind", r#"kind is "payed""#),
        (&notification("1", "m", "t").replace("\"t\"", "7"), "title", "title is 7, no text"),
        (&notification("1", "m", "t").replace('{', r#"{"tilte":1,"#), "tilte", "tilte is 1"),
    ] {
        let answer = connection.post("/notifications", body).expect("an answer");
        assert_eq!((answer.status, answer.text("field").as_str()), (400, field), "{body}");
        assert!(answer.text("message").contains(tells), "{body}: {}", answer.body);
    }
    let large = notification("1", "m", &"x".repeat(20_000));
    let answer = Connection::open(&service.url).post("/notifications", &large).expect("an answer");
    assert_eq!((answer.status, answer.text("error").as_str()), (413, "body"));

    // Lines are refused one by one, and a refusal of one merchant does not touch the next.
    let lines = [
        notification("1", "a", "t"),
        String::new(),
        notification("2", "a", ""),
        notification("3", "b", "t"),
    ];
    let answer = connection.post("/notifications/lines", &lines.join("\n")).expect("an answer");
    assert_eq!((answer.status, figure(&answer.body, "accepted")), (207, 2));
    assert_eq!(figure(&answer.body, "line"), 3);
    let answer = connection.post("/notifications/lines", &lines[0]).expect("an answer");
    assert_eq!((answer.status, figure(&answer.body, "accepted")), (202, 1));
    let report = service.stop();
    assert_eq!((figure(&report, "accepted"), figure(&report, "done")), (3, 3));
}

#[test]
fn stopped_under_load_everything_accepted_is_done_or_a_dead_letter_or_left() {
    let dir = tempfile::tempdir().expect("a folder");
    let downstream = Process::downstream();
    let service = Process::serve(&downstream.url, dir.path(), &["--drain", "2"]);
    let mut look = Connection::open(&service.url);
    assert_eq!(look.get("/health").expect("an answer").status, 200);
    assert_eq!(look.get("/ready").expect("an answer").status, 200);

    let seen = Arc::new(Seen::default());
    // Calls for one of them all fail, a tenth of a second for each notification: more than the drain has time for.
    let merchants = ["broken", "a", "b", "c", "d", "e", "f", "g"];
    let clients = merchants.map(|merchant| {
        let (seen, url) = (seen.clone(), service.url.clone());
        thread::spawn(move || seen.client(&url, merchant))
    });
    service::until("some hundred accepted, some refused", || {
        let accepted = seen.accepted.lock().expect("no panic");
        let broken = accepted.iter().filter(|id| id.starts_with("broken")).count();
        accepted.len() >= 300 && broken >= 64 && seen.full.load(SeqCst) >= 20
    });
    let metrics = look.get("/metrics").expect("an answer").body;
    assert!(metrics.contains("\nbgrp_backlog_tasks "), "{metrics}");
    assert!(metrics.contains("\nnotification_answers_total{answer=\"merchant_full\"} "));
    for path in ["/stuck?older_than=0", "/groups?by=backlog&n=3"] {
        let answer = look.get(path).expect("an answer");
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains("\"why\":"), "{path}: {}", answer.body);
    }

    seen.stopped.store(true, SeqCst);
    service.terminate();
    clients.into_iter().for_each(|client| client.join().expect("no panic"));
    assert!(seen.draining.load(SeqCst) > 0, "nobody was told that it is draining");
    // The broken merchant is still being tried: the process can be looked at meanwhile.
    assert_eq!(look.get("/ready").expect("an answer").status, 503);
    assert_eq!(look.get("/health").expect("an answer").status, 200);
    let report = service.report();
    let books = downstream.stop();

    let of = |name| figure(&report, name);
    let accepted = seen.accepted.lock().expect("no panic");
    let told = accepted.len() as u64;
    assert!((told..=told + seen.cut.load(SeqCst)).contains(&of("accepted")), "{told}: {report}");
    assert_eq!(of("accepted"), of("done") + of("dead_lettered") + of("left"), "{report}");
    assert!(of("dead_lettered") > 0 && of("left") > 0, "the broken ones: {report}");
    let ids =
        |file: &str| service::ids(&fs::read_to_string(dir.path().join(file)).unwrap_or_default());
    let (letters, left) = (ids("dead_letters.jsonl"), ids("left.jsonl"));
    assert_eq!((letters.len() as u64, left.len() as u64), (of("dead_lettered"), of("left")));
    let mut other: HashSet<&String> = letters.iter().collect();
    other.extend(&left);
    assert_eq!(other.len(), letters.len() + left.len(), "each has one end");
    if of("accepted") == told {
        assert!(other.iter().all(|id| accepted.contains(*id)), "nothing else has an end");
    }
    assert_eq!(figure(&books, "delivered"), of("done"), "{books}");
    for never in ["duplicates", "overlaps", "out_of_order"] {
        assert_eq!(figure(&books, never), 0, "{books}");
    }
}

/// Stopped twice, it waits for nothing; the next start takes up what was left, in order and before all that is new.
#[test]
fn what_is_left_is_taken_up_by_the_next_start() {
    let dir = tempfile::tempdir().expect("a folder");
    let downstream = Process::downstream();
    let slow = ["--merchant-rate", "1", "--drain", "600"];
    let mut service = Process::serve(&downstream.url, dir.path(), &slow);
    let lines = |numbers: std::ops::Range<u32>| {
        let line = |number| notification(&format!("m#{number}"), "m", "12 EUR");
        numbers.map(line).collect::<Vec<_>>().join("\n")
    };
    let mut connection = Connection::open(&service.url);
    assert_eq!(
        connection.post("/notifications/lines", &lines(1..31)).expect("an answer").status,
        202
    );
    service.terminate();
    service.next_line("draining");
    service.terminate();
    let report = service.report();
    let left = figure(&report, "left");
    assert!(left > 0, "{report}");
    assert_eq!(figure(&report, "done") + left, 30, "{report}");

    let service = Process::serve(&downstream.url, dir.path(), &["--merchant-rate", "10000"]);
    let mut connection = Connection::open(&service.url);
    assert_eq!(
        connection.post("/notifications/lines", &lines(31..41)).expect("an answer").status,
        202
    );
    let report = service.stop();
    assert_eq!((figure(&report, "taken_up"), figure(&report, "accepted")), (left, 10));
    assert_eq!((figure(&report, "done"), figure(&report, "left")), (left + 10, 0));
    assert!(!dir.path().join("left.jsonl").exists());
    let books = downstream.stop();
    assert_eq!(figure(&books, "delivered"), 40, "{books}");
    assert_eq!(figure(&books, "out_of_order") + figure(&books, "duplicates"), 0, "{books}");
}
