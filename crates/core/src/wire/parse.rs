//! Requests out of bytes that are all there: how long the one at the front is, and what it says. Where bytes are missing
//! or something is wrong it only says "no": [`Scan`](super::scan::Scan) then finds out what.

use bytes::Bytes;

use super::list::{Apart, KeyList, PairList};
use super::op::Op;
use super::request::{Payload, Request};
use super::scan::{read_u32, read_u64};
use crate::limits::Limits;

/// A longer list is left to the scan, which need not begin again when the rest of it comes.
const SHORT_LIST: u64 = 16;

/// The length of the request at the front of `bytes`, if it is short, all there, and within the limits.
#[inline]
pub(super) fn length_at_front(bytes: &[u8], limits: &Limits) -> Option<usize> {
    let string = |at: usize, most: usize| {
        let len = read_u64(bytes, at).filter(|&len| len <= most as u64)?;
        Some(at + 8 + len as usize)
    };
    // Nothing longer than all there is can be there.
    let (most_key, most_value) = (limits.key_len.min(bytes.len()), limits.value_len.min(bytes.len()));
    let key = |at| string(at, most_key);
    let value = |at| string(at, most_value);
    let count = || read_u64(bytes, 1).filter(|&n| n <= SHORT_LIST.min(limits.keys_per_request as u64));
    let len = match Op::from_code(*bytes.first()?)? {
        Op::Validate | Op::Ping => 5,
        Op::Get | Op::DeleteKey | Op::QueuePop | Op::QueueLen => key(1)?,
        Op::Set | Op::Append | Op::QueuePush => value(key(1)?)?,
        Op::Add | Op::Barrier => key(1)? + 8,
        Op::CompareSet => value(value(key(1)?)?)?,
        Op::Check | Op::Wait | Op::MultiGet => (0..count()?).try_fold(9, |at, _| key(at))?,
        Op::MultiSet => (0..count()?).try_fold(9, |at, _| value(key(at)?))?,
        Op::NumKeys | Op::CancelWait | Op::ListKeys => 1,
    };
    (len <= bytes.len() && len <= limits.frame_len).then_some(len)
}

/// The string at the front of `bytes` and what follows it, if all of it is there and it is no longer than that.
#[inline]
pub(super) fn string_at_front(bytes: &[u8], most: usize) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let len = u64::from_le_bytes(*len);
    if len > most as u64 {
        return None;
    }
    rest.split_at_checked(len as usize)
}

impl<'a> Request<'a> {
    /// Reads a whole request; that `bytes` are one, the decoder has made sure. `owner` is the message around it, where
    /// that is ours to keep a part of, `apart` the values that lie elsewhere.
    ///
    /// Always inline: a request that goes through memory costs more than reading it.
    #[inline(always)]
    pub(super) fn parse(bytes: &'a [u8], owner: Option<&'a Bytes>, apart: &'a [Apart]) -> Request<'a> {
        let mut walk = Walk { bytes, at: 1 };
        match Op::from_code(bytes[0]).expect("the decoder hands out known operations only") {
            Op::Validate => Request::Validate { magic: walk.short_number() },
            Op::Ping => Request::Ping { nonce: walk.short_number() },
            Op::Set => Request::Set { key: walk.string(), value: Payload::within(walk.string(), owner) },
            Op::Append => {
                Request::Append { key: walk.string(), value: Payload::within(walk.string(), owner) }
            }
            Op::QueuePush => {
                Request::QueuePush { key: walk.string(), value: Payload::within(walk.string(), owner) }
            }
            Op::CompareSet => Request::CompareSet {
                key: walk.string(),
                expected: walk.string(),
                desired: Payload::within(walk.string(), owner),
            },
            Op::Get => Request::Get { key: walk.string() },
            Op::DeleteKey => Request::DeleteKey { key: walk.string() },
            Op::QueuePop => Request::QueuePop { key: walk.string() },
            Op::QueueLen => Request::QueueLen { key: walk.string() },
            Op::Add => Request::Add { key: walk.string(), delta: walk.number() as i64 },
            Op::Barrier => Request::Barrier { key: walk.string(), world_size: walk.number() as i64 },
            Op::Check => Request::Check { keys: walk.keys() },
            Op::Wait => Request::Wait { keys: walk.keys() },
            Op::MultiGet => Request::MultiGet { keys: walk.keys() },
            Op::MultiSet => {
                Request::MultiSet { pairs: PairList::from_wire(walk.number() as usize, &bytes[9..], apart) }
            }
            Op::NumKeys => Request::NumKeys,
            Op::CancelWait => Request::CancelWait,
            Op::ListKeys => Request::ListKeys,
        }
    }
}

/// A place in a request that is known to be whole.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn string(&mut self) -> &'a [u8] {
        let len = self.number() as usize;
        let string = &self.bytes[self.at..self.at + len];
        self.at += len;
        string
    }

    fn keys(&mut self) -> KeyList<'a> {
        KeyList::from_wire(self.number() as usize, &self.bytes[self.at..])
    }

    fn number(&mut self) -> u64 {
        let number = read_u64(self.bytes, self.at).expect("a whole request has its numbers");
        self.at += 8;
        number
    }

    fn short_number(&mut self) -> u32 {
        read_u32(self.bytes, self.at).expect("a whole request has its numbers")
    }
}
