//! Bytes to requests and replies, and back. This module parses and prints; it never decides what a request means.
//!
//! The format has no frame length: where a request ends is known only by walking through it. [`RequestDecoder`] and
//! [`ReplyDecoder`] walk through it once, resume where the bytes ran out, and check every announced length
//! against a limit before they allocate anything for it. Requests are views into the bytes that arrived.

mod decoder;
mod list;
mod operand;
mod operation;
mod reply;

pub use decoder::{Decoded, ReplyDecoder, RequestDecoder};
pub use list::{KeyList, List, PairList};
pub use operand::Payload;
pub use operation::{Op, Request};
pub use reply::{Reply, ReplyKind};

/// What a VALIDATE request carries; anything else is not a store client.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// The reply to a WAIT or BARRIER that is over.
pub(crate) const STOP_WAITING: u8 = 0;
/// The reply to a CANCEL_WAIT.
pub(crate) const WAIT_CANCELED: u8 = 1;
