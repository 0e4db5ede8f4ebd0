//! One connection as the event loop keeps it: a socket, its protocol state, and the times that are running.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use rallypoint_core::store::ClientId;
use rallypoint_core::wire::Recycler;
use rallypoint_core::{Limits, Session};

use super::outbox::Outbox;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) client: ClientId,
    pub(super) session: Session,
    pub(super) outbox: Outbox,
    pub(super) accepted: Instant,
    /// Is to be closed at the end of this turn.
    pub(super) doomed: bool,
    /// The peer sends no more; it is closed once its replies are sent.
    pub(super) ended: bool,
    /// There may be bytes to read that no further event will tell of.
    pub(super) unread: bool,
    /// The end of its bytes, or an error, has been told of: it must be read up to there.
    pub(super) hung_up: bool,
    /// Is on the list of those to be flushed.
    pub(super) touched: bool,
    /// Its large request waits for those of others.
    pub(super) paused: bool,
    /// It has a request that takes long, and another's is being carried out.
    pub(super) is_patient: bool,
    /// Is on the list of those with work left. Once is enough: twice would be two turns.
    pub(super) queued: bool,
    /// What the loop last counted as held for it.
    pub(super) held: usize,
    /// Since when a request has been arriving.
    pub(super) arriving: Option<Arriving>,
    /// Since when the peer has taken nothing of its replies.
    pub(super) stalled: Option<Instant>,
    /// What the loop last counted as held of its replies, and since when there has been something.
    pub(super) owed: usize,
    pub(super) owed_since: Option<Instant>,
}

/// A request that comes in pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arriving {
    /// Which of those that came in pieces it is.
    request: u64,
    since: Instant,
    /// When its rate was last looked at, and how many bytes of it were there.
    looked: (Instant, usize),
    /// When it last grew, and to how many bytes.
    grown: (Instant, usize),
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        client: ClientId,
        recycler: Recycler,
        now: Instant,
    ) -> Connection {
        Connection {
            stream,
            peer,
            client,
            session: Session::with_recycler(recycler),
            outbox: Outbox::default(),
            accepted: now,
            doomed: false,
            ended: false,
            unread: false,
            hung_up: false,
            touched: false,
            paused: false,
            is_patient: false,
            queued: false,
            held: 0,
            arriving: None,
            stalled: None,
            owed: 0,
            owed_since: None,
        }
    }

    /// Whether the peer leaves too much of its replies lying.
    pub(super) fn is_congested(&self, limits: &Limits) -> bool {
        self.outbox.unsent() > limits.output_pause
    }

    /// Whether more bytes should be read from it now.
    pub(super) fn wants_input(&self, limits: &Limits) -> bool {
        !self.doomed
            && !self.ended
            && !self.paused
            && !self.is_congested(limits)
            && self.session.deferred_bytes() <= limits.deferred_bytes
    }

    /// Notes which request is arriving, if one is. True if it has only begun to.
    pub(super) fn note_arriving(&mut self) -> bool {
        let request = self.session.begun();
        match (self.session.partial(), self.arriving) {
            (None, _) => self.arriving = None,
            (Some(bytes), Some(arriving)) if arriving.request == request => {
                if arriving.grown.1 != bytes {
                    self.arriving = Some(Arriving { grown: (Instant::now(), bytes), ..arriving });
                }
            }
            (Some(bytes), _) => {
                let now = Instant::now();
                self.arriving =
                    Some(Arriving { request, since: now, looked: (now, bytes), grown: (now, bytes) });
                return true;
            }
        }
        false
    }

    /// Whether the request that is arriving comes too slowly. Remembers what it saw.
    pub(super) fn is_too_slow(&mut self, now: Instant, limits: &Limits) -> bool {
        let reading = self.wants_input(limits);
        let (Some(arriving), Some(bytes)) = (&mut self.arriving, self.session.partial()) else {
            return false;
        };
        // What we don't read can't arrive; its time begins when we do.
        if !reading {
            (arriving.since, arriving.looked, arriving.grown) = (now, (now, bytes), (now, bytes));
            return false;
        }
        let (looked, before) = arriving.looked;
        if now.duration_since(arriving.since) < limits.partial_grace {
            arriving.looked = (now, bytes);
            return false;
        }
        // Looked at over a few seconds, so that one slow moment is not fatal.
        let elapsed = now.duration_since(looked);
        if elapsed < limits.partial_grace.min(Duration::from_secs(5)) {
            return false;
        }
        arriving.looked = (now, bytes);
        (bytes.saturating_sub(before) as f64) < limits.partial_rate as f64 * elapsed.as_secs_f64()
    }

    /// Lets it go on after a pause. What is not read can't grow, so its time begins now.
    pub(super) fn go_on(&mut self) {
        self.paused = false;
        if let Some(arriving) = &mut self.arriving {
            arriving.grown.0 = Instant::now();
        }
    }

    /// Whether all that came of its request has been read, and nothing more has come for so long.
    pub(super) fn stands_still(&self, now: Instant, how_long: Duration) -> bool {
        let grown = self.arriving.map_or(self.accepted, |arriving| arriving.grown.0);
        !self.paused && !self.unread && now.duration_since(grown) >= how_long
    }

    /// Whether it holds room for a large request, and has got no more of it for so long.
    pub(super) fn holds_room_in_vain(&self, now: Instant, large: usize, limits: &Limits) -> bool {
        self.arriving.is_some_and(|arriving| {
            arriving.grown.1 >= large && now.duration_since(arriving.grown.0) >= limits.input_stall
        })
    }
}
