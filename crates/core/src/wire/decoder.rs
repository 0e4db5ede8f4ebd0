//! The request decoder of the server, and the reply decoder of the client.
//!
//! A frame that arrives in one piece is decoded in place. A frame that arrives in pieces is copied to a buffer, which
//! grows with the bytes that arrive. The decoder reserves the announced length only after 128 KiB have arrived.

use bytes::Bytes;

use super::operand::{Bounds, Cursor, ListProgress, ReadError, too_long};
use super::operation::Request;
use super::reply::{Reply, ReplyKind};
use crate::error::WireError;
use crate::limits::Limits;

/// A complete frame from a stream.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// A frame within the input.
    InPlace(&'a [u8]),
    /// A frame in a buffer of its own. A large value of the frame may share the buffer.
    Owned(Bytes),
}

impl Decoded<'_> {
    fn cursor(&self) -> Cursor<'_> {
        match self {
            Decoded::InPlace(bytes) => Cursor::new_checked(bytes, None),
            Decoded::Owned(bytes) => Cursor::new_checked(bytes, Some(bytes)),
        }
    }

    /// Decodes the request.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not a complete request. A [`RequestDecoder`] returns only complete requests.
    pub fn request(&self) -> Request<'_> {
        Request::decode(&mut self.cursor()).expect("a decoder has checked the bytes")
    }

    /// Returns the frame in a buffer of its own.
    pub(crate) fn into_owned(self) -> Bytes {
        match self {
            Decoded::InPlace(bytes) => Bytes::copy_from_slice(bytes),
            Decoded::Owned(bytes) => bytes,
        }
    }
}

/// The part of a frame that has arrived.
enum Extent {
    /// The complete frame, of this length.
    Whole(usize),
    Partial {
        progress: ListProgress,
        /// The length of the frame, if it is known.
        end: Option<usize>,
    },
}

/// Returns how much of the frame at the start of `bytes` has arrived. `skip` moves a cursor to the end of the frame.
fn measure(
    bytes: &[u8],
    bounds: Bounds,
    progress: ListProgress,
    skip: impl Fn(&mut Cursor<'_>) -> Result<(), ReadError>,
) -> Result<Extent, WireError> {
    let mut cursor = Cursor::new(bytes, bounds, progress);
    match skip(&mut cursor) {
        Ok(()) if cursor.position() <= bounds.frame => Ok(Extent::Whole(cursor.position())),
        Ok(()) => Err(too_long("frame", None, cursor.position() as u64, bounds.frame)),
        Err(ReadError::Incomplete { end }) => Ok(Extent::Partial { progress: cursor.progress(), end }),
        Err(ReadError::Invalid(error)) => Err(*error),
    }
}

/// A frame that has arrived in part.
#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    progress: ListProgress,
    /// The length of the frame, once it is known.
    end: Option<usize>,
}

impl Partial {
    /// Moves the bytes of this frame from `input` to the buffer. Returns whether the frame is complete.
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
                    // While the length of the frame was unknown, bytes of the next frame may have been copied too.
                    // Return them to `input`.
                    let excess = self.bytes.len() - len;
                    *input = &original[original.len() - input.len() - excess..];
                    self.bytes.truncate(len);
                    if self.bytes.capacity() - len > (len / 8).max(1024) {
                        // A stored value may share this buffer, and the limit on stored bytes does not count spare
                        // capacity.
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

/// Reserves capacity for `more` bytes of a frame.
///
/// The capacity doubles, so that each byte is moved about once. After 128 KiB have arrived, a frame of known length
/// gets its full capacity, because moving a large buffer costs more than unused capacity.
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

/// The frames of a byte stream.
#[derive(Debug, Default)]
struct Stream {
    partial: Option<Box<Partial>>,
    /// The number of frames that arrived in pieces, including `partial`.
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

/// Decodes requests from a byte stream that arrives in pieces of any length.
#[derive(Debug, Default)]
pub struct RequestDecoder(Stream);

impl RequestDecoder {
    /// Removes the next request from the front of `input`. Returns `None` if `input` does not complete a request. In
    /// that case the decoder buffers all bytes of `input`.
    ///
    /// # Errors
    ///
    /// Fails if the bytes violate the protocol or exceed a limit. The rest of the stream cannot be decoded after that.
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        self.0.next(input, Bounds::of_request(limits), |cursor| Request::decode(cursor).map(drop))
    }

    /// Removes the request at the front of `input`, without a copy. Returns `None` if the caller must use
    /// [`RequestDecoder::next`] instead, because the request is incomplete or invalid, or because the decoder has
    /// already buffered the start of the request.
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

    /// Returns the number of requests that arrived in pieces, including the one that is incomplete.
    pub fn started(&self) -> u64 {
        self.0.started
    }

    /// Returns the number of bytes received of the incomplete request, or `None` if no request is incomplete.
    pub fn received(&self) -> Option<usize> {
        self.0.partial.as_ref().map(|partial| partial.bytes.len())
    }

    /// Returns the length of the incomplete request, if it is known.
    pub fn expected(&self) -> Option<usize> {
        self.0.partial.as_ref()?.end
    }

    /// Returns the number of bytes allocated for the incomplete request. The number includes unused capacity, because
    /// RLIMIT_AS counts it too.
    pub fn allocated(&self) -> usize {
        self.0.partial.as_ref().map_or(0, |partial| partial.bytes.capacity())
    }
}

/// Decodes replies from a byte stream. The caller specifies the kind of each reply.
#[derive(Debug, Default)]
pub struct ReplyDecoder(Stream);

impl ReplyDecoder {
    /// Removes the next reply from the front of `input`. Returns `None` if `input` does not complete a reply. In that
    /// case the decoder buffers all bytes of `input`, and the caller must pass the same `kind` in the next call.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a reply of this kind, or exceed a limit. The rest of the stream cannot be decoded
    /// after that.
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

    /// Returns whether a reply has arrived only in part.
    pub fn is_mid_reply(&self) -> bool {
        self.0.partial.is_some()
    }
}

#[cfg(test)]
mod tests;
