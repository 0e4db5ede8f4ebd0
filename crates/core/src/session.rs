//! One connection's side of the protocol: the handshake, and one reply per request in order.
//!
//! It turns the bytes of a connection into requests for the engine, holding back what must wait behind a blocked
//! request. It knows no other connection and does not answer anything.

use std::collections::VecDeque;

use crate::error::WireError;
use crate::limits::Limits;
use crate::wire::{Frame, MAGIC, Op, Request, RequestDecoder};

/// Why requests are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// They are not.
    No,
    /// An earlier request is blocked in the engine. A CANCEL_WAIT still goes through.
    Blocked,
    /// The peer doesn't take its replies. Nothing goes through.
    Congested,
}

/// The protocol state of one connection.
#[derive(Debug, Default)]
pub struct Session {
    decoder: RequestDecoder,
    validated: bool,
    deferred: VecDeque<Frame<'static>>,
    deferred_bytes: usize,
}

impl Session {
    /// The next request for the engine: held back earlier, or taken off the front of `input`. `None` when there is
    /// nothing more to do; `input` is used up then.
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        limits: &Limits,
        hold: Hold,
    ) -> Result<Option<Frame<'a>>, WireError> {
        if hold == Hold::No
            && let Some(frame) = self.deferred.pop_front()
        {
            self.deferred_bytes -= frame.bytes().len();
            return Ok(Some(frame));
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
                    self.deferred_bytes += frame.bytes().len();
                    self.deferred.push_back(frame.into_owned());
                }
            }
        }
    }

    /// Before a whole request is there, its first byte may already be wrong.
    fn check_first_byte(&self, input: &[u8]) -> Result<(), WireError> {
        let Some(&first) = input.first() else { return Ok(()) };
        if self.decoder.held().is_some() {
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

    /// Bytes held of a request that has begun to arrive; `None` between requests.
    pub fn partial(&self) -> Option<usize> {
        self.decoder.held()
    }

    /// Bytes of requests waiting behind an earlier one.
    pub fn deferred_bytes(&self) -> usize {
        self.deferred_bytes
    }
}
