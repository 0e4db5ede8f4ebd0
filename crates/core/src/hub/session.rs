//! The protocol state of one connection: the handshake and the order of requests.
//!
//! A session decodes the bytes of a connection into requests for the engine. While a request is blocked, the session
//! defers the requests after it, so that replies are sent in the order of the requests.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::WireError;
use crate::limits::Limits;
use crate::wire::{Decoded, MAGIC, Op, Request, RequestDecoder};

/// The approximate memory of a deferred request beyond its bytes: its slot in the queue, and the overhead of its
/// allocation.
const DEFERRED_OVERHEAD_BYTES: usize = 80;

/// The protocol state of one connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    decoder: RequestDecoder,
    validated: bool,
    /// Requests that arrived after a request that is blocked.
    deferred: VecDeque<Bytes>,
    deferred_bytes: usize,
    /// Bytes after the deferred requests. They are parsed when the peer has read enough of its replies.
    unparsed: Vec<u8>,
}

impl Session {
    /// Removes the request at the front of `input`, without a copy. Returns `None` if the caller must use
    /// [`Session::next`] instead, because the request is incomplete, invalid or a VALIDATE, arrives before VALIDATE, or
    /// follows a deferred request.
    ///
    /// Nearly all requests take this path. The caller must ensure that no request of the connection is blocked.
    #[inline(always)]
    pub(super) fn next_in_place<'a>(&mut self, input: &mut &'a [u8], limits: &Limits) -> Option<Request<'a>> {
        let is_plain = self.validated && self.deferred.is_empty();
        if !is_plain || input.first() == Some(&(Op::Validate as u8)) {
            return None;
        }
        self.decoder.next_in_place(input, limits)
    }

    /// Returns the next request for the engine: a deferred one, or the one at the front of `input`. Returns `None` when
    /// the session has consumed `input`. While a request is blocked, returns only a CANCEL_WAIT and defers all other
    /// requests.
    ///
    /// # Errors
    ///
    /// Fails if the bytes violate the protocol or exceed a limit.
    pub(super) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
        is_blocked: bool,
    ) -> Result<Option<Decoded<'a>>, WireError> {
        if !is_blocked && let Some(request) = self.deferred.pop_front() {
            self.deferred_bytes -= request.len() + DEFERRED_OVERHEAD_BYTES;
            if self.deferred.is_empty() {
                // Free the queue, so that idle connections stay small.
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

    /// Checks the first byte of a request: VALIDATE must be the first request and must not occur again.
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

    /// Stores bytes that the caller parses in a later turn.
    pub(super) fn put_back(&mut self, input: &[u8]) {
        debug_assert!(self.unparsed.is_empty(), "earlier bytes are not parsed yet");
        self.unparsed = input.to_vec();
    }

    /// Removes and returns the bytes that were put back. The caller parses them before any other bytes.
    pub(super) fn take_unparsed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unparsed)
    }

    /// Returns whether VALIDATE has arrived.
    pub(super) fn is_validated(&self) -> bool {
        self.validated
    }

    /// Returns whether the session has deferred requests or unparsed bytes.
    pub(super) fn has_backlog(&self) -> bool {
        !self.deferred.is_empty() || !self.unparsed.is_empty()
    }

    /// Returns the memory of the deferred requests and the unparsed bytes, in bytes.
    ///
    /// The result includes the overhead of each deferred request, because a peer may send a million requests of 1 byte.
    pub(super) fn backlog_bytes(&self) -> usize {
        self.deferred_bytes + self.unparsed.len()
    }

    /// Returns the memory of the incomplete request, the deferred requests and the unparsed bytes, in bytes.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.decoder.allocated() + self.backlog_bytes()
    }

    /// Returns the decoder, which knows the progress of the incomplete request.
    pub(super) fn decoder(&self) -> &RequestDecoder {
        &self.decoder
    }
}

#[cfg(test)]
mod tests;
