//! Replies of a server. The bytes of a reply do not contain its kind, so the client derives the kind from its request.

use super::list::KeyList;
use super::operand::{Cursor, Operand, Payload, ReadError, encode_string};
use super::operation::Op;
use super::{STOP_WAITING, WAIT_CANCELED};
use crate::error::WireError;
use crate::key::Key;
use crate::value::Value;

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The keys of the WAIT are present, or the BARRIER is complete.
    Stop,
    /// The reply to CANCEL_WAIT. A WAIT or BARRIER that the CANCEL_WAIT ended gets no reply of its own.
    Canceled,
    /// The reply to CHECK: whether all keys are present.
    Checked(bool),
    /// The reply to ADD, NUM_KEYS, DELETE_KEY and QUEUE_LEN.
    Number(i64),
    /// The reply to GET and COMPARE_SET.
    Value(Value),
    /// The reply to MULTI_GET.
    Values(Vec<Value>),
    /// The reply to QUEUE_POP.
    Popped {
        /// The number of items in the queue before the pop.
        before: i64,
        /// The item, if the queue was not empty.
        item: Option<Value>,
    },
    /// The reply to LIST_KEYS.
    Keys(Vec<Key>),
    /// The reply to PING: the nonce of the request.
    Nonce(u32),
}

/// The kind of reply that a client expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// [`Reply::Stop`] or [`Reply::Canceled`], in one byte. The operation is for error messages.
    Waited(Op),
    /// [`Reply::Checked`], in one byte.
    Checked,
    /// [`Reply::Number`].
    Number,
    /// [`Reply::Nonce`].
    Nonce,
    /// [`Reply::Value`].
    Value,
    /// [`Reply::Values`] with this number of values.
    Values(u64),
    /// [`Reply::Popped`].
    Popped,
    /// [`Reply::Keys`].
    Keys,
}

impl ReplyKind {
    /// Moves the cursor to the end of a reply of this kind.
    pub(super) fn skip(self, cursor: &mut Cursor<'_>) -> Result<(), ReadError> {
        match self {
            ReplyKind::Waited(_) | ReplyKind::Checked => cursor.array::<1>().map(drop),
            ReplyKind::Number => i64::decode(cursor, true).map(drop),
            ReplyKind::Nonce => u32::decode(cursor, true).map(drop),
            ReplyKind::Value => Payload::decode(cursor, true).map(drop),
            ReplyKind::Values(count) => cursor.list::<Payload>(count).map(drop),
            ReplyKind::Popped => match i64::decode(cursor, false)? {
                ..=0 => Ok(()),
                _ => Payload::decode(cursor, true).map(drop),
            },
            ReplyKind::Keys => match i64::decode(cursor, false)? {
                found @ ..0 => Err(WireError::BadReply { op: Op::ListKeys, found }.into()),
                count => cursor.list::<&[u8]>(count as u64).map(drop),
            },
        }
    }
}

impl Reply {
    /// Appends the encoded reply to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Stop => out.push(STOP_WAITING),
            Reply::Canceled => out.push(WAIT_CANCELED),
            Reply::Checked(present) => out.push(u8::from(!present)),
            Reply::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Reply::Value(value) => encode_string(out, value),
            Reply::Values(values) => values.iter().for_each(|value| encode_string(out, value)),
            Reply::Popped { before, item } => {
                out.extend_from_slice(&before.to_le_bytes());
                item.iter().for_each(|item| encode_string(out, item));
            }
            Reply::Keys(keys) => {
                out.reserve_exact(keys.iter().map(|key| 8 + key.len()).sum::<usize>() + 8);
                out.extend_from_slice(&(keys.len() as i64).to_le_bytes());
                keys.iter().for_each(|key| encode_string(out, key));
            }
            Reply::Nonce(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
        }
    }

    /// Decodes a reply whose bytes are complete according to [`ReplyKind::skip`].
    pub(super) fn decode(kind: ReplyKind, cursor: &mut Cursor<'_>) -> Result<Reply, ReadError> {
        Ok(match kind {
            ReplyKind::Waited(op) => match cursor.array()? {
                [STOP_WAITING] => Reply::Stop,
                [WAIT_CANCELED] => Reply::Canceled,
                [found] => return Err(WireError::BadReply { op, found: found.into() }.into()),
            },
            ReplyKind::Checked => match cursor.array()? {
                [0] => Reply::Checked(true),
                [1] => Reply::Checked(false),
                [found] => return Err(WireError::BadReply { op: Op::Check, found: found.into() }.into()),
            },
            ReplyKind::Number => Reply::Number(i64::decode(cursor, true)?),
            ReplyKind::Nonce => Reply::Nonce(u32::decode(cursor, true)?),
            ReplyKind::Value => Reply::Value(Payload::decode(cursor, true)?.to_value()),
            ReplyKind::Values(count) => {
                Reply::Values(cursor.list::<Payload>(count)?.iter().map(|value| value.to_value()).collect())
            }
            ReplyKind::Popped => {
                let before = i64::decode(cursor, false)?;
                let item = if before > 0 { Some(Payload::decode(cursor, true)?.to_value()) } else { None };
                Reply::Popped { before, item }
            }
            ReplyKind::Keys => Reply::Keys(KeyList::decode(cursor, true)?.iter().map(Key::from).collect()),
        })
    }
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
    fn every_reply_encodes_to_the_bytes_of_torch() {
        let value = |bytes: &[u8]| Value::copied(bytes);
        for (reply, expected) in [
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
            assert_eq!(encoded(reply.clone()), expected, "{reply:?}");
        }
    }

    #[test]
    fn requests_without_a_result_have_no_reply() {
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
    fn every_other_request_has_the_reply_kind_of_its_operation() {
        let keys: [&[u8]; 2] = [b"a", b"b"];
        let keys = KeyList::new(&keys);
        for (request, kind) in [
            (
                Request::CompareSet { key: b"k", expected: b"".into(), desired: b""[..].into() },
                ReplyKind::Value,
            ),
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
