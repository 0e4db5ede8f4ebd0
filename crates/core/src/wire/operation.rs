//! The operations of the protocol, in one table. A row has the code, the name, the operands, the kind of the reply, and
//! whether a client may repeat the request.
//!
//! To add an operation, add a row to the table and a function to the engine. The decoder, the encoder and the client
//! follow the table. Torch uses the codes 0 to 18. MESSAGE is ours, and clients send it only to our servers.

use std::fmt;

use super::list::{KeyList, PairList};
use super::operand::{Cursor, Operand, Payload, ReadError};
use super::reply::ReplyKind;
use crate::error::WireError;

macro_rules! operations {
    ($($(#[$doc:meta])* $code:literal $name:ident $text:literal $({ $($field:ident: $type:ty),* })?
        => $reply:expr, $repeatable:ident;)*) => {
        /// An operation of the c10d TCPStore protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Op { $($(#[$doc])* $name = $code,)* }

        impl Op {
            /// All operations, sorted by code.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];

            /// Returns the name of the operation for messages, such as `compare_set`.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => $text,)* }
            }

            /// Returns whether torch has the operation, too.
            pub fn is_of_torch(self) -> bool {
                self != Op::Message
            }

            /// Returns whether the operation is idempotent, so that a client may repeat it after a lost connection.
            pub fn is_repeatable(self) -> bool {
                match self { $(Op::$name => $repeatable,)* }
            }
        }

        /// A request of a client. Its operands borrow from the frame.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // The fields are the operands that `Op` describes.
        pub enum Request<'a> {
            $($name $({ $($field: $type),* })?,)*
        }

        impl<'a> Request<'a> {
            /// Returns the operation.
            pub fn op(&self) -> Op {
                match self { $(Request::$name { .. } => Op::$name,)* }
            }

            /// Appends the encoded request to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                out.push(self.op() as u8);
                match self {
                    $(Request::$name $({ $($field),* })? => { $($($field.encode(out);)*)? })*
                }
            }

            /// Calls `visit` for each key in the request.
            pub fn for_each_key(&self, visit: &mut dyn FnMut(&[u8])) {
                match self {
                    $(Request::$name $({ $($field),* })? => { $($($field.for_each_key(visit);)*)? })*
                }
            }

            /// Returns the kind of the reply, or `None` if the request has no reply.
            #[allow(unused_variables)] // Only some reply columns use the operands.
            pub fn reply_kind(&self) -> Option<ReplyKind> {
                use ReplyKind::*;
                match self { $(Request::$name $({ $($field),* })? => $reply,)* }
            }

            /// Decodes a request.
            #[inline(always)]
            #[allow(unused_variables, unused_mut, unused_assignments)] // Some operations have no operands.
            pub(super) fn decode(cursor: &mut Cursor<'a>) -> Result<Request<'a>, ReadError> {
                let [code] = cursor.array()?;
                Ok(match code {
                    $($code => {
                        let mut remaining = <[&str]>::len(&[$($(stringify!($field)),*)?]);
                        Request::$name $({ $($field: { remaining -= 1; Operand::decode(cursor, remaining == 0)? }),* })?
                    })*
                    _ => return Err(WireError::UnknownOp { code }.into()),
                })
            }
        }
    };
}

// The values of the last column of the table, which says whether a client may repeat the request.
const REPEATABLE: bool = true;
const ONCE: bool = false;

operations! {
    /// Shows by a magic number that the peer is a store client. VALIDATE is the first request of a connection.
    0 Validate "validate" { magic: u32 } => None, REPEATABLE;
    /// Stores a value under a key.
    1 Set "set" { key: &'a [u8], value: Payload<'a> } => None, REPEATABLE;
    /// Stores a value if the current value equals the expected one. An absent key counts as an empty value.
    2 CompareSet "compare_set" { key: &'a [u8], expected: Payload<'a>, desired: Payload<'a> } => Some(Value), ONCE;
    /// Returns the value of a key.
    3 Get "get" { key: &'a [u8] } => Some(Value), REPEATABLE;
    /// Adds `delta` to a number that is stored as decimal text, and returns the sum.
    4 Add "add" { key: &'a [u8], delta: i64 } => Some(Number), ONCE;
    /// Returns whether all keys are present.
    5 Check "check" { keys: KeyList<'a> } => Some(Checked), REPEATABLE;
    /// Blocks the client until each key is present or was present since the request arrived.
    6 Wait "wait" { keys: KeyList<'a> } => Some(Waited(Op::Wait)), REPEATABLE;
    /// Returns the number of keys.
    7 NumKeys "num_keys" => Some(Number), REPEATABLE;
    /// Deletes a key, and returns 1 if the key was present, else 0.
    8 DeleteKey "delete_key" { key: &'a [u8] } => Some(Number), REPEATABLE;
    /// Appends bytes to the value of a key.
    9 Append "append" { key: &'a [u8], value: Payload<'a> } => None, ONCE;
    /// Returns the values of several keys.
    10 MultiGet "multi_get" { keys: KeyList<'a> } => Some(Values(keys.len() as u64)), REPEATABLE;
    /// Stores several values atomically.
    11 MultiSet "multi_set" { pairs: PairList<'a> } => None, REPEATABLE;
    /// Ends the WAIT or BARRIER of this connection.
    12 CancelWait "cancel_wait" => Some(Waited(Op::CancelWait)), ONCE;
    /// Returns the nonce of the request.
    13 Ping "ping" { nonce: u32 } => Some(Nonce), REPEATABLE;
    /// Appends an item to a queue.
    14 QueuePush "queue_push" { key: &'a [u8], value: Payload<'a> } => None, ONCE;
    /// Removes and returns the first item of a queue.
    15 QueuePop "queue_pop" { key: &'a [u8] } => Some(Popped), ONCE;
    /// Returns the number of items in a queue.
    16 QueueLen "queue_len" { key: &'a [u8] } => Some(Number), REPEATABLE;
    /// Returns all keys.
    17 ListKeys "list_keys" => Some(Keys), REPEATABLE;
    /// Blocks the client until `world_size` clients have arrived at the barrier and are still connected.
    18 Barrier "barrier" { key: &'a [u8], world_size: i64 } => Some(Waited(Op::Barrier)), ONCE;
    /// Sends a message to the service of the server. The service replies with values, at any time and in any number.
    64 Message "message" { message: Payload<'a> } => None, ONCE;
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
