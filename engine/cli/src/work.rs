//! What a worker of the engine does with records of one group: it runs a command for them and judges.
//!
//! The engine keeps the order and the places; this module counts the attempts itself, because the records
//! behind a command that failed go back unrun, which is no attempt of theirs.
//!
//! | command | record has attempts left | answer |
//! |---|---|---|
//! | succeeded | - | done |
//! | failed, timed out, killed | yes | retry |
//! | failed, timed out, killed | no | fail |
//! | can never start (missing program, too long, NUL) | - | fail |
//! | not started: the run stops, or the group is halted | - | done, counted as left |
//! | not started: a command before it in the same batch failed | - | again |
//!
//! I1: no command of a group starts after one before it failed and is to be tried again.

use std::collections::HashSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use bstr::ByteSlice;
use rustix::io::Errno;

use crate::command::child::{self, Deadline, Ended, Job, RunError};
use crate::command::limits::cost;
use crate::command::running::Running;
use crate::command::supply;
use crate::control::{Control, StopReason};
use crate::key::Key;
use crate::options::OnFailure;
use crate::plan::Plan;
use crate::record::{Failure, Record};
use crate::report::console::Console;
use crate::report::dead_letter::{DeadLetter, Fate};
use crate::report::groups::Spending;
use crate::report::output::Output;
use crate::report::tally::Tally;

/// How long a group waits before its dead letter is tried again.
const HOLD: Duration = Duration::from_secs(1);
/// First and longest wait while the system is short of processes, memory or descriptors.
const SHORT_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often a start is tried while the system is short of something: about half a minute.
const SHORT_TRIES: u32 = 35;

/// Records of one group, as the engine hands them out.
pub trait Members {
    /// The group's key.
    fn key(&self) -> &Key;
    /// The records, oldest first.
    fn records(&self) -> impl Iterator<Item = &Record>;
    /// The records, oldest first, to change.
    fn records_mut(&mut self) -> impl Iterator<Item = &mut Record>;
}

/// What a worker answers for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is over.
    Done,
    /// It failed and has attempts left.
    Retry(String),
    /// It was not run and keeps its place.
    Again,
    /// It failed for good.
    Fail(String),
}

/// What is to follow a final failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aftermath {
    /// The next record.
    GoOn,
    /// Nothing any more.
    Stop,
    /// Ask again later: the dead letter could not be written.
    AskAgain(Duration),
}

/// How records are run.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Attempts in all.
    pub attempts: u32,
    /// What follows a final failure.
    pub on_failure: OnFailure,
    /// How long a command may run.
    pub deadline: Deadline,
    /// Whether commands get their records on standard input.
    pub stdin: bool,
    /// Whether one command may get several records.
    pub batched: bool,
}

/// Everything that workers share.
#[derive(Debug)]
pub struct Work {
    /// The command.
    pub plan: Plan,
    /// How it is run.
    pub policy: Policy,
    /// The counts.
    pub tally: Arc<Tally>,
    /// Whether the run is to stop.
    pub control: Arc<Control>,
    /// Messages.
    pub console: Arc<Console>,
    /// The commands that run now.
    pub running: Arc<Running>,
    /// The output of commands.
    pub output: Output,
    /// Where records go that are not done.
    pub letters: Option<DeadLetter>,
    /// What groups have cost.
    pub spending: Mutex<Spending>,
    /// Groups of which no further record is run.
    pub halted: Mutex<HashSet<Key, RandomState>>,
    /// What was said and is not to be said again.
    pub said: Said,
}

/// Messages that are said once.
#[derive(Debug, Default)]
pub struct Said {
    missing: AtomicBool,
    short: AtomicBool,
    letter: AtomicBool,
}

fn first(flag: &AtomicBool) -> bool {
    !flag.swap(true, Ordering::Relaxed)
}

impl Work {
    /// Runs commands for `members`; answers for each, in order.
    pub fn handle(&self, members: &mut impl Members) -> Vec<Answer> {
        let count = members.records().count();
        let mut answers = Vec::with_capacity(count);
        while answers.len() < count {
            let from = answers.len();
            if let Some(reason) = self.not_to_run(members.key()) {
                for record in members.records().skip(from) {
                    self.leave(members.key(), record, reason);
                    answers.push(Answer::Done);
                }
                break;
            }
            let (ran, result) = self.command(members, from);
            let Err((failure, is_final)) = result else {
                self.tally.ok.add(ran as u64);
                answers.resize(from + ran, Answer::Done);
                continue;
            };
            for record in members.records_mut().skip(from).take(ran) {
                let retry = !is_final && record.attempts < self.policy.attempts;
                record.failure = Some(failure.clone());
                let reason = failure.reason.clone();
                answers.push(if retry { Answer::Retry(reason) } else { Answer::Fail(reason) });
                self.tally.retried.add(u64::from(retry && !self.control.stopped()));
            }
            answers.resize(count, Answer::Again);
        }
        answers
    }

    /// Why no command may start for this group now.
    fn not_to_run(&self, key: &Key) -> Option<&'static str> {
        if let Some(reason) = self.control.reason() {
            return Some(reason.not_run());
        }
        let halted = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
        halted.contains(key).then_some("not run: the group was halted by a failure")
    }

    /// Runs one command for as many records from number `from` as fit into it; says for how many, and how
    /// it failed and whether that is final.
    fn command(
        &self,
        members: &mut impl Members,
        from: usize,
    ) -> (usize, Result<(), (Failure, bool)>) {
        let unrun = |reason: String| (Failure { reason, exit: None, signal: None }, true);
        let spent_up = |record: &Record| record.attempts >= self.policy.attempts;
        if members.records().nth(from).is_some_and(spent_up) {
            // An attempt that left no answer (a panic): it counts, or it would be tried for ever.
            return (1, Err(unrun("the last attempt broke off inside bgrp".into())));
        }
        let key = members.key().clone();
        let mut env = supply::environment(&key, members.records().skip(from));
        let spent = env.iter().map(|(name, value)| cost(name.len() + 1 + value.len())).sum();
        let argv = match self.plan.assembly.argv(key.bytes(), members.records().skip(from), spent) {
            Ok(argv) => argv,
            Err(error) => return (1, Err(unrun(error.to_string()))),
        };
        let chosen = || members.records().skip(from).take(argv.records);
        let command = self.plan.assembly.signature();
        env.push(("BGRP_IDEMPOTENCY_KEY", supply::identity(command, &key, chosen()).into()));
        let batched = self.policy.batched;
        let stdin = self.policy.stdin.then(|| supply::standard_input(batched, chosen()));
        for record in members.records_mut().skip(from).take(argv.records) {
            record.attempts += 1;
        }
        let job = Job { args: argv.args, env, stdin };
        let result = match self.start(&job) {
            Ok(ended) => {
                let ok = ended.status.success() && !ended.timed_out;
                let mut spending = self.spending.lock().unwrap_or_else(PoisonError::into_inner);
                spending.add(&key, ended.wall, ok);
                drop(spending);
                let result = if ok { Ok(()) } else { Err((self.failure(&ended), false)) };
                self.output.write(ended.stdout, ended.stderr);
                result
            }
            Err(RunError::Short(error)) => {
                let (failure, _) = unrun(format!("the system has no room for a command: {error}"));
                Err((failure, false))
            }
            Err(RunError::Never(error)) => Err(unrun(self.never(&job.args[0], &error))),
            Err(RunError::Output(error)) => {
                self.output.lost(&error);
                Err(unrun(format!("the output of the command is lost: {error}")))
            }
        };
        (argv.records, result)
    }

    /// Runs `job`, patiently while the system is short of something.
    fn start(&self, job: &Job) -> Result<Ended, RunError> {
        let (mut wait, longest) = SHORT_WAIT;
        let mut tries = 1;
        loop {
            self.tally.running.add(1);
            let ended = child::run(job, self.policy.deadline, &self.running);
            self.tally.running.sub(1);
            match ended {
                Err(RunError::Short(error)) if tries < SHORT_TRIES && !self.control.stopped() => {
                    if first(&self.said.short) {
                        self.console.say(format_args!(
                            "the system has no room for another command now: {error}; waiting \
                             (fewer --jobs would help)"
                        ));
                    }
                    self.control.sleep(wait);
                    wait = (wait * 2).min(longest);
                    tries += 1;
                }
                ended => {
                    self.tally.commands.add(u64::from(ended.is_ok()));
                    return ended;
                }
            }
        }
    }

    fn failure(&self, ended: &Ended) -> Failure {
        let status = child::describe(ended.status);
        let reason = match self.policy.deadline.timeout {
            Some(after) if ended.timed_out => {
                format!("timed out after {} ({status})", humantime::format_duration(after))
            }
            _ if ended.asked => format!("interrupted ({status})"),
            _ => status,
        };
        Failure { reason, exit: ended.status.code(), signal: ended.status.signal() }
    }

    /// Why a command can never start. A missing program is said at once, and once.
    fn never(&self, program: &[u8], error: &io::Error) -> String {
        let program = program.as_bstr();
        let text = match Errno::from_io_error(error) {
            Some(Errno::NOENT) => format!(
                "program {program:?} is not found; check its name and PATH, and the #! line of a script"
            ),
            Some(Errno::ACCESS | Errno::PERM) => {
                format!("program {program:?} may not be executed: {error}; check its mode")
            }
            Some(Errno::TOOBIG) => {
                format!("the arguments are too long for the system: {error}; use --stdin")
            }
            _ => format!("program {program:?} cannot be started: {error}"),
        };
        let broken = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
        if broken.contains(&error.kind()) && first(&self.said.missing) {
            self.console.say(format_args!("{text}"));
        }
        text
    }

    /// A record has failed for good: tells it, and says what follows.
    pub fn exhausted(&self, key: &Key, record: &Record, reason: &str) -> Aftermath {
        if let Some(letters) = &self.letters
            && let Err(error) = letters.record(Fate::Failed, key, record, reason)
        {
            if !self.control.stopped() {
                self.letter_waits(&error);
                return Aftermath::AskAgain(HOLD);
            }
            self.letter_is_lost(record.seq, &error);
        }
        self.tally.failed.add(1);
        let attempts = record.attempts.max(1);
        let (source, unit) = (&record.source, record.source.format.unit());
        let of_key = match key {
            Key::Own(_) | Key::InTurn | Key::Shared => String::new(),
            key => format!(", key {key}"),
        };
        self.console.failure(format_args!(
            "{}, {unit} {}{of_key}: {reason}, attempt {attempts} of {}",
            source.name, record.line, self.policy.attempts
        ));
        match self.policy.on_failure {
            OnFailure::Skip => Aftermath::GoOn,
            OnFailure::HaltKey if *key == Key::InTurn => {
                // The group of this record alone: nothing else is in it.
                self.tally.halted_groups.add(1);
                Aftermath::GoOn
            }
            OnFailure::HaltKey => {
                let mut halted = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
                self.tally.halted_groups.add(u64::from(halted.insert(key.clone())));
                Aftermath::GoOn
            }
            OnFailure::Halt => {
                if self.control.stop(StopReason::Halted) {
                    self.console.say(format_args!("halted by a failure; running commands finish"));
                }
                Aftermath::Stop
            }
        }
    }

    /// A record that was read is not finished.
    pub fn leave(&self, key: &Key, record: &Record, why: &str) {
        self.tally.left.add(1);
        let reason = match &record.failure {
            Some(failure) => format!("{why}; its last attempt: {}", failure.reason),
            None => why.to_owned(),
        };
        self.post(record.seq, |letters| letters.record(Fate::Left, key, record, &reason));
    }

    /// Writes a dead letter, waiting while it cannot be written. Once the run stops it is tried once.
    pub fn post(&self, seq: u64, write: impl Fn(&DeadLetter) -> io::Result<()>) {
        let Some(letters) = &self.letters else { return };
        while let Err(error) = write(letters) {
            if self.control.stopped() {
                self.letter_is_lost(seq, &error);
                return;
            }
            self.letter_waits(&error);
            self.control.sleep(HOLD);
        }
    }

    fn letter_waits(&self, error: &io::Error) {
        if first(&self.said.letter) {
            self.console.say(format_args!(
                "the dead letter cannot be written: {error}; its group waits until it can (Ctrl-C stops the run)"
            ));
        }
    }

    fn letter_is_lost(&self, seq: u64, error: &io::Error) {
        self.tally.lost_letters.add(1);
        self.console.say(format_args!("record {seq} is missing in the dead letter: {error}"));
    }
}
