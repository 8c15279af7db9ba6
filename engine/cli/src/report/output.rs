//! The output of commands: each command's in one piece, byte for byte.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::console::Console;
use crate::control::{Control, StopReason};
use bgrp_process::command::Capture;

/// Our standard output and standard error, for one command at a time.
#[derive(Debug)]
pub struct Output {
    console: Arc<Console>,
    control: Arc<Control>,
    turn: Mutex<()>,
}

impl Output {
    /// Output that stops the run when it cannot be written.
    #[must_use]
    pub fn new(console: Arc<Console>, control: Arc<Control>) -> Self {
        Self { console, control, turn: Mutex::new(()) }
    }

    /// Writes what a command wrote, each stream to its own.
    pub fn write(&self, mut stdout: Capture, mut stderr: Capture) {
        if stdout.is_empty() && stderr.is_empty() {
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.write_stdout(&mut stdout).and_then(|()| {
            if stderr.is_empty() {
                return Ok(());
            }
            self.console.aside(|| stderr.write_to(io::stderr().as_fd()))
        });
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.control.stop(StopReason::OutputClosed);
            }
            Err(error) => self.lost(&error),
        }
    }

    fn write_stdout(&self, stdout: &mut Capture) -> io::Result<()> {
        let out = io::stdout();
        if out.is_terminal() {
            return self.console.aside(|| stdout.write_to(out.as_fd()));
        }
        // The bar is not in the way, and must not be held by a reader that lets us wait.
        stdout.write_to(out.as_fd())
    }

    /// Output of a command is lost: the run stops, since it cannot keep its promise.
    pub fn lost(&self, error: &io::Error) {
        let reason = StopReason::OutputFailed(error.to_string());
        if self.control.stop(reason) {
            self.console.say(format_args!(
                "the output of a command cannot be kept or written: {error}; no further command is started"
            ));
        }
    }
}
