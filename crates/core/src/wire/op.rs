//! The nineteen operation codes. Codes of our own would go above these; torch's are never reused.

use std::fmt;

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// An operation of the c10d TCPStore protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Op { $($(#[$doc])* $name = $code,)* }

        impl Op {
            /// All operations, in the order of their codes.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];

            /// The operation with this code.
            pub fn from_code(code: u8) -> Option<Op> {
                match code { $($code => Some(Op::$name),)* _ => None }
            }

            /// The name users know it by: the method of the store that sends it.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => $text,)* }
            }
        }
    };
}

ops! {
    /// The first request of a connection: a magic number.
    Validate = 0, "validate";
    /// Store a value.
    Set = 1, "set";
    /// Store a value if the held one is as expected.
    CompareSet = 2, "compare_set";
    /// The value of a key.
    Get = 3, "get";
    /// Add to a number kept as decimal text.
    Add = 4, "add";
    /// Are all these keys present?
    Check = 5, "check";
    /// Answer once all these keys have been present.
    Wait = 6, "wait";
    /// How many keys there are.
    NumKeys = 7, "num_keys";
    /// Remove a key.
    DeleteKey = 8, "delete_key";
    /// Lengthen a value.
    Append = 9, "append";
    /// The values of several keys.
    MultiGet = 10, "multi_get";
    /// Store several values at once.
    MultiSet = 11, "multi_set";
    /// End this connection's wait.
    CancelWait = 12, "cancel_wait";
    /// Answer with the same number.
    Ping = 13, "ping";
    /// Put an item at the end of a queue.
    QueuePush = 14, "queue_push";
    /// Take the item at the head of a queue.
    QueuePop = 15, "queue_pop";
    /// How many items a queue holds.
    QueueLen = 16, "queue_len";
    /// The names of all keys.
    ListKeys = 17, "list_keys";
    /// Answer once so many connections have asked the same.
    Barrier = 18, "barrier";
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_end_at_eighteen() {
        for (code, op) in Op::ALL.iter().enumerate() {
            assert_eq!(Op::from_code(code as u8), Some(*op));
        }
        assert_eq!(Op::ALL.len(), 19);
        assert!((19..=255).all(|code| Op::from_code(code).is_none()));
    }
}
