//! The call: one notification to the downstream, and what its answer means to the engine.
//!
//! | answer | outcome | what the engine does |
//! |---|---|---|
//! | 2xx | `Done` | goes on with the merchant's next |
//! | 429 | `Throttled` | starts nothing before the time that it names; the attempt does not count; the limit in flight goes down |
//! | 5xx, no answer | `Retry` | keeps the merchant's place and tries again by the policy, others go on |
//! | 5xx with `Retry-After` | `RetryAfter` | the same, after the time that it names |
//! | other | `Fail` | a dead letter: no repetition would mend it |

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode, Uri, header},
};
use bgrp::{Failure, Outcome};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::{Error, notification::Notification};

/// What a 429 without `Retry-After` means: too many at a time, so the next answer makes room.
const MOMENT: Duration = Duration::from_millis(5);

/// A client of the downstream, with its connections.
pub(crate) struct Downstream {
    client: Client<HttpConnector, Body>,
    push: Uri,
}

impl Downstream {
    pub(crate) fn new(url: &str) -> Result<Self, Error> {
        let push = format!("{}/push", url.trim_end_matches('/'));
        let push = push.parse().map_err(|error| format!("--downstream is {url:?}: {error}"))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, push })
    }

    /// Sends one notification. `attempt` counts from 1.
    pub(crate) async fn push(&self, notification: &Notification, attempt: u32) -> Outcome {
        let request = Request::post(self.push.clone())
            .header(header::CONTENT_TYPE, "application/json")
            // An attempt whose answer was lost may have been taken: the downstream knows it by this.
            .header("idempotency-key", &notification.id)
            .header("attempt", attempt)
            .body(Body::from(notification.to_json()));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Outcome::Fail(Failure::new(error.to_string())),
        };
        match self.client.request(request).await {
            Ok(response) => {
                let outcome = meaning(response.status(), response.headers());
                // Read to its end, so that the connection can be used again.
                let rest = axum::body::to_bytes(Body::new(response.into_body()), 64 << 10).await;
                drop(rest);
                outcome
            }
            Err(error) => Outcome::Retry(Failure::new(format!("no answer: {error}"))),
        }
    }
}

fn meaning(status: StatusCode, headers: &HeaderMap) -> Outcome {
    let failure = || Failure::new(format!("the downstream answered {status}"));
    let asked = retry_after(headers);
    match status {
        _ if status.is_success() => Outcome::Done,
        StatusCode::TOO_MANY_REQUESTS => Outcome::Throttled(asked.unwrap_or(MOMENT)),
        _ if status.is_server_error() => match asked {
            Some(after) => Outcome::RetryAfter(after, failure()),
            None => Outcome::Retry(failure()),
        },
        _ => Outcome::Fail(failure()),
    }
}

/// Seconds; dates, which the header may have too, are not read here. A downstream cannot stop the service for longer than a minute.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(60)))
}
