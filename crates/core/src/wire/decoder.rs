//! The two resumable decoders: requests on the server's side, replies on the client's.
//!
//! Bytes are copied only when a message arrives in pieces, and then about once: the decoder sets aside room as they
//! arrive, never for what is merely announced.

use bytes::Bytes;

use super::list::Apart;
use super::op::Op;
use super::parse::{length_at_front, string_at_front};
use super::recycling::{LARGE, Recycler};
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
    There(&'a [u8]),
    /// Boxed, so that a frame is small: it is handed on for every request, and nearly none is in pieces.
    Pieced(Box<Pieced>),
}

/// A request put together from pieces.
#[derive(Debug)]
struct Pieced {
    bytes: Bytes,
    /// Large values of a list, each in a buffer of its own.
    apart: Box<[Apart]>,
}

impl Frame<'static> {
    /// A CANCEL_WAIT; they are all alike.
    pub(crate) fn cancel_wait() -> Frame<'static> {
        Frame(Repr::There(&[Op::CancelWait as u8]))
    }
}

impl Frame<'_> {
    /// The bytes, operation code first, save what lies apart.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::There(bytes) => bytes,
            Repr::Pieced(pieced) => &pieced.bytes,
        }
    }

    /// How long it is in all.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Repr::There(bytes) => bytes.len(),
            Repr::Pieced(pieced) => pieced.len(),
        }
    }

    /// Its operation.
    pub fn op(&self) -> Op {
        Op::from_code(self.bytes()[0]).expect("the decoder hands out known operations only")
    }

    /// The request in it.
    #[inline]
    pub fn request(&self) -> Request<'_> {
        match &self.0 {
            Repr::There(bytes) => Request::parse(bytes, None, &[]),
            Repr::Pieced(pieced) => Request::parse(&pieced.bytes, Some(&pieced.bytes), &pieced.apart),
        }
    }

    /// The request to keep, apart from the bytes it came in.
    pub fn keep(self) -> Kept {
        Kept(match self.0 {
            Repr::There(bytes) => Pieced { bytes: Bytes::copy_from_slice(bytes), apart: Box::default() },
            Repr::Pieced(pieced) => *pieced,
        })
    }
}

impl Pieced {
    fn len(&self) -> usize {
        self.bytes.len() + self.apart.iter().map(|value| value.bytes.len()).sum::<usize>()
    }
}

/// A whole request put by for later.
#[derive(Debug)]
pub struct Kept(Pieced);

impl Kept {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is a CANCEL_WAIT.
    pub(crate) fn is_cancel(&self) -> bool {
        self.0.bytes.first() == Some(&(Op::CancelWait as u8))
    }

    /// The request in it.
    pub(crate) fn request(&self) -> Request<'_> {
        Request::parse(&self.0.bytes, Some(&self.0.bytes), &self.0.apart)
    }

    /// As a frame again.
    pub fn into_frame(self) -> Frame<'static> {
        Frame(Repr::Pieced(Box::new(self.0)))
    }
}

/// A message that has begun to arrive.
#[derive(Debug)]
struct Partial {
    scan: Scan,
    /// The message, save what lies apart.
    main: Growing,
    apart: Vec<Apart>,
    /// The value that is arriving apart, and its length.
    arriving: Option<(Growing, usize)>,
}

impl Partial {
    /// One of which so much has come and `progress` is known.
    fn new(scan: Scan, begin: &[u8], progress: &Progress) -> Box<Partial> {
        let (main, arriving) = match *progress {
            Progress::Apart { start, len } => (&begin[..start], Some((&begin[start..], len))),
            _ => (begin, None),
        };
        let growing = |bytes: &[u8]| Growing::new(bytes.to_vec());
        let arriving = arriving.map(|(bytes, len)| (growing(bytes), len));
        Box::new(Partial { scan, main: growing(main), apart: Vec::new(), arriving })
    }

    /// Takes from `input` what belongs to this message. True once it is whole.
    fn fill(&mut self, input: &mut &[u8], recycler: Option<&Recycler>) -> Result<bool, WireError> {
        let all = *input;
        let mut taken = 0;
        loop {
            if let Some((value, len)) = &mut self.arriving {
                let more = (all.len() - taken).min(*len - value.bytes.len());
                value.extend(&all[taken..taken + more], Some(*len), recycler);
                taken += more;
                if value.bytes.len() < *len {
                    *input = &[];
                    return Ok(false);
                }
                self.scan.pass_apart(*len);
                let bytes = std::mem::take(&mut value.bytes);
                self.apart.push(Apart { at: self.main.bytes.len(), bytes: finished(bytes, recycler) });
                self.arriving = None;
            }
            match self.scan.advance(&self.main.bytes)? {
                Progress::Whole(len) => {
                    let main = &mut self.main.bytes;
                    let follows = main.len() - len;
                    *input = &all[taken - follows..];
                    main.truncate(len);
                    if follows > len {
                        // A value that keeps its message must not keep the room of others.
                        main.shrink_to_fit();
                    }
                    return Ok(true);
                }
                Progress::Apart { start, len } => {
                    self.arriving = Some((Growing::new(self.main.bytes[start..].to_vec()), len));
                    self.main.bytes.truncate(start);
                    self.main.bytes.shrink_to_fit();
                }
                Progress::Need { len, exact } => {
                    // Up to its end if that is known. Else all there is, so that long lists are not copied string by
                    // string; what turns out to follow the message is given back.
                    let left = all.len() - taken;
                    let more = if exact { left.min(len - self.main.bytes.len()) } else { left };
                    if more == 0 {
                        *input = &[];
                        return Ok(false);
                    }
                    self.main.extend(&all[taken..taken + more], exact.then_some(len), recycler);
                    taken += more;
                }
            }
        }
    }

    /// Bytes that have come.
    fn arrived(&self) -> usize {
        let apart = self.scan.apart() + self.arriving.as_ref().map_or(0, |(value, _)| value.bytes.len());
        self.main.bytes.len() + apart
    }

    /// Bytes of room that it takes.
    fn held(&self) -> usize {
        self.main.held() + self.scan.apart() + self.arriving.as_ref().map_or(0, |(value, _)| value.held())
    }
}

/// Bytes that are arriving.
#[derive(Debug)]
struct Growing {
    bytes: Vec<u8>,
    /// What they lie in was used before: all of it takes room, not only what has come.
    recycled: bool,
}

impl Growing {
    fn new(bytes: Vec<u8>) -> Growing {
        Growing { bytes, recycled: false }
    }

    fn held(&self) -> usize {
        if self.recycled { self.bytes.capacity() } else { self.bytes.len() }
    }

    fn extend(&mut self, more: &[u8], end: Option<usize>, recycler: Option<&Recycler>) {
        self.make_room(more.len(), end, recycler);
        self.bytes.extend_from_slice(more);
    }

    /// Doubling, so that no byte is moved more than about once, but never past a known end. What is large grows in
    /// longer steps: moving it costs more than room that nobody has written to. Room that is there already costs nothing.
    fn make_room(&mut self, more: usize, end: Option<usize>, recycler: Option<&Recycler>) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            // Not before it has shown that it is large.
            let used = end.filter(|_| needed >= LARGE).and_then(|end| recycler?.take(end));
            if let Some(mut buffer) = used {
                buffer.extend_from_slice(&self.bytes);
                (self.bytes, self.recycled) = (buffer, true);
                return;
            }
            let step = if self.bytes.len() < LARGE { 2 } else { 8 };
            let room = (self.bytes.capacity() * step).max(needed).max(64);
            let room = end.map_or(room, |end| room.min(end)).max(needed);
            if room >= LARGE && self.bytes.capacity() < LARGE {
                // Made anew: what grows in its place among the small stays there, and leaves a hole.
                let small = std::mem::replace(&mut self.bytes, Vec::with_capacity(room));
                self.bytes.extend_from_slice(&small);
            } else {
                self.bytes.reserve_exact(room - self.bytes.len());
            }
        }
    }
}

/// These bytes for others to hold; their buffer is used again if another message may come that fits it as well.
fn finished(bytes: Vec<u8>, recycler: Option<&Recycler>) -> Bytes {
    match recycler {
        Some(recycler) if is_worth_keeping(&bytes) => recycler.lend(bytes),
        _ => Bytes::from(bytes),
    }
}

/// Whether another message may come that fits as well: one long value, and not many short ones, whose end nobody knows.
fn is_worth_keeping(message: &Vec<u8>) -> bool {
    message.capacity() >= LARGE && message.capacity() - message.len() <= message.len() / 8
}

/// Requests out of a stream of bytes, wherever it is cut.
#[derive(Debug, Default)]
pub struct RequestDecoder {
    partial: Option<Box<Partial>>,
    begun: u64,
    recycler: Option<Recycler>,
}

impl RequestDecoder {
    /// One whose large buffers come from there, and go there.
    pub fn with_recycler(recycler: Recycler) -> RequestDecoder {
        RequestDecoder { recycler: Some(recycler), ..RequestDecoder::default() }
    }

    /// The next whole request, taken off the front of `input`; `None` when `input` is used up.
    ///
    /// After an error the stream has no meaning any more and must be closed.
    #[inline]
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Frame<'a>>, WireError> {
        // Nearly always all of it is there.
        if self.partial.is_none()
            && let Some(len) = length_at_front(input, limits)
        {
            let (bytes, rest) = input.split_at(len);
            *input = rest;
            return Ok(Some(Frame(Repr::There(bytes))));
        }
        self.next_in_pieces(input, limits)
    }

    /// The key and the value of the SET at the front of `input`, if there is one and all of it is there.
    #[inline]
    pub(crate) fn next_set<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Option<(&'a [u8], &'a [u8])> {
        if self.partial.is_some() || input.first() != Some(&(Op::Set as u8)) {
            return None;
        }
        let (key, rest) = string_at_front(&input[1..], limits.key_len)?;
        let (value, rest) = string_at_front(rest, limits.value_len)?;
        if input.len() - rest.len() > limits.frame_len {
            return None;
        }
        *input = rest;
        Some((key, value))
    }

    fn next_in_pieces<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Frame<'a>>, WireError> {
        if let Some(partial) = &mut self.partial {
            if !partial.fill(input, self.recycler.as_ref())? {
                return Ok(None);
            }
            return Ok(self.partial.take().map(|partial| {
                let bytes = finished(partial.main.bytes, self.recycler.as_ref());
                Frame(Repr::Pieced(Box::new(Pieced { bytes, apart: partial.apart.into() })))
            }));
        }
        let Some(&code) = input.first() else { return Ok(None) };
        let op = Op::from_code(code).ok_or(WireError::UnknownOp { code })?;
        let mut scan = Scan::request(op, limits);
        match scan.advance(input)? {
            Progress::Whole(len) => {
                let (bytes, rest) = input.split_at(len);
                *input = rest;
                Ok(Some(Frame(Repr::There(bytes))))
            }
            progress => {
                // The scan goes on over the copy just where it stopped over the original.
                self.begun += 1;
                self.partial = Some(Partial::new(scan, input, &progress));
                *input = &[];
                Ok(None)
            }
        }
    }

    /// How many requests have begun to arrive in pieces.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Bytes that have come of a request that has begun to arrive; `None` between requests.
    pub fn arrived(&self) -> Option<usize> {
        self.partial.as_ref().map(|partial| partial.arrived())
    }

    /// Bytes of room that such a request takes, which may be more than have come.
    pub fn held(&self) -> Option<usize> {
        self.partial.as_ref().map(|partial| partial.held())
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
            if !partial.fill(input, None)? {
                return Ok(None);
            }
            let whole = self.partial.take().map(|partial| partial.main.bytes).unwrap_or_default();
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
            progress => {
                if !input.is_empty() {
                    self.partial = Some(Partial::new(scan, input, &progress));
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
