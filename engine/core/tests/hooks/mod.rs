//! A hook of user code that panics once, and an engine that is driven around it (row F7).
#![allow(dead_code)]

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use bgrp::{CloseReport, Engine, Workers};

use crate::common::{LONG, WANTED, quiet, watch};

pub(crate) const TASKS: u64 = 60;

/// Panics the first time it is asked to.
#[derive(Clone, Debug)]
pub(crate) struct Once(pub(crate) Arc<AtomicBool>);

impl Once {
    pub(crate) fn armed() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
    pub(crate) fn fire(&self) {
        if self.0.swap(false, SeqCst) {
            panic!("{WANTED}");
        }
    }
    pub(crate) fn assert_fired(&self) {
        assert!(!self.0.load(SeqCst), "the hook was never called: the test shows nothing");
    }
}

/// Submits tasks for four keys, closes, and returns the report and what ran. One worker: if it died, nothing ends.
pub(crate) fn drive<K, T>(
    engine: Engine<K, T>,
    key: impl Fn(u64) -> K,
    task: impl Fn(u64) -> T,
) -> CloseReport<K, T>
where
    K: Hash + Eq + Send + Sync + 'static,
    T: Send + 'static,
{
    let engine = Arc::new(engine);
    let _watch = watch("panics", &engine);
    for n in 0..TASKS {
        assert!(engine.submit(key(n % 4), task(n)).is_ok());
    }
    assert!(engine.wait_drain(LONG), "the worker lives and every group goes on");
    for n in 0..TASKS {
        assert!(engine.submit(key(n % 4), task(n)).is_ok());
    }
    engine.close(LONG)
}

pub(crate) fn builder<K, T>() -> bgrp::Builder<K, T> {
    quiet();
    Engine::builder().workers(Workers::fixed(1)).batch_size(8)
}
