//! The engine of this service: one group for each merchant.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bgrp::{Engine, FileSink, InFlight, Json, OnExhausted, OnTokio, Rate, Retry, Workers};
use tokio::runtime::Handle;

use crate::{Error, notification::Notification, options::Options, push::Downstream};

/// How long one call may take. An attempt that is later has failed.
pub(crate) const CALL: Duration = Duration::from_secs(5);

pub(crate) fn engine(
    options: &Options,
    downstream: Downstream,
    runtime: Handle,
) -> Result<Engine<String, Notification>, Error> {
    let downstream = Arc::new(downstream);
    let letters = FileSink::open(
        dead_letters(options),
        |merchant: &String| Json::text(merchant),
        |notification: &Notification| Json::raw(notification.to_json()),
    )?;
    let engine = Engine::builder()
        // They make futures and settle what came of them; the calls are the runtime's.
        .workers(Workers::fixed(2))
        .pin(false)
        // One call for each notification: so one that fails is tried again before the next of its merchant is sent.
        .batch_size(1)
        .capacity(options.capacity)
        .group_capacity(options.merchant_capacity)
        // The downstream does not tell its cap: its 429s do.
        .in_flight(InFlight::adaptive(1, 256))
        .rate(Rate::per_second(options.rate))
        .group_rate(Rate::per_second(options.merchant_rate))
        .retry(
            Retry::exponential(Duration::from_millis(20), Duration::from_secs(1))
                .with_jitter()
                .attempts(4),
        )
        // A letter that cannot be written holds its merchant, and is offered again each second.
        .on_exhausted(OnExhausted::dead_letter_to(Duration::from_secs(1), letters))
        .tokio_handler(OnTokio::new(runtime).timeout(CALL), move |lease| {
            let downstream = downstream.clone();
            async move {
                let mut outcomes = Vec::with_capacity(lease.len());
                for (at, notification) in lease.iter().enumerate() {
                    outcomes.push(downstream.push(notification, lease.attempt(at)).await);
                }
                outcomes
            }
        })
        .build()?;
    Ok(engine)
}

/// One line of JSON for each notification that failed for good.
pub(crate) fn dead_letters(options: &Options) -> PathBuf {
    options.dir.join("dead_letters.jsonl")
}
