//! Which answer for which reason: the part of a service that its clients live with.
//!
//! | reason | status | the client should |
//! |---|---|---|
//! | a field is wrong | 400 | mend it; the answer says which |
//! | the body is too large | 413 | send less at a time |
//! | the merchant has too much waiting | 429, `Retry-After` | come again, with this merchant; others have room |
//! | the service has too much waiting | 429, `Retry-After` | come again, with everything |
//! | the service is shutting down | 503, `Connection: close` | go to another instance, at once |
//! | the merchant is halted or closed by hand | 503, `Retry-After` | wait for people |

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bgrp::SubmitReason;
use serde::Serialize;

use crate::{answers::Word, notification::Invalid};

/// An answer that is not "accepted".
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Refusal {
    #[serde(serialize_with = "number")]
    pub(crate) status: StatusCode,
    /// A word for programs.
    pub(crate) error: &'static str,
    /// A sentence for people.
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// In seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u32>,
}

fn number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        Self { status, error, message: message.into(), field: None, retry_after: None }
    }

    fn again_after(self, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }
}

impl From<Invalid> for Refusal {
    fn from(Invalid { field, message }: Invalid) -> Self {
        Self { field: Some(field), ..Self::new(StatusCode::BAD_REQUEST, "invalid", message) }
    }
}

impl From<SubmitReason> for Refusal {
    fn from(reason: SubmitReason) -> Self {
        let busy = |error, message| Self::new(StatusCode::TOO_MANY_REQUESTS, error, message);
        let away = |error, message| Self::new(StatusCode::SERVICE_UNAVAILABLE, error, message);
        match reason {
            // What a full group holds goes out within a second at its own rate (`--merchant-capacity`, `--merchant-rate`).
            SubmitReason::GroupFull => busy(
                "merchant_full",
                "this merchant has as many notifications waiting as it may; send it again later",
            )
            .again_after(1),
            SubmitReason::EngineFull => busy(
                "service_full",
                "the service has as many notifications waiting as it may; send it again later",
            )
            .again_after(1),
            SubmitReason::Closed => away(
                "draining",
                "this instance is shutting down and takes no more; send it to another one",
            ),
            SubmitReason::GroupHalted | SubmitReason::GroupClosed => away(
                "merchant_halted",
                "this merchant was stopped by hand; send it again when it was resumed",
            )
            .again_after(60),
            // Not for this service: waits with a time limit, and submits from inside a handler.
            other => {
                let message =
                    format!("the service could not take it ({other}); send it again later");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_accepted", message).again_after(1)
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&self)).into_response();
        response.extensions_mut().insert(Word(self.error));
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.error == "draining" {
            // So that the next request of this client is made on a new connection, to an instance that stays.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
