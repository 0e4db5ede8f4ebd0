//! The two decoders: requests on the server's side, replies on the client's.
//!
//! Bytes are copied only when a message arrives in pieces. The buffer for it grows as bytes arrive; an announced length counts
//! only once 128 KiB of the message are there.

use bytes::Bytes;

use super::operand::{Bounds, Cursor, ListProgress, ReadError, too_long};
use super::operation::Request;
use super::reply::{Reply, ReplyKind};
use crate::error::WireError;
use crate::limits::Limits;

/// A whole message taken off a stream.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// The bytes of a message that lies in the input.
    InPlace(&'a [u8]),
    /// A message in a buffer of its own, which a large value in it may share.
    Owned(Bytes),
}

impl Decoded<'_> {
    fn cursor(&self) -> Cursor<'_> {
        match self {
            Decoded::InPlace(bytes) => Cursor::new_checked(bytes, None),
            Decoded::Owned(bytes) => Cursor::new_checked(bytes, Some(bytes)),
        }
    }

    /// Returns the request.
    pub fn request(&self) -> Request<'_> {
        Request::decode(&mut self.cursor()).expect("a decoder has checked the bytes")
    }

    /// Returns the message in a buffer of its own.
    pub(crate) fn into_owned(self) -> Bytes {
        match self {
            Decoded::InPlace(bytes) => Bytes::copy_from_slice(bytes),
            Decoded::Owned(bytes) => bytes,
        }
    }
}

/// How much of a message is there.
enum Extent {
    /// All of it, and it is this long.
    Whole(usize),
    Partial {
        progress: ListProgress,
        /// The length of the whole message, if it is known.
        end: Option<usize>,
    },
}

/// Walks through `bytes`, which are a message from its start. `skip` walks to the end of a message.
fn measure(
    bytes: &[u8],
    bounds: Bounds,
    progress: ListProgress,
    skip: impl Fn(&mut Cursor<'_>) -> Result<(), ReadError>,
) -> Result<Extent, WireError> {
    let mut cursor = Cursor::new(bytes, bounds, progress);
    match skip(&mut cursor) {
        Ok(()) if cursor.position() <= bounds.frame => Ok(Extent::Whole(cursor.position())),
        Ok(()) => Err(too_long("message", None, cursor.position() as u64, bounds.frame)),
        Err(ReadError::Incomplete { end }) => Ok(Extent::Partial { progress: cursor.progress(), end }),
        Err(ReadError::Invalid(error)) => Err(*error),
    }
}

/// A message that has begun to arrive.
#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    progress: ListProgress,
    /// The length of the whole message, once it is known.
    end: Option<usize>,
}

impl Partial {
    /// Takes from `input` what belongs to this message. Returns whether the message is whole.
    fn fill(
        &mut self,
        input: &mut &[u8],
        bounds: Bounds,
        skip: impl Fn(&mut Cursor<'_>) -> Result<(), ReadError>,
    ) -> Result<bool, WireError> {
        let original = *input;
        loop {
            match measure(&self.bytes, bounds, self.progress, &skip)? {
                Extent::Whole(len) => {
                    // Where the end was not known, bytes behind the message were copied too. The caller gets them back.
                    let excess = self.bytes.len() - len;
                    *input = &original[original.len() - input.len() - excess..];
                    self.bytes.truncate(len);
                    if self.bytes.capacity() - len > (len / 8).max(1024) {
                        // A stored value may keep this buffer, and its spare capacity would not be counted.
                        self.bytes.shrink_to_fit();
                    }
                    return Ok(true);
                }
                Extent::Partial { progress, end } => {
                    (self.progress, self.end) = (progress, end);
                    let missing = end.map_or(usize::MAX, |end| end - self.bytes.len());
                    let (taken, rest) = input.split_at(input.len().min(missing));
                    if taken.is_empty() {
                        return Ok(false);
                    }
                    *input = rest;
                    reserve(&mut self.bytes, taken.len(), end, bounds.frame)?;
                    self.bytes.extend_from_slice(taken);
                }
            }
        }
    }
}

/// Reserves room for `more` bytes of a message. The capacity doubles, so that each byte is moved about once. Once 128 KiB
/// have arrived, a message of known length gets all of its room: moving a large buffer costs more than unused capacity.
fn reserve(bytes: &mut Vec<u8>, more: usize, end: Option<usize>, limit: usize) -> Result<(), WireError> {
    let needed = bytes.len() + more;
    if needed <= bytes.capacity() {
        return Ok(());
    }
    let grown = match end {
        Some(end) if needed >= 1 << 17 => end,
        _ => (bytes.capacity() * 2).min(end.unwrap_or(limit)),
    };
    let capacity = grown.max(needed);
    bytes
        .try_reserve_exact(capacity - bytes.len())
        .map_err(|_| WireError::OutOfMemory { len: capacity as u64 })
}

/// The messages of a stream of bytes.
#[derive(Debug, Default)]
struct Stream {
    partial: Option<Box<Partial>>,
    /// How many messages have begun to arrive in pieces.
    started: u64,
}

impl Stream {
    fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        bounds: Bounds,
        skip: impl Fn(&mut Cursor<'_>) -> Result<(), ReadError>,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        if let Some(partial) = &mut self.partial {
            if !partial.fill(input, bounds, skip)? {
                return Ok(None);
            }
            let bytes = self.partial.take().map(|partial| partial.bytes).unwrap_or_default();
            return Ok(Some(Decoded::Owned(bytes.into())));
        }
        match measure(input, bounds, ListProgress::Start, skip)? {
            Extent::Whole(len) => {
                let (bytes, rest) = input.split_at(len);
                *input = rest;
                Ok(Some(Decoded::InPlace(bytes)))
            }
            Extent::Partial { progress, end } => {
                if !input.is_empty() {
                    self.started += 1;
                    let bytes = std::mem::take(input).to_vec();
                    self.partial = Some(Box::new(Partial { bytes, progress, end }));
                }
                Ok(None)
            }
        }
    }
}

/// Decodes requests from a stream of bytes, wherever it is cut.
#[derive(Debug, Default)]
pub struct RequestDecoder(Stream);

impl RequestDecoder {
    /// Takes the next whole request off the front of `input`. Returns `None` when `input` is used up.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not the protocol. The stream has no meaning after that and must be closed.
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        self.0.next(input, Bounds::of_request(limits), |cursor| Request::decode(cursor).map(drop))
    }

    /// Takes the request at the front of `input` if it is whole and within the limits, as nearly all are.
    #[inline(always)]
    pub(crate) fn next_in_place<'a>(&mut self, input: &mut &'a [u8], limits: &Limits) -> Option<Request<'a>> {
        if self.0.partial.is_some() {
            return None;
        }
        let mut cursor = Cursor::new(input, Bounds::of_request(limits), ListProgress::Start);
        let request = Request::decode(&mut cursor).ok()?;
        if cursor.position() > limits.frame_len {
            return None;
        }
        *input = cursor.rest();
        Some(request)
    }

    /// Returns how many requests have begun to arrive in pieces.
    pub fn started(&self) -> u64 {
        self.0.started
    }

    /// Returns the bytes received of a request that has begun to arrive; `None` between requests.
    pub fn received(&self) -> Option<usize> {
        self.0.partial.as_ref().map(|partial| partial.bytes.len())
    }

    /// Returns the length of that request, if it is known already.
    pub fn expected(&self) -> Option<usize> {
        self.0.partial.as_ref()?.end
    }

    /// Returns the bytes allocated for that request. Unused capacity counts, because RLIMIT_AS counts it.
    pub fn allocated(&self) -> usize {
        self.0.partial.as_ref().map_or(0, |partial| partial.bytes.capacity())
    }
}

/// Decodes replies from a stream of bytes, each of the kind the caller expects next.
#[derive(Debug, Default)]
pub struct ReplyDecoder(Stream);

impl ReplyDecoder {
    /// Takes the next whole reply off the front of `input`. Returns `None` when `input` is used up. The caller passes the same
    /// `kind` until the reply is whole.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a reply of this kind. The stream has no meaning after that and must be closed.
    pub fn next(
        &mut self,
        kind: ReplyKind,
        input: &mut &[u8],
        limits: &Limits,
    ) -> Result<Option<Reply>, WireError> {
        let decoded = self.0.next(input, Bounds::of_reply(limits), |cursor| kind.skip(cursor))?;
        let Some(decoded) = decoded else { return Ok(None) };
        match Reply::decode(kind, &mut decoded.cursor()) {
            Ok(reply) => Ok(Some(reply)),
            Err(ReadError::Invalid(error)) => Err(*error),
            Err(ReadError::Incomplete { .. }) => unreachable!("the reply is whole"),
        }
    }

    /// Returns whether a reply has begun to arrive.
    pub fn is_mid_reply(&self) -> bool {
        self.0.partial.is_some()
    }
}

#[cfg(test)]
mod tests;
