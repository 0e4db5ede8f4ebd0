//! One connection's side of the protocol: the handshake, and one reply per request in order.
//!
//! It turns the bytes of a connection into requests for the engine, holding back what must wait behind a blocked
//! request. It knows no other connection and does not answer anything.

use std::collections::VecDeque;

use crate::error::WireError;
use crate::limits::Limits;
use crate::wire::{Frame, Kept, MAGIC, Op, Recycler, Request, RequestDecoder};

/// Why requests are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// They are not.
    No,
    /// An earlier request is blocked in the engine. A CANCEL_WAIT still goes through.
    Blocked,
    /// The peer doesn't take its replies, or it is others' turn. Nothing goes through.
    Congested,
}

/// What holding back a request costs beyond its bytes, roughly: its place in the line, and its own allocation.
const DEFERRED_OVERHEAD: usize = 80;

/// Capacity that the queue of deferred requests keeps when it becomes empty.
const DEFERRED_KEPT: usize = 64;

/// The protocol state of one connection.
#[derive(Debug, Default)]
pub struct Session {
    decoder: RequestDecoder,
    validated: bool,
    deferred: VecDeque<Kept>,
    deferred_bytes: usize,
    /// Cancels among the deferred that are still to be handed out.
    cancels: usize,
    /// Cancels among the deferred that were handed out already, past what came before them: the first ones.
    overtaken: usize,
}

impl Session {
    /// One whose large buffers come from there, and go there.
    pub fn with_recycler(recycler: Recycler) -> Session {
        Session { decoder: RequestDecoder::with_recycler(recycler), ..Session::default() }
    }

    /// The next request for the engine: held back earlier, or taken off the front of `input`. `None` when there is
    /// nothing more to do; `input` is used up then.
    #[inline]
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
        hold: Hold,
    ) -> Result<Option<Frame<'a>>, WireError> {
        // The usual state, in which nothing needs a second look.
        let plain = self.validated && hold == Hold::No && !self.has_deferred();
        if plain && input.first() != Some(&(Op::Validate as u8)) {
            return self.decoder.next(input, limits);
        }
        self.next_with_care(input, limits, hold)
    }

    /// The key and the value of the next request, if that is a SET and nothing is held back: many come in a row, each
    /// cheaper to carry out than to hand on. Whatever else there is, [`Session::next`] tells.
    #[inline]
    pub fn next_set<'a>(&mut self, input: &mut &'a [u8], limits: &Limits) -> Option<(&'a [u8], &'a [u8])> {
        if !self.validated || self.has_deferred() {
            return None;
        }
        self.decoder.next_set(input, limits)
    }

    fn next_with_care<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
        hold: Hold,
    ) -> Result<Option<Frame<'a>>, WireError> {
        match hold {
            Hold::No if self.has_deferred() => return Ok(self.pop_deferred()),
            Hold::Blocked if self.cancels > 0 => return Ok(Some(self.overtake())),
            _ => {}
        }
        loop {
            self.check_first_byte(input)?;
            let Some(frame) = self.decoder.next(input, limits)? else { return Ok(None) };
            if !self.validated {
                self.validate(frame.request())?;
                continue;
            }
            match hold {
                Hold::No => return Ok(Some(frame)),
                Hold::Blocked if frame.op() == Op::CancelWait => return Ok(Some(frame)),
                Hold::Blocked | Hold::Congested => {
                    self.deferred_bytes += frame.len() + DEFERRED_OVERHEAD;
                    self.cancels += usize::from(frame.op() == Op::CancelWait);
                    self.deferred.push_back(frame.keep());
                }
            }
        }
    }

    /// Holds back the request that was handed out last, after all.
    pub fn put_back(&mut self, frame: Frame<'_>) {
        self.deferred_bytes += frame.len() + DEFERRED_OVERHEAD;
        self.deferred.push_front(frame.keep());
    }

    /// The oldest request held back.
    fn pop_deferred(&mut self) -> Option<Frame<'static>> {
        let kept = self.take_front()?;
        self.cancels -= usize::from(kept.is_cancel());
        self.drop_overtaken();
        Some(kept.into_frame())
    }

    /// The oldest cancel held back, past whatever waits before it: that waits for the request to be cancelled.
    fn overtake(&mut self) -> Frame<'static> {
        self.cancels -= 1;
        self.overtaken += 1;
        self.drop_overtaken();
        Frame::cancel_wait()
    }

    /// Lets go of what was handed out already once it is at the front.
    fn drop_overtaken(&mut self) {
        while self.overtaken > 0 && self.deferred.front().is_some_and(Kept::is_cancel) {
            self.take_front();
            self.overtaken -= 1;
        }
    }

    fn take_front(&mut self) -> Option<Kept> {
        let kept = self.deferred.pop_front()?;
        if self.deferred.is_empty() {
            // Free the capacity of a long queue: idle connections must stay small.
            self.deferred.shrink_to(DEFERRED_KEPT);
        }
        self.deferred_bytes -= kept.len() + DEFERRED_OVERHEAD;
        Some(kept)
    }

    /// Before a whole request is there, its first byte may already be wrong.
    fn check_first_byte(&self, input: &[u8]) -> Result<(), WireError> {
        let Some(&first) = input.first() else { return Ok(()) };
        if self.decoder.arrived().is_some() {
            return Ok(());
        }
        match (self.validated, first == Op::Validate as u8) {
            (false, false) => Err(WireError::NotValidated { found: first }),
            (true, true) => Err(WireError::ValidatedTwice),
            _ => Ok(()),
        }
    }

    fn validate(&mut self, request: Request<'_>) -> Result<(), WireError> {
        match request {
            Request::Validate { magic: MAGIC } => {
                self.validated = true;
                Ok(())
            }
            Request::Validate { magic } => Err(WireError::BadMagic { found: magic }),
            other => Err(WireError::NotValidated { found: other.op() as u8 }),
        }
    }

    /// Whether the handshake is done.
    pub fn is_validated(&self) -> bool {
        self.validated
    }

    /// Whether requests are waiting behind an earlier one.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Bytes held of requests that can't go on: incomplete, or waiting behind an earlier one.
    pub fn held(&self) -> usize {
        self.decoder.held().unwrap_or(0) + self.deferred_bytes
    }

    /// How many requests have begun to arrive in pieces: what tells one that is arriving from the one after it.
    pub fn begun(&self) -> u64 {
        self.decoder.begun()
    }

    /// Bytes that have come of a request that has begun to arrive; `None` between requests.
    pub fn partial(&self) -> Option<usize> {
        self.decoder.arrived()
    }

    /// Bytes of requests waiting behind an earlier one, with what it costs to keep them: most requests are small, and
    /// a peer may send a million of one byte.
    pub fn deferred_bytes(&self) -> usize {
        self.deferred_bytes
    }
}

#[cfg(test)]
mod tests;
