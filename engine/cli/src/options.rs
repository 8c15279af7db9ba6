//! The options of the command line, and how their values are read.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::doctor::DoctorOptions;
use crate::input::format::{Encoding, Format};
use crate::key::EmptyKey;

/// Runs a command for each record of an input: records of one key in order, keys in parallel.
#[derive(Debug, Parser)]
#[command(name = "bgrp", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions of `bgrp`.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run a command for each record, in order per key, in parallel across keys
    Run(Box<RunOptions>),
    /// Show the machine, where workers go on it, and what holds the engine back
    Doctor(DoctorOptions),
}

const PLACES: &str = "\
Placeholders in COMMAND and ARGS (no shell is involved; a value is one argument, byte for byte):
  {}         the whole record
  {title}    a column of CSV or TSV, a member of JSON; {#2} a column by position, {/a/b} a JSON pointer
  {key}      the key            {seq}  number of the record, from 1     {attempt}  from 1
  {dir} {base} {stem} {ext}     parts of a record that is a path (formats lines and nul)
  {{ }}      braces that are meant as they stand
Without any placeholder (and without --stdin) a record of lines or nul is added as the last argument.

Each command has BGRP_KEY, BGRP_SEQ, BGRP_ATTEMPT and BGRP_IDEMPOTENCY_KEY in its environment.

Ctrl-C (or TERM) once: no command starts any more, running ones finish. Twice: TERM to the running ones.
Three times: KILL.

Exit codes, the first that applies:
  2    wrong use; nothing was run
  130  interrupted
  141  whoever read our output went away
  3    halted by --on-failure
  1    some records failed, or output was lost
  4    some records could not be read
  0    every record is done (or skipped by --empty-key skip)";

/// `bgrp run`
#[derive(Args, Clone, Debug)]
#[command(override_usage = "bgrp run [OPTIONS] [--] COMMAND [ARGS]...", after_help = PLACES)]
pub struct RunOptions {
    /// Read records from FILE; may be given several times; `-` is standard input [default: -]
    #[arg(short, long, value_name = "FILE", help_heading = "Input")]
    pub input: Vec<PathBuf>,
    /// How the input is cut [default: by extension, else lines]
    #[arg(short, long, value_enum, help_heading = "Input")]
    pub format: Option<Format>,
    /// The encoding of the input
    #[arg(long, value_enum, default_value = "utf-8", help_heading = "Input")]
    pub encoding: Encoding,
    /// CSV and TSV have no line of column names; columns are #1, #2, ...
    #[arg(long, help_heading = "Input")]
    pub no_header: bool,
    /// What happens at a record that cannot be read: it is counted (and goes to the dead letter), or
    /// reading stops (records before it are run)
    #[arg(long, value_enum, default_value = "skip", value_name = "WHAT", help_heading = "Input")]
    pub on_input_error: OnInputError,

    /// Group by this column, JSON member, JSON pointer (/a/b) or column position (#2)
    /// [default: every record is its own group]
    #[arg(short, long, help_heading = "Key", conflicts_with = "key_template")]
    pub key: Option<OsString>,
    /// Group by this template, such as '{dir}' or '{country}/{city}'
    #[arg(long, value_name = "TEMPLATE", help_heading = "Key")]
    pub key_template: Option<OsString>,
    /// What happens to a record whose key is empty, null or missing
    #[arg(long, value_enum, default_value = "error", value_name = "WHAT", help_heading = "Key")]
    pub empty_key: EmptyKey,
    /// JSON keys of different types with the same text (7 and "7") are one group
    #[arg(long, help_heading = "Key")]
    pub unify_keys: bool,

    /// Run up to N commands at once [default: the number of CPUs this process may use]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Give up to N records of one key to one command; arguments with placeholders are repeated
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: u32,
    /// Give the record to the command on standard input (otherwise it is empty)
    #[arg(long)]
    pub stdin: bool,
    /// Print the commands instead of running them
    #[arg(long)]
    pub dry_run: bool,

    /// Try a failed command again up to N times; later records of its key wait
    #[arg(long, value_name = "N", default_value = "0", help_heading = "Failure")]
    pub retries: u32,
    /// Wait before a retry: always DUR, or from DUR, doubling, up to MAX; with jitter
    #[arg(long, value_name = "DUR[..MAX]", default_value = "100ms..10s", value_parser = backoff, help_heading = "Failure")]
    pub backoff: Backoff,
    /// What follows when the last attempt fails: go on, halt this key, or halt everything
    #[arg(long, value_enum, default_value = "skip", value_name = "WHAT", help_heading = "Failure")]
    pub on_failure: OnFailure,
    /// Add every record that failed, could not be read or was not run to FILE (JSON Lines)
    #[arg(long, value_name = "FILE", help_heading = "Failure")]
    pub dead_letter: Option<PathBuf>,
    /// Stop a command that runs longer than DUR: TERM to it and what it started, then KILL
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = "Failure")]
    pub timeout: Option<Duration>,
    /// The time between TERM and KILL
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = duration, help_heading = "Failure")]
    pub kill_grace: Duration,

    /// Write the figures of the run to FILE as one JSON object
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub summary: Option<PathBuf>,
    /// No progress and no summary on standard error
    #[arg(short, long, help_heading = "Report")]
    pub quiet: bool,
    /// How progress is shown; auto: a bar on a terminal, else a line now and then
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW", help_heading = "Report")]
    pub progress: Progress,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl RunOptions {
    /// How many commands run at once.
    #[must_use]
    pub fn jobs(&self) -> usize {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or_else(cpus, usize::from)
    }
}

/// What happens at a record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnInputError {
    /// It is counted, and reading goes on
    Skip,
    /// Reading stops
    Stop,
}

/// What follows a final failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailure {
    /// The next record of the key is run
    Skip,
    /// No further record of the key is run
    HaltKey,
    /// No further record is run
    Halt,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// A bar on a terminal, else lines
    Auto,
    /// A bar
    Bar,
    /// A line now and then
    Plain,
    /// Nothing
    None,
}

/// The wait before a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the first retry.
    pub first: Duration,
    /// At most.
    pub max: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it as 250ms, 30s, 5m or 1h"))
}

fn backoff(text: &str) -> Result<Backoff, String> {
    let (first, max) = match text.split_once("..") {
        Some((first, max)) => (duration(first)?, duration(max)?),
        None => (duration(text)?, duration(text)?),
    };
    if max < first {
        return Err(format!("the wait must not shrink from {first:?} to {max:?}; swap them"));
    }
    Ok(Backoff { first, max })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn back_off_is_one_wait_or_a_range() {
        let ms = Duration::from_millis;
        assert_eq!(backoff("50ms..5s"), Ok(Backoff { first: ms(50), max: ms(5000) }));
        assert_eq!(backoff("1s"), Ok(Backoff { first: ms(1000), max: ms(1000) }));
        assert!(backoff("5s..1s").unwrap_err().contains("shrink"));
        assert!(backoff("5").unwrap_err().contains("250ms"));
    }

    #[test]
    fn everything_behind_the_command_belongs_to_it() {
        let cli = Cli::try_parse_from(["bgrp", "run", "-j2", "sh", "-c", "x", "--jobs", "--help"]);
        let Action::Run(run) = cli.unwrap().action else { panic!("not a run") };
        assert_eq!(run.command, ["sh", "-c", "x", "--jobs", "--help"]);
        assert_eq!(run.jobs, Some(2));
    }
}
