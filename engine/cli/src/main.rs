//! The `bgrp` command.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use bgrp_cli::options::{Action, Cli};
use bgrp_cli::{doctor, run};
use clap::Parser;

fn main() -> ExitCode {
    let code = match Cli::parse().action {
        Action::Run(options) => run::run(&options).unwrap_or_else(wrong_use),
        Action::Doctor(options) => doctor::doctor(&options).unwrap_or_else(wrong_use),
    };
    ExitCode::from(code)
}

fn wrong_use(error: impl Display) -> u8 {
    // Not eprintln: a standard error that is gone is no reason to panic.
    let _ = writeln!(std::io::stderr(), "bgrp: {error}");
    run::USAGE
}
