//! Where does this message end? A walk through its fields that stops when the bytes run out and goes on from there.
//!
//! It reads lengths and checks them; it copies nothing and keeps nothing but its place.

use super::op::Op;
use super::recycling::LARGE;
use super::reply::ReplyKind;
use crate::error::{WireError, printable};
use crate::limits::Limits;

/// One field of a message, as far as finding its end needs to know it.
#[derive(Debug, Clone, Copy)]
enum Field {
    /// So many bytes.
    Fixed(u8),
    /// A length and so many bytes: a key.
    Key,
    /// A length and so many bytes: a value.
    Value,
    /// A count and so many keys.
    Keys,
    /// A count and so many keys with values.
    Pairs,
    /// So many values, without a count.
    Values(u64),
    /// A signed count and so many strings.
    SignedKeys,
    /// A signed number, and if it is above zero, a value.
    Popped,
}

/// The place in a message up to which it has been walked.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    fields: [Option<Field>; 3],
    at: usize,
    /// Strings still to come of the list that field `at` is; `None` before its count was read.
    left: Option<u64>,
    pos: usize,
    /// Where the last key lies, for what there is to say of its value.
    key: Option<(usize, usize)>,
    /// Bytes of values that lie apart from the message.
    apart: usize,
    bounds: Bounds,
}

/// From here on a value in a list lies apart from its message, in a buffer that it can keep: copying many of them at
/// once, when the last one is there, would make others wait.
///
/// As long as what the system takes back at once when it is let go of: many shorter ones, of requests that were broken off,
/// would leave holes between others.
pub(super) const APART_FROM: usize = LARGE;

/// The limits that hold for one message.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    key: usize,
    value: usize,
    count: usize,
    frame: usize,
}

/// How far a walk came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The message is whole and this long.
    Whole(usize),
    /// It is at least this long; more bytes are needed. `exact` if it is known to be just that long.
    Need { len: usize, exact: bool },
    /// A value of this length begins here and is to lie apart: [`Scan::pass_apart`] goes past it.
    Apart { start: usize, len: usize },
}

impl Scan {
    /// A walk through the request that starts with this code.
    pub(super) fn request(op: Op, limits: &Limits) -> Scan {
        use Field::*;
        let fields = match op {
            Op::Validate | Op::Ping => [Some(Fixed(4)), None, None],
            Op::Set | Op::Append | Op::QueuePush => [Some(Key), Some(Value), None],
            Op::CompareSet => [Some(Key), Some(Value), Some(Value)],
            Op::Get | Op::DeleteKey | Op::QueuePop | Op::QueueLen => [Some(Key), None, None],
            Op::Add | Op::Barrier => [Some(Key), Some(Fixed(8)), None],
            Op::Check | Op::Wait | Op::MultiGet => [Some(Keys), None, None],
            Op::MultiSet => [Some(Pairs), None, None],
            Op::NumKeys | Op::CancelWait | Op::ListKeys => [None, None, None],
        };
        let bounds = Bounds {
            key: limits.key_len,
            value: limits.value_len,
            count: limits.keys_per_request,
            frame: limits.frame_len,
        };
        Scan { fields, at: 0, left: None, pos: 1, key: None, apart: 0, bounds }
    }

    /// A walk through a reply of this kind.
    pub(super) fn reply(kind: ReplyKind, limits: &Limits) -> Scan {
        use Field::*;
        let field = match kind {
            ReplyKind::Waited(_) | ReplyKind::Checked => Fixed(1),
            ReplyKind::Number => Fixed(8),
            ReplyKind::Nonce => Fixed(4),
            ReplyKind::Value => Value,
            ReplyKind::Values(n) => Values(n),
            ReplyKind::Popped => Popped,
            ReplyKind::Keys => SignedKeys,
        };
        // Whatever a server may hold may come back, so the whole reply's limit is the one that counts.
        let most = limits.reply_len;
        let bounds = Bounds { key: most, value: most, count: usize::MAX, frame: most };
        Scan { fields: [Some(field), None, None], at: 0, left: None, pos: 0, key: None, apart: 0, bounds }
    }

    /// Walks on through `bytes`, which are the message from its start.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<Progress, WireError> {
        while let Some(&Some(field)) = self.fields.get(self.at) {
            let last = self.fields.get(self.at + 1).is_none_or(Option::is_none);
            let step = match field {
                Field::Fixed(n) => self.fixed(bytes, n as usize, last)?,
                Field::Key => self.string(bytes, true, last)?,
                Field::Value => self.string(bytes, false, last)?,
                Field::Keys => self.list(bytes, Field::Keys)?,
                Field::Pairs => self.list(bytes, Field::Pairs)?,
                Field::SignedKeys => self.list(bytes, Field::SignedKeys)?,
                Field::Values(_) => self.list(bytes, field)?,
                Field::Popped => self.popped(bytes)?,
            };
            if let Some(need) = step {
                return Ok(need);
            }
            self.at += 1;
            self.left = None;
        }
        Ok(Progress::Whole(self.pos))
    }

    fn fixed(&mut self, bytes: &[u8], n: usize, exact: bool) -> Result<Option<Progress>, WireError> {
        let end = self.pos + n;
        if bytes.len() < end {
            return Ok(Some(Progress::Need { len: end, exact }));
        }
        self.pos = end;
        Ok(None)
    }

    /// A length and its bytes.
    fn string(&mut self, bytes: &[u8], key: bool, last: bool) -> Result<Option<Progress>, WireError> {
        let start = self.pos + 8;
        let Some(len) = read_u64(bytes, self.pos) else {
            return Ok(Some(Progress::Need { len: start, exact: false }));
        };
        let limit = if key { self.bounds.key } else { self.bounds.value };
        if len > limit as u64 {
            return Err(match key {
                true => WireError::KeyTooLong { len, limit },
                false => {
                    let key = self.key.map(|(start, end)| printable(&bytes[start..end]));
                    WireError::ValueTooLong { key, len, limit }
                }
            });
        }
        // Saturating here and below: a limit may be set as high as the number goes.
        let end = start.saturating_add(len as usize);
        let whole = end.saturating_add(self.apart);
        if whole > self.bounds.frame {
            return Err(WireError::FrameTooLong { len: whole as u64, limit: self.bounds.frame });
        }
        if bytes.len() < end {
            return Ok(Some(Progress::Need { len: end, exact: last }));
        }
        if key {
            self.key = Some((start, end));
        }
        self.pos = end;
        Ok(None)
    }

    fn list(&mut self, bytes: &[u8], field: Field) -> Result<Option<Progress>, WireError> {
        let mut left = match self.left {
            Some(left) => left,
            None => {
                let count = match field {
                    Field::Values(n) => n,
                    _ => {
                        let Some(count) = read_u64(bytes, self.pos) else {
                            return Ok(Some(Progress::Need { len: self.pos + 8, exact: false }));
                        };
                        self.pos += 8;
                        count
                    }
                };
                let count = match field {
                    Field::SignedKeys if (count as i64) < 0 => {
                        return Err(WireError::BadReplyCount { found: count as i64 });
                    }
                    _ if count > self.bounds.count as u64 => {
                        return Err(WireError::TooManyKeys { count, limit: self.bounds.count });
                    }
                    Field::Pairs => count.saturating_mul(2),
                    _ => count,
                };
                self.at_least(count)?;
                count
            }
        };
        while left > 0 {
            let key = match field {
                Field::Pairs => left % 2 == 0,
                Field::Values(_) => false,
                _ => true,
            };
            if self.skip_string(bytes, key) {
                left -= 1;
                continue;
            }
            let need = self.string(bytes, key, left == 1)?;
            if let Some(Progress::Need { len: end, .. }) = need {
                self.left = Some(left);
                let start = self.pos + 8;
                let is_apart = matches!(field, Field::Pairs) && !key && end - start >= APART_FROM;
                return Ok(if is_apart { Some(Progress::Apart { start, len: end - start }) } else { need });
            }
            left -= 1;
        }
        Ok(None)
    }

    /// Goes past a value whose length is in the message and whose bytes are not.
    pub(super) fn pass_apart(&mut self, len: usize) {
        self.pos += 8;
        self.apart += len;
        self.left = self.left.map(|left| left - 1);
    }

    /// Returns the maximum length of the message, without the values that lie apart.
    pub(super) fn most(&self) -> usize {
        self.bounds.frame.saturating_sub(self.apart)
    }

    /// How many bytes lie apart.
    pub(super) fn apart(&self) -> usize {
        self.apart
    }

    /// Goes past a string that is all there and within the limits, without saying what is wrong if it isn't.
    fn skip_string(&mut self, bytes: &[u8], key: bool) -> bool {
        let limit = if key { self.bounds.key } else { self.bounds.value };
        let Some(len) = read_u64(bytes, self.pos).filter(|&len| len <= limit as u64) else { return false };
        let end = (self.pos + 8).saturating_add(len as usize);
        let fits = end <= bytes.len().min(self.bounds.frame.saturating_sub(self.apart));
        if fits {
            if key {
                self.key = Some((self.pos + 8, end));
            }
            self.pos = end;
        }
        fits
    }

    /// Fails early if that many strings can't fit: each has at least its length.
    fn at_least(&self, strings: u64) -> Result<(), WireError> {
        let len = (self.pos as u64).saturating_add(strings.saturating_mul(8));
        match len > self.bounds.frame as u64 {
            true => Err(WireError::FrameTooLong { len, limit: self.bounds.frame }),
            false => Ok(()),
        }
    }

    fn popped(&mut self, bytes: &[u8]) -> Result<Option<Progress>, WireError> {
        if self.left.is_none() {
            let Some(before) = read_u64(bytes, self.pos) else {
                return Ok(Some(Progress::Need { len: self.pos + 8, exact: false }));
            };
            self.pos += 8;
            if (before as i64) <= 0 {
                return Ok(None);
            }
            self.left = Some(1);
        }
        self.string(bytes, false, true)
    }
}

pub(super) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
