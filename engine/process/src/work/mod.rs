//! The side of the worker: task functions of a Rust program, served over frames.
//!
//! | room | what |
//! |---|---|
//! | `serve.rs` | the loop: frames in, tasks run, results out |
//! | `outbox.rs` | results on their way, sent many at a time, and who sends them while a long task runs |
//! | `page.rs` | the cell, from this side |

mod outbox;
mod page;
mod serve;

use std::{collections::HashMap, fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

pub use self::serve::Context;
use crate::{
    frame::from_message_pack,
    result::TaskError,
    task::{Text, Value},
};

type Function = dyn Fn(&Context<'_>, Value) -> Result<Value, TaskError> + Send + Sync;

/// The task functions of a program that is its own worker.
///
/// ```no_run
/// use bgrp_process::{Program, Runner, Server, Task, Value};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     Server::new()
///         .task("double", |_, n: u64| n.checked_mul(2).ok_or("too large"))
///         .run_if_worker();
///     let runner = Runner::builder(Program::this()).workers(2).start()?;
///     runner.submit(Task::new("1", "a", Value::json(&21)?).named("double"))?;
///     let result = runner.results().next().expect("one task, one result");
///     println!("{}", result.ended);
///     Ok(())
/// }
/// ```
#[derive(Clone, Default)]
pub struct Server {
    tasks: HashMap<Text, Arc<Function>>,
}

impl Server {
    /// Without tasks yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A task function by name. Arguments and value are JSON, or MessagePack where the task came with bytes. An error's class is `error`;
    /// a panic is an error of the class `panic`.
    #[must_use]
    pub fn task<A, R, E>(
        self,
        name: impl Into<Text>,
        task: impl Fn(&Context<'_>, A) -> Result<R, E> + Send + Sync + 'static,
    ) -> Self
    where
        A: DeserializeOwned,
        R: Serialize,
        E: fmt::Display,
    {
        self.raw_task(name, move |context, args| {
            let wrong = |why: String| error("bad_arguments", why);
            let (args, bytes) = match &args {
                Value::Json(json) => {
                    let args = serde_json::from_str(json.get());
                    (args.map_err(|error| wrong(error.to_string()))?, false)
                }
                Value::Bytes(bytes) => (from_message_pack(bytes).map_err(wrong)?, true),
            };
            let value = task(context, args).map_err(|failed| error("error", failed.to_string()))?;
            let bad = |why: String| error("bad_value", why);
            if bytes {
                let bytes = rmp_serde::to_vec(&value).map_err(|error| bad(error.to_string()))?;
                return Ok(Value::Bytes(bytes.into()));
            }
            Value::json(&value).map_err(|error| bad(error.to_string()))
        })
    }

    /// A task function that gets its arguments as they are, and says its own class of error.
    #[must_use]
    pub fn raw_task(
        mut self,
        name: impl Into<Text>,
        task: impl Fn(&Context<'_>, Value) -> Result<Value, TaskError> + Send + Sync + 'static,
    ) -> Self {
        self.tasks.insert(name.into(), Arc::new(task));
        self
    }

    /// In a process that was started as a worker: serves until it is told to end, and ends the process. In any other: does nothing.
    /// To be called first thing in `main`.
    pub fn run_if_worker(self) {
        if std::env::var_os("BGRP_ROLE").is_some_and(|role| role == "worker") {
            let code = match serve::serve(&self) {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("bgrp worker: {error}");
                    1
                }
            };
            std::process::exit(code);
        }
    }

    /// The function of a task: by its name, or the only one where it has none.
    fn find(&self, name: Option<&str>) -> Result<&Function, TaskError> {
        let found = match name {
            Some(name) => self.tasks.get(name),
            None if self.tasks.len() == 1 => self.tasks.values().next(),
            None => None,
        };
        found.map(AsRef::as_ref).ok_or_else(|| {
            let mut known: Vec<&str> = self.tasks.keys().map(Text::as_str).collect();
            known.sort_unstable();
            let asked = name.unwrap_or("a task without a name");
            error("unknown_task", format!("{asked}: this worker knows {}", known.join(", ")))
        })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tasks.keys()).finish()
    }
}

fn error(class: &'static str, message: String) -> TaskError {
    TaskError { class: Text::const_new(class), message, trace: String::new() }
}
