//! The formats an input can have, and which one a file name stands for.

use std::path::Path;

/// How an input is cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values with a header line (RFC 4180)
    Csv,
    /// Tab-separated values with a header line, quoted like CSV
    Tsv,
    /// One JSON value a line
    Jsonl,
    /// One record a line, any bytes
    Lines,
    /// Records that end with a NUL byte, any other bytes
    Nul,
}

impl Format {
    /// The format that the extension of `path` stands for; lines when it says nothing.
    #[must_use]
    pub fn of_path(path: &Path) -> Self {
        let ext = path.extension().map(|ext| ext.to_ascii_lowercase());
        match ext.as_ref().and_then(|ext| ext.to_str()) {
            Some("csv") => Self::Csv,
            Some("tsv" | "tab") => Self::Tsv,
            Some("jsonl" | "ndjson") => Self::Jsonl,
            _ => Self::Lines,
        }
    }

    /// The byte between two cells, for the formats that have cells.
    #[must_use]
    pub fn delimiter(self) -> Option<u8> {
        match self {
            Self::Csv => Some(b','),
            Self::Tsv => Some(b'\t'),
            Self::Jsonl | Self::Lines | Self::Nul => None,
        }
    }

    /// The byte that ends a record.
    #[must_use]
    pub fn terminator(self) -> u8 {
        if self == Self::Nul { 0 } else { b'\n' }
    }

    /// Whether a record is one opaque value (no columns, no members).
    #[must_use]
    pub fn is_opaque(self) -> bool {
        matches!(self, Self::Lines | Self::Nul)
    }

    /// What a record's position is called in messages.
    #[must_use]
    pub fn unit(self) -> &'static str {
        if self == Self::Nul { "record" } else { "line" }
    }
}

/// How the bytes of an input stand for characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Encoding {
    /// UTF-8, or any bytes that keep ASCII in its place; a byte order mark is dropped
    #[value(name = "utf-8")]
    Utf8,
    /// UTF-16; the byte order mark decides, little-endian without one
    #[value(name = "utf-16")]
    Utf16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_decides_in_any_case() {
        for (name, format) in [
            ("a.csv", Format::Csv),
            ("a.CSV", Format::Csv),
            ("a.tsv", Format::Tsv),
            ("dir.csv/a.ndjson", Format::Jsonl),
            ("a.jsonl", Format::Jsonl),
            ("a.csv.txt", Format::Lines),
            ("csv", Format::Lines),
        ] {
            assert_eq!(Format::of_path(Path::new(name)), format, "{name}");
        }
    }
}
