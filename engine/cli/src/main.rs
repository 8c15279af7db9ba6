//! The `bgrp` command.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use bgrp_cli::options::{Action, Cli};
use bgrp_cli::run;
use clap::Parser;

fn main() -> ExitCode {
    let Action::Run(options) = Cli::parse().action;
    let code = run::run(&options).unwrap_or_else(|error| {
        // Not eprintln: a standard error that is gone is no reason to panic.
        let _ = writeln!(std::io::stderr(), "bgrp: {error}");
        run::USAGE
    });
    ExitCode::from(code)
}
