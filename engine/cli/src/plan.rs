//! What the options mean: the command, the key, and how both bind to the fields of an input.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bstr::ByteSlice;

use crate::command::argv::Assembly;
use crate::input::bind::{self, BindError, Field, bind};
use crate::input::format::Format;
use crate::input::reader::Header;
use crate::key::{KeyRules, KeySource};
use crate::options::RunOptions;
use crate::template::{Segment, Template, TemplateError};

/// A mistake in the use of the command line; nothing is run.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// A brace in the command.
    #[error("{0}")]
    Command(#[from] TemplateError),
    /// A brace in the key template.
    #[error("--key-template: {0}")]
    KeyTemplate(TemplateError),
    /// A placeholder that cannot be part of a key.
    #[error("--key-template: {{{0}}} cannot be part of a key; use fields of the record")]
    NoKeyPart(&'static str),
    /// `{key}` without a key.
    #[error("the command uses {{key}}, but there is no key; give --key or --key-template")]
    NoKey,
    /// A placeholder of the command stands for nothing.
    #[error(
        "{input}: placeholder {{{placeholder}}}: {error}; write {{{{ for a brace that is meant as it stands"
    )]
    Placeholder {
        /// The input.
        input: String,
        /// The placeholder.
        placeholder: String,
        /// Why.
        error: BindError,
    },
    /// The key stands for nothing.
    #[error("{input}: key {error}")]
    Key {
        /// The input.
        input: String,
        /// Why.
        error: BindError,
    },
    /// A file that cannot be opened.
    #[error("cannot open {}: {error} (given as {option})", path.display())]
    Open {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The dead letter would feed the run that writes it.
    #[error("{} is an input of this run and cannot be its {option} too; name another file", path.display())]
    SameFile {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The operating system refuses something that every run needs.
    #[error("cannot set up the run: {0}")]
    SetUp(#[from] std::io::Error),
    /// The engine refuses its settings.
    #[error("cannot set up the engine: {0}")]
    Engine(String),
}

/// What the key comes from.
#[derive(Clone, Debug)]
enum KeyPlan {
    None,
    Field(Vec<u8>),
    Template(Template),
}

/// The command and the key of a run.
#[derive(Debug)]
pub struct Plan {
    /// How commands are put together.
    pub assembly: Assembly,
    /// The rules for keys.
    pub rules: KeyRules,
    key: KeyPlan,
}

/// The plan bound to the fields of one input.
#[derive(Debug)]
pub struct Lens {
    /// The fields that the command uses.
    pub fields: Vec<Field>,
    /// Where the key comes from.
    pub key: KeySource,
}

impl Plan {
    /// Reads the templates; `formats` are those of the inputs.
    ///
    /// # Errors
    /// A template that is none, or a placeholder where it has no meaning.
    pub fn new(options: &RunOptions, formats: &[Format]) -> Result<Self, UsageError> {
        let args: Vec<&[u8]> = options.command.iter().map(|arg| arg.as_bytes()).collect();
        let mut template = Template::parse(&args)?;
        let opaque = formats.iter().all(|format| format.is_opaque());
        if !template.has_placeholder() && !options.stdin && opaque {
            template.args.push(vec![Segment::Whole]);
        }
        let key = match (&options.key, &options.key_template) {
            (Some(name), _) => KeyPlan::Field(name.as_bytes().to_vec()),
            (None, Some(text)) => {
                let template =
                    Template::parse(&[text.as_bytes()]).map_err(UsageError::KeyTemplate)?;
                for (segment, name) in [(Segment::Key, "key"), (Segment::Attempt, "attempt")] {
                    if template.uses(&segment) {
                        return Err(UsageError::NoKeyPart(name));
                    }
                }
                KeyPlan::Template(template)
            }
            (None, None) if template.uses(&Segment::Key) => return Err(UsageError::NoKey),
            (None, None) => KeyPlan::None,
        };
        let assembly = Assembly::new(template, &args);
        let rules = KeyRules {
            empty: options.empty_key,
            unify: options.unify_keys,
            one_job: options.jobs() == 1,
        };
        Ok(Self { assembly, rules, key })
    }

    /// Whether columns need not be told apart by name.
    #[must_use]
    pub fn key_by_position(&self) -> bool {
        matches!(&self.key, KeyPlan::Field(name) if bind::position(name).is_some())
    }

    /// Whether records are grouped at all.
    #[must_use]
    pub fn has_key(&self) -> bool {
        !matches!(self.key, KeyPlan::None)
    }

    /// Binds the names to the fields of the input called `input`.
    ///
    /// # Errors
    /// A name that stands for nothing there.
    pub fn bind(
        &self,
        input: &str,
        format: Format,
        header: Option<&Header>,
    ) -> Result<Lens, UsageError> {
        let placeholder = |name: &Vec<u8>| {
            bind(name, format, header).map_err(|error| UsageError::Placeholder {
                input: input.into(),
                placeholder: name.to_str_lossy().into(),
                error,
            })
        };
        let fields = self.assembly.fields().iter().map(placeholder).collect::<Result<_, _>>()?;
        let key = match &self.key {
            KeyPlan::None => KeySource::None,
            KeyPlan::Field(name) => KeySource::Field(
                bind(name, format, header)
                    .map_err(|error| UsageError::Key { input: input.into(), error })?,
            ),
            KeyPlan::Template(template) => {
                let fields = template.fields.iter().map(placeholder).collect::<Result<_, _>>()?;
                KeySource::Template(template.args[0].clone(), fields)
            }
        };
        Ok(Lens { fields, key })
    }
}
