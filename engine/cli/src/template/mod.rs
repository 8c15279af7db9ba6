//! The command template: what is written once, and filled in for each record.
//!
//! I1: an argument of the command is one argument of the template filled in; no shell, no splitting, no
//! trimming.
//!
//! I2: a placeholder that can be known to be unknown is refused before any command runs.

pub mod parse;
pub mod render;

pub use parse::{Segment, Template, TemplateError};
