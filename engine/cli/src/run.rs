//! `bgrp run` from options to exit code.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::budget::Budget;
use crate::command::child::Deadline;
use crate::command::running::Running;
use crate::control::{Control, StopReason};
use crate::dry_run::DryRun;
use crate::feed::{Input, Stopped, Taker, feed};
use crate::input::fault::Fault;
use crate::input::format::Format;
use crate::input::reader::{RECORD_LIMIT, Reader, Settings};
use crate::input::source::{self, Opened, Source};
use crate::key::Key;
use crate::options::{Progress, RunOptions};
use crate::plan::{Plan, UsageError};
use crate::record::Record;
use crate::report::console::Console;
use crate::report::dead_letter::DeadLetter;
use crate::report::output::Output;
use crate::report::progress::{self, Extent};
use crate::report::summary::Summary;
use crate::report::tally::Tally;
use crate::schedule;
use crate::work::{Policy, Work};

/// Bytes of records between reading and the end of their command.
const IN_FLIGHT: usize = 32 * 1024 * 1024;

/// Wrong use of the command line.
pub const USAGE: u8 = 2;

/// Runs; gives back the exit code.
///
/// # Errors
/// Wrong use; nothing was run.
pub fn run(options: &RunOptions) -> Result<u8, UsageError> {
    let since = Instant::now();
    let paths = match &options.input[..] {
        [] => vec![PathBuf::from("-")],
        paths => paths.to_vec(),
    };
    let format = |path: &Path| options.format.unwrap_or_else(|| Format::of_path(path));
    let formats: Vec<Format> = paths.iter().map(|path| format(path)).collect();
    let plan = Plan::new(options, &formats)?;

    let control = Arc::new(Control::new()?);
    let running = Arc::new(Running::default());
    let console = Arc::new(Console::default());
    let speaking =
        crate::signals::listen(Arc::clone(&control), Arc::clone(&running), Arc::clone(&console))?;

    let opened = paths.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    let letters = options
        .dead_letter
        .as_ref()
        .filter(|_| !options.dry_run)
        .map(|path| open_letters(path, &opened))
        .transpose()?;
    let summary_file = options
        .summary
        .as_ref()
        .filter(|_| !options.dry_run)
        .map(|path| create_summary(path, &opened))
        .transpose()?;
    let extent = Extent {
        read: Arc::new(AtomicU64::new(0)),
        size: opened.iter().map(|opened| opened.size).sum(),
    };
    let inputs = opened
        .into_iter()
        .zip(formats)
        .map(|(opened, format)| bind(opened, format, options, &plan, &control, &extent))
        .collect::<Result<Vec<_>, _>>()?;

    let tally = Arc::new(Tally::default());
    let budget = Budget::new(IN_FLIGHT);
    if options.dry_run {
        let printer = DryRun::new(
            &plan,
            &console,
            &control,
            if plan.has_key() { options.batch as usize } else { 1 },
        );
        return Ok(dry_run(options, inputs, printer, &tally, &budget));
    }

    let work = Arc::new(Work {
        plan,
        policy: Policy {
            attempts: options.retries.saturating_add(1),
            on_failure: options.on_failure,
            deadline: Deadline { timeout: options.timeout, grace: options.kill_grace },
            stdin: options.stdin,
            batched: options.batch > 1,
        },
        tally: Arc::clone(&tally),
        control: Arc::clone(&control),
        console: Arc::clone(&console),
        running,
        output: Output::new(Arc::clone(&console), Arc::clone(&control)),
        letters,
        spending: Mutex::default(),
        halted: Mutex::default(),
        said: Default::default(),
    });
    let settings = schedule::Settings {
        jobs: options.jobs(),
        // Without a key no two records are of one group.
        batch: if work.plan.has_key() { options.batch as usize } else { 1 },
        backoff: options.backoff,
    };
    let how = if options.quiet { Progress::None } else { options.progress };
    let keys = std::thread::scope(|scope| {
        let (end, ended) = channel();
        scope.spawn({
            let (console, tally, extent) = (&console, &tally, &extent);
            move || progress::show(how, console, tally, extent, since, &ended)
        });
        let stopper = scope.spawn({
            let (control, budget) = (&control, &budget);
            move || {
                // A reader that waits for memory must not outlast the stop.
                let _ = control.wait();
                budget.close();
            }
        });
        let ran = schedule::run(settings, &work, &control, |submit| {
            let mut taker = Submitting { work: &work, submit };
            feed(inputs, &work.plan, options.on_input_error, &tally, &budget, &mut taker)
        });
        control.finish();
        let _ = stopper.join();
        drop(end);
        ran.map(|(keys, left)| {
            for (key, record) in &left {
                work.leave(key, record, control.reason().map_or("not run", |why| why.not_run()));
            }
            keys
        })
    })?;

    // What a signal has to say comes before the summary.
    drop(speaking.lock().unwrap_or_else(PoisonError::into_inner));
    let spending = work.spending.lock().unwrap_or_else(PoisonError::into_inner);
    let mut summary = Summary::new(&tally, &keys, &spending, since.elapsed());
    let reason = control.reason();
    summary.interrupted = reason == Some(StopReason::Interrupted);
    summary.exit_code = exit_code(&tally, reason.as_ref());
    if !options.quiet && reason != Some(StopReason::OutputClosed) {
        console.say(format_args!("{summary}"));
    }
    if let (Some(mut file), Some(path)) = (summary_file, &options.summary)
        && let Err(error) = write_summary(&mut file, &summary)
    {
        console.say(format_args!("cannot write the summary to {}: {error}", path.display()));
        return Ok(summary.exit_code.max(1));
    }
    Ok(summary.exit_code)
}

fn open(path: &Path) -> Result<Opened, UsageError> {
    source::open(path).map_err(|error| UsageError::Open {
        option: "--input",
        path: path.to_owned(),
        error,
    })
}

fn refuse_input(
    option: &'static str,
    path: &Path,
    identity: (u64, u64),
    inputs: &[Opened],
) -> Result<(), UsageError> {
    if inputs.iter().any(|input| input.identity == Some(identity)) {
        return Err(UsageError::SameFile { option, path: path.to_owned() });
    }
    Ok(())
}

fn open_letters(path: &Path, inputs: &[Opened]) -> Result<DeadLetter, UsageError> {
    let option = "--dead-letter";
    let letters = DeadLetter::open(path).map_err(|error| UsageError::Open {
        option,
        path: path.to_owned(),
        error,
    })?;
    refuse_input(option, path, letters.identity(), inputs)?;
    Ok(letters)
}

/// Opens the summary now, so that a bad path is found before the work and not after it.
fn create_summary(path: &Path, inputs: &[Opened]) -> Result<File, UsageError> {
    let option = "--summary";
    let fault = |error| UsageError::Open { option, path: path.to_owned(), error };
    // Emptied only once it is known not to be an input.
    let file =
        File::options().write(true).create(true).truncate(false).open(path).map_err(fault)?;
    let meta = file.metadata().map_err(fault)?;
    refuse_input(option, path, source::identity(&meta), inputs)?;
    if meta.is_file() {
        file.set_len(0).map_err(fault)?;
    }
    Ok(file)
}

fn write_summary(file: &mut File, summary: &Summary) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(summary)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// Reads the head of an input and binds the plan to it.
fn bind(
    opened: Opened,
    format: Format,
    options: &RunOptions,
    plan: &Plan,
    control: &Arc<Control>,
    extent: &Extent,
) -> Result<Input, UsageError> {
    let source = Arc::new(Source { name: Arc::clone(&opened.name), format });
    let bytes = opened.patient(Arc::clone(control), Arc::clone(&extent.read));
    let settings = Settings {
        format,
        encoding: options.encoding,
        header: !options.no_header,
        limit: RECORD_LIMIT,
    };
    let rows = match Reader::open(Box::new(bytes), settings) {
        Err(fault) => Err(fault),
        Ok(reader) => {
            let twice = reader.header().and_then(|header| header.twice());
            match twice.filter(|_| !plan.key_by_position()) {
                Some(kind) => Err(Fault::new(kind, 1, Vec::new())),
                None => {
                    let lens = plan.bind(&source.name, format, reader.header())?;
                    Ok((reader, lens))
                }
            }
        }
    };
    Ok(Input { source, rows })
}

/// Hands records to the engine.
struct Submitting<'a> {
    work: &'a Work,
    submit: &'a schedule::Submit<'a>,
}

impl Taker for Submitting<'_> {
    fn take(&mut self, key: Key, record: Record) -> Result<(), Stopped> {
        (self.submit)(key, record).map_err(|refused| {
            let (key, record) = *refused;
            let why = self.work.control.reason().map_or("not run", |reason| reason.not_run());
            self.work.leave(&key, &record, why);
            Stopped
        })
    }

    fn fault(&mut self, seq: u64, source: &Source, fault: &Fault) {
        let message = fault.at(&source.name, source.format);
        self.work.console.input_error(format_args!("{message}"));
        self.work.post(seq, |letters| letters.fault(seq, source, fault));
    }

    fn stopped(&self) -> bool {
        self.work.control.stopped()
    }
}

fn dry_run(
    options: &RunOptions,
    inputs: Vec<Input>,
    mut printer: DryRun<'_>,
    tally: &Tally,
    budget: &Arc<Budget>,
) -> u8 {
    let plan = printer.plan;
    feed(inputs, plan, options.on_input_error, tally, budget, &mut printer);
    printer.finish();
    match &printer.failed {
        _ if printer.control.stopped() => 130,
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => 141,
        Some(error) => {
            printer.console.say(format_args!("cannot write the commands: {error}"));
            1
        }
        None if printer.too_large > 0 => 1,
        None if tally.input_errors.get() > 0 => 4,
        None => 0,
    }
}

/// The exit code: the first reason that applies, as `--help` lists them.
fn exit_code(tally: &Tally, reason: Option<&StopReason>) -> u8 {
    match reason {
        Some(StopReason::Interrupted) => 130,
        Some(StopReason::OutputClosed) => 141,
        Some(StopReason::Halted) => 3,
        Some(StopReason::OutputFailed(_)) => 1,
        None if tally.halted_groups.get() > 0 => 3,
        None if tally.failed.get() + tally.left.get() + tally.lost_letters.get() > 0 => 1,
        None if tally.input_errors.get() > 0 => 4,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_graver_reason_gives_the_exit_code() {
        let tally = Tally::default();
        assert_eq!(exit_code(&tally, None), 0);
        tally.skipped.add(1);
        assert_eq!(exit_code(&tally, None), 0);
        tally.input_errors.add(1);
        assert_eq!(exit_code(&tally, None), 4);
        tally.failed.add(1);
        assert_eq!(exit_code(&tally, None), 1);
        tally.halted_groups.add(1);
        assert_eq!(exit_code(&tally, None), 3);
        assert_eq!(exit_code(&tally, Some(&StopReason::Interrupted)), 130);
        assert_eq!(exit_code(&tally, Some(&StopReason::OutputClosed)), 141);
        assert_eq!(exit_code(&tally, Some(&StopReason::OutputFailed("full".into()))), 1);
    }
}
