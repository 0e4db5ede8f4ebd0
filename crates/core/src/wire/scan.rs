//! Finds where a message ends: a walk through its fields that stops when the bytes run out and resumes there.
//!
//! It reads lengths and checks them against the limits. It copies nothing and keeps nothing but its position.

use super::field::{Field, read_u64};
use super::operation::Op;
use super::reply::ReplyKind;
use crate::error::{WireError, printable};
use crate::limits::Limits;

/// The position in a message up to which it has been scanned.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    fields: Fields,
    at: usize,
    /// Strings still to come of the list that field `at` is; `None` before its count was read.
    left: Option<u64>,
    pos: usize,
    /// Where the last key lies, to name it in an error about its value.
    key: Option<(usize, usize)>,
    bounds: Bounds,
}

/// The fields of a message.
#[derive(Debug, Clone, Copy)]
enum Fields {
    Request(&'static [Field]),
    Reply(Field),
}

/// The limits that hold for one message.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    key: usize,
    value: usize,
    count: u64,
    frame: usize,
}

/// The state of a scan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The message is whole and this long.
    Whole(usize),
    /// The message is at least this long; more bytes are needed. `exact` if it is known to be just that long.
    Need { len: usize, exact: bool },
}

impl Scan {
    /// Starts a scan of the request with this operation.
    pub(super) fn request(op: Op, limits: &Limits) -> Scan {
        let bounds = Bounds {
            key: limits.key_len,
            value: limits.value_len,
            count: limits.keys_per_request as u64,
            frame: limits.frame_len,
        };
        Scan { fields: Fields::Request(op.fields()), at: 0, left: None, pos: 1, key: None, bounds }
    }

    /// Starts a scan of a reply of this kind.
    pub(super) fn reply(kind: ReplyKind, limits: &Limits) -> Scan {
        let field = match kind {
            ReplyKind::Waited(_) | ReplyKind::Checked => Field::Fixed(1),
            ReplyKind::Number => Field::Fixed(8),
            ReplyKind::Nonce => Field::Fixed(4),
            ReplyKind::Value => Field::Value,
            ReplyKind::Values(n) => Field::Values(n),
            ReplyKind::Popped => Field::Popped,
            ReplyKind::Keys => Field::Keys,
        };
        // A server may return whatever it holds, so only the length of the whole reply is bounded.
        let most = limits.reply_len;
        let bounds = Bounds { key: most, value: most, count: i64::MAX as u64, frame: most };
        Scan { fields: Fields::Reply(field), at: 0, left: None, pos: 0, key: None, bounds }
    }

    /// Returns the maximum length of the message.
    pub(super) fn most(&self) -> usize {
        self.bounds.frame
    }

    /// Scans on through `bytes`, which are the message from its start.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<Progress, WireError> {
        loop {
            let (field, last) = match self.fields {
                Fields::Request(fields) => (fields.get(self.at).copied(), self.at + 1 == fields.len()),
                Fields::Reply(field) => ((self.at == 0).then_some(field), true),
            };
            let step = match field {
                None => return Ok(Progress::Whole(self.pos)),
                Some(Field::Fixed(len)) => self.fixed(bytes, len, last),
                Some(Field::Key) => self.string(bytes, true, last)?,
                Some(Field::Value) => self.string(bytes, false, last)?,
                Some(Field::Popped) => self.popped(bytes)?,
                Some(list) => self.list(bytes, list)?,
            };
            if let Some(need) = step {
                return Ok(need);
            }
            self.at += 1;
            self.left = None;
        }
    }

    fn fixed(&mut self, bytes: &[u8], len: usize, exact: bool) -> Option<Progress> {
        let end = self.pos + len;
        if bytes.len() < end {
            return Some(Progress::Need { len: end, exact });
        }
        self.pos = end;
        None
    }

    /// Passes a length and its bytes.
    fn string(&mut self, bytes: &[u8], is_key: bool, last: bool) -> Result<Option<Progress>, WireError> {
        let start = self.pos + 8;
        let Some(len) = read_u64(bytes, self.pos) else {
            return Ok(Some(Progress::Need { len: start, exact: false }));
        };
        let limit = if is_key { self.bounds.key } else { self.bounds.value };
        if len > limit as u64 {
            return Err(match is_key {
                true => WireError::KeyTooLong { len, limit },
                false => {
                    let key = self.key.map(|(start, end)| printable(&bytes[start..end]));
                    WireError::ValueTooLong { key, len, limit }
                }
            });
        }
        // Saturating: a limit may be set as high as the number goes.
        let end = start.saturating_add(len as usize);
        if end > self.bounds.frame {
            return Err(WireError::FrameTooLong { len: end as u64, limit: self.bounds.frame });
        }
        if bytes.len() < end {
            return Ok(Some(Progress::Need { len: end, exact: last }));
        }
        if is_key {
            self.key = Some((start, end));
        }
        self.pos = end;
        Ok(None)
    }

    fn list(&mut self, bytes: &[u8], field: Field) -> Result<Option<Progress>, WireError> {
        let mut left = match self.left {
            Some(left) => left,
            None => match self.count(bytes, field)? {
                Some(count) => count,
                None => return Ok(Some(Progress::Need { len: self.pos + 8, exact: false })),
            },
        };
        while left > 0 {
            let is_key = match field {
                Field::Pairs => left.is_multiple_of(2),
                Field::Values(_) => false,
                _ => true,
            };
            if let Some(need) = self.string(bytes, is_key, left == 1)? {
                self.left = Some(left);
                return Ok(Some(need));
            }
            left -= 1;
        }
        Ok(None)
    }

    /// Returns the number of strings in a list, or `None` if the bytes of its count are missing.
    fn count(&mut self, bytes: &[u8], field: Field) -> Result<Option<u64>, WireError> {
        let count = match field {
            Field::Values(count) => count,
            _ => {
                let Some(count) = read_u64(bytes, self.pos) else { return Ok(None) };
                self.pos += 8;
                count
            }
        };
        if count > self.bounds.count {
            return Err(match self.fields {
                Fields::Request(_) => WireError::TooManyKeys { count, limit: self.bounds.count as usize },
                Fields::Reply(Field::Keys) => WireError::BadReplyCount { found: count as i64 },
                Fields::Reply(_) => WireError::FrameTooLong { len: count, limit: self.bounds.frame },
            });
        }
        let strings = if field == Field::Pairs { count.saturating_mul(2) } else { count };
        // Each string has at least its length.
        let len = (self.pos as u64).saturating_add(strings.saturating_mul(8));
        match len > self.bounds.frame as u64 {
            true => Err(WireError::FrameTooLong { len, limit: self.bounds.frame }),
            false => Ok(Some(strings)),
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
