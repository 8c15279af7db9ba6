//! What was wrong with a frame.

use super::Kind;

/// What was wrong, in which frame, at which byte of its body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} frame, byte {offset}: {what}", kind.map_or("unknown", Kind::name))]
pub struct FrameError {
    /// The type of the frame, where it is known.
    pub kind: Option<Kind>,
    /// Offset in the body; in the header for faults of the header.
    pub offset: usize,
    /// In words.
    pub what: String,
}

impl FrameError {
    pub(crate) fn new(offset: usize, what: impl Into<String>) -> Self {
        Self { kind: None, offset, what: what.into() }
    }

    pub(crate) fn within(mut self, kind: Kind) -> Self {
        self.kind = Some(kind);
        self
    }
}
