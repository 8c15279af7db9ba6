//! Load: by `wrk` where that is installed, else by a small client of this example. Both say how many answers of each kind came back.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use tokio::{
    process::{Child, Command},
    task::JoinSet,
};

use crate::{Error, notification::Notification};

pub(crate) const CONNECTIONS: u64 = 64;

/// What clients saw.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Seen {
    /// 202.
    pub(crate) accepted: u64,
    /// 400.
    pub(crate) invalid: u64,
    /// 429.
    pub(crate) full: u64,
    /// 503.
    pub(crate) draining: u64,
    pub(crate) other: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) seconds: f64,
}

/// Load that goes on until it is stopped.
pub(crate) enum Load {
    Wrk(Child),
    Own { clients: JoinSet<(Seen, Vec<f64>)>, began: Instant },
}

impl Load {
    /// Starts it; `wrk` runs the script that it gets in `dir`.
    pub(crate) fn start(url: &str, dir: &Path, wrk: bool) -> Result<Self, Error> {
        if wrk {
            let script = dir.join("load.lua");
            std::fs::write(&script, include_str!("load.lua"))?;
            let connections = CONNECTIONS.to_string();
            // It is stopped long before its time.
            let child = Command::new("wrk")
                .args(["-t2", "-c", &connections, "-d60s", "-s"])
                .args([script.as_os_str(), url.as_ref()])
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            return Ok(Self::Wrk(child));
        }
        let mut clients = JoinSet::new();
        for number in 0..CONNECTIONS {
            clients.spawn(client(url.to_owned(), number));
        }
        Ok(Self::Own { clients, began: Instant::now() })
    }

    /// What was seen. The service is gone.
    pub(crate) async fn end(self) -> Result<Seen, Error> {
        match self {
            Self::Wrk(child) => {
                interrupt(&child)?;
                let output = child.wait_with_output().await?;
                let text = String::from_utf8_lossy(&output.stdout);
                let line = text.lines().find(|line| line.starts_with('{'));
                Ok(serde_json::from_str(line.ok_or("wrk has printed no figures")?)?)
            }
            Self::Own { mut clients, began } => {
                let (mut sum, mut times) = (Seen::default(), Vec::new());
                while let Some(seen) = clients.join_next().await {
                    let (seen, mut more) = seen?;
                    sum.accepted += seen.accepted;
                    sum.invalid += seen.invalid;
                    sum.full += seen.full;
                    sum.draining += seen.draining;
                    sum.other += seen.other;
                    times.append(&mut more);
                }
                times.sort_by(f64::total_cmp);
                let at = |share: f64| times.get((times.len() as f64 * share) as usize);
                sum.p50_ms = at(0.5).copied().unwrap_or(0.0);
                sum.p99_ms = at(0.99).copied().unwrap_or(0.0);
                sum.seconds = began.elapsed().as_secs_f64();
                Ok(sum)
            }
        }
    }
}

/// Asks a child to stop, as a terminal would.
#[cfg(unix)]
pub(crate) fn interrupt(child: &Child) -> Result<(), Error> {
    signal(child, rustix::process::Signal::INT)
}

/// Asks a child to stop, as a supervisor would.
#[cfg(unix)]
pub(crate) fn terminate(child: &Child) -> Result<(), Error> {
    signal(child, rustix::process::Signal::TERM)
}

#[cfg(unix)]
fn signal(child: &Child, signal: rustix::process::Signal) -> Result<(), Error> {
    let id = child.id().ok_or("it has ended before its time")?;
    let id = rustix::process::Pid::from_raw(id.cast_signed()).ok_or("no process")?;
    Ok(rustix::process::kill_process(id, signal)?)
}

#[cfg(not(unix))]
pub(crate) use terminate as interrupt;

#[cfg(not(unix))]
pub(crate) fn terminate(_: &Child) -> Result<(), Error> {
    Err("the demo needs signals, which this system does not have".into())
}

/// One connection, with merchants of its own: sends the next notification of each in turn, and one that was refused once more, so
/// that the numbers of a merchant arrive in order. Ends when nobody listens any more.
async fn client(url: String, number: u64) -> (Seen, Vec<f64>) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let mut merchants: Vec<(String, u64)> = match number {
        0 => vec![("hot".to_owned(), 1)],
        1 => (0..8).map(|n| (format!("broken_{n}"), 1)).collect(),
        _ => (0..3).map(|n| (format!("merchant_{}", number * 3 + n), 1)).collect(),
    };
    let (mut seen, mut times) = (Seen::default(), Vec::new());
    for turn in 1_u64.. {
        let at = turn as usize % merchants.len();
        let (merchant, next) = &mut merchants[at];
        let wrong = turn % 200 == 99;
        let notification = Notification {
            id: format!("{merchant}#{next}"),
            merchant: merchant.clone(),
            kind: if wrong { "payed" } else { "paid" }.to_owned(),
            title: if turn % 500 == 77 { "this is forbidden" } else { "12 EUR" }.to_owned(),
        };
        let began = Instant::now();
        let Ok(status) = post(&client, &url, notification.to_json()).await else { break };
        match status {
            StatusCode::ACCEPTED => {
                times.push(began.elapsed().as_secs_f64() * 1e3);
                seen.accepted += 1;
                *next += 1;
            }
            StatusCode::BAD_REQUEST => seen.invalid += 1,
            StatusCode::TOO_MANY_REQUESTS => seen.full += 1,
            StatusCode::SERVICE_UNAVAILABLE => {
                seen.draining += 1;
                // There is no other instance to go to.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            _ => seen.other += 1,
        }
    }
    (seen, times)
}

async fn post(
    client: &Client<HttpConnector, Body>,
    url: &str,
    json: String,
) -> Result<StatusCode, Error> {
    let request = Request::post(format!("{url}/notifications")).body(Body::from(json))?;
    let response = client.request(request).await?;
    let status = response.status();
    axum::body::to_bytes(Body::new(response.into_body()), 64 << 10).await?;
    Ok(status)
}
