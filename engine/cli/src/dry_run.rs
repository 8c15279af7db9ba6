//! `--dry-run`: the commands as they would be run, quoted for a POSIX shell, one a line, in input order.
//!
//! With `--batch` the records of a key are gathered up to the batch size or until the input ends, so
//! commands can hold more records here than in a run, where a key does not wait for its next record.

use std::collections::HashMap;
use std::io::{self, BufWriter, Stdout, Write};

use ahash::RandomState;

use crate::control::Control;
use crate::feed::{Stopped, Taker};
use crate::input::fault::Fault;
use crate::input::source::Source;
use crate::key::Key;
use crate::plan::Plan;
use crate::record::Record;
use crate::report::console::Console;

/// Records gathered at most, over all keys.
const GATHERED: usize = 10_000;

/// Prints commands.
pub struct DryRun<'a> {
    /// The commands.
    pub plan: &'a Plan,
    /// Messages.
    pub console: &'a Console,
    /// Whether the run is to stop.
    pub control: &'a Control,
    batch: usize,
    out: BufWriter<Stdout>,
    gathered: HashMap<Key, Vec<Record>, RandomState>,
    order: Vec<Key>,
    held: usize,
    /// The first error of our output.
    pub failed: Option<io::Error>,
    /// Records that fit into no command.
    pub too_large: u64,
}

impl<'a> DryRun<'a> {
    /// Prints the commands of `plan`.
    #[must_use]
    pub fn new(plan: &'a Plan, console: &'a Console, control: &'a Control, batch: usize) -> Self {
        Self {
            plan,
            console,
            control,
            batch,
            out: BufWriter::new(io::stdout()),
            gathered: HashMap::default(),
            order: Vec::new(),
            held: 0,
            failed: None,
            too_large: 0,
        }
    }

    /// Prints what is gathered.
    pub fn finish(&mut self) {
        for key in std::mem::take(&mut self.order) {
            let records = self.gathered.remove(&key).unwrap_or_default();
            self.print(&key, &records);
        }
        self.held = 0;
        if let Err(error) = self.out.flush() {
            self.failed.get_or_insert(error);
        }
    }

    fn print(&mut self, key: &Key, records: &[Record]) {
        let mut from = 0;
        while from < records.len() && self.failed.is_none() {
            match self.plan.assembly.argv(key.bytes(), &records[from..], 0) {
                Ok(argv) => {
                    from += argv.records;
                    if let Err(error) = self.line(&argv.args) {
                        self.failed = Some(error);
                    }
                }
                Err(error) => {
                    let record = &records[from];
                    self.console.failure(format_args!(
                        "{}, {} {}: {error}",
                        record.source.name,
                        record.source.format.unit(),
                        record.line
                    ));
                    self.too_large += 1;
                    from += 1;
                }
            }
        }
    }

    fn line(&mut self, args: &[Vec<u8>]) -> io::Result<()> {
        for (index, arg) in args.iter().enumerate() {
            if index > 0 {
                self.out.write_all(b" ")?;
            }
            // Arguments hold no NUL, which is all that cannot be quoted.
            let quoted = shlex::bytes::try_quote(arg);
            self.out.write_all(quoted.as_deref().unwrap_or(arg))?;
        }
        self.out.write_all(b"\n")
    }
}

impl Taker for DryRun<'_> {
    fn take(&mut self, key: Key, record: Record) -> Result<(), Stopped> {
        if self.batch == 1 {
            self.print(&key, &[record]);
        } else {
            // Nothing runs, so nothing gives memory back: what is gathered is bounded by its number.
            let record = Record { charge: None, ..record };
            let records = self.gathered.entry(key.clone()).or_insert_with(|| {
                self.order.push(key.clone());
                Vec::new()
            });
            records.push(record);
            self.held += 1;
            if records.len() >= self.batch {
                let full = std::mem::take(records);
                self.held -= full.len();
                self.print(&key, &full);
            } else if self.held >= GATHERED {
                self.finish();
            }
        }
        if self.failed.is_some() { Err(Stopped) } else { Ok(()) }
    }

    fn fault(&mut self, _: u64, source: &Source, fault: &Fault) {
        self.console.input_error(format_args!("{}", fault.at(&source.name, source.format)));
    }

    fn stopped(&self) -> bool {
        self.failed.is_some() || self.control.stopped()
    }
}
