//! Replies: what a server answers. The bytes of a reply don't say what it is; the client knows which kind it expects.

use super::field::{put_string, read_u64};
use super::list::Strings;
use super::operation::Op;
use super::{STOP_WAITING, WAIT_CANCELED};
use crate::error::WireError;
use crate::key::Key;
use crate::value::Value;

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A WAIT or BARRIER is over.
    Stop,
    /// A CANCEL_WAIT was carried out.
    Canceled,
    /// CHECK: whether all keys are present.
    Checked(bool),
    /// A number: ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN.
    Number(i64),
    /// A value: GET, COMPARE_SET.
    Value(Value),
    /// Values one after the other: MULTI_GET.
    Values(Vec<Value>),
    /// QUEUE_POP: the length before the pop and, if it was above zero, the item.
    Popped {
        /// The number of items in the queue before.
        before: i64,
        /// The item taken.
        item: Option<Value>,
    },
    /// LIST_KEYS.
    Keys(Vec<Key>),
    /// The number of a PING.
    Nonce(u32),
}

/// The kind of reply that a client expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// One byte: [`Reply::Stop`] or [`Reply::Canceled`], for the operation named.
    Waited(Op),
    /// One byte: [`Reply::Checked`].
    Checked,
    /// [`Reply::Number`].
    Number,
    /// [`Reply::Nonce`].
    Nonce,
    /// [`Reply::Value`].
    Value,
    /// [`Reply::Values`], this many.
    Values(u64),
    /// [`Reply::Popped`].
    Popped,
    /// [`Reply::Keys`].
    Keys,
}

/// The reply column of the table of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyShape {
    Nothing,
    Waited,
    Checked,
    Number,
    Nonce,
    Value,
    Values,
    Popped,
    Keys,
}

impl ReplyShape {
    /// Returns the kind of reply to a request with this operation that names `values` keys.
    pub(super) fn kind(self, op: Op, values: u64) -> Option<ReplyKind> {
        Some(match self {
            ReplyShape::Nothing => return None,
            ReplyShape::Waited => ReplyKind::Waited(op),
            ReplyShape::Checked => ReplyKind::Checked,
            ReplyShape::Number => ReplyKind::Number,
            ReplyShape::Nonce => ReplyKind::Nonce,
            ReplyShape::Value => ReplyKind::Value,
            ReplyShape::Values => ReplyKind::Values(values),
            ReplyShape::Popped => ReplyKind::Popped,
            ReplyShape::Keys => ReplyKind::Keys,
        })
    }
}

impl Reply {
    /// Appends the reply to `out` as it travels.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Stop => out.push(STOP_WAITING),
            Reply::Canceled => out.push(WAIT_CANCELED),
            Reply::Checked(present) => out.push(u8::from(!present)),
            Reply::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Reply::Value(value) => put_string(out, value),
            Reply::Values(values) => values.iter().for_each(|value| put_string(out, value)),
            Reply::Popped { before, item } => {
                out.extend_from_slice(&before.to_le_bytes());
                item.iter().for_each(|item| put_string(out, item));
            }
            Reply::Keys(keys) => {
                out.extend_from_slice(&(keys.len() as i64).to_le_bytes());
                keys.iter().for_each(|key| put_string(out, key));
            }
            Reply::Nonce(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
        }
    }

    /// Parses a whole reply of this kind.
    pub(super) fn parse(kind: ReplyKind, bytes: &[u8]) -> Result<Option<Reply>, WireError> {
        let number = |at| read_u64(bytes, at).map(|n| n as i64);
        Ok(match kind {
            ReplyKind::Waited(op) => match bytes.first() {
                Some(&STOP_WAITING) => Some(Reply::Stop),
                Some(&WAIT_CANCELED) => Some(Reply::Canceled),
                Some(&found) => return Err(WireError::BadReplyByte { op, found }),
                None => None,
            },
            ReplyKind::Checked => match bytes.first() {
                Some(0) => Some(Reply::Checked(true)),
                Some(1) => Some(Reply::Checked(false)),
                Some(&found) => return Err(WireError::BadReplyByte { op: Op::Check, found }),
                None => None,
            },
            ReplyKind::Number => number(0).map(Reply::Number),
            ReplyKind::Nonce => bytes.first_chunk().map(|nonce| Reply::Nonce(u32::from_le_bytes(*nonce))),
            ReplyKind::Value => bytes.get(8..).map(|value| Reply::Value(Value::copied(value))),
            ReplyKind::Values(_) => all(bytes, Value::copied).map(Reply::Values),
            ReplyKind::Popped => number(0).map(|before| Reply::Popped {
                before,
                item: bytes.get(16..).map(Value::copied).filter(|_| before > 0),
            }),
            ReplyKind::Keys => {
                bytes.get(8..).and_then(|keys| all(keys, |key| Key::from(key))).map(Reply::Keys)
            }
        })
    }
}

/// Returns the strings that make up `bytes`, each as `keep` keeps it, or `None` if the bytes are anything else.
fn all<T>(bytes: &[u8], keep: impl Fn(&[u8]) -> T) -> Option<Vec<T>> {
    let mut strings = Strings(bytes);
    let all = strings.by_ref().map(keep).collect();
    strings.is_at_end().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{KeyList, PairList, Request};

    fn encoded(reply: Reply) -> Vec<u8> {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        bytes
    }

    #[test]
    fn every_reply_travels_as_torch_writes_it() {
        let value = |bytes: &[u8]| Value::copied(bytes);
        for (reply, travels) in [
            (Reply::Stop, &b"\0"[..]),
            (Reply::Canceled, b"\x01"),
            (Reply::Checked(true), b"\0"),
            (Reply::Checked(false), b"\x01"),
            (Reply::Number(5), b"\x05\0\0\0\0\0\0\0"),
            (Reply::Number(-1), b"\xff\xff\xff\xff\xff\xff\xff\xff"),
            (Reply::Value(value(b"v")), b"\x01\0\0\0\0\0\0\0v"),
            (Reply::Value(value(b"")), b"\0\0\0\0\0\0\0\0"),
            (Reply::Values(vec![]), b""),
            (Reply::Values(vec![value(b"a"), value(b"")]), b"\x01\0\0\0\0\0\0\0a\0\0\0\0\0\0\0\0"),
            (Reply::Popped { before: 0, item: None }, b"\0\0\0\0\0\0\0\0"),
            (Reply::Popped { before: 2, item: Some(value(b"i")) }, b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0i"),
            (Reply::Keys(vec![]), b"\0\0\0\0\0\0\0\0"),
            (Reply::Keys(vec![Key::from(&b"/k"[..])]), b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"),
            (Reply::Nonce(0x468f), b"\x8f\x46\0\0"),
        ] {
            assert_eq!(encoded(reply.clone()), travels, "{reply:?}");
        }
    }

    #[test]
    fn writes_are_not_answered() {
        let value = b"v"[..].into();
        for request in [
            Request::Validate { magic: 0 },
            Request::Set { key: b"k", value },
            Request::Append { key: b"k", value },
            Request::MultiSet { pairs: PairList::new(&[]) },
            Request::QueuePush { key: b"k", value },
        ] {
            assert_eq!(request.reply_kind(), None, "{request:?}");
        }
    }

    #[test]
    fn everything_else_is_answered_in_its_own_way() {
        let keys: [&[u8]; 2] = [b"a", b"b"];
        let keys = KeyList::new(&keys);
        for (request, kind) in [
            (Request::CompareSet { key: b"k", expected: b"", desired: b""[..].into() }, ReplyKind::Value),
            (Request::Get { key: b"k" }, ReplyKind::Value),
            (Request::Add { key: b"k", delta: 1 }, ReplyKind::Number),
            (Request::Check { keys }, ReplyKind::Checked),
            (Request::Wait { keys }, ReplyKind::Waited(Op::Wait)),
            (Request::NumKeys, ReplyKind::Number),
            (Request::DeleteKey { key: b"k" }, ReplyKind::Number),
            (Request::MultiGet { keys }, ReplyKind::Values(2)),
            (Request::CancelWait, ReplyKind::Waited(Op::CancelWait)),
            (Request::Ping { nonce: 1 }, ReplyKind::Nonce),
            (Request::QueuePop { key: b"k" }, ReplyKind::Popped),
            (Request::QueueLen { key: b"k" }, ReplyKind::Number),
            (Request::ListKeys, ReplyKind::Keys),
            (Request::Barrier { key: b"k", world_size: 1 }, ReplyKind::Waited(Op::Barrier)),
        ] {
            assert_eq!(request.reply_kind(), Some(kind), "{request:?}");
        }
    }
}
