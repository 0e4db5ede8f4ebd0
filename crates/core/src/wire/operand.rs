//! The operands of requests and replies: decoding within limits, and encoding.

use bytes::Bytes;

use super::list::{List, Repr};
use crate::error::{WireError, printable};
use crate::limits::Limits;
use crate::value::Value;

/// The limits on one frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    key: usize,
    value: usize,
    keys: usize,
    pub(super) frame: usize,
}

impl Bounds {
    /// No bounds, for frames that a decoder has already checked.
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

    /// Returns the bounds of a reply. A server may have higher limits than this client, so only the whole reply is
    /// bounded.
    pub(super) fn of_reply(limits: &Limits) -> Bounds {
        let limit = limits.reply_len;
        Bounds { key: limit, value: limit, keys: usize::MAX, frame: limit }
    }
}

/// The reason why a frame cannot be decoded.
#[derive(Debug)]
pub(super) enum ReadError {
    /// Bytes are missing. `end` is the length of the frame, which is known once the length of its last operand has
    /// arrived.
    Incomplete { end: Option<usize> },
    /// The bytes violate the protocol or exceed a limit.
    Invalid(Box<WireError>),
}

impl From<WireError> for ReadError {
    #[cold]
    fn from(error: WireError) -> ReadError {
        ReadError::Invalid(Box::new(error))
    }
}

/// Returns the error for a frame whose bytes from `at` to `at + len` have not all arrived.
#[cold]
fn incomplete(at: usize, len: usize, is_last: bool, limit: usize) -> ReadError {
    // A limit may be as high as `usize::MAX`, so the sum may overflow.
    let end = at.saturating_add(len);
    match end > limit {
        true => too_long("frame", None, end as u64, limit).into(),
        false => ReadError::Incomplete { end: is_last.then_some(end) },
    }
}

#[cold]
pub(super) fn too_long(what: &'static str, key: Option<&[u8]>, len: u64, limit: usize) -> WireError {
    WireError::TooLong { what, key: key.map(printable), len, limit }
}

/// The progress of decoding the list of a frame.
///
/// A list may be long and arrive in many pieces, so decoding resumes within the list. All other operands are decoded
/// again when more bytes arrive.
#[derive(Debug, Clone, Copy)]
pub(super) enum ListProgress {
    Start,
    /// `remaining` items are left. The items before them take `len` bytes.
    Partial {
        remaining: u64,
        len: usize,
    },
    Complete,
}

/// A position in the bytes of a frame.
///
/// Nearly all methods are `inline(always)`, because passing a decoded request through memory costs more than decoding
/// it.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    /// The total length of the input, including the bytes before the cursor's position.
    len: usize,
    bounds: Bounds,
    progress: ListProgress,
    /// The key that was decoded last. An error about a value names this key.
    key: Option<&'a [u8]>,
    /// The buffer of the frame, if a stored value may share it.
    owner: Option<&'a Bytes>,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the start of a frame that may be incomplete.
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], bounds: Bounds, progress: ListProgress) -> Cursor<'a> {
        Cursor { rest: bytes, len: bytes.len(), bounds, progress, key: None, owner: None }
    }

    /// Creates a cursor at the start of a complete frame that another cursor has checked.
    #[inline]
    pub(super) fn new_checked(bytes: &'a [u8], owner: Option<&'a Bytes>) -> Cursor<'a> {
        Cursor { owner, ..Cursor::new(bytes, Bounds::NONE, ListProgress::Complete) }
    }

    /// Returns the bytes after the cursor's position.
    #[inline(always)]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the number of bytes before the cursor's position.
    #[inline(always)]
    pub(super) fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Returns how far the list of the frame was decoded.
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

    /// Reads a list of `count` items. The cursor is at the first item.
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
            return Err(too_long("frame", None, min_len, self.bounds.frame).into());
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

/// Appends the length of `bytes` as a 64-bit number and then `bytes` to `out`.
pub(super) fn encode_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// An operand of a request or a reply.
pub(super) trait Operand<'a>: Sized {
    /// The minimum encoded length of a list item in bytes, which is the size of the length prefixes of its strings.
    const MIN_ITEM_BYTES: u64 = 8;

    /// Decodes the operand. `is_last` says whether the frame ends with this operand.
    fn decode(cursor: &mut Cursor<'a>, is_last: bool) -> Result<Self, ReadError>;
    /// Appends the encoded operand to `out`.
    fn encode(&self, out: &mut Vec<u8>);
    /// Calls `visit` for each key in the operand.
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
        // One reservation for the length prefix and the value makes the buffer grow at most once.
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

/// A value in a request or a reply.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// The buffer of the frame, if a stored value may share it.
    owner: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// Returns the bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes as a value to store.
    ///
    /// A value of at least [`Value::MIN_SHARED_BYTES`] that takes up at least 8/9 of its frame shares the buffer of the
    /// frame. Other values are copied, so that a small value does not keep a large buffer alive.
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
