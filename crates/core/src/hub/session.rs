//! One connection's side of the protocol: the handshake, and one reply per request in order.
//!
//! A session turns the bytes of a connection into requests for the engine. It holds back requests that must wait behind a
//! blocked one. It knows no other connection and answers nothing.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::WireError;
use crate::limits::Limits;
use crate::wire::{Decoded, MAGIC, Op, Request, RequestDecoder};

/// Approximate bytes of a request held back beyond its own: its slot in the queue, and its allocation.
const DEFERRED_OVERHEAD_BYTES: usize = 80;

/// The protocol state of one connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    decoder: RequestDecoder,
    validated: bool,
    /// Requests behind a blocked one.
    deferred: VecDeque<Bytes>,
    deferred_bytes: usize,
    /// Bytes that follow the deferred requests. They are parsed once the peer has taken its replies.
    unparsed: Vec<u8>,
}

impl Session {
    /// Takes the next request for the engine if it is whole in `input` and no check but its parsing is needed, as for nearly
    /// all requests. The caller makes sure that no request is blocked.
    #[inline(always)]
    pub(super) fn next_in_place<'a>(&mut self, input: &mut &'a [u8], limits: &Limits) -> Option<Request<'a>> {
        let is_plain = self.validated && self.deferred.is_empty();
        if !is_plain || input.first() == Some(&(Op::Validate as u8)) {
            return None;
        }
        self.decoder.next_in_place(input, limits)
    }

    /// Returns the next request for the engine: one that was held back, or one taken off the front of `input`. While a request
    /// is blocked, only a CANCEL_WAIT passes, and the session holds back the others. Returns `None` when `input` is used up.
    pub(super) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
        is_blocked: bool,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        if !is_blocked && let Some(request) = self.deferred.pop_front() {
            self.deferred_bytes -= request.len() + DEFERRED_OVERHEAD_BYTES;
            if self.deferred.is_empty() {
                // Free the queue: idle connections must stay small.
                self.deferred = VecDeque::new();
            }
            return Ok(Some(Decoded::Owned(request)));
        }
        loop {
            self.check_first_byte(input)?;
            let Some(decoded) = self.decoder.next(input, limits)? else { return Ok(None) };
            match decoded.request() {
                Request::Validate { magic: MAGIC } => self.validated = true,
                Request::Validate { magic } => return Err(WireError::BadMagic { found: magic }),
                request if !is_blocked || request == Request::CancelWait => return Ok(Some(decoded)),
                _ => {
                    let request = decoded.into_owned();
                    self.deferred_bytes += request.len() + DEFERRED_OVERHEAD_BYTES;
                    self.deferred.push_back(request);
                }
            }
        }
    }

    /// Checks the first byte of a request before the request is whole: VALIDATE comes first, and once.
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

    /// Keeps bytes for which the caller has no use yet.
    pub(super) fn put_back(&mut self, input: &[u8]) {
        debug_assert!(self.unparsed.is_empty(), "bytes that came before these are not parsed yet");
        self.unparsed = input.to_vec();
    }

    /// Takes the bytes that were put back. The caller parses them before any other bytes.
    pub(super) fn take_unparsed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unparsed)
    }

    /// Returns whether the handshake is done.
    pub(super) fn is_validated(&self) -> bool {
        self.validated
    }

    /// Returns whether requests are held back.
    pub(super) fn has_backlog(&self) -> bool {
        !self.deferred.is_empty() || !self.unparsed.is_empty()
    }

    /// Returns the bytes of requests held back, with the cost of keeping them: most requests are small, and a peer may send a
    /// million of one byte.
    pub(super) fn backlog_bytes(&self) -> usize {
        self.deferred_bytes + self.unparsed.len()
    }

    /// Returns the bytes held of requests that are incomplete or held back.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.decoder.allocated() + self.backlog_bytes()
    }

    /// Returns the decoder, for the state of a request that has begun to arrive.
    pub(super) fn decoder(&self) -> &RequestDecoder {
        &self.decoder
    }
}

#[cfg(test)]
mod tests;
