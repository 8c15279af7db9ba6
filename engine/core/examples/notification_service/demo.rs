//! The job that shows it all: starts the service as a process of its own, loads it, sends SIGTERM under load, starts it again, and
//! checks from outside that every notification that was accepted is accounted for.
//!
//! `demo [--seconds 8] [--generator wrk|own] [options of serve]`

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{
    Error,
    downstream::StandIn,
    load::{self, CONNECTIONS, Load, Seen},
    options::Value,
};

/// Longer than any part of it takes.
const WATCHDOG: Duration = Duration::from_secs(60);

/// The service as a process.
struct Service {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    url: String,
}

/// Of the JSON on its last line, what is checked here.
#[derive(Debug, Deserialize)]
struct Report {
    accepted: u64,
    taken_up: u64,
    done: u64,
    dead_lettered: u64,
    left: u64,
    retries: u64,
    throttled: u64,
    drain_seconds: f64,
}

impl Service {
    async fn start(downstream: SocketAddr, dir: &Path, args: &[&str]) -> Result<Self, Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--downstream", &format!("http://{downstream}"), "--dir"])
            .arg(dir)
            .args(args)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(WATCHDOG, lines.next_line()).await??.unwrap_or_default();
        let url = first.strip_prefix("listening on ").ok_or("the service did not start")?;
        Ok(Self { child, lines, url: url.to_owned() })
    }

    /// Sends SIGTERM; returns its report, how it ended, and after how long.
    async fn stop(mut self) -> Result<(Report, bool, Duration), Error> {
        load::terminate(&self.child)?;
        let sent = Instant::now();
        let mut last = String::new();
        while let Some(line) = timeout(WATCHDOG, self.lines.next_line()).await?? {
            println!("  service: {line}");
            last = line;
        }
        let status = timeout(WATCHDOG, self.child.wait()).await??;
        Ok((serde_json::from_str(&last)?, status.success(), sent.elapsed()))
    }
}

/// Lines with what was checked.
struct Checks(bool);

impl Checks {
    fn check(&mut self, holds: bool, what: String) {
        println!("  {} {what}", if holds { "ok:    " } else { "FAILED:" });
        self.0 &= holds;
    }
}

/// See the module text. `true`: all checks hold.
pub(crate) async fn run(args: &[String]) -> Result<bool, Error> {
    let (mut seconds, mut generator, mut rest) = (Duration::from_secs(8), None, Vec::new());
    for pair in args.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} has no value", pair[0]).into()) };
        let value = Value { name, value };
        match name.as_str() {
            "--seconds" => seconds = value.seconds()?,
            "--generator" => generator = Some(value.value == "wrk"),
            _ => rest.extend([value.name, value.value]),
        }
    }
    let wrk = match generator {
        Some(wrk) => wrk,
        None => Command::new("wrk").arg("-v").output().await.is_ok(),
    };
    let scratch = tempfile::tempdir()?;
    let dir = scratch.path();
    let (downstream, stand_in) = StandIn::start(SocketAddr::from(([127, 0, 0, 1], 0))).await?;

    let by =
        if wrk { "wrk" } else { "the example's own client (wrk is not installed or not wanted)" };
    // Half a second to drain: too short for what a limited merchant has waiting, so that something is left.
    let mut short = vec!["--drain", "0.5"];
    short.extend(&rest);
    let service = Service::start(downstream, dir, &short).await?;
    let url = &service.url;
    println!("first run: {CONNECTIONS} connections by {by} to {url}, SIGTERM after {seconds:?}");
    let load = Load::start(&service.url, dir, wrk)?;
    tokio::time::sleep(seconds).await;
    let (first, first_ok, stopped) = service.stop().await?;
    let seen = load.end().await?;

    println!("second run: takes up what was left, and SIGTERM at once");
    let mut long = vec!["--drain", "30"];
    long.extend(&rest);
    let service = Service::start(downstream, dir, &long).await?;
    let (second, second_ok, _) = service.stop().await?;
    let books = stand_in.figures();

    print_figures(&seen, &first, stopped);
    println!("downstream: {}", serde_json::to_string(&books)?);
    let mut checks = Checks(true);
    checks.check(first_ok && second_ok, "both runs say that their balance holds".to_owned());
    let Report { accepted, done, dead_lettered, left, .. } = first;
    checks.check(
        accepted == done + dead_lettered + left,
        format!("{accepted} accepted = {done} done + {dead_lettered} dead letters + {left} left"),
    );
    // An answer may be on its way when a connection is cut.
    checks.check(
        (seen.accepted..=seen.accepted + CONNECTIONS).contains(&accepted),
        format!("clients got {} of {accepted} answers 202", seen.accepted),
    );
    checks.check(
        second.taken_up == left && second.left == 0,
        format!("the second run took up {} of {left}, and left {}", second.taken_up, second.left),
    );
    let letters = fs::read_to_string(dir.join("dead_letters.jsonl"))?.lines().count() as u64;
    let all_letters = dead_lettered + second.dead_lettered;
    checks.check(
        letters == all_letters,
        format!("{letters} of {all_letters} dead letters in the file"),
    );
    let all_done = done + second.done;
    checks.check(
        books.delivered == all_done && books.duplicates == 0,
        format!("the downstream has {} of {all_done}, {} twice", books.delivered, books.duplicates),
    );
    checks.check(
        books.overlaps + books.out_of_order == 0,
        format!("{} overlaps in a merchant, {} out of order", books.overlaps, books.out_of_order),
    );
    checks.check(
        seen.full > 0 && seen.invalid > 0 && seen.other == 0,
        format!("{} answers 429, {} answers 400, {} others", seen.full, seen.invalid, seen.other),
    );
    Ok(checks.0)
}

fn print_figures(seen: &Seen, report: &Report, stopped: Duration) {
    let answers = seen.accepted + seen.invalid + seen.full + seen.draining + seen.other;
    println!(
        "clients: {answers} answers in {:.1} s: {} x 202, {} x 429, {} x 400, {} x 503; p50 {:.1} ms, p99 {:.1} ms",
        seen.seconds,
        seen.accepted,
        seen.full,
        seen.invalid,
        seen.draining,
        seen.p50_ms,
        seen.p99_ms
    );
    println!(
        "service: {} retries, {} throttled calls; drained in {:.2} s, SIGTERM to exit {:.2} s",
        report.retries,
        report.throttled,
        report.drain_seconds,
        stopped.as_secs_f64()
    );
}
