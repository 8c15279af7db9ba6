//! From bytes to records: how an input is cut, and what is said about a piece that is no record.
//!
//! ```text
//! file, stdin -> Patient (ends when the run stops) -> Utf16 (on request)
//!             -> Window (bytes seen, none given away before a whole record is seen)
//!             -> lines | CSV scan -> Row or Fault, each with its line number
//! ```
//!
//! I1: every byte of an input belongs to exactly one row, one fault, the header, or to a blank line of
//! a CSV, TSV or JSON Lines file; nothing is passed over in silence.
//!
//! I2: a value is never altered: no trimming, no number parsing, no lossy decoding.
//!
//! I3: memory is bounded by [`reader::RECORD_LIMIT`], whatever the input holds.

pub mod bind;
pub mod csv;
pub mod fault;
pub mod format;
pub mod json;
pub mod lines;
pub mod path;
pub mod reader;
pub mod source;
pub mod utf16;
pub mod window;
