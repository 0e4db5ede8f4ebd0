//! The two resumable decoders: requests on the server's side, replies on the client's.
//!
//! Bytes are copied only when a message arrives in pieces, and then once: the decoder sets aside room as they arrive,
//! never for what is merely announced.

use bytes::Bytes;

use super::op::Op;
use super::reply::{Reply, ReplyKind};
use super::request::Request;
use super::scan::{Progress, Scan};
use crate::error::WireError;
use crate::limits::Limits;

/// A whole request: where it lies in the bytes that came, or put together from pieces.
#[derive(Debug)]
pub struct Frame<'a>(Repr<'a>);

#[derive(Debug)]
enum Repr<'a> {
    /// With the request in it, which finding its end has read already.
    There(&'a [u8], Request<'a>),
    Pieced(Bytes),
}

impl Frame<'static> {
    /// A CANCEL_WAIT; they are all alike.
    pub(crate) fn cancel_wait() -> Frame<'static> {
        Frame(Repr::There(&[Op::CancelWait as u8], Request::CancelWait))
    }
}

impl Frame<'_> {
    /// The bytes, operation code first.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::There(bytes, _) => bytes,
            Repr::Pieced(bytes) => bytes,
        }
    }

    /// Its operation.
    pub fn op(&self) -> Op {
        Op::from_code(self.bytes()[0]).expect("the decoder hands out known operations only")
    }

    /// The request in it.
    pub fn request(&self) -> Request<'_> {
        match &self.0 {
            Repr::There(_, request) => *request,
            Repr::Pieced(bytes) => {
                Request::parse(bytes, Some(bytes)).expect("the decoder hands out whole requests only")
            }
        }
    }

    /// The request to keep, apart from the bytes it came in.
    pub fn keep(self) -> Kept {
        Kept(match self.0 {
            Repr::There(bytes, _) => Bytes::copy_from_slice(bytes),
            Repr::Pieced(bytes) => bytes,
        })
    }
}

/// A whole request put by for later.
#[derive(Debug)]
pub struct Kept(Bytes);

impl Kept {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is a CANCEL_WAIT.
    pub(crate) fn is_cancel(&self) -> bool {
        self.0.first() == Some(&(Op::CancelWait as u8))
    }

    /// As a frame again.
    pub fn into_frame(self) -> Frame<'static> {
        Frame(Repr::Pieced(self.0))
    }
}

/// A message that has begun to arrive.
#[derive(Debug)]
struct Partial {
    scan: Scan,
    bytes: Vec<u8>,
}

impl Partial {
    /// Takes from `input` what belongs to this message. True once it is whole.
    fn fill(&mut self, input: &mut &[u8]) -> Result<bool, WireError> {
        loop {
            match self.scan.advance(&self.bytes)? {
                Progress::Whole(len) => {
                    debug_assert_eq!(len, self.bytes.len());
                    return Ok(true);
                }
                Progress::Need { len, exact } => {
                    let taken = input.len().min(len - self.bytes.len());
                    if taken == 0 {
                        return Ok(false);
                    }
                    self.make_room(taken, exact.then_some(len));
                    self.bytes.extend_from_slice(&input[..taken]);
                    *input = &input[taken..];
                }
            }
        }
    }

    /// Doubling, so that no byte is moved more than about once, but never past a known end.
    fn make_room(&mut self, more: usize, end: Option<usize>) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let room = (self.bytes.capacity() * 2).max(needed).max(64);
            let room = end.map_or(room, |end| room.min(end)).max(needed);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
    }
}

/// Requests out of a stream of bytes, wherever it is cut.
#[derive(Debug, Default)]
pub struct RequestDecoder {
    partial: Option<Box<Partial>>,
}

impl RequestDecoder {
    /// The next whole request, taken off the front of `input`; `None` when `input` is used up.
    ///
    /// After an error the stream has no meaning any more and must be closed.
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Frame<'a>>, WireError> {
        if let Some(partial) = &mut self.partial {
            if !partial.fill(input)? {
                return Ok(None);
            }
            let whole = self.partial.take().map(|partial| partial.bytes).unwrap_or_default();
            return Ok(Some(Frame(Repr::Pieced(Bytes::from(whole)))));
        }
        // Nearly always all of it is there.
        if let Some((request, len)) = Request::at_front(input, limits) {
            let (bytes, rest) = input.split_at(len);
            *input = rest;
            return Ok(Some(Frame(Repr::There(bytes, request))));
        }
        let Some(&code) = input.first() else { return Ok(None) };
        let op = Op::from_code(code).ok_or(WireError::UnknownOp { code })?;
        let mut scan = Scan::request(op, limits);
        match scan.advance(input)? {
            Progress::Whole(len) => {
                let (bytes, rest) = input.split_at(len);
                *input = rest;
                let request = Request::parse(bytes, None).expect("a whole request was found");
                Ok(Some(Frame(Repr::There(bytes, request))))
            }
            Progress::Need { .. } => {
                // The scan goes on over the copy just where it stopped over the original.
                self.partial = Some(Box::new(Partial { scan, bytes: input.to_vec() }));
                *input = &[];
                Ok(None)
            }
        }
    }

    /// Bytes held of a request that has begun to arrive; `None` between requests.
    pub fn held(&self) -> Option<usize> {
        self.partial.as_ref().map(|partial| partial.bytes.len())
    }
}

/// Replies out of a stream of bytes, each of the kind the caller expects next.
#[derive(Debug, Default)]
pub struct ReplyDecoder {
    partial: Option<Box<Partial>>,
}

impl ReplyDecoder {
    /// The next whole reply, taken off the front of `input`; `None` when `input` is used up. Call it with the same
    /// `kind` until it is answered.
    ///
    /// After an error the stream has no meaning any more and must be closed.
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
                // Most of what is large is one value: it keeps the bytes it came in.
                ReplyKind::Value => {
                    let len = whole.len();
                    Ok(Some(Reply::Value(crate::Value::shared(Bytes::from(whole).slice(8..len)))))
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
            Progress::Need { .. } => {
                if !input.is_empty() {
                    self.partial = Some(Box::new(Partial { scan, bytes: input.to_vec() }));
                    *input = &[];
                }
                Ok(None)
            }
        }
    }

    /// Whether a reply has begun to arrive.
    pub fn is_mid_reply(&self) -> bool {
        self.partial.is_some()
    }
}

#[cfg(test)]
mod tests;
