//! The operations of the protocol, in one table: code, operands, reply, and whether a client may send it twice.
//!
//! To add an operation, add a row here and a function to the engine. The decoder, the encoder and the client read the
//! table. Torch's codes end at 18 and are never reused.

use std::fmt;

use super::field::{self, Field, Operand, Payload, Walk};
use super::list::{KeyList, PairList};
use super::reply::{ReplyKind, ReplyShape};

macro_rules! operations {
    ($($(#[$doc:meta])* $code:literal $name:ident $text:literal $({ $($field:ident: $kind:ident),* })?
        => $reply:ident, $repeat:ident;)*) => {
        /// An operation of the c10d TCPStore protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Op { $($(#[$doc])* $name = $code,)* }

        impl Op {
            /// All operations, in the order of their codes.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];

            /// Returns the operation with this code.
            pub fn from_code(code: u8) -> Option<Op> {
                match code { $($code => Some(Op::$name),)* _ => None }
            }

            /// Returns the name that users know: the method of the store that sends it.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => $text,)* }
            }

            /// Returns whether sending the request twice leaves the store as sending it once does.
            pub fn is_repeatable(self) -> bool {
                match self { $(Op::$name => Repeat::$repeat == Repeat::Yes,)* }
            }

            pub(super) fn fields(self) -> &'static [Field] {
                match self { $(Op::$name => &[$($(field::$kind::FIELD),*)?],)* }
            }

            fn reply_shape(self) -> ReplyShape {
                match self { $(Op::$name => ReplyShape::$reply,)* }
            }
        }

        /// A request of a client. Its operands are views into the bytes it came in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // The fields are the operands that `Op` describes.
        pub enum Request<'a> {
            $($name $({ $($field: operand_type!($kind 'a)),* })?,)*
        }

        impl<'a> Request<'a> {
            /// Returns the operation.
            pub fn op(&self) -> Op {
                match self { $(Request::$name { .. } => Op::$name,)* }
            }

            /// Appends the request to `out` as it travels.
            pub fn encode(&self, out: &mut Vec<u8>) {
                out.push(self.op() as u8);
                match self {
                    $(Request::$name $({ $($field),* })? => { $($(field::$kind::put($field, out);)*)? })*
                }
            }

            /// Passes the keys that the request names to `visit`.
            pub fn for_each_key(&self, visit: &mut dyn FnMut(&[u8])) {
                match self {
                    $(Request::$name $({ $($field),* })? => { $($(field::$kind::for_each_key($field, visit);)*)? })*
                }
            }

            /// Reads a request. Returns `None` if a byte is missing, a limit is passed, or the code is unknown.
            ///
            /// Always inline: a request that goes through memory costs more than reading it.
            #[inline(always)]
            pub(super) fn read(code: u8, walk: &mut Walk<'a>) -> Option<Request<'a>> {
                Some(match code {
                    $($code => Request::$name $({ $($field: field::$kind::take(walk)?),* })?,)*
                    _ => return None,
                })
            }
        }
    };
}

/// The type of an operand in a request. A projection of [`Operand::Of`] would make requests invariant.
macro_rules! operand_type {
    (Key $a:lifetime) => { &$a [u8] };
    (Bytes $a:lifetime) => { &$a [u8] };
    (Value $a:lifetime) => { Payload<$a> };
    (U32 $a:lifetime) => { u32 };
    (I64 $a:lifetime) => { i64 };
    (Keys $a:lifetime) => { KeyList<$a> };
    (Pairs $a:lifetime) => { PairList<$a> };
}

#[derive(PartialEq)]
enum Repeat {
    Yes,
    No,
}

operations! {
    /// The first request of a connection: a magic number.
    0 Validate "validate" { magic: U32 } => Nothing, Yes;
    /// Stores a value.
    1 Set "set" { key: Key, value: Value } => Nothing, Yes;
    /// Stores a value if the held one is as expected.
    2 CompareSet "compare_set" { key: Key, expected: Bytes, desired: Value } => Value, No;
    /// Returns the value of a key.
    3 Get "get" { key: Key } => Value, Yes;
    /// Adds to a number kept as decimal text.
    4 Add "add" { key: Key, delta: I64 } => Number, No;
    /// Returns whether all these keys are present.
    5 Check "check" { keys: Keys } => Checked, Yes;
    /// Is answered once all these keys have been present.
    6 Wait "wait" { keys: Keys } => Waited, Yes;
    /// Returns the number of keys.
    7 NumKeys "num_keys" => Number, Yes;
    /// Removes a key.
    8 DeleteKey "delete_key" { key: Key } => Number, Yes;
    /// Lengthens a value.
    9 Append "append" { key: Key, value: Value } => Nothing, No;
    /// Returns the values of several keys.
    10 MultiGet "multi_get" { keys: Keys } => Values, Yes;
    /// Stores several values at once.
    11 MultiSet "multi_set" { pairs: Pairs } => Nothing, Yes;
    /// Ends the wait of this connection.
    12 CancelWait "cancel_wait" => Waited, No;
    /// Is answered with the same number.
    13 Ping "ping" { nonce: U32 } => Nonce, Yes;
    /// Puts an item at the end of a queue.
    14 QueuePush "queue_push" { key: Key, value: Value } => Nothing, No;
    /// Takes the item at the head of a queue.
    15 QueuePop "queue_pop" { key: Key } => Popped, No;
    /// Returns the number of items in a queue.
    16 QueueLen "queue_len" { key: Key } => Number, Yes;
    /// Returns the names of all keys.
    17 ListKeys "list_keys" => Keys, Yes;
    /// Is answered once `world_size` connections have asked the same.
    18 Barrier "barrier" { key: Key, world_size: I64 } => Waited, No;
}

impl Request<'_> {
    /// Returns the kind of reply to this request, or `None` if it gets none.
    pub fn reply_kind(&self) -> Option<ReplyKind> {
        let values = match self {
            Request::MultiGet { keys } => keys.len() as u64,
            _ => 0,
        };
        self.op().reply_shape().kind(self.op(), values)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
