//! The state of one connection: its session, its outbox, and its deadlines.

use core::net::SocketAddr;
use std::time::Duration;

use super::outbox::Outbox;
use super::service::Link;
use super::session::Session;
use super::uploads::Upload;
use super::{CloseReason, ConnectionId, READ_BYTES};
use crate::limits::Limits;

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) peer: SocketAddr,
    pub(super) session: Session,
    pub(super) outbox: Outbox,
    pub(super) opened: Duration,
    /// Whether the connection is blocked in a WAIT or BARRIER.
    pub(super) blocked: bool,
    /// Whether the hub closes the connection after sending its unsent replies.
    pub(super) closing: bool,
    /// Whether the stream was read to its end.
    pub(super) ended: bool,
    /// Whether the socket may have bytes to read that no further event will announce.
    pub(super) unread: bool,
    /// Whether an event has announced the end of the stream. The hub still reads the bytes before the end.
    pub(super) end_announced: bool,
    /// Whether the connection is in the read queue or the upload queue.
    pub(super) in_read_queue: bool,
    /// Whether the connection is in the send queue.
    pub(super) in_send_queue: bool,
    pub(super) upload: Upload,
    /// The number of bytes that count toward `input_total`.
    pub(super) input_bytes: usize,
    /// The progress of the incomplete request, if there is one.
    pub(super) receiving: Option<Receiving>,
    /// The number of bytes that count toward `output_total`.
    pub(super) output_bytes: usize,
    /// The time since which the peer has read none of its unsent replies.
    pub(super) stalled: Option<Duration>,
    /// Whether the peer has sent a message to the service.
    pub(super) is_messenger: bool,
    /// The state of the link, if the service has opened this connection.
    pub(super) link: Option<Box<Link>>,
}

/// The progress of an incomplete request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiving {
    /// The number of this request among the requests of the connection that arrived in pieces.
    request: u64,
    /// The time of the last progress, and the number of bytes that had arrived by then. Progress is the arrival of at
    /// least [`READ_BYTES`] since the progress before it, so a peer that sends a few bytes per second can't block other
    /// uploads.
    progress: (Duration, usize),
    /// The number of bytes that have arrived.
    pub(super) len: usize,
    /// The start of the period over which the rate is measured, and the number of bytes that had arrived by then.
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
            is_messenger: false,
            link: None,
        }
    }

    /// Returns whether the unsent replies exceed `output_pause`.
    #[inline]
    pub(super) fn is_congested(&self, limits: &Limits) -> bool {
        self.outbox.unsent() > limits.output_pause
    }

    /// Returns whether the hub reads more bytes from the connection.
    #[inline]
    pub(super) fn wants_input(&self, limits: &Limits) -> bool {
        !self.closing
            && !self.ended
            && self.upload != Upload::Waiting
            && !self.is_congested(limits)
            && self.session.backlog_bytes() <= limits.deferred_bytes
    }

    /// Returns whether the connection can be closed: its stream has ended, no request is left to handle, and all
    /// replies are sent.
    pub(super) fn is_finished(&self, limits: &Limits) -> bool {
        // If the hub no longer reads the connection, for example because of a long backlog, the announced end counts as
        // reached.
        let ended = self.ended || (self.end_announced && !self.wants_input(limits));
        // A blocked connection counts as idle: after the end of the stream, the peer cannot send a CANCEL_WAIT.
        let idle = self.blocked || (self.ended && !self.session.has_backlog());
        ended && idle && self.outbox.unsent() == 0
    }

    /// Updates the progress of the incomplete request. Returns whether a different request, or no request, is
    /// incomplete now.
    pub(super) fn track_request(&mut self, now: Duration) -> bool {
        let (decoder, before) = (self.session.decoder(), self.receiving);
        let request = decoder.started();
        self.receiving = decoder.received().map(|len| match before {
            Some(same) if same.request == request => {
                let is_progress = len >= same.progress.1 + READ_BYTES;
                Receiving { progress: if is_progress { (now, len) } else { same.progress }, len, ..same }
            }
            _ => Receiving { request, progress: (now, len), len, period: (now, len) },
        });
        before.map(|before| before.request) != self.receiving.map(|receiving| receiving.request)
    }

    /// Returns whether a deadline is running: for the handshake, for a request, or for replies.
    pub(super) fn has_deadline(&self) -> bool {
        let is_opening = match &self.link {
            Some(link) => !link.is_open,
            None => !self.session.is_validated(),
        };
        (is_opening || self.receiving.is_some() || self.stalled.is_some()) && !self.closing
    }

    /// Returns the reason to close the connection if it has missed a deadline. `waiting` is the number of uploads that
    /// wait for a share of the budget.
    pub(super) fn check_deadlines(
        &mut self,
        waiting: usize,
        now: Duration,
        limits: &Limits,
    ) -> Option<CloseReason> {
        let age = now.saturating_sub(self.opened);
        match &self.link {
            Some(link) if link.is_late(age) => return Some(CloseReason::NoLink { age }),
            None if !self.session.is_validated() && age >= limits.handshake => {
                return Some(CloseReason::NoHandshake { age });
            }
            _ => {}
        }
        self.check_request(waiting, now, limits).or_else(|| self.check_replies(now, limits))
    }

    fn check_request(&mut self, waiting: usize, now: Duration, limits: &Limits) -> Option<CloseReason> {
        let is_reading = self.wants_input(limits);
        let receiving = self.receiving.as_mut()?;
        if !is_reading {
            // Do not count the time during which the hub does not read the connection as slowness of the peer.
            (receiving.progress, receiving.period) = ((now, receiving.len), (now, receiving.len));
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
        // A connection in a read queue may have received bytes that the hub has not read yet.
        let is_idle = !self.in_read_queue && now.saturating_sub(receiving.progress.0) >= stall;
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
