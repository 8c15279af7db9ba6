//! Messages on standard error, in peace with the progress bar.

use std::fmt;
use std::io::Write;
use std::sync::Mutex;

use indicatif::ProgressBar;

use super::tally::Count;

/// How many messages of a kind are shown; the rest is counted.
const SHOWN: u64 = 20;

/// Standard error.
#[derive(Debug, Default)]
pub struct Console {
    bar: Mutex<Option<ProgressBar>>,
    input_errors: Count,
    failures: Count,
}

impl Console {
    /// From now on `bar` is at the bottom of the terminal.
    pub fn show(&self, bar: ProgressBar) {
        *self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(bar);
    }

    /// The bar is gone.
    pub fn clear(&self) {
        let bar = self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    }

    /// Does `work` while the bar is out of the way.
    pub fn aside<R>(&self, work: impl FnOnce() -> R) -> R {
        let bar = self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        match bar {
            Some(bar) => bar.suspend(work),
            None => work(),
        }
    }

    /// Says one line. If nobody listens, nothing is lost that anybody wanted.
    pub fn say(&self, line: fmt::Arguments<'_>) {
        let text = format!("bgrp: {line}\n");
        self.aside(|| {
            let _ = std::io::stderr().lock().write_all(text.as_bytes());
        });
    }

    /// Says an input error, unless there were many.
    pub fn input_error(&self, line: fmt::Arguments<'_>) {
        self.say_some(&self.input_errors, "input error", line);
    }

    /// Says a failure, unless there were many.
    pub fn failure(&self, line: fmt::Arguments<'_>) {
        self.say_some(&self.failures, "failed", line);
    }

    fn say_some(&self, count: &Count, kind: &str, line: fmt::Arguments<'_>) {
        count.add(1);
        match count.get() {
            n if n <= SHOWN => self.say(format_args!("{kind}: {line}")),
            n if n == SHOWN + 1 => self.say(format_args!(
                "{kind}: more of them; from here they are only counted (--dead-letter keeps all)"
            )),
            _ => {}
        }
    }
}
