//! What people and machines look at: figures, readiness, who is stuck and why.

use std::{
    fmt::Write,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use axum::{
    Json,
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bgrp::By;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{api::App, refusal::Refusal};

/// For Prometheus: the engine's figures, and the answers of this service.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut page = app.engine.stats().to_prometheus() + &app.engine.histograms().to_prometheus();
    page.push_str("# HELP notification_answers_total Answers to notifications, by their word.\n");
    page.push_str("# TYPE notification_answers_total counter\n");
    for (answer, count) in app.answers.read() {
        // Writing to a string does not fail.
        let _ = writeln!(page, "notification_answers_total{{answer=\"{answer}\"}} {count}");
    }
    let accepted = app.accepted.load(Relaxed);
    page.push_str("# HELP notification_accepted_total Notifications that were accepted.\n");
    page.push_str("# TYPE notification_accepted_total counter\n");
    let _ = writeln!(page, "notification_accepted_total {accepted}");
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

/// The process lives. For a liveness probe: does not depend on load, downstream or shutdown, none of which a restart would mend.
pub(crate) async fn health() -> &'static str {
    "alive\n"
}

/// Whether to send requests here. For a readiness probe.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    if app.draining.load(Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

#[derive(Deserialize)]
pub(crate) struct StuckFor {
    /// Seconds without progress.
    #[serde(default = "half_a_minute")]
    older_than: f64,
}

fn half_a_minute() -> f64 {
    30.0
}

/// Merchants that have work and do not get on: `/stuck?older_than=5`.
pub(crate) async fn stuck(
    State(app): State<Arc<App>>,
    Query(query): Query<StuckFor>,
) -> Result<Json<Vec<Value>>, Refusal> {
    let older_than = Duration::try_from_secs_f64(query.older_than).map_err(|_| {
        let message = format!("older_than is {}; give seconds, such as 2.5", query.older_than);
        Refusal::new(StatusCode::BAD_REQUEST, "invalid", message)
    })?;
    let stuck = app.engine.stuck(older_than).into_iter().map(|stuck| {
        json!({
            "merchant": stuck.key,
            "seconds": stuck.age.as_secs_f64(),
            "backlog": stuck.backlog,
            "attempt": stuck.attempt,
            "why": stuck.why.to_string(),
        })
    });
    Ok(Json(stuck.collect()))
}

#[derive(Deserialize)]
pub(crate) struct Top {
    #[serde(default)]
    by: Figure,
    #[serde(default = "ten")]
    n: usize,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Figure {
    #[default]
    Backlog,
    Age,
    Rate,
    Failures,
}

fn ten() -> usize {
    10
}

/// The first merchants by some figure: `/groups?by=failures&n=5`.
pub(crate) async fn groups(
    State(app): State<Arc<App>>,
    Query(query): Query<Top>,
) -> Json<Vec<Value>> {
    let by = match query.by {
        Figure::Backlog => By::Backlog,
        Figure::Age => By::Age,
        Figure::Rate => By::Rate,
        Figure::Failures => By::Failures,
    };
    let top = app.engine.top_groups(by, query.n.min(1_000)).into_iter().map(|group| {
        json!({
            "merchant": group.key,
            "backlog": group.backlog,
            "seconds": group.age.as_secs_f64(),
            "share": group.share,
            "why": group.why.map(|why| why.to_string()),
        })
    });
    Json(top.collect())
}
