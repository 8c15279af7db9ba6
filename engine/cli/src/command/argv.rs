//! Puts the arguments of one command together, for one record or for several.
//!
//! An argument without a placeholder stands once. A run of neighbouring arguments with placeholders is
//! repeated per record, in order: `x {a} {b} y` of two records is `x a1 b1 a2 b2 y`.
//!
//! I1: a command never exceeds [`ArgLimits`]; as many records as fit go into it, at least one, and a
//! record that does not fit alone is refused with the sizes.

use super::limits::{ArgLimits, cost};
use crate::record::Record;
use crate::template::parse::holds_placeholder;
use crate::template::{Segment, Template, render};

/// How the commands of a run are put together.
#[derive(Debug)]
pub struct Assembly {
    template: Template,
    parts: Vec<Part>,
    signature: Vec<u8>,
    limits: ArgLimits,
    fixed_cost: usize,
    uses_key: bool,
    uses_whole: bool,
}

#[derive(Debug)]
enum Part {
    Fixed(Vec<u8>),
    PerRecord(std::ops::Range<usize>),
}

/// A record does not fit into one command.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// One argument is too long.
    #[error(
        "argument {number} has {length} bytes, and one argument can have at most {limit}; pass the record with --stdin"
    )]
    Argument {
        /// Which, from 1, the command itself not counted.
        number: usize,
        /// Its bytes.
        length: usize,
        /// The most there can be.
        limit: usize,
    },
    /// All together are too long.
    #[error(
        "the arguments take {length} bytes, and all together can have at most {limit}; pass the record with --stdin"
    )]
    All {
        /// Their bytes.
        length: usize,
        /// The most there can be.
        limit: usize,
    },
}

/// The arguments of one command, and how many records they are for.
#[derive(Debug, PartialEq, Eq)]
pub struct Argv {
    /// The program and its arguments.
    pub args: Vec<Vec<u8>>,
    /// How many records, from the first given.
    pub records: usize,
}

impl Assembly {
    /// Puts commands together from `template`, which was written as `words`, within the limits of this
    /// machine.
    #[must_use]
    pub fn new(template: Template, words: &[&[u8]]) -> Self {
        Self::with_limits(template, words.join(&0), ArgLimits::of_system())
    }

    fn with_limits(template: Template, signature: Vec<u8>, limits: ArgLimits) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        for (index, arg) in template.args.iter().enumerate() {
            match (holds_placeholder(arg), parts.last_mut()) {
                (true, Some(Part::PerRecord(range))) => range.end = index + 1,
                (true, _) => parts.push(Part::PerRecord(index..index + 1)),
                (false, _) => parts.push(Part::Fixed(literal(arg))),
            }
        }
        let fixed_cost = parts
            .iter()
            .map(|part| match part {
                Part::Fixed(arg) => cost(arg.len()),
                Part::PerRecord(_) => 0,
            })
            .sum();
        Self {
            uses_key: template.uses(&Segment::Key),
            uses_whole: template.uses(&Segment::Whole),
            template,
            parts,
            signature,
            limits,
            fixed_cost,
        }
    }

    /// The names of the fields that the command uses.
    #[must_use]
    pub fn fields(&self) -> &[Vec<u8>] {
        &self.template.fields
    }

    /// Whether the command holds `{key}`.
    #[must_use]
    pub fn uses_key(&self) -> bool {
        self.uses_key
    }

    /// Whether the command holds `{}`.
    #[must_use]
    pub fn uses_whole(&self) -> bool {
        self.uses_whole
    }

    /// The words of the command as they were given, for identities.
    #[must_use]
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// The command for as many of `records`, from the first, as fit into it. `spent` are the bytes that
    /// the caller adds to the environment.
    ///
    /// # Errors
    /// The first record does not fit alone.
    ///
    /// # Panics
    /// If there is no record.
    pub fn argv<'a>(
        &self,
        key: &[u8],
        records: impl IntoIterator<Item = &'a Record>,
        spent: usize,
    ) -> Result<Argv, TooLarge> {
        let mut used = self.fixed_cost + spent;
        // Per record, per part with placeholders: the arguments.
        let mut filled: Vec<Vec<Vec<u8>>> = Vec::new();
        for record in records {
            let filling = record.filling(key);
            let args: Vec<Vec<u8>> = self
                .template
                .args
                .iter()
                .map(|arg| {
                    if holds_placeholder(arg) {
                        render::argument(arg, &filling)
                    } else {
                        Vec::new()
                    }
                })
                .collect();
            let checked = self.check(&args, used);
            match checked {
                Ok(now) => used = now,
                Err(error) if filled.is_empty() => return Err(error),
                Err(_) => break,
            }
            filled.push(args);
        }
        assert!(!filled.is_empty(), "a command is for at least one record");
        let mut args = Vec::with_capacity(self.template.args.len());
        for part in &self.parts {
            match part {
                Part::Fixed(arg) => args.push(arg.clone()),
                Part::PerRecord(range) => {
                    for record in &mut filled {
                        args.extend(record[range.clone()].iter_mut().map(std::mem::take));
                    }
                }
            }
        }
        Ok(Argv { args, records: filled.len() })
    }

    /// The bytes used with one more record, if they are within the limits.
    fn check(&self, filled: &[Vec<u8>], used: usize) -> Result<usize, TooLarge> {
        let mut used = used;
        for (number, (arg, template)) in filled.iter().zip(&self.template.args).enumerate() {
            if !holds_placeholder(template) {
                continue;
            }
            if arg.len() >= self.limits.single {
                let limit = self.limits.single - 1;
                return Err(TooLarge::Argument { number, length: arg.len(), limit });
            }
            used += cost(arg.len());
        }
        if used > self.limits.total {
            return Err(TooLarge::All { length: used, limit: self.limits.total });
        }
        Ok(used)
    }
}

fn literal(arg: &[Segment]) -> Vec<u8> {
    arg.iter()
        .flat_map(|segment| if let Segment::Text(text) = segment { &text[..] } else { &[] })
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::input::format::Format;
    use crate::input::source::Source;
    use crate::template::render::Values;

    fn record(raw: &str) -> Record {
        let source = Source { name: "t".into(), format: Format::Lines };
        Record {
            seq: 1,
            line: 1,
            ordinal: 1,
            source: Arc::new(source),
            raw: raw.as_bytes().into(),
            values: Values::default(),
            attempts: 0,
            failure: None,
            charge: None,
        }
    }

    fn assembly(args: &[&str], total: usize, single: usize) -> Assembly {
        Assembly::with_limits(
            Template::parse(args).unwrap(),
            Vec::new(),
            ArgLimits { total, single },
        )
    }

    fn shown(argv: &Argv) -> Vec<String> {
        argv.args.iter().map(|arg| String::from_utf8(arg.clone()).unwrap()).collect()
    }

    #[test]
    fn neighbours_with_placeholders_are_repeated_together() {
        let assembly = assembly(&["x", "{}", "<{}>", "", "y", "{key}"], 1000, 100);
        let records = [record("a"), record("b")];
        let argv = assembly.argv(b"k", &records, 0).unwrap();
        assert_eq!(shown(&argv), ["x", "a", "<a>", "b", "<b>", "", "y", "k", "k"]);
        assert_eq!(argv.records, 2);
    }

    #[test]
    fn as_many_as_fit_and_at_least_one() {
        let one = cost(10);
        let records = [record("0123456789"), record("0123456789"), record("0123456789")];
        let fits = |total| {
            assembly(&["x", "{}"], total, 100).argv(b"", &records, 0).map(|argv| argv.records)
        };
        assert_eq!(fits(cost(1) + 3 * one), Ok(3));
        assert_eq!(fits(cost(1) + 3 * one - 1), Ok(2));
        assert_eq!(fits(cost(1) + one), Ok(1));
        assert!(matches!(fits(cost(1) + one - 1), Err(TooLarge::All { .. })));
        let long = assembly(&["x", "{}"], 1000, 10).argv(b"", &records, 0);
        assert_eq!(long, Err(TooLarge::Argument { number: 1, length: 10, limit: 9 }));
    }

    #[test]
    fn the_limits_of_this_machine_hold_a_command() {
        let limits = ArgLimits::of_system();
        assert!(limits.total > 64 * 1024 && limits.single > 64 * 1024, "{limits:?}");
    }
}
