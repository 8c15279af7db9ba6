//! How many answers of each kind were given: by the word for programs that is in them, so that a full merchant and a full service,
//! which are both 429, can be told apart on a dashboard.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use crate::api::App;

/// The word of an answer, on its way from the handler to the counter.
#[derive(Clone, Copy)]
pub(crate) struct Word(pub(crate) &'static str);

const WORDS: [&str; 8] = [
    "accepted",
    "some_lines",
    "invalid",
    "body",
    "merchant_full",
    "service_full",
    "draining",
    "other",
];

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Answers([AtomicU64; WORDS.len()]);

impl Answers {
    fn count(&self, response: &Response) {
        let word = match response.extensions().get::<Word>() {
            Some(Word(word)) => word,
            None if response.status().is_success() => "accepted",
            None => "other",
        };
        let at = WORDS.iter().position(|known| *known == word).unwrap_or(WORDS.len() - 1);
        self.0[at].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = (&'static str, u64)> {
        WORDS.into_iter().zip(self.0.iter().map(|counter| counter.load(Relaxed)))
    }
}

/// A layer around the ways in.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    app.answers.count(&response);
    response
}
