//! The server's one thread: waits for sockets, reads, asks the session and the engine, writes. Each connection has its
//! turn and no more than its share, so one that is slow, broken or hostile delays no other.

mod accept;
mod clocks;
mod replies;
mod uploads;

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use rallypoint_core::store::{ClientId, Engine, Listing, Next, Output};
use rallypoint_core::wire::Recycler;
use rallypoint_core::{Hold, Limits, WireError};
use slab::Slab;

use super::connection::Connection;
use super::crowd::Crowd;
use super::offences::Offences;
use super::outbox::Buffers;
use super::stats::{Counters, count};
use accept::raise_file_limit;

const WAKE: Token = Token(0);
/// Tokens from here on are connections; those below are listeners.
const FIRST_CONNECTION: usize = 1024;
/// What `read` is offered in the midst of a large request.
const SCRATCH: usize = 256 * 1024;
/// What it is offered otherwise: what comes may be thousands of requests, and whatever is not for this turn is put
/// aside.
const GLANCE: usize = 32 * 1024;

/// So many turns are had, or bytes read, before replies are sent: reading, then writing, for many at a time keeps the
/// processor in the same code, and more would keep the first of them waiting.
const SERVED_TOGETHER: usize = 64;
const SERVED_BYTES: usize = 256 * 1024;

/// A connection that is closed is sent what it takes at once of what it is owed, up to so many times what a turn is.
const LAST_TRIES: usize = 32;

/// What is left of a connection's turn.
struct Share {
    bytes: usize,
    requests: usize,
}

impl Share {
    fn is_spent(&self) -> bool {
        self.bytes == 0 || self.requests == 0
    }
}

/// The loop and all it owns.
pub(super) struct EventLoop {
    poll: Poll,
    waker: Arc<Waker>,
    listeners: Vec<TcpListener>,
    /// Which of them are on the list of those with work left.
    queued_listeners: Vec<bool>,
    /// Held so that one connection can be accepted, and closed, when no file is left.
    spare_file: Option<File>,
    /// Connections wait to be accepted for which there was no file, not even to refuse them, or no memory.
    starved: bool,
    connections: Slab<Connection>,
    generation: u32,
    most_connections: usize,
    engine: Engine,
    limits: Limits,
    counters: Arc<Counters>,
    offences: Offences,
    scratch: Vec<u8>,
    buffers: Buffers,
    recycler: Recycler,
    /// Connections with work left that no event will tell of.
    ready: VecDeque<usize>,
    /// Connections that have had a turn, and are to be sent what they got from it.
    served: VecDeque<usize>,
    /// Bytes that were read in those turns.
    served_bytes: usize,
    /// Connections that got replies in another's turn.
    touched: VecDeque<usize>,
    doomed: Vec<usize>,
    /// Connections with a request that takes long, while another's is being carried out.
    patient: Vec<usize>,
    /// Not validated yet, oldest first. Entries may be out of date.
    unvalidated: VecDeque<ClientId>,
    /// With a request in pieces, or with replies the peer doesn't take. Entries may be out of date.
    arriving: HashSet<usize>,
    stalled: HashSet<usize>,
    input_held: usize,
    output_held: usize,
    crowd: Crowd,
    sweep_every: Duration,
    swept: Instant,
    started: Instant,
}

impl EventLoop {
    pub(super) fn new(
        mut listeners: Vec<TcpListener>,
        limits: Limits,
        engine: Engine,
        idle_after: Duration,
        counters: Arc<Counters>,
    ) -> io::Result<EventLoop> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        for (n, listener) in listeners.iter_mut().enumerate() {
            poll.registry().register(listener, Token(1 + n), Interest::READABLE)?;
        }
        let files = raise_file_limit();
        let most_connections = limits.connections_within(files);
        counters.most_connections.store(most_connections as u64, Ordering::Relaxed);
        let shortest = limits.handshake.min(limits.partial_grace).min(limits.output_stall);
        let shortest = shortest.min(limits.stale_after).min(idle_after);
        Ok(EventLoop {
            poll,
            waker,
            queued_listeners: vec![false; listeners.len()],
            listeners,
            spare_file: File::open("/dev/null").ok(),
            starved: false,
            connections: Slab::new(),
            generation: 0,
            most_connections,
            engine,
            offences: Offences::new(&limits),
            counters,
            scratch: vec![0; SCRATCH],
            buffers: Buffers::new(limits.recycled_bytes / 8),
            recycler: Recycler::new(limits.recycled_bytes),
            ready: VecDeque::new(),
            served: VecDeque::new(),
            served_bytes: 0,
            touched: VecDeque::new(),
            doomed: Vec::new(),
            patient: Vec::new(),
            unvalidated: VecDeque::new(),
            arriving: HashSet::new(),
            stalled: HashSet::new(),
            input_held: 0,
            output_held: 0,
            crowd: Crowd::default(),
            sweep_every: (shortest / 10).clamp(Duration::from_millis(5), Duration::from_secs(1)),
            swept: Instant::now(),
            started: Instant::now(),
            limits,
        })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Runs until it is told to stop.
    pub(super) fn run(mut self) {
        let _ended = Ended(Arc::clone(&self.counters));
        let mut events = Events::with_capacity(1024);
        while !self.counters.stop_requested() {
            match self.poll.poll(&mut events, self.patience()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!("store server stops: waiting for sockets failed: {error}");
                    return;
                }
            }
            self.engine.set_time(self.started.elapsed());
            for event in &events {
                match event.token() {
                    WAKE => self.answer(),
                    Token(listener) if listener < FIRST_CONNECTION => self.accept(listener - 1),
                    Token(token) => {
                        let index = token - FIRST_CONNECTION;
                        if event.is_writable() {
                            self.flush(index);
                        }
                        if event.is_readable() || event.is_read_closed() || event.is_error() {
                            let mut queued = false;
                            if let Some(connection) = self.connections.get_mut(index) {
                                connection.unread = true;
                                connection.hung_up |= event.is_read_closed() || event.is_error();
                                queued = connection.queued;
                            }
                            // Who is to have a turn anyway has no second one because more has come.
                            if !queued {
                                self.turn(index);
                            }
                        }
                    }
                }
                self.settle_some();
            }
            self.settle();
            for _ in 0..self.ready.len() {
                if let Some(index) = self.ready.pop_front() {
                    match index.checked_sub(FIRST_CONNECTION) {
                        Some(index) => {
                            if let Some(connection) = self.connections.get_mut(index) {
                                connection.queued = false;
                                self.turn(index);
                            }
                        }
                        None => {
                            self.queued_listeners[index] = false;
                            self.accept(index);
                        }
                    }
                    self.settle_some();
                }
            }
            self.settle();
            if self.crowd.waiting() > 0 {
                self.let_in();
            }
            self.work();
            let now = Instant::now();
            if now.duration_since(self.swept) >= self.sweep_every {
                self.sweep(now);
            }
        }
    }

    /// How long to wait for sockets: not at all with work left, for ever with no clock running.
    fn patience(&self) -> Option<Duration> {
        let clocks = !(self.unvalidated.is_empty()
            && self.arriving.is_empty()
            && self.stalled.is_empty()
            && self.recycler.is_empty()
            && self.engine.is_tidy()
            && !self.engine.has_jobs()
            && !self.starved);
        let idle = self.ready.is_empty() && self.patient.is_empty() && !self.engine.has_work();
        match (idle, clocks) {
            (false, _) => Some(Duration::ZERO),
            (true, true) => Some(self.sweep_every),
            (true, false) => None,
        }
    }

    /// Tells who has asked how it is doing.
    fn answer(&mut self) {
        self.note_room();
        self.counters.answer();
    }

    /// Lets a connection have a turn of which no event will tell.
    fn queue(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(FIRST_CONNECTION + index);
        }
    }

    // ---- coming and going ----

    /// Marks a connection to be closed, after a last try to send what it is owed.
    fn doom(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index)
            && !connection.doomed
        {
            connection.doomed = true;
            self.doomed.push(index);
        }
    }

    /// Dooms a connection for what its peer did.
    fn punish(&mut self, index: usize, why: &dyn Display, counter: fn(&Counters) -> &AtomicU64) {
        let Some(connection) = self.connections.get(index).filter(|connection| !connection.doomed) else {
            return;
        };
        let (peer, now) = (connection.peer, Instant::now());
        count(counter(&self.counters));
        self.offences.note(peer.ip(), now);
        self.log(now, peer, why);
        self.doom(index);
    }

    fn log(&mut self, now: Instant, peer: SocketAddr, what: &dyn Display) {
        if let Some(unsaid) = self.offences.may_log(now) {
            let more = if unsaid > 0 { format!(" ({unsaid} more not logged)") } else { String::new() };
            tracing::warn!("closed {peer}: {:.160}{more}", what.to_string());
        }
    }

    /// After a turn, if that was enough of them.
    fn settle_some(&mut self) {
        let enough = self.served.len() >= SERVED_TOGETHER || self.served_bytes >= SERVED_BYTES;
        if enough || !self.doomed.is_empty() {
            self.settle();
        }
    }

    /// After some turns: sends what they and others got from them, lets those go on, and closes who is doomed.
    fn settle(&mut self) {
        self.served_bytes = 0;
        loop {
            if let Some(index) = self.served.pop_front() {
                self.flush(index);
            } else if let Some(index) = self.touched.pop_front() {
                let Some(connection) = self.connections.get_mut(index) else { continue };
                connection.touched = false;
                // What was held back has its own turn, not this one; its replies then go out with this one.
                if connection.session.has_deferred() {
                    self.queue(index);
                    continue;
                }
                self.flush(index);
                if self.connections[index].unread && self.connections[index].wants_input(&self.limits) {
                    self.queue(index);
                }
            } else if let Some(index) = self.doomed.pop() {
                self.close(index);
            } else {
                return;
            }
        }
    }

    fn close(&mut self, index: usize) {
        let mut connection = self.connections.remove(index);
        // A last try; whoever does not take it now never will.
        for _ in 0..LAST_TRIES {
            match connection.outbox.send(&mut connection.stream, &mut self.buffers, &mut self.engine) {
                Ok(sent) if sent.is_cut_short => {}
                _ => break,
            }
        }
        self.input_held -= connection.held;
        self.output_held -= connection.owed;
        self.counters.connections.store(self.connections.len() as u64, Ordering::Relaxed);
        self.counters.out_of_files.store(0, Ordering::Relaxed);
        self.engine.handle_disconnect(connection.client);
        drop(connection);
        if self.starved {
            self.accept_again();
        }
        self.take_outputs(None);
    }

    // ---- one connection's turn ----

    /// Reads and handles what one connection sent, up to its share.
    fn turn(&mut self, index: usize) {
        let mut share = Share { bytes: self.limits.turn_bytes, requests: self.limits.turn_requests };
        let mut scratch = std::mem::take(&mut self.scratch);
        // What was held back goes first.
        if self.connections.get(index).is_some_and(|connection| connection.session.has_deferred()) {
            self.feed(index, &[], &mut share);
        }
        while let Some(connection) = self.connections.get_mut(index) {
            if !connection.unread || !connection.wants_input(&self.limits) {
                break;
            }
            if share.is_spent() {
                self.queue(index);
                break;
            }
            let large = connection.session.partial().is_some_and(|held| held >= GLANCE);
            if large && (self.input_held > self.limits.input_total / 4 || self.crowd.waiting() > 0) {
                let upload = (connection.client, connection.session.begun());
                if !self.crowd.admits(upload) {
                    connection.paused = true;
                    break;
                }
            }
            let offered = if large { SCRATCH } else { GLANCE };
            match connection.stream.read(&mut scratch[..offered]) {
                Ok(0) => {
                    connection.ended = true;
                    connection.unread = false;
                }
                Ok(len) => {
                    share.bytes = share.bytes.saturating_sub(len);
                    self.served_bytes += len;
                    // Less than was offered means drained: what comes later raises a new event. Only the end of the
                    // stream may have been told of already.
                    connection.unread = len == offered || connection.hung_up;
                    self.feed(index, &scratch[..len], &mut share);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.unread = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    connection.unread = false;
                    self.doom(index);
                }
            }
        }
        self.scratch = scratch;
        self.served.push_back(index);
    }

    /// Handles bytes of one connection. Those that its share does not reach for are held back for another turn.
    fn feed(&mut self, index: usize, bytes: &[u8], share: &mut Share) {
        let mut input = bytes;
        while let Some(connection) = self.connections.get_mut(index).filter(|connection| !connection.doomed) {
            let hold = if self.engine.is_blocked(connection.client) {
                Hold::Blocked
            } else if share.requests == 0
                || connection.is_congested(&self.limits)
                || self
                    .engine
                    .works_for()
                    .is_some_and(|other| connection.is_patient || other == connection.client)
            {
                Hold::Congested
            } else {
                Hold::No
            };
            if hold == Hold::No {
                let (session, limits) = (&mut connection.session, &self.limits);
                let sets = std::iter::from_fn(|| session.next_set(&mut input, limits)).take(share.requests);
                share.requests -= self.engine.handle_sets(connection.client, sets);
                if share.requests == 0 || self.engine.next_output().is_some() {
                    self.take_outputs(Some(index));
                    continue;
                }
            }
            match connection.session.next(&mut input, &self.limits, hold) {
                Ok(Some(frame)) if self.engine.is_long(&frame) => {
                    connection.is_patient = self.engine.works_for().is_some();
                    if connection.is_patient {
                        connection.session.put_back(frame);
                        self.patient.push(index);
                    } else {
                        self.engine.begin(connection.client, frame);
                    }
                }
                Ok(Some(frame)) => {
                    share.requests = share.requests.saturating_sub(1);
                    self.engine.handle_request(connection.client, frame.request());
                    // Many requests have no reply.
                    if self.engine.next_output().is_some() {
                        self.take_outputs(Some(index));
                    }
                }
                Ok(None) => break,
                Err(error @ WireError::BadMagic { .. }) => {
                    count(&self.counters.bad_magic);
                    self.punish(index, &error, |counters| &counters.protocol_errors);
                }
                Err(error) => self.punish(index, &error, |counters| &counters.protocol_errors),
            }
        }
        if share.requests == 0 && self.connections.get(index).is_some_and(|c| c.session.has_deferred()) {
            self.queue(index);
        }
        self.count_held(index);
    }

    /// A step of a request that takes long, if there is one. After the last, those go on who waited for it.
    fn work(&mut self) {
        let mut done = None;
        if self.engine.has_work() {
            done = self.engine.work();
            self.take_outputs(None);
            self.settle();
        }
        if self.engine.works_for().is_none() {
            // In their order, and before the one that has had its turn. The first begins; the others find that, and wait
            // again.
            for index in std::mem::take(&mut self.patient) {
                if let Some(connection) = self.connections.get_mut(index) {
                    connection.is_patient = false;
                }
                self.queue(index);
            }
        }
        if let Some(client) = done {
            self.count_held(client.index());
            self.queue(client.index());
        }
    }

    /// Hands the engine's outputs to their connections.
    fn take_outputs(&mut self, current: Option<usize>) {
        while let Some(output) = self.engine.next_output() {
            let (Next::Output(Output::Reply { client, .. } | Output::Close { client, .. })
            | Next::Keys { client, .. }) = *output;
            let index = client.index();
            let connection = self.connections.get_mut(index).filter(|connection| connection.client == client);
            match (output, connection) {
                // Asked for by the one whose turn it is.
                (Next::Keys { listing, .. }, Some(connection)) => {
                    connection.outbox.push_keys(std::mem::take(listing), &mut self.buffers);
                }
                (Next::Output(Output::Reply { reply, .. }), Some(connection)) => {
                    connection.outbox.push(reply, &mut self.buffers);
                    if current != Some(index) && !connection.touched {
                        connection.touched = true;
                        self.touched.push_back(index);
                    }
                }
                (Next::Output(Output::Close { reason, .. }), Some(_)) => {
                    let why = reason.to_string();
                    self.punish(index, &why, |counters| &counters.refusals);
                }
                // Nothing of it must be printed.
                (Next::Keys { listing, .. }, None) => *listing = Listing::default(),
                (_, None) => {}
            }
            self.engine.poll_output();
        }
        self.bound_lists();
    }

    /// Keeps the books of what is held for a connection, and notes when a request begins to arrive in pieces.
    fn count_held(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        // A request that is carried out in steps counts until it is done.
        let held = connection.session.held() + self.engine.long_request_bytes(connection.client);
        self.input_held = self.input_held + held - connection.held;
        connection.held = held;
        if connection.note_arriving() {
            self.arriving.insert(index);
        }
        if self.input_held > self.limits.input_total {
            self.cut_largest();
        }
    }
}

/// Notes the end of the loop, however it comes.
struct Ended(Arc<Counters>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.note_end();
    }
}
