//! The operands of messages: how each is read, bounded and written.

use bytes::Bytes;

use super::list::{List, Repr};
use crate::error::{WireError, printable};
use crate::limits::Limits;
use crate::value::Value;

/// The limits that hold for one message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    key: usize,
    value: usize,
    keys: usize,
    pub(super) frame: usize,
}

impl Bounds {
    /// The bounds of bytes that were checked before.
    const NONE: Bounds = Bounds { key: usize::MAX, value: usize::MAX, keys: usize::MAX, frame: usize::MAX };

    #[inline]
    pub(super) fn of_request(limits: &Limits) -> Bounds {
        Bounds {
            key: limits.key_len,
            value: limits.value_len,
            keys: limits.keys_per_request,
            frame: limits.frame_len,
        }
    }

    /// A server may return whatever it holds, so only the length of the whole reply is bounded.
    pub(super) fn of_reply(limits: &Limits) -> Bounds {
        let limit = limits.reply_len;
        Bounds { key: limit, value: limit, keys: usize::MAX, frame: limit }
    }
}

/// Why a message cannot be read to its end.
#[derive(Debug)]
pub(super) enum ReadError {
    /// Bytes are missing. The length of the whole message is known if its last operand has begun to arrive.
    Incomplete { end: Option<usize> },
    /// The bytes are not the protocol, or pass a limit.
    Invalid(Box<WireError>),
}

impl From<WireError> for ReadError {
    #[cold]
    fn from(error: WireError) -> ReadError {
        ReadError::Invalid(Box::new(error))
    }
}

/// The next `len` bytes of a message, from `at` on, have not all arrived.
#[cold]
fn incomplete(at: usize, len: usize, is_last: bool, limit: usize) -> ReadError {
    // Saturating: a limit may be set as high as the number goes.
    let end = at.saturating_add(len);
    match end > limit {
        true => too_long("message", None, end as u64, limit).into(),
        false => ReadError::Incomplete { end: is_last.then_some(end) },
    }
}

#[cold]
pub(super) fn too_long(what: &'static str, key: Option<&[u8]>, len: u64, limit: usize) -> WireError {
    WireError::TooLong { what, key: key.map(printable), len, limit }
}

/// How much of the list in a message was walked through before. A list may be long and arrive in many pieces; everything else
/// is read again from the start of the message.
#[derive(Debug, Clone, Copy)]
pub(super) enum ListProgress {
    Start,
    /// All but `remaining` items, which are `len` bytes.
    Partial {
        remaining: u64,
        len: usize,
    },
    Complete,
}

/// A position in the bytes of a message.
///
/// Nearly all of this is always inline: a request that goes through memory costs more than reading it.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    /// The length of all bytes, read or not.
    len: usize,
    bounds: Bounds,
    progress: ListProgress,
    /// The last key, to name it in an error about its value.
    key: Option<&'a [u8]>,
    /// The buffer around the message, if a stored value may share that buffer.
    owner: Option<&'a Bytes>,
}

impl<'a> Cursor<'a> {
    /// Starts at the front of bytes that may end anywhere.
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], bounds: Bounds, progress: ListProgress) -> Cursor<'a> {
        Cursor { rest: bytes, len: bytes.len(), bounds, progress, key: None, owner: None }
    }

    /// Starts at the front of a whole message that another walk has checked.
    #[inline]
    pub(super) fn new_checked(bytes: &'a [u8], owner: Option<&'a Bytes>) -> Cursor<'a> {
        Cursor { owner, ..Cursor::new(bytes, Bounds::NONE, ListProgress::Complete) }
    }

    /// Returns the bytes that were not read.
    #[inline(always)]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns how many bytes were read.
    #[inline(always)]
    pub(super) fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Returns how much of a list the walk has passed.
    pub(super) fn progress(&self) -> ListProgress {
        self.progress
    }

    #[inline(always)]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let Some((array, rest)) = self.rest.split_first_chunk() else {
            return Err(incomplete(self.position(), N, false, self.bounds.frame));
        };
        self.rest = rest;
        Ok(*array)
    }

    #[inline(always)]
    fn bytes(&mut self, len: u64, is_last: bool) -> Result<&'a [u8], ReadError> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len as usize) else {
            return Err(incomplete(self.position(), len as usize, is_last, self.bounds.frame));
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// Passes a list of this many items. Returns its bytes.
    #[inline(always)]
    pub(super) fn list<T: Operand<'a> + Copy>(&mut self, count: u64) -> Result<List<'a, T>, ReadError> {
        let list = self.rest;
        let (mut remaining, len) = match self.progress {
            ListProgress::Start => (count, 0),
            ListProgress::Partial { remaining, len } => (remaining, len),
            ListProgress::Complete => (0, list.len()),
        };
        let min_len = (self.position() as u64).saturating_add(count.saturating_mul(T::MIN_ITEM_BYTES));
        if min_len > self.bounds.frame as u64 {
            return Err(too_long("message", None, min_len, self.bounds.frame).into());
        }
        self.rest = &list[len..];
        while remaining > 0 {
            let len = list.len() - self.rest.len();
            if let Err(error) = T::decode(self, remaining == 1) {
                self.progress = ListProgress::Partial { remaining, len };
                return Err(error);
            }
            remaining -= 1;
        }
        Ok(List(Repr::Encoded { count: count as usize, bytes: &list[..list.len() - self.rest.len()] }))
    }
}

/// Appends a length and the bytes.
pub(super) fn encode_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// An operand of a request.
pub(super) trait Operand<'a>: Sized {
    /// The least bytes of an item of a list: those of the lengths in it.
    const MIN_ITEM_BYTES: u64 = 8;

    /// Reads it. `is_last` says that the message ends with it.
    fn decode(cursor: &mut Cursor<'a>, is_last: bool) -> Result<Self, ReadError>;
    /// Appends it to `out` as it travels.
    fn encode(&self, out: &mut Vec<u8>);
    /// Passes the keys in it to `visit`.
    fn for_each_key(&self, _visit: &mut dyn FnMut(&[u8])) {}
}

/// A key.
impl<'a> Operand<'a> for &'a [u8] {
    #[inline(always)]
    fn decode(cursor: &mut Cursor<'a>, is_last: bool) -> Result<Self, ReadError> {
        let (len, limit) = (u64::from_le_bytes(cursor.array()?), cursor.bounds.key);
        if len > limit as u64 {
            return Err(too_long("key", None, len, limit).into());
        }
        let key = cursor.bytes(len, is_last)?;
        cursor.key = Some(key);
        Ok(key)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(out, self);
    }

    fn for_each_key(&self, visit: &mut dyn FnMut(&[u8])) {
        visit(self);
    }
}

/// A value.
impl<'a> Operand<'a> for Payload<'a> {
    #[inline(always)]
    fn decode(cursor: &mut Cursor<'a>, is_last: bool) -> Result<Self, ReadError> {
        let (len, limit) = (u64::from_le_bytes(cursor.array()?), cursor.bounds.value);
        if len > limit as u64 {
            return Err(too_long("value", cursor.key, len, limit).into());
        }
        Ok(Payload { bytes: cursor.bytes(len, is_last)?, owner: cursor.owner })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        // A large value would otherwise be copied while the buffer grows.
        out.reserve(self.bytes.len() + size_of::<u64>());
        encode_string(out, self.bytes);
    }
}

/// A key and a value.
impl<'a> Operand<'a> for (&'a [u8], &'a [u8]) {
    const MIN_ITEM_BYTES: u64 = 16;

    #[inline(always)]
    fn decode(cursor: &mut Cursor<'a>, is_last: bool) -> Result<Self, ReadError> {
        Ok((Operand::decode(cursor, false)?, Payload::decode(cursor, is_last)?.bytes))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(out, self.0);
        encode_string(out, self.1);
    }

    fn for_each_key(&self, visit: &mut dyn FnMut(&[u8])) {
        visit(self.0);
    }
}

impl<'a, T: Operand<'a> + Copy> Operand<'a> for List<'a, T> {
    #[inline(always)]
    fn decode(cursor: &mut Cursor<'a>, _is_last: bool) -> Result<Self, ReadError> {
        let (count, limit) = (u64::from_le_bytes(cursor.array()?), cursor.bounds.keys);
        if count > limit as u64 {
            return Err(WireError::TooManyKeys { count, limit }.into());
        }
        cursor.list(count)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        self.iter().for_each(|item| item.encode(out));
    }

    fn for_each_key(&self, visit: &mut dyn FnMut(&[u8])) {
        self.iter().for_each(|item| item.for_each_key(visit));
    }
}

impl Operand<'_> for u32 {
    #[inline(always)]
    fn decode(cursor: &mut Cursor<'_>, _is_last: bool) -> Result<Self, ReadError> {
        cursor.array().map(u32::from_le_bytes)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Operand<'_> for i64 {
    #[inline(always)]
    fn decode(cursor: &mut Cursor<'_>, _is_last: bool) -> Result<Self, ReadError> {
        cursor.array().map(i64::from_le_bytes)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

/// A value inside a message.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// The buffer around it, if a stored value may share that buffer.
    owner: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// Returns the bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes as a value to store. A large value that makes up 8/9 of its message shares the message's buffer; other
    /// values are copied.
    pub fn to_value(&self) -> Value {
        let is_shareable = |owner: &&Bytes| {
            self.bytes.len() >= Value::MIN_SHARED_BYTES && owner.len() / 9 * 8 <= self.bytes.len()
        };
        match self.owner.filter(is_shareable) {
            Some(owner) => Value::shared(owner.slice_ref(self.bytes)),
            None => Value::copied(self.bytes),
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Payload { bytes, owner: None }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        bytes[..].into()
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
        write!(f, "{}", printable(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_copied_out_of_a_frame_that_is_a_quarter_longer() {
        let value = vec![b'v'; Value::MIN_SHARED_BYTES];
        let frame = Bytes::from([&value[..], &value[..value.len() / 4]].concat());
        let payload = Payload { bytes: &frame[..value.len()], owner: Some(&frame) };
        assert_ne!(payload.to_value().as_ptr(), frame.as_ptr());
    }
}
