//! The codec of the c10d TCPStore protocol: bytes ⇄ requests and replies.
//!
//! This module parses and encodes. It never decides what a request does.
//!
//! Frames have no length prefix, so a decoder finds the end of a frame only by parsing it. When another piece of a
//! frame arrives, [`RequestDecoder`] and [`ReplyDecoder`] skip the list items that they have already parsed, and parse
//! all other operands again. They check each announced length against its limit before they allocate memory for it. A
//! [`Request`] borrows from the bytes that arrived.

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

/// The magic number of VALIDATE. A peer that sends a different number is not a store client.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// The reply to a WAIT whose keys are present, or to a BARRIER that is complete.
pub(crate) const STOP_WAITING: u8 = 0;
/// The reply to a CANCEL_WAIT.
pub(crate) const WAIT_CANCELED: u8 = 1;
