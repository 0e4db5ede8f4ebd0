//! Bytes to requests and replies, and back. It parses and prints; it never decides what a request means.
//!
//! The format has no frame length: where a request ends is known only by walking through it. [`RequestDecoder`] and
//! [`ReplyDecoder`] do that walk once, resuming where the bytes ran out, and check every announced length against a
//! limit before a byte is set aside for it. What they hand out are views into the bytes that arrived.

mod decoder;
mod list;
mod op;
mod parse;
mod recycling;
mod reply;
mod request;
mod scan;

pub use decoder::{Frame, Kept, ReplyDecoder, RequestDecoder};
pub use list::{KeyList, PairList};
pub use op::Op;
pub use recycling::Recycler;
pub use reply::{Reply, ReplyKind, Strings};
pub use request::{Payload, Request};

/// What a VALIDATE request carries; anything else is not a store client.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// The reply to a WAIT or BARRIER that is over.
pub(crate) const STOP_WAITING: u8 = 0;
/// The reply to a CANCEL_WAIT.
pub(crate) const WAIT_CANCELED: u8 = 1;
