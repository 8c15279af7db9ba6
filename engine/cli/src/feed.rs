//! Reads records, finds their keys and hands them on; on the thread of the run, so that a full engine
//! slows the reading down.

use std::sync::Arc;

use bstr::ByteSlice;

use crate::budget::Budget;
use crate::input::fault::{Fault, FaultKind};
use crate::input::reader::{Reader, Row};
use crate::input::source::Source;
use crate::key::Key;
use crate::options::OnInputError;
use crate::plan::{Lens, Plan};
use crate::record::Record;
use crate::report::groups::Distinct;
use crate::report::tally::Tally;
use crate::template::render::Values;

/// Bytes of a record besides its contents, roughly.
const RECORD_COST: usize = 256;

/// An input that was opened and bound to the plan, or the fault of its head.
pub struct Input {
    /// Its name and format.
    pub source: Arc<Source>,
    /// Its rows.
    pub rows: Result<(Reader, Lens), Fault>,
}

/// Who takes what is read.
pub trait Taker {
    /// Takes a record.
    ///
    /// # Errors
    /// It is not wanted any more: the run stops.
    fn take(&mut self, key: Key, record: Record) -> Result<(), Stopped>;
    /// Takes a record that could not be read.
    fn fault(&mut self, seq: u64, source: &Source, fault: &Fault);
    /// Whether nothing is wanted any more.
    fn stopped(&self) -> bool;
}

/// The run stops.
#[derive(Debug)]
pub struct Stopped;

/// Reads all `inputs`; gives back which keys there were.
pub fn feed(
    inputs: Vec<Input>,
    plan: &Plan,
    on_error: OnInputError,
    tally: &Tally,
    budget: &Arc<Budget>,
    taker: &mut impl Taker,
) -> Distinct {
    let mut keys = Distinct::default();
    let mut seq = 0;
    for Input { source, rows } in inputs {
        let mut ordinal = 0;
        let (rows, lens) = match rows {
            Ok((reader, lens)) => (Rows::Read(Box::new(reader)), Some(lens)),
            Err(fault) => (Rows::Fault(Some(fault)), None),
        };
        for row in rows {
            // A row at the moment of the stop may be cut short: it counts as not read.
            if taker.stopped() {
                return keys;
            }
            seq += 1;
            ordinal += 1;
            tally.total.add(1);
            let built = match (row, &lens) {
                (Ok(row), Some(lens)) => build(row, lens, plan, &source, seq, ordinal, budget),
                (Ok(row), None) => {
                    Err(Fault::new(FaultKind::Read(String::new()), row.line, row.raw))
                }
                (Err(fault), _) => Err(fault),
            };
            match built {
                Ok(Some((key, record))) => {
                    keys.see(&key);
                    if taker.take(key, record).is_err() {
                        return keys;
                    }
                }
                Ok(None) => tally.skipped.add(1),
                Err(fault) => {
                    tally.input_errors.add(1);
                    taker.fault(seq, &source, &fault);
                    if on_error == OnInputError::Stop {
                        return keys;
                    }
                }
            }
        }
    }
    keys
}

enum Rows {
    Read(Box<Reader>),
    Fault(Option<Fault>),
}

impl Iterator for Rows {
    type Item = Result<Row, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Read(reader) => reader.next(),
            Self::Fault(fault) => fault.take().map(Err),
        }
    }
}

/// The record and its key; `None` if it is to be skipped.
fn build(
    row: Row,
    lens: &Lens,
    plan: &Plan,
    source: &Arc<Source>,
    seq: u64,
    ordinal: u64,
    budget: &Arc<Budget>,
) -> Result<Option<(Key, Record)>, Fault> {
    let found = find(&row, lens, plan, seq);
    let Row { line, raw, .. } = row;
    let (key, values) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(None),
        Err(kind) => return Err(Fault::new(kind, line, raw)),
    };
    let charge = budget.charge(raw.len() + values.len() + key.weight() + RECORD_COST);
    let record = Record {
        seq,
        line,
        ordinal,
        source: Arc::clone(source),
        raw: raw.into_boxed_slice(),
        values,
        attempts: 0,
        failure: None,
        charge: Some(charge),
    };
    Ok(Some((key, record)))
}

/// The key and the fields of a row, all of them fit for arguments.
fn find(row: &Row, lens: &Lens, plan: &Plan, seq: u64) -> Result<Option<(Key, Values)>, FaultKind> {
    let Some(key) = plan.rules.key(&lens.key, row, seq)? else { return Ok(None) };
    let values = lens.fields.iter().map(|field| field.of(row)).collect::<Result<Vec<_>, _>>()?;
    let has_nul = |bytes: &[u8]| bytes.contains(&0);
    let assembly = &plan.assembly;
    for (name, value) in assembly.fields().iter().zip(&values) {
        if has_nul(value) {
            return Err(FaultKind::Nul(format!("field {:?}", name.as_bstr())));
        }
    }
    if assembly.uses_whole() && has_nul(&row.raw) {
        return Err(FaultKind::Nul("the record".into()));
    }
    if assembly.uses_key() && has_nul(key.bytes()) {
        return Err(FaultKind::Nul("the key".into()));
    }
    Ok(Some((key, Values::new(&values))))
}
