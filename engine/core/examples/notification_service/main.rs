//! A service to start from: notifications come in by HTTP and go out to a downstream, each merchant's in order, one at a time.
//!
//! ```text
//!  POST /notifications ──> api ──> Engine (a group for each merchant) ──> delivery ──> push ──> downstream
//!        202 429 503 400            capacity, rates, retries in place       lease       HTTP     429, 500
//! ```
//!
//! | file | what |
//! |---|---|
//! | `options` | the few options |
//! | `notification` | what comes in, checked field by field |
//! | `api`, `lines` | one notification by POST, or many as JSON lines |
//! | `refusal` | which answer for which reason |
//! | `delivery`, `push` | the engine, and the call that it makes |
//! | `answers`, `watch` | `/metrics`, `/health`, `/ready`, `/stuck`, `/groups` |
//! | `serve`, `signal`, `drain` | the life of the process: start, signal, drain, report |
//! | `downstream`, `demo`, `load` | not for a service: a stand-in, and the job that shows it all |
//!
//! ```sh
//! cargo run --release -p bgrp-engine --example notification_service                # shows it: load, SIGTERM under load, balance
//! cargo run --release -p bgrp-engine --example notification_service -- downstream --listen 127.0.0.1:9090
//! cargo run --release -p bgrp-engine --example notification_service -- serve --downstream http://127.0.0.1:9090
//! curl -i 127.0.0.1:8080/notifications -d '{"id":"1","merchant":"1001","kind":"paid","title":"12 EUR from Ada"}'
//! ```

mod answers;
mod api;
mod delivery;
mod demo;
mod downstream;
mod drain;
mod lines;
mod load;
mod notification;
mod options;
mod push;
mod refusal;
mod serve;
mod signal;
mod watch;

use std::process::ExitCode;

/// What ends the program early.
type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let ended = match args.next().as_deref() {
        None => demo::run(&[]).await,
        Some("demo") => demo::run(&args.collect::<Vec<_>>()).await,
        Some("serve") => serve::run(args).await,
        Some("downstream") => downstream::run(args).await,
        Some(other) => Err(format!("{other:?} is no mode; give demo, serve or downstream").into()),
    };
    match ended {
        // Whether everything that was accepted is accounted for.
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("notification_service: {error}");
            ExitCode::from(2)
        }
    }
}
