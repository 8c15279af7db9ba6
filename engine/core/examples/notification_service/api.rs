//! The way in: `POST /notifications`.
//!
//! **202 means**: the notification is in the engine, behind all of this merchant that were accepted before, and one of four things
//! will become of it: sent, dead-lettered, left in a file at shutdown, or lost with the process if that is killed. It does not mean sent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::StatusCode,
    middleware,
    routing::{get, post},
};
use bgrp::{Engine, SubmitReason};
use serde_json::{Value, json};

use crate::{
    answers::{self, Answers},
    lines,
    notification::Notification,
    refusal::Refusal,
    watch,
};

/// What all requests share.
pub(crate) struct App {
    pub(crate) engine: Engine<String, Notification>,
    /// Set by the signal; the engine refuses for itself, this is for `/ready`.
    pub(crate) draining: AtomicBool,
    /// Notifications that were told "accepted".
    pub(crate) accepted: AtomicU64,
    pub(crate) answers: Answers,
    patience: Duration,
}

impl App {
    pub(crate) fn new(engine: Engine<String, Notification>, patience: Duration) -> Arc<Self> {
        let (draining, accepted) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { engine, draining, accepted, answers: Answers::default(), patience })
    }

    /// Accepts if there is room now.
    pub(crate) fn accept_now(
        &self,
        notification: Notification,
    ) -> Result<(), (Notification, SubmitReason)> {
        self.engine
            .try_submit(notification.merchant.clone(), notification)
            .map_err(|refused| (refused.task, refused.reason))?;
        self.accepted.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Accepts, if need be after a moment: a short burst is smoothed out, a long one is the client's to slow down.
    async fn accept(&self, notification: Notification) -> Result<(), SubmitReason> {
        let (notification, reason) = match self.accept_now(notification) {
            Err((back, reason @ (SubmitReason::GroupFull | SubmitReason::EngineFull))) => {
                (back, reason)
            }
            other => return other.map_err(|(_, reason)| reason),
        };
        let room = self.engine.submit_async(notification.merchant.clone(), notification);
        // A future that is dropped before its end, here or because the client went away, has submitted nothing.
        match tokio::time::timeout(self.patience, room).await {
            Ok(Ok(())) => {
                self.accepted.fetch_add(1, Relaxed);
                Ok(())
            }
            Ok(Err(refused)) => Err(refused.reason),
            Err(_out_of_patience) => Err(reason),
        }
    }
}

/// Bytes of a body, at most: of one notification, and of many.
const ONE: usize = 16 << 10;
const MANY: usize = 4 << 20;

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let ways_in = Router::new()
        .route("/notifications", post(one).layer(DefaultBodyLimit::max(ONE)))
        .route("/notifications/lines", post(lines::many).layer(DefaultBodyLimit::max(MANY)))
        .layer(middleware::from_fn_with_state(app.clone(), answers::count));
    Router::new()
        .merge(ways_in)
        .route("/metrics", get(watch::metrics))
        .route("/health", get(watch::health))
        .route("/ready", get(watch::ready))
        .route("/stuck", get(watch::stuck))
        .route("/groups", get(watch::groups))
        .with_state(app)
}

async fn one(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let notification = Notification::parse(&whole(body)?)?;
    let id = notification.id.clone();
    app.accept(notification).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "accepted": id }))))
}

/// The body, or why it did not come: too large, or the client went away.
pub(crate) fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Refusal> {
    body.map_err(|rejection| {
        let message = format!(
            "{rejection}; a notification may have {ONE} bytes, many lines {MANY}: send less at a time"
        );
        Refusal::new(rejection.status(), "body", message)
    })
}
