//! What goes in: a task with its key and its arguments.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// Text that is mostly short: up to 24 bytes without an allocation.
pub type Text = compact_str::CompactString;

/// What is handed to a worker, and what comes back from it.
#[derive(Clone, Debug)]
pub enum Value {
    /// JSON as it was written: numbers of any size keep their digits.
    Json(Box<RawValue>),
    /// Bytes that only the two ends understand.
    Bytes(Box<[u8]>),
}

impl Value {
    /// Writes a value as JSON.
    ///
    /// ```
    /// use bgrp_process::Value;
    /// let value = Value::json(&("merchant_1001", 7))?;
    /// assert_eq!(value.to::<(String, u32)>()?, ("merchant_1001".to_owned(), 7));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    /// What [`Serialize`] of the value says, and keys of maps that are no text.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Self> {
        serde_json::value::to_raw_value(value).map(Self::Json)
    }

    /// `null`.
    #[must_use]
    pub fn null() -> Self {
        Self::Json(RawValue::NULL.to_owned())
    }

    /// Reads it as JSON.
    ///
    /// # Errors
    /// It is not what `T` wants, or it is bytes.
    pub fn to<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        match self {
            Self::Json(text) => serde_json::from_str(text.get()),
            Self::Bytes(_) => Err(serde::de::Error::custom("bytes, not JSON")),
        }
    }

    /// Its size, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Json(text) => text.get().len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// No bytes. JSON has always some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Json(a), Self::Json(b)) => a.get() == b.get(),
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            _ => false,
        }
    }
}

/// One task.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What the caller calls it. Its result carries it; two tasks may have the same, and then nobody can tell their results apart.
    pub id: Text,
    /// Its group: tasks of one key run one after the other, in the order of their submits. `None`: it has no order with others.
    pub key: Option<Text>,
    /// Which function of the worker runs it; `None` where the worker has one.
    pub name: Option<Text>,
    /// Its arguments.
    pub args: Value,
    /// How long one attempt may run; `None`: as the runner says.
    pub timeout: Option<Duration>,
}

impl Task {
    /// A task of the group `key`.
    ///
    /// ```
    /// use bgrp_process::{Task, Value};
    /// let task = Task::new("n-1", "merchant_1001", Value::json(&["paid", "42.00"])?);
    /// assert_eq!(task.key.as_deref(), Some("merchant_1001"));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn new(id: impl Into<Text>, key: impl Into<Text>, args: Value) -> Self {
        Self { id: id.into(), key: Some(key.into()), name: None, args, timeout: None }
    }

    /// A task without a group.
    pub fn alone(id: impl Into<Text>, args: Value) -> Self {
        Self { id: id.into(), key: None, name: None, args, timeout: None }
    }

    /// The function of the worker that is to run it.
    #[must_use]
    pub fn named(mut self, name: impl Into<Text>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long one attempt may run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}
