//! Frames: what runner and workers say to each other, as bytes. No I/O here.
//!
//! | room | what |
//! |---|---|
//! | `header.rs` | length, type and flags before each body; the stream cut into frames |
//! | `body.rs` | the bodies, as positional arrays in JSON or MessagePack |
//! | `payload.rs` | arguments and values inside of them |
//!
//! The page for those who write a worker is `docs/reference/frames.md`.

mod body;
mod header;
mod payload;

pub(crate) use body::{
    Failed, Group, Hello, Init, Logged, Parcel, Ready, Reply, ReplyBody, Results, Retry, Tasks,
    from_message_pack, read, write,
};
pub(crate) use header::{Decoder, FrameError, Type};
pub(crate) use payload::{Payload, Text};

/// The version of the protocol.
pub(crate) const VERSION: u32 = 1;
/// The longest body.
pub(crate) const LONGEST: usize = 16 << 20;

/// How bodies are written, from INIT on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Encoding {
    #[default]
    Json,
    MessagePack,
}

impl Encoding {
    /// As HELLO and INIT name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::MessagePack => "msgpack",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        [Self::Json, Self::MessagePack].into_iter().find(|encoding| encoding.name() == name)
    }
}
