//! The end, and the next start: nothing that was accepted is lost at a shutdown.
//!
//! ```text
//! accepted + taken up = done + dead-lettered + left
//! ```
//!
//! What is left at the deadline is written to `left.jsonl`, each merchant's in order, and taken up by the next start before it listens.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use bgrp::Left;
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::{Error, api::App, delivery::CALL, notification::Notification, options::Options};

/// What became of everything.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Told "accepted" by this process.
    pub(crate) accepted: u64,
    /// Left by the process before.
    pub(crate) taken_up: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) dead_lettered: u64,
    /// Written to `left.jsonl`.
    pub(crate) left: u64,
    /// Merchants whose call did not come back, although it has a time limit: there should be none.
    pub(crate) still_out: u64,
    pub(crate) retries: u64,
    pub(crate) throttled: u64,
    pub(crate) drain_seconds: f64,
}

impl Report {
    /// Everything is accounted for.
    pub(crate) fn balances(&self) -> bool {
        self.accepted + self.taken_up == self.done + self.dead_lettered + self.left
            && self.failed == self.dead_lettered
            && self.still_out == 0
    }
}

fn left_file(options: &Options) -> PathBuf {
    options.dir.join("left.jsonl")
}

/// Refuses, sends what it can before the deadline, and writes down the rest.
pub(crate) async fn drain(
    app: &Arc<App>,
    options: &Options,
    taken_up: u64,
) -> Result<Report, Error> {
    let began = Instant::now();
    app.draining.store(true, Relaxed);
    let mut report = close(app, options.drain).await?;
    if report.leased > 0 {
        // Calls that are under way come back within their own time limit.
        let rest = close(app, CALL + Duration::from_secs(1)).await?;
        let before = std::mem::replace(&mut report, rest);
        report.left.extend(before.left);
    }
    write_left(options, &report.left)?;
    let stats = app.engine.stats();
    Ok(Report {
        accepted: app.accepted.load(Relaxed),
        taken_up,
        done: report.done,
        failed: report.failed,
        dead_lettered: stats.dead_lettered,
        left: report.left_tasks() as u64,
        still_out: (report.leased + report.running) as u64,
        retries: report.retries,
        throttled: stats.throttled,
        drain_seconds: began.elapsed().as_secs_f64(),
    })
}

type CloseReport = bgrp::CloseReport<String, Notification>;

async fn close(app: &Arc<App>, within: Duration) -> Result<CloseReport, Error> {
    let app = app.clone();
    // It waits, so not on a thread of the runtime: the calls need those.
    Ok(spawn_blocking(move || app.engine.close(within)).await?)
}

fn write_left(options: &Options, left: &[Left<String, Notification>]) -> io::Result<()> {
    if left.is_empty() {
        return Ok(());
    }
    // In full or not at all: the name appears when the disk has it.
    let (path, part) = (left_file(options), options.dir.join("left.jsonl.part"));
    let mut file = BufWriter::new(File::create(&part)?);
    for notification in left.iter().flat_map(|left| &left.tasks) {
        writeln!(file, "{}", notification.to_json())?;
    }
    file.into_inner()?.sync_all()?;
    fs::rename(part, &path)?;
    File::open(&options.dir)?.sync_all()
}

/// Submits what the process before has left. Waits, so call it where that may block, and before anything else is accepted.
pub(crate) fn take_up(app: &App, options: &Options) -> Result<u64, Error> {
    let path = left_file(options);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(format!("{}: {error}", path.display()).into()),
    };
    let mut left = Vec::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let notification = Notification::parse(line)
            .map_err(|wrong| format!("{}:{}: {}", path.display(), at + 1, wrong.message))?;
        left.push(notification);
    }
    let taken_up = left.len() as u64;
    // By a lane, which does not ask how much a merchant may have: what was accepted once is not refused now.
    let mut lane = app.engine.producer();
    for notification in left {
        lane.submit(notification.merchant.clone(), notification)?;
    }
    // Between a lane and other ways in there is no order, so nothing else comes in before all of it is in its group.
    while app.engine.stats().ingress() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    // A crash before this line sends some twice, under the same idempotency key; none is lost.
    fs::remove_file(path)?;
    Ok(taken_up)
}
