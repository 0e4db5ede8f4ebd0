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
    main: Vec<u8>,
    apart: Vec<Apart>,
    /// The value that is arriving apart, and its length.
    arriving: Option<(Vec<u8>, usize)>,
}

impl Partial {
    /// One of which so much has come and `progress` is known.
    fn new(scan: Scan, begin: &[u8], progress: &Progress) -> Box<Partial> {
        let (main, arriving) = match *progress {
            Progress::Apart { start, len } => (&begin[..start], Some((&begin[start..], len))),
            _ => (begin, None),
        };
        let arriving = arriving.map(|(bytes, len)| (bytes.to_vec(), len));
        Box::new(Partial { scan, main: main.to_vec(), apart: Vec::new(), arriving })
    }

    /// Takes from `input` what belongs to this message. True once it is whole.
    fn fill(&mut self, input: &mut &[u8], recycler: Option<&Recycler>) -> Result<bool, WireError> {
        let all = *input;
        let mut taken = 0;
        loop {
            if let Some((value, len)) = &mut self.arriving {
                let more = (all.len() - taken).min(*len - value.len());
                reserve(value, more, Bound::End(*len), recycler)?;
                value.extend_from_slice(&all[taken..taken + more]);
                taken += more;
                if value.len() < *len {
                    *input = &[];
                    return Ok(false);
                }
                self.scan.pass_apart(*len);
                let bytes = std::mem::take(value);
                self.apart.push(Apart { at: self.main.len(), bytes: finished(bytes, recycler) });
                self.arriving = None;
            }
            match self.scan.advance(&self.main)? {
                Progress::Whole(len) => {
                    let main = &mut self.main;
                    let follows = main.len() - len;
                    *input = &all[taken - follows..];
                    main.truncate(len);
                    if main.capacity() - len > (len / 8).max(1024) {
                        // A stored value may keep this buffer, and its spare capacity would not be counted.
                        main.shrink_to_fit();
                    }
                    return Ok(true);
                }
                Progress::Apart { start, len } => {
                    self.arriving = Some((self.main[start..].to_vec(), len));
                    self.main.truncate(start);
                    self.main.shrink_to_fit();
                }
                Progress::Need { len, exact } => {
                    // Up to its end if that is known. Else all there is, so that long lists are not copied string by
                    // string; what turns out to follow the message is given back.
                    let left = all.len() - taken;
                    let more = if exact { left.min(len - self.main.len()) } else { left };
                    if more == 0 {
                        *input = &[];
                        return Ok(false);
                    }
                    let bound = if exact { Bound::End(len) } else { Bound::Most(self.scan.most()) };
                    reserve(&mut self.main, more, bound, recycler)?;
                    self.main.extend_from_slice(&all[taken..taken + more]);
                    taken += more;
                }
            }
        }
    }

    /// Bytes that have come.
    fn arrived(&self) -> usize {
        let apart = self.scan.apart() + self.arriving.as_ref().map_or(0, |(value, _)| value.len());
        self.main.len() + apart
    }

    /// Returns the allocated bytes. Unused capacity counts, because RLIMIT_AS counts it.
    fn held(&self) -> usize {
        let arriving = self.arriving.as_ref().map_or(0, |(value, _)| value.capacity());
        self.main.capacity() + self.scan.apart() + arriving
    }
}

/// The bound on the growth of a receive buffer.
#[derive(Debug, Clone, Copy)]
enum Bound {
    /// The exact final length.
    End(usize),
    /// An upper bound; the final length is not known yet.
    Most(usize),
}

/// Reserves room for `more` bytes. Capacity doubles, so that each byte is moved about once. A large buffer of known final length
/// grows eightfold, because moving it costs more than unused capacity.
fn reserve(
    bytes: &mut Vec<u8>,
    more: usize,
    bound: Bound,
    recycler: Option<&Recycler>,
) -> Result<(), WireError> {
    let needed = bytes.len() + more;
    if needed <= bytes.capacity() {
        return Ok(());
    }
    // Only once a mebibyte has arrived: an announced length alone reserves nothing.
    let end = match bound {
        Bound::End(end) if needed >= LARGE => Some(end),
        _ => None,
    };
    if let Some(mut buffer) = end.and_then(|end| recycler?.take(end)) {
        buffer.extend_from_slice(bytes);
        *bytes = buffer;
        return Ok(());
    }
    let step = if end.is_some() { 8 } else { 2 };
    let (Bound::End(most) | Bound::Most(most)) = bound;
    let room = (bytes.capacity() * step).max(64).min(most).max(needed);
    let mut grown = match room >= LARGE && bytes.capacity() < LARGE {
        // A new allocation is mapped on its own. Growing in place would leave a hole in the heap later.
        true => Vec::new(),
        false => std::mem::take(bytes),
    };
    // If the growth step cannot be allocated, what has arrived may still fit.
    let reserved = [room, needed].iter().any(|room| grown.try_reserve_exact(room - grown.len()).is_ok());
    if !reserved {
        return Err(WireError::OutOfMemory { len: needed as u64 });
    }
    if !bytes.is_empty() {
        grown.extend_from_slice(bytes);
    }
    *bytes = grown;
    Ok(())
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
                let bytes = finished(partial.main, self.recycler.as_ref());
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
            let whole = self.partial.take().map(|partial| partial.main).unwrap_or_default();
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
