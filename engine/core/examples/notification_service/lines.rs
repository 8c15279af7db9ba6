//! Many at once: `POST /notifications/lines`, one notification a line (JSON Lines), one answer a line.
//!
//! Each line is accepted or refused for itself, with one exception that keeps the order: once a line of a merchant was refused,
//! its later ones are refused too, so the client can send the refused lines again as they are. What a drain has left
//! (`left.jsonl`) is in this form.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bgrp::SubmitReason;
use serde_json::{Value, json};

use crate::{answers::Word, api, api::App, notification::Notification, refusal::Refusal};

/// 202 when every line was accepted, 207 with an answer for each line that was not.
pub(crate) async fn many(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let body = api::whole(body)?;
    let mut refused_merchants = HashMap::new();
    let (mut accepted, mut refused, mut again_after) = (0, Vec::new(), None);
    for (at, line) in body.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match accept(&app, &mut refused_merchants, line) {
            Ok(()) => accepted += 1,
            Err(refusal) => {
                again_after = again_after.max(refusal.retry_after);
                let mut answer = serde_json::to_value(refusal).unwrap_or(Value::Null);
                answer["line"] = json!(at + 1);
                refused.push(answer);
            }
        }
    }
    let all = refused.is_empty();
    let status = if all { StatusCode::ACCEPTED } else { StatusCode::MULTI_STATUS };
    let answer = json!({ "accepted": accepted, "refused": refused });
    let mut response = (status, Json(answer)).into_response();
    if !all {
        response.extensions_mut().insert(Word("some_lines"));
    }
    if let Some(seconds) = again_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

fn accept(
    app: &App,
    refused: &mut HashMap<String, SubmitReason>,
    line: &[u8],
) -> Result<(), Refusal> {
    let notification = Notification::parse(line)?;
    if let Some(reason) = refused.get(&notification.merchant) {
        return Err((*reason).into());
    }
    app.accept_now(notification).map_err(|(back, reason)| {
        refused.insert(back.merchant, reason);
        reason.into()
    })
}
