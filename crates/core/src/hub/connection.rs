//! One connection as the hub keeps it: its protocol state, its replies, and the times that are running.

use core::net::SocketAddr;
use std::time::Duration;

use super::ConnectionId;
use super::outbox::Outbox;
use super::session::{Hold, Session};
use super::uploads::Upload;
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
    pub(super) hung_up: bool,
    /// Whether it is in the queue of connections to read.
    pub(super) in_read_queue: bool,
    /// Whether it is in the queue of connections to send to.
    pub(super) in_send_queue: bool,
    pub(super) upload: Upload,
    /// Bytes that count towards `input_total`.
    pub(super) held: usize,
    /// The request that is arriving in pieces.
    pub(super) receiving: Option<Receiving>,
    /// Since when the peer has taken none of its replies.
    pub(super) stalled: Option<Duration>,
    /// Bytes that count towards `output_total`, and since when there have been unsent replies.
    pub(super) owed: usize,
    pub(super) owed_since: Option<Duration>,
}

/// A request that arrives in pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiving {
    /// Its number among the requests of this connection that arrived in pieces.
    request: u64,
    since: Duration,
    /// When it last grew, and to how many bytes.
    pub(super) grown: (Duration, usize),
    /// The start of the period over which its rate is measured, and how many bytes had arrived then.
    period: (Duration, usize),
}

/// The period over which the rate of a request is measured, so that one slow moment is not fatal.
const RATE_INTERVAL: Duration = Duration::from_secs(5);

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
            hung_up: false,
            in_read_queue: false,
            in_send_queue: false,
            upload: Upload::None,
            held: 0,
            receiving: None,
            stalled: None,
            owed: 0,
            owed_since: None,
        }
    }

    /// Returns whether the peer leaves too many of its replies unread.
    #[inline]
    pub(super) fn is_congested(&self, limits: &Limits) -> bool {
        self.outbox.unsent() > limits.output_pause
    }

    /// Returns why its requests are held back.
    #[inline]
    pub(super) fn hold(&self, limits: &Limits) -> Hold {
        match self.blocked {
            true => Hold::Blocked,
            false if self.is_congested(limits) => Hold::Congested,
            false => Hold::No,
        }
    }

    /// Returns whether more bytes should be read from it now.
    #[inline]
    pub(super) fn wants_input(&self, limits: &Limits) -> bool {
        !self.closing
            && !self.ended
            && !matches!(self.upload, Upload::Waiting { .. })
            && !self.is_congested(limits)
            && self.session.deferred_bytes() <= limits.deferred_bytes
    }

    /// Returns whether it has all its replies and will get no further request, so that it can be closed.
    pub(super) fn is_finished(&self, limits: &Limits) -> bool {
        // If too much is held back to read on, the announced end counts as read.
        let ended = self.ended || (self.hung_up && !self.wants_input(limits));
        // A peer that sends no more cannot cancel its wait.
        let idle = self.blocked || (self.ended && !self.session.has_deferred());
        ended && idle && self.outbox.unsent() == 0
    }

    /// Records how much of a request has arrived. Returns whether the request in progress is another one than before.
    pub(super) fn track_request(&mut self, now: Duration) -> bool {
        let decoder = self.session.decoder();
        let request = decoder.started();
        match (decoder.received(), &mut self.receiving) {
            (None, None) => false,
            (None, receiving) => {
                *receiving = None;
                true
            }
            (Some(len), Some(receiving)) if receiving.request == request => {
                if receiving.grown.1 != len {
                    receiving.grown = (now, len);
                }
                false
            }
            (Some(len), receiving) => {
                *receiving = Some(Receiving { request, since: now, grown: (now, len), period: (now, len) });
                true
            }
        }
    }

    /// Returns whether the request in progress arrives at less than [`Limits::partial_rate`] after
    /// [`Limits::partial_grace`].
    pub(super) fn is_too_slow(&mut self, now: Duration, limits: &Limits) -> bool {
        let is_read = self.wants_input(limits);
        let Some(receiving) = &mut self.receiving else { return false };
        let received = receiving.grown.1;
        if !is_read {
            // Bytes that the hub does not read cannot arrive.
            (receiving.since, receiving.grown.0) = (now, now);
        }
        let (since, before) = receiving.period;
        let elapsed = now.saturating_sub(since);
        if now.saturating_sub(receiving.since) < limits.partial_grace {
            receiving.period = (now, received);
            return false;
        }
        if elapsed < RATE_INTERVAL.min(limits.partial_grace) {
            return false;
        }
        receiving.period = (now, received);
        ((received - before) as f64) < limits.partial_rate as f64 * elapsed.as_secs_f64()
    }
}
