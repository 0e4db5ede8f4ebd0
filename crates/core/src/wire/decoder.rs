//! The two decoders: requests on the server's side, replies on the client's.
//!
//! Bytes are copied only when a message arrives in pieces. The buffer for it grows as bytes arrive; an announced length counts
//! only once a mebibyte of the message is there.

use bytes::Bytes;

use super::field::Walk;
use super::operation::{Op, Request};
use super::reply::{Reply, ReplyKind};
use super::scan::{Progress, Scan};
use crate::error::WireError;
use crate::limits::Limits;

/// A whole request in a buffer of its own.
#[derive(Debug, Clone)]
pub struct Frame(Bytes);

impl Frame {
    /// Copies the bytes of one whole request, which a decoder has checked.
    pub(crate) fn copy_of(bytes: &[u8]) -> Frame {
        Frame(Bytes::copy_from_slice(bytes))
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the request. A large value in it shares the buffer of the frame.
    pub fn request(&self) -> Request<'_> {
        read_checked(&self.0, Some(&self.0))
    }
}

/// Reads a whole request that a scan has checked.
fn read_checked<'a>(bytes: &'a [u8], owner: Option<&'a Bytes>) -> Request<'a> {
    let mut walk = Walk::over_checked(&bytes[1..], owner);
    Request::read(bytes[0], &mut walk).expect("a scan has checked the bytes")
}

/// A message that has begun to arrive.
#[derive(Debug)]
struct Partial {
    scan: Scan,
    bytes: Vec<u8>,
    /// The length of the whole message, once it is known.
    end: Option<usize>,
}

impl Partial {
    /// Starts a message with all of `input`, which holds less than one.
    fn start(scan: Scan, input: &mut &[u8], progress: Progress) -> Box<Partial> {
        let end = match progress {
            Progress::Need { len, exact: true } => Some(len),
            _ => None,
        };
        Box::new(Partial { scan, bytes: std::mem::take(input).to_vec(), end })
    }

    /// Takes from `input` what belongs to this message. Returns whether the message is whole.
    fn fill(&mut self, input: &mut &[u8]) -> Result<bool, WireError> {
        let all = *input;
        loop {
            match self.scan.advance(&self.bytes)? {
                Progress::Whole(len) => {
                    // Where the end was not known, bytes behind the message were copied too. The caller gets them back.
                    let behind = self.bytes.len() - len;
                    *input = &all[all.len() - input.len() - behind..];
                    self.bytes.truncate(len);
                    if self.bytes.capacity() - len > (len / 8).max(1024) {
                        // A stored value may keep this buffer, and its spare capacity would not be counted.
                        self.bytes.shrink_to_fit();
                    }
                    return Ok(true);
                }
                Progress::Need { len, exact } => {
                    self.end = exact.then_some(len);
                    let room = self.end.map_or(usize::MAX, |end| end - self.bytes.len());
                    let (taken, rest) = input.split_at(input.len().min(room));
                    *input = rest;
                    if taken.is_empty() {
                        return Ok(false);
                    }
                    reserve(&mut self.bytes, taken.len(), self.end, self.scan.most())?;
                    self.bytes.extend_from_slice(taken);
                }
            }
        }
    }
}

/// Reserves room for `more` bytes of a message. The capacity doubles, so that each byte is moved about once. Once a mebibyte
/// has arrived, a message of known length gets all of its room: moving a large buffer costs more than unused capacity.
fn reserve(bytes: &mut Vec<u8>, more: usize, end: Option<usize>, most: usize) -> Result<(), WireError> {
    let needed = bytes.len() + more;
    if needed <= bytes.capacity() {
        return Ok(());
    }
    let grown = match end {
        Some(end) if needed >= 1 << 20 => end,
        _ => (bytes.capacity() * 2).min(end.unwrap_or(most)),
    };
    // If the larger capacity cannot be allocated, what has arrived may still fit.
    let mut rooms = [grown.max(needed), needed].into_iter();
    match rooms.any(|room| bytes.try_reserve_exact(room - bytes.len()).is_ok()) {
        true => Ok(()),
        false => Err(WireError::OutOfMemory { len: needed as u64 }),
    }
}

/// A request taken off a stream.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// A request that lies in the input, and its bytes.
    InPlace(Request<'a>, &'a [u8]),
    /// A request that arrived in pieces.
    InPieces(Frame),
}

impl Decoded<'_> {
    /// Returns the request.
    pub fn request(&self) -> Request<'_> {
        match self {
            Decoded::InPlace(request, _) => *request,
            Decoded::InPieces(frame) => frame.request(),
        }
    }

    /// Returns the request in a buffer of its own.
    pub(crate) fn into_frame(self) -> Frame {
        match self {
            Decoded::InPlace(_, bytes) => Frame::copy_of(bytes),
            Decoded::InPieces(frame) => frame,
        }
    }
}

/// Decodes requests from a stream of bytes, wherever it is cut.
#[derive(Debug, Default)]
pub struct RequestDecoder {
    partial: Option<Box<Partial>>,
    started: u64,
}

impl RequestDecoder {
    /// Takes the next whole request off the front of `input`. Returns `None` when `input` is used up.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not the protocol. The stream has no meaning after that and must be closed.
    #[inline]
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        match self.next_in_place(input, limits) {
            Some((request, bytes)) => Ok(Some(Decoded::InPlace(request, bytes))),
            None => self.next_in_pieces(input, limits),
        }
    }

    /// Takes the request at the front of `input` if it is whole, short and within the limits, as nearly all are.
    #[inline(always)]
    pub(crate) fn next_in_place<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Option<(Request<'a>, &'a [u8])> {
        if self.partial.is_some() {
            return None;
        }
        let (code, rest) = input.split_first()?;
        let mut walk = Walk::over(rest, limits);
        let request = Request::read(*code, &mut walk)?;
        let len = input.len() - walk.rest().len();
        if len > limits.frame_len {
            return None;
        }
        let bytes = &input[..len];
        *input = walk.rest();
        Some((request, bytes))
    }

    #[cold]
    fn next_in_pieces<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        if let Some(partial) = &mut self.partial {
            if !partial.fill(input)? {
                return Ok(None);
            }
            let bytes = self.partial.take().map(|partial| partial.bytes).unwrap_or_default();
            return Ok(Some(Decoded::InPieces(Frame(bytes.into()))));
        }
        let Some(&code) = input.first() else { return Ok(None) };
        let op = Op::from_code(code).ok_or(WireError::UnknownOp { code })?;
        let mut scan = Scan::request(op, limits);
        match scan.advance(input)? {
            Progress::Whole(len) => {
                let (bytes, rest) = input.split_at(len);
                *input = rest;
                Ok(Some(Decoded::InPlace(read_checked(bytes, None), bytes)))
            }
            progress => {
                self.started += 1;
                self.partial = Some(Partial::start(scan, input, progress));
                Ok(None)
            }
        }
    }

    /// Returns how many requests have begun to arrive in pieces.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Returns the bytes received of a request that has begun to arrive; `None` between requests.
    pub fn received(&self) -> Option<usize> {
        self.partial.as_ref().map(|partial| partial.bytes.len())
    }

    /// Returns the length of that request, if it is known already.
    pub fn expected(&self) -> Option<usize> {
        self.partial.as_ref()?.end
    }

    /// Returns the bytes allocated for that request. Unused capacity counts, because RLIMIT_AS counts it.
    pub fn held(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.bytes.capacity())
    }
}

/// Decodes replies from a stream of bytes, each of the kind the caller expects next.
#[derive(Debug, Default)]
pub struct ReplyDecoder {
    partial: Option<Box<Partial>>,
}

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
        if let Some(partial) = &mut self.partial {
            if !partial.fill(input)? {
                return Ok(None);
            }
            let whole = self.partial.take().map(|partial| partial.bytes).unwrap_or_default();
            return match kind {
                // A large value keeps the buffer it arrived in.
                ReplyKind::Value => {
                    Ok(Some(Reply::Value(crate::Value::shared(Bytes::from(whole).slice(8..)))))
                }
                _ => Reply::parse(kind, &whole),
            };
        }
        let mut scan = Scan::reply(kind, limits);
        match scan.advance(input)? {
            Progress::Whole(len) => {
                let (whole, rest) = input.split_at(len);
                *input = rest;
                Reply::parse(kind, whole)
            }
            progress => {
                if !input.is_empty() {
                    self.partial = Some(Partial::start(scan, input, progress));
                }
                Ok(None)
            }
        }
    }

    /// Returns whether a reply has begun to arrive.
    pub fn is_mid_reply(&self) -> bool {
        self.partial.is_some()
    }
}

#[cfg(test)]
mod tests;
