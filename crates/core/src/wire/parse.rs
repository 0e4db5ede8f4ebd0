//! Requests out of bytes that are all there, in one walk. Where bytes are missing or something is wrong it only says
//! "no": [`Scan`](super::scan::Scan) then finds out what.

use bytes::Bytes;

use super::list::{KeyList, PairList};
use super::op::Op;
use super::request::{Payload, Request};
use super::scan::{read_u32, read_u64};
use crate::limits::Limits;

/// A longer list is left to the scan, which need not begin again when the rest of it comes.
const SHORT_LIST: usize = 16;

/// A place in the bytes, and what is still permitted there.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    key_len: usize,
    value_len: usize,
    /// The longest list that is walked to its end; `None`: a list is all that is left.
    list: Option<usize>,
}

impl<'a> Request<'a> {
    /// Reads a whole request. `None` if `bytes` isn't one, which the decoder has ruled out.
    pub(super) fn parse(bytes: &'a [u8], owner: Option<&'a Bytes>) -> Option<Request<'a>> {
        Walk { bytes, at: 1, key_len: usize::MAX, value_len: usize::MAX, list: None }.request(owner)
    }

    /// The request at the front of `bytes`, with its length, if it is short, all there, and within the limits.
    pub(super) fn at_front(bytes: &'a [u8], limits: &Limits) -> Option<(Request<'a>, usize)> {
        let list = Some(SHORT_LIST.min(limits.keys_per_request));
        let (key_len, value_len) = (limits.key_len, limits.value_len);
        let mut walk = Walk { bytes, at: 1, key_len, value_len, list };
        let request = walk.request(None)?;
        (walk.at <= limits.frame_len).then_some((request, walk.at))
    }
}

impl<'a> Walk<'a> {
    fn request(&mut self, owner: Option<&'a Bytes>) -> Option<Request<'a>> {
        let op = Op::from_code(*self.bytes.first()?)?;
        Some(match op {
            Op::Validate => Request::Validate { magic: self.short_number()? },
            Op::Ping => Request::Ping { nonce: self.short_number()? },
            Op::Set => Request::Set { key: self.key()?, value: self.payload(owner)? },
            Op::Append => Request::Append { key: self.key()?, value: self.payload(owner)? },
            Op::QueuePush => Request::QueuePush { key: self.key()?, value: self.payload(owner)? },
            Op::CompareSet => Request::CompareSet {
                key: self.key()?,
                expected: self.string(self.value_len)?,
                desired: self.payload(owner)?,
            },
            Op::Get => Request::Get { key: self.key()? },
            Op::DeleteKey => Request::DeleteKey { key: self.key()? },
            Op::QueuePop => Request::QueuePop { key: self.key()? },
            Op::QueueLen => Request::QueueLen { key: self.key()? },
            Op::Add => Request::Add { key: self.key()?, delta: self.number()? as i64 },
            Op::Barrier => Request::Barrier { key: self.key()?, world_size: self.number()? as i64 },
            Op::Check => Request::Check { keys: self.keys()? },
            Op::Wait => Request::Wait { keys: self.keys()? },
            Op::MultiGet => Request::MultiGet { keys: self.keys()? },
            Op::MultiSet => {
                let (count, pairs) = self.list(|walk| {
                    walk.key()?;
                    walk.string(walk.value_len)
                })?;
                Request::MultiSet { pairs: PairList::from_wire(count, pairs) }
            }
            Op::NumKeys => Request::NumKeys,
            Op::CancelWait => Request::CancelWait,
            Op::ListKeys => Request::ListKeys,
        })
    }

    fn keys(&mut self) -> Option<KeyList<'a>> {
        let (count, keys) = self.list(Walk::key)?;
        Some(KeyList::from_wire(count, keys))
    }

    /// A count, and the bytes of so many items.
    fn list(&mut self, item: impl Fn(&mut Self) -> Option<&'a [u8]>) -> Option<(usize, &'a [u8])> {
        let count = usize::try_from(self.number()?).ok()?;
        let start = self.at;
        match self.list {
            Some(most) if count > most => return None,
            Some(_) => (0..count).try_for_each(|_| item(self).map(|_| ()))?,
            None => self.at = self.bytes.len(),
        }
        Some((count, &self.bytes[start..self.at]))
    }

    fn payload(&mut self, owner: Option<&'a Bytes>) -> Option<Payload<'a>> {
        Some(Payload::within(self.string(self.value_len)?, owner))
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.string(self.key_len)
    }

    fn string(&mut self, most: usize) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok().filter(|&len| len <= most)?;
        let (string, _) = self.bytes.get(self.at..)?.split_at_checked(len)?;
        self.at += len;
        Some(string)
    }

    fn number(&mut self) -> Option<u64> {
        let number = read_u64(self.bytes, self.at)?;
        self.at += 8;
        Some(number)
    }

    fn short_number(&mut self) -> Option<u32> {
        let number = read_u32(self.bytes, self.at)?;
        self.at += 4;
        Some(number)
    }
}
