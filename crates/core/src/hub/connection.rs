//! One connection as the hub keeps it: its protocol state, its replies, and the times that are running.

use core::net::SocketAddr;
use std::time::Duration;

use super::outbox::Outbox;
use super::session::Session;
use super::uploads::Upload;
use super::{CloseReason, ConnectionId};
use crate::limits::Limits;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) peer: SocketAddr,
    pub(super) session: Session,
    pub(super) outbox: Outbox,
    pub(super) opened: Duration,
    /// Whether a request of it is blocked in the engine.
    pub(super) blocked: bool,
    /// Whether the hub is done with it, apart from replies that are still to be sent.
    pub(super) closing: bool,
    /// Whether the peer's bytes were read to their end.
    pub(super) ended: bool,
    /// Whether there may be bytes to read that no further event announces.
    pub(super) unread: bool,
    /// Whether an event has announced the end of the peer's bytes, which must be read up to there.
    pub(super) end_announced: bool,
    /// Whether it is in the queue of connections to read.
    pub(super) in_read_queue: bool,
    /// Whether it is in the queue of connections to send to.
    pub(super) in_send_queue: bool,
    pub(super) upload: Upload,
    /// Bytes that count towards `input_total`.
    pub(super) input_bytes: usize,
    /// The request that is arriving in pieces.
    pub(super) receiving: Option<Receiving>,
    /// Bytes that count towards `output_total`.
    pub(super) output_bytes: usize,
    /// Since when the peer has taken none of its unsent replies.
    pub(super) stalled: Option<Duration>,
}

/// A request that arrives in pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiving {
    /// Its number among the requests of this connection that arrived in pieces.
    request: u64,
    /// When it last grew, and to how many bytes.
    grown: Duration,
    pub(super) len: usize,
    /// The start of the period over which its rate is measured, and how many bytes had arrived then.
    period: (Duration, usize),
}

impl Connection {
    pub(super) fn new(id: ConnectionId, peer: SocketAddr, now: Duration) -> Connection {
        Connection {
            id,
            peer,
            session: Session::default(),
            outbox: Outbox::default(),
            opened: now,
            blocked: false,
            closing: false,
            ended: false,
            unread: true,
            end_announced: false,
            in_read_queue: false,
            in_send_queue: false,
            upload: Upload::None,
            input_bytes: 0,
            receiving: None,
            output_bytes: 0,
            stalled: None,
        }
    }

    /// Returns whether the peer leaves too many of its replies unread.
    #[inline]
    pub(super) fn is_congested(&self, limits: &Limits) -> bool {
        self.outbox.unsent() > limits.output_pause
    }

    /// Returns whether more bytes should be read from it now.
    #[inline]
    pub(super) fn wants_input(&self, limits: &Limits) -> bool {
        !self.closing
            && !self.ended
            && self.upload != Upload::Waiting
            && !self.is_congested(limits)
            && self.session.backlog_bytes() <= limits.deferred_bytes
    }

    /// Returns whether it has all its replies and will get no further request, so that it can be closed.
    pub(super) fn is_finished(&self, limits: &Limits) -> bool {
        // If too much is held back to read on, the announced end counts as read.
        let ended = self.ended || (self.end_announced && !self.wants_input(limits));
        // A peer that sends no more cannot cancel its wait.
        let idle = self.blocked || (self.ended && !self.session.has_backlog());
        ended && idle && self.outbox.unsent() == 0
    }

    /// Records how much of a request has arrived. Returns whether the request in progress is another one than before.
    pub(super) fn track_request(&mut self, now: Duration) -> bool {
        let (decoder, before) = (self.session.decoder(), self.receiving);
        let request = decoder.started();
        self.receiving = decoder.received().map(|len| match before {
            Some(same) if same.request == request => {
                Receiving { grown: if same.len == len { same.grown } else { now }, len, ..same }
            }
            _ => Receiving { request, grown: now, len, period: (now, len) },
        });
        before.map(|before| before.request) != self.receiving.map(|receiving| receiving.request)
    }

    /// Returns whether the time for a handshake, a request or a reply is running.
    pub(super) fn has_deadline(&self) -> bool {
        let is_busy = !self.session.is_validated() || self.receiving.is_some() || self.stalled.is_some();
        is_busy && !self.closing
    }

    /// Returns why the connection is closed if it has taken too long. `waiting` uploads of other connections wait.
    pub(super) fn check_deadlines(
        &mut self,
        waiting: usize,
        now: Duration,
        limits: &Limits,
    ) -> Option<CloseReason> {
        let age = now.saturating_sub(self.opened);
        if !self.session.is_validated() && age >= limits.handshake {
            return Some(CloseReason::NoHandshake { age });
        }
        self.check_request(waiting, now, limits).or_else(|| self.check_replies(now, limits))
    }

    fn check_request(&mut self, waiting: usize, now: Duration, limits: &Limits) -> Option<CloseReason> {
        let is_reading = self.wants_input(limits);
        let receiving = self.receiving.as_mut()?;
        if !is_reading {
            // Bytes that the hub does not read cannot arrive.
            (receiving.grown, receiving.period) = (now, (now, receiving.len));
        }
        let (since, before) = receiving.period;
        let elapsed = now.saturating_sub(since);
        if elapsed >= limits.partial_grace {
            receiving.period = (now, receiving.len);
            if ((receiving.len - before) as f64) < limits.partial_rate as f64 * elapsed.as_secs_f64() {
                return Some(CloseReason::SlowRequest { limit: limits.partial_rate });
            }
        }
        let is_admitted = matches!(self.upload, Upload::Admitted { .. });
        let (stall, buffered) = (limits.input_stall, self.input_bytes);
        // What waits to be read has not stopped.
        let is_idle = !self.in_read_queue && now.saturating_sub(receiving.grown) >= stall;
        let is_stalled = waiting > 0 && is_admitted && is_idle;
        is_stalled.then_some(CloseReason::StalledUpload { stall, buffered, waiting })
    }

    fn check_replies(&self, now: Duration, limits: &Limits) -> Option<CloseReason> {
        let waited = now.saturating_sub(self.stalled?);
        let is_large = self.output_bytes > limits.output_hard;
        let timeout = if is_large { limits.output_stall / 3 } else { limits.output_stall };
        let unsent = self.outbox.unsent();
        (waited >= timeout).then_some(CloseReason::SlowReader { unsent, waited })
    }
}
