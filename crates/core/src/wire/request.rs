//! Requests: what a client may ask, as views into the bytes they came in, and the way back to bytes.

use std::collections::TryReserveError;

use bytes::Bytes;

use super::list::{KeyList, PairList};
use super::op::Op;
use crate::value::Value;

/// A value inside a request.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// The message around it, where that is ours to keep a part of.
    owner: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// A value that is a part of `owner`, if there is one.
    pub(super) fn within(bytes: &'a [u8], owner: Option<&'a Bytes>) -> Payload<'a> {
        Payload { bytes, owner }
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes as a value to store. A large value that makes up 8/9 of its message shares the message's buffer; other
    /// values are copied.
    ///
    /// # Errors
    ///
    /// Fails if allocating the copy of a large value fails.
    pub fn to_value(&self) -> Result<Value, TryReserveError> {
        self.to_shared().map_or_else(|| Value::try_copied(self.bytes), Ok)
    }

    /// The bytes to keep, if they need no copy.
    pub(crate) fn to_shared(self) -> Option<Value> {
        let owner = self.owner.filter(|owner| {
            self.bytes.len() >= Value::SHARED_FROM && owner.len() / 9 * 8 <= self.bytes.len()
        })?;
        Some(Value::shared(owner.slice_ref(self.bytes)))
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Payload { bytes, owner: None }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}
impl Eq for Payload<'_> {}

impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", crate::error::printable(self.bytes))
    }
}

/// One request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are the operands that `Op` describes.
pub enum Request<'a> {
    Validate { magic: u32 },
    Set { key: &'a [u8], value: Payload<'a> },
    CompareSet { key: &'a [u8], expected: &'a [u8], desired: Payload<'a> },
    Get { key: &'a [u8] },
    Add { key: &'a [u8], delta: i64 },
    Check { keys: KeyList<'a> },
    Wait { keys: KeyList<'a> },
    NumKeys,
    DeleteKey { key: &'a [u8] },
    Append { key: &'a [u8], value: Payload<'a> },
    MultiGet { keys: KeyList<'a> },
    MultiSet { pairs: PairList<'a> },
    CancelWait,
    Ping { nonce: u32 },
    QueuePush { key: &'a [u8], value: Payload<'a> },
    QueuePop { key: &'a [u8] },
    QueueLen { key: &'a [u8] },
    ListKeys,
    Barrier { key: &'a [u8], world_size: i64 },
}

impl<'a> Request<'a> {
    /// Its operation.
    pub fn op(&self) -> Op {
        match self {
            Request::Validate { .. } => Op::Validate,
            Request::Set { .. } => Op::Set,
            Request::CompareSet { .. } => Op::CompareSet,
            Request::Get { .. } => Op::Get,
            Request::Add { .. } => Op::Add,
            Request::Check { .. } => Op::Check,
            Request::Wait { .. } => Op::Wait,
            Request::NumKeys => Op::NumKeys,
            Request::DeleteKey { .. } => Op::DeleteKey,
            Request::Append { .. } => Op::Append,
            Request::MultiGet { .. } => Op::MultiGet,
            Request::MultiSet { .. } => Op::MultiSet,
            Request::CancelWait => Op::CancelWait,
            Request::Ping { .. } => Op::Ping,
            Request::QueuePush { .. } => Op::QueuePush,
            Request::QueuePop { .. } => Op::QueuePop,
            Request::QueueLen { .. } => Op::QueueLen,
            Request::ListKeys => Op::ListKeys,
            Request::Barrier { .. } => Op::Barrier,
        }
    }

    /// Appends the request to `out` as it travels.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.op() as u8);
        match self {
            Request::Validate { magic: number } | Request::Ping { nonce: number } => {
                out.extend_from_slice(&number.to_le_bytes());
            }
            Request::Set { key, value }
            | Request::Append { key, value }
            | Request::QueuePush { key, value } => {
                put(out, key);
                put(out, value.bytes);
            }
            Request::CompareSet { key, expected, desired } => {
                // Both may be large, and room that doubles would hold them twice.
                out.reserve(key.len() + expected.len() + desired.bytes.len() + 3 * size_of::<u64>());
                put(out, key);
                put(out, expected);
                put(out, desired.bytes);
            }
            Request::Get { key }
            | Request::DeleteKey { key }
            | Request::QueuePop { key }
            | Request::QueueLen { key } => put(out, key),
            Request::Add { key, delta: number } | Request::Barrier { key, world_size: number } => {
                put(out, key);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
                keys.iter().for_each(|key| put(out, key));
            }
            Request::MultiSet { pairs } => {
                out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
                for (key, value) in pairs.iter() {
                    put(out, key);
                    put(out, value.bytes);
                }
            }
            Request::NumKeys | Request::CancelWait | Request::ListKeys => {}
        }
    }
}

/// Appends a length and the bytes.
pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::wire::{MAGIC, RequestDecoder};

    /// Bytes written as the protocol's description writes them: hexadecimal, `02..` for a 64-bit 2.
    fn hex(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in text.split_whitespace() {
            let byte = u8::from_str_radix(word.trim_end_matches('.'), 16).unwrap();
            match word.ends_with("..") {
                true => bytes.extend_from_slice(&u64::from(byte).to_le_bytes()),
                false => bytes.push(byte),
            }
        }
        bytes
    }

    #[test]
    fn every_operation_travels_as_torch_writes_it() {
        let keys: [&[u8]; 2] = [b"/k", b"/n"];
        let keys = KeyList::new(&keys);
        let pairs: [(&[u8], &[u8]); 2] = [(b"/k", b"v"), (b"/n", b"")];
        for (request, travels) in [
            (Request::Validate { magic: MAGIC }, "00 ce f7 85 3c"),
            (Request::Set { key: b"/k", value: b"v"[..].into() }, "01 02.. 2f 6b 01.. 76"),
            (
                Request::CompareSet { key: b"/k", expected: b"", desired: b"v"[..].into() },
                "02 02.. 2f 6b 00.. 01.. 76",
            ),
            (Request::Get { key: b"/k" }, "03 02.. 2f 6b"),
            (Request::Add { key: b"/n", delta: 5 }, "04 02.. 2f 6e 05.."),
            (Request::Check { keys }, "05 02.. 02.. 2f 6b 02.. 2f 6e"),
            (Request::Wait { keys }, "06 02.. 02.. 2f 6b 02.. 2f 6e"),
            (Request::NumKeys, "07"),
            (Request::DeleteKey { key: b"/k" }, "08 02.. 2f 6b"),
            (Request::Append { key: b"/k", value: b"v"[..].into() }, "09 02.. 2f 6b 01.. 76"),
            (Request::MultiGet { keys }, "0a 02.. 02.. 2f 6b 02.. 2f 6e"),
            (
                Request::MultiSet { pairs: PairList::new(&pairs) },
                "0b 02.. 02.. 2f 6b 01.. 76 02.. 2f 6e 00..",
            ),
            (Request::CancelWait, "0c"),
            (Request::Ping { nonce: 0x468f }, "0d 8f 46 00 00"),
            (Request::QueuePush { key: b"/k", value: b"v"[..].into() }, "0e 02.. 2f 6b 01.. 76"),
            (Request::QueuePop { key: b"/k" }, "0f 02.. 2f 6b"),
            (Request::QueueLen { key: b"/k" }, "10 02.. 2f 6b"),
            (Request::ListKeys, "11"),
            (Request::Barrier { key: b"/k", world_size: 4 }, "12 02.. 2f 6b 04.."),
        ] {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            assert_eq!(bytes, hex(travels), "{request:?}");
        }
    }

    /// What `check` finds of the value in a SET that came in two pieces.
    fn set_in_pieces(value: &[u8], check: impl Fn(Payload<'_>)) {
        let mut bytes = Vec::new();
        Request::Set { key: b"/k", value: value.into() }.encode(&mut bytes);
        let (first, second) = bytes.split_at(20);
        let mut decoder = RequestDecoder::default();
        assert!(decoder.next(&mut &*first, &Limits::default()).unwrap().is_none());
        let frame = decoder.next(&mut &*second, &Limits::default()).unwrap().unwrap();
        let Request::Set { value, .. } = frame.request() else { panic!("{frame:?}") };
        check(value);
    }

    #[test]
    fn a_large_value_that_came_in_pieces_is_kept_without_a_copy() {
        set_in_pieces(&[b'v'; Value::SHARED_FROM], |payload| {
            assert_eq!(payload.to_value().unwrap().as_ptr(), payload.bytes().as_ptr());
        });
    }

    #[test]
    fn a_small_value_does_not_keep_its_message_alive() {
        set_in_pieces(&[b'v'; Value::SHARED_FROM - 1], |payload| {
            let kept = payload.to_value().unwrap();
            assert_eq!(*kept, *payload.bytes());
            assert_ne!(kept.as_ptr(), payload.bytes().as_ptr());
        });
    }

    #[test]
    fn a_large_value_does_not_keep_a_message_alive_that_is_a_quarter_longer() {
        let value = vec![b'v'; Value::SHARED_FROM];
        let message = Bytes::from([&value[..], &value[..value.len() / 4]].concat());
        let payload = Payload { bytes: &message[..value.len()], owner: Some(&message) };
        assert_ne!(payload.to_value().unwrap().as_ptr(), message.as_ptr());
    }
}
