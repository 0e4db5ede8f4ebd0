//! Replies: what a server answers. A reply doesn't say what it is; the one who asked knows its kind.

use std::sync::Arc;

use super::op::Op;
use super::request::{Request, put};
use super::scan::{read_u32, read_u64};
use super::{STOP_WAITING, WAIT_CANCELED};
use crate::error::WireError;
use crate::value::Value;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A WAIT or BARRIER is over.
    Stop,
    /// A CANCEL_WAIT was carried out.
    Canceled,
    /// The answer to CHECK: are all there?
    Checked(bool),
    /// A number: ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN.
    Number(i64),
    /// A value: GET, COMPARE_SET.
    Value(Value),
    /// Values one after the other: MULTI_GET.
    Values(Vec<Value>),
    /// QUEUE_POP: the length before the pop and, if it was above zero, the item.
    Popped {
        /// Items in the queue before.
        before: i64,
        /// The item taken.
        item: Option<Value>,
    },
    /// LIST_KEYS.
    Keys(Vec<Arc<[u8]>>),
    /// PING's number.
    Nonce(u32),
}

/// What kind of answer to expect.
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
    /// [`Reply::Values`], so many.
    Values(u64),
    /// [`Reply::Popped`].
    Popped,
    /// [`Reply::Keys`].
    Keys,
}

impl Request<'_> {
    /// The kind of answer this request gets, `None` if it gets none.
    pub fn reply_kind(&self) -> Option<ReplyKind> {
        match self {
            Request::Validate { .. }
            | Request::Set { .. }
            | Request::Append { .. }
            | Request::MultiSet { .. }
            | Request::QueuePush { .. } => None,
            Request::CompareSet { .. } | Request::Get { .. } => Some(ReplyKind::Value),
            Request::Add { .. } | Request::NumKeys | Request::DeleteKey { .. } | Request::QueueLen { .. } => {
                Some(ReplyKind::Number)
            }
            Request::Check { .. } => Some(ReplyKind::Checked),
            Request::Wait { .. } | Request::CancelWait | Request::Barrier { .. } => {
                Some(ReplyKind::Waited(self.op()))
            }
            Request::MultiGet { keys } => Some(ReplyKind::Values(keys.len() as u64)),
            Request::Ping { .. } => Some(ReplyKind::Nonce),
            Request::QueuePop { .. } => Some(ReplyKind::Popped),
            Request::ListKeys => Some(ReplyKind::Keys),
        }
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
            Reply::Value(value) => put(out, value),
            Reply::Values(values) => values.iter().for_each(|value| put(out, value)),
            Reply::Popped { before, item } => {
                out.extend_from_slice(&before.to_le_bytes());
                item.iter().for_each(|item| put(out, item));
            }
            Reply::Keys(keys) => {
                out.extend_from_slice(&(keys.len() as i64).to_le_bytes());
                keys.iter().for_each(|key| put(out, key));
            }
            Reply::Nonce(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
        }
    }

    /// Reads a whole reply of this kind.
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
            ReplyKind::Nonce => read_u32(bytes, 0).map(Reply::Nonce),
            ReplyKind::Value => bytes.get(8..).map(|value| Reply::Value(Value::copied(value))),
            ReplyKind::Values(_) => strings(bytes, Value::copied).map(Reply::Values),
            ReplyKind::Popped => number(0).map(|before| Reply::Popped {
                before,
                item: bytes.get(16..).map(Value::copied).filter(|_| before > 0),
            }),
            ReplyKind::Keys => {
                bytes.get(8..).and_then(|keys| strings(keys, |key| Arc::from(key))).map(Reply::Keys)
            }
        })
    }
}

/// The strings that make up `bytes`, each as `keep` keeps it.
fn strings<T>(mut bytes: &[u8], keep: impl Fn(&[u8]) -> T) -> Option<Vec<T>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let len = usize::try_from(read_u64(bytes, 0)?).ok()?;
        all.push(keep(bytes.get(8..8 + len)?));
        bytes = &bytes[8 + len..];
    }
    Some(all)
}
