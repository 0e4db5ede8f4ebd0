//! One connection's side of the protocol: the handshake, and one reply per request in order.
//!
//! A session turns the bytes of a connection into requests for the engine. It holds back requests that must wait behind a
//! blocked one. It knows no other connection and answers nothing.

use std::collections::VecDeque;

use crate::error::WireError;
use crate::limits::Limits;
use crate::wire::{Decoded, Frame, MAGIC, Op, Request, RequestDecoder};

/// Why requests are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// They are not.
    No,
    /// An earlier request is blocked in the engine. A CANCEL_WAIT still passes.
    Blocked,
    /// The peer doesn't read its replies. Nothing passes.
    Congested,
}

/// Approximate bytes of a request held back beyond its own: its slot in the queue, and its allocation.
const DEFERRED_OVERHEAD: usize = 80;

/// Capacity that the queue of deferred requests keeps when it becomes empty.
const DEFERRED_KEPT: usize = 64;

/// The protocol state of one connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    decoder: RequestDecoder,
    validated: bool,
    deferred: VecDeque<Frame>,
    deferred_bytes: usize,
    /// Cancels among the deferred requests that were not handed out yet.
    cancels: usize,
    /// Cancels among the deferred requests that were handed out already, past what came before them: the first ones.
    overtaken: usize,
}

impl Session {
    /// Takes the next request for the engine if it is whole in `input` and no check but its parsing is needed, as for nearly
    /// all requests. The caller makes sure that nothing is to be held back.
    #[inline(always)]
    pub(super) fn next_in_place<'a>(&mut self, input: &mut &'a [u8], limits: &Limits) -> Option<Request<'a>> {
        let is_plain = self.validated && self.deferred.is_empty();
        if !is_plain || input.first() == Some(&(Op::Validate as u8)) {
            return None;
        }
        self.decoder.next_in_place(input, limits).map(|(request, _)| request)
    }

    /// Returns the next request for the engine: one that was held back, or one taken off the front of `input`. Returns `None`
    /// when there is nothing more to do; then `input` is used up.
    pub(super) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
        hold: Hold,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        match hold {
            Hold::No if self.has_deferred() => return Ok(self.pop_deferred().map(Decoded::InPieces)),
            Hold::Blocked if self.cancels > 0 => {
                self.overtake();
                return Ok(Some(Decoded::InPlace(Request::CancelWait, &[Op::CancelWait as u8])));
            }
            _ => {}
        }
        loop {
            self.check_first_byte(input)?;
            let Some(decoded) = self.decoder.next(input, limits)? else { return Ok(None) };
            if !self.validated {
                self.validate(decoded.request())?;
                continue;
            }
            let is_cancel = decoded.request() == Request::CancelWait;
            if hold == Hold::No || (hold == Hold::Blocked && is_cancel) {
                return Ok(Some(decoded));
            }
            let frame = decoded.into_frame();
            self.deferred_bytes += frame.len() + DEFERRED_OVERHEAD;
            self.cancels += usize::from(is_cancel);
            self.deferred.push_back(frame);
        }
    }

    /// Takes the oldest request held back.
    fn pop_deferred(&mut self) -> Option<Frame> {
        let frame = self.take_front()?;
        self.cancels -= usize::from(is_cancel(&frame));
        self.drop_overtaken();
        Some(frame)
    }

    /// Hands out the oldest cancel held back, past the requests before it, which wait for the request to be canceled.
    fn overtake(&mut self) {
        self.cancels -= 1;
        self.overtaken += 1;
        self.drop_overtaken();
    }

    /// Drops cancels that were handed out already once they are at the front.
    fn drop_overtaken(&mut self) {
        while self.overtaken > 0 && self.deferred.front().is_some_and(is_cancel) {
            self.take_front();
            self.overtaken -= 1;
        }
    }

    fn take_front(&mut self) -> Option<Frame> {
        let frame = self.deferred.pop_front()?;
        if self.deferred.is_empty() {
            // Free the capacity of a long queue: idle connections must stay small.
            self.deferred.shrink_to(DEFERRED_KEPT);
        }
        self.deferred_bytes -= frame.len() + DEFERRED_OVERHEAD;
        Some(frame)
    }

    /// Checks the first byte of a request before the request is whole.
    fn check_first_byte(&self, input: &[u8]) -> Result<(), WireError> {
        let Some(&first) = input.first() else { return Ok(()) };
        if self.decoder.received().is_some() {
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

    /// Returns whether the handshake is done.
    pub(super) fn is_validated(&self) -> bool {
        self.validated
    }

    /// Returns whether requests are held back.
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns the bytes of requests held back, with the cost of keeping them: most requests are small, and a peer may send a
    /// million of one byte.
    pub(super) fn deferred_bytes(&self) -> usize {
        self.deferred_bytes
    }

    /// Returns the bytes held of requests that are incomplete or held back.
    pub(super) fn held(&self) -> usize {
        self.decoder.held() + self.deferred_bytes
    }

    /// Returns the decoder, for the state of a request that has begun to arrive.
    pub(super) fn decoder(&self) -> &RequestDecoder {
        &self.decoder
    }
}

fn is_cancel(frame: &Frame) -> bool {
    frame.request() == Request::CancelWait
}

#[cfg(test)]
mod tests;
