//! What is said about the run: output of commands, progress, the dead letter, the summary.

pub mod console;
pub mod dead_letter;
pub mod groups;
pub mod output;
pub mod progress;
pub mod summary;
pub mod tally;
