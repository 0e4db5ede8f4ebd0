//! A store server without IO: connections, fair turns, limits and deadlines around the engine.
//!
//! A driver owns the sockets and the clock. It reports events with the `handle_…` methods. The `now` of all methods is
//! the time since the start of the driver. The driver calls [`Hub::poll_action`] and carries out the actions until the
//! method returns `None`. Then it waits for events on its sockets for up to [`Hub::poll_timeout`]. The same sequence of
//! calls gives the same results, so tests and the fuzzer run the hub in memory.
//!
//! # Examples
//!
//! A client sends its handshake, a SET and a GET in one read:
//!
//! ```
//! use std::time::Duration;
//!
//! use rallypoint_core::hub::{Action, Hub, HubOptions};
//! use rallypoint_core::wire::{MAGIC, Request};
//!
//! let now = Duration::ZERO;
//! let mut hub = Hub::new(HubOptions::default(), ());
//! let id = hub.handle_open("192.0.2.1:5000".parse().unwrap(), now).expect("the hub accepts the connection");
//!
//! let mut received = Vec::new();
//! Request::Validate { magic: MAGIC }.encode(&mut received);
//! Request::Set { key: b"/epoch", value: b"7".into() }.encode(&mut received);
//! Request::Get { key: b"/epoch" }.encode(&mut received);
//!
//! let mut sent = Vec::new();
//! while let Some(action) = hub.poll_action(now) {
//!     match action {
//!         Action::Read { .. } => hub.handle_bytes(id, &received, true, now),
//!         Action::Send(_) => {
//!             let (slices, count) = hub.transmit(id);
//!             sent = slices[..count].concat();
//!             hub.handle_sent(id, sent.len(), true, now);
//!         }
//!         Action::Close(_) | Action::Connect(_) => unreachable!("the client follows the protocol"),
//!     }
//! }
//! assert_eq!(sent, b"\x01\0\0\0\0\0\0\x007"); // A 64-bit length, then the value.
//! ```

mod close_reason;
mod connection;
mod deadlines;
mod guard;
mod jobs;
mod outbox;
mod service;
mod session;
mod stats;
mod uploads;
mod violations;

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use slab::Slab;

pub use close_reason::CloseReason;
pub use jobs::ExpiredJob;
pub use outbox::MAX_SLICES;
pub use service::{LinkEnd, LinkId, Peer, SERVICE_CAPABILITY, Service, ServiceAction, has_service};
pub use stats::ServerStats;

use crate::limits::Limits;
use crate::store::{ClientId, EffectLog, Engine, EngineOptions, Outcome, Snapshot};
use crate::value::Value;
use crate::wire::{Reply, Request};
use connection::Connection;
use jobs::Jobs;
use uploads::{Upload, Uploads};
use violations::Violations;

/// The size of a read from a connection without an upload. It bounds the work of a turn. An incomplete request is an
/// upload once this number of bytes has arrived.
const READ_BYTES: usize = 32 * 1024;
/// The size of a read from a connection with an upload. The driver's read buffer has this size.
pub const UPLOAD_READ_BYTES: usize = 384 * 1024;
/// The number of reads after which the hub sends replies before it reads again.
const BATCH_READS: usize = 64;
/// The number of bytes, read and queued as replies, after which the hub sends replies before it reads again.
const BATCH_BYTES: usize = 256 * 1024;
/// The interval between two checks of all deadlines.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// The id of a connection. An index is reused after its connection is closed. The generation distinguishes connections
/// with the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    index: u32,
    generation: u32,
}

impl ConnectionId {
    /// Returns the index, a small number that is unique among the open connections.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Returns the id as one number.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the id for a number from [`ConnectionId::to_bits`].
    pub fn from_bits(bits: u64) -> ConnectionId {
        ConnectionId { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// An instruction of the hub to its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read up to `len` bytes. Report them with [`Hub::handle_bytes`], or the end of the stream with
    /// [`Hub::handle_end`].
    Read {
        /// The connection.
        id: ConnectionId,
        /// The maximum number of bytes to read.
        len: usize,
    },
    /// Send the bytes that [`Hub::transmit`] returns, and report the result with [`Hub::handle_sent`].
    Send(ConnectionId),
    /// Close the connection. The hub has already removed it.
    Close(ConnectionId),
    /// Open a connection to [`Hub::link_address`]. Report the result with [`Hub::handle_connected`] or
    /// [`Hub::handle_not_connected`].
    Connect(ConnectionId),
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The hub refused or closed a connection.
    Closed {
        /// The address of the peer.
        peer: SocketAddr,
        /// The reason.
        reason: CloseReason,
        /// The number of such events that [`Limits::log_lines_per_second`] has suppressed since the previous `Closed`
        /// event.
        suppressed: u64,
    },
    /// The hub deleted the keys of an idle job.
    Expired(ExpiredJob),
}

/// Options of a [`Hub`].
#[derive(Debug, Clone, Default)]
pub struct HubOptions {
    /// The limits on requests, on stored data, and on connections.
    pub limits: Limits,
    /// The seed of the hash tables. Clients that do not know it cannot provoke collisions.
    pub seed: u64,
    /// The identity of the server, which clients read under [`SERVER_KEY`](crate::store::SERVER_KEY).
    pub identity: Vec<u8>,
    /// The time after which the keys of a job without connections and without requests are deleted. `None` disables the
    /// deletion.
    pub expire_idle_jobs: Option<Duration>,
}

/// A store server without IO, and the [service](Service) `S` beside the store.
pub struct Hub<L = (), S = ()>
where
    S: Service,
{
    limits: Limits,
    engine: Engine<L>,
    service: S,
    /// The connections that the service has opened.
    links: BTreeMap<LinkId, usize>,
    /// Links that the driver has to connect.
    unconnected: VecDeque<ConnectionId>,
    /// Events of the service for the program.
    service_events: VecDeque<S::Event>,
    connections: Slab<Connection>,
    generation: u32,
    /// Connections to read from, and connections with deferred requests to handle.
    read_queue: VecDeque<usize>,
    /// Connections with an upload to read, each with the number of its admission. Each pass reads the upload that was
    /// admitted first.
    upload_queue: BTreeSet<(u64, usize)>,
    /// Connections with replies to send, and connections to close.
    send_queue: VecDeque<usize>,
    /// The number of connections in `read_queue` that have not had their turn in the current pass. `None` between
    /// passes.
    pass: Option<usize>,
    /// The number of reads, and the number of bytes read and queued as replies, since replies were last sent.
    batch: (usize, usize),
    /// Connections that may have a running deadline. [`Hub::sweep`] removes connections without one from this set.
    watched: BTreeSet<usize>,
    uploads: Uploads,
    input_bytes: usize,
    output_bytes: usize,
    jobs: Option<Jobs>,
    violations: Violations,
    events: VecDeque<Event>,
    /// The start of the current one-second window of the log, and the number of lines in the window.
    log_window: (Duration, u32),
    /// The number of log lines that were suppressed since the last line.
    suppressed: u64,
    stats: ServerStats,
    last_sweep: Duration,
    /// The time of the current call.
    now: Duration,
}

impl<L: EffectLog> Hub<L> {
    /// Creates a server without connections and without a service, whose engine records its effects in `log`.
    pub fn new(options: HubOptions, log: L) -> Hub<L> {
        Hub::with_service(options, log, ())
    }
}

impl<L: EffectLog, S: Service> Hub<L, S> {
    /// Creates a server without connections. Its engine records its effects in `log`.
    pub fn with_service(options: HubOptions, log: L, service: S) -> Hub<L, S> {
        let limits = options.limits;
        let engine = EngineOptions {
            limits: limits.clone(),
            seed: options.seed,
            identity: Some(Value::copied(&options.identity)),
            guard: Some(guard::STATE_GUARD),
        };
        Hub {
            engine: Engine::new(engine, log),
            service,
            links: BTreeMap::new(),
            unconnected: VecDeque::new(),
            service_events: VecDeque::new(),
            connections: Slab::new(),
            generation: 0,
            read_queue: VecDeque::new(),
            upload_queue: BTreeSet::new(),
            send_queue: VecDeque::new(),
            pass: None,
            batch: (0, 0),
            watched: BTreeSet::new(),
            // Uploads share three quarters of `input_total`. The rest is for small incomplete requests and deferred
            // requests.
            uploads: Uploads::new(limits.input_total / 4 * 3),
            input_bytes: 0,
            output_bytes: 0,
            jobs: options.expire_idle_jobs.map(Jobs::new),
            violations: Violations::default(),
            events: VecDeque::new(),
            log_window: (Duration::ZERO, 0),
            suppressed: 0,
            stats: ServerStats { max_connections: limits.connections as u64, ..ServerStats::default() },
            last_sweep: Duration::ZERO,
            now: Duration::ZERO,
            limits,
        }
    }

    // ---- events ----

    /// Handles a new connection. Returns `None` if the hub refuses the connection and the driver must close it.
    pub fn handle_open(&mut self, peer: SocketAddr, now: Duration) -> Option<ConnectionId> {
        self.now = now;
        self.stats.accepted += 1;
        if self.connections.len() >= self.limits.connections {
            self.report(peer, CloseReason::TooManyConnections { open: self.connections.len() });
            return None;
        }
        if self.violations.is_refused(peer.ip(), now, &self.limits) {
            self.stats.refused += 1;
            return None;
        }
        let id = self.insert_connection(peer);
        // Read immediately, because the handshake has usually arrived by now.
        self.queue_read(id.index());
        Some(id)
    }

    fn insert_connection(&mut self, peer: SocketAddr) -> ConnectionId {
        self.generation = self.generation.wrapping_add(1).max(1);
        let slot = self.connections.vacant_entry();
        let id = ConnectionId { index: slot.key() as u32, generation: self.generation };
        slot.insert(Connection::new(id, peer, self.now));
        self.watched.insert(id.index());
        id
    }

    /// Handles a connection that the driver refused because the process cannot open more files.
    pub fn handle_out_of_files(&mut self, peer: SocketAddr, error: &str, now: Duration) {
        self.now = now;
        self.report(peer, CloseReason::OutOfFiles { error: error.into() });
    }

    /// Handles a connection that became readable. `is_end` says that the peer has closed its side of the connection.
    pub fn handle_readable(&mut self, id: ConnectionId, is_end: bool) {
        if let Some(connection) = self.find_open(id) {
            connection.unread = true;
            connection.end_announced |= is_end;
            self.queue_read(id.index());
        }
    }

    /// Handles a connection that became writable.
    pub fn handle_writable(&mut self, id: ConnectionId) {
        if self.find_open(id).is_some_and(|connection| connection.outbox.unsent() > 0) {
            self.queue_send(id.index());
        }
    }

    /// Handles bytes that the driver read. `is_drained` says that no more bytes were available.
    pub fn handle_bytes(&mut self, id: ConnectionId, bytes: &[u8], is_drained: bool, now: Duration) {
        self.now = now;
        let Some(connection) = self.find_open(id) else { return };
        // If an event has announced the end of the stream, no further event follows, so the hub must read again to
        // reach the end.
        connection.unread = !is_drained || connection.end_announced;
        let is_link = S::IS_PRESENT && connection.link.is_some();
        self.batch.1 += bytes.len();
        match is_link {
            true => self.handle_link_bytes(id.index(), bytes),
            false => self.process_input(id.index(), bytes),
        }
        self.queue_send(id.index());
        self.queue_read_if_unread(id.index());
    }

    /// Handles the end of the peer's stream.
    pub fn handle_end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.find_open(id) {
            connection.ended = true;
            connection.unread = false;
            self.queue_send(id.index());
        }
    }

    /// Handles a connection whose read or send failed.
    pub fn handle_failure(&mut self, id: ConnectionId, now: Duration) {
        self.now = now;
        if let Some(connection) = self.find(id) {
            connection.outbox = Default::default();
            self.close(id.index());
        }
    }

    /// Handles the result of a send: the number of bytes sent, and whether the connection is still writable.
    pub fn handle_sent(&mut self, id: ConnectionId, sent: usize, is_writable: bool, now: Duration) {
        self.now = now;
        let output_pause = self.limits.output_pause;
        let Some(connection) = self.find(id) else { return };
        let was_congested = connection.outbox.unsent() > output_pause;
        connection.outbox.advance(sent);
        let unsent = connection.outbox.unsent();
        if connection.closing {
            if !is_writable {
                connection.outbox = Default::default();
            }
            return self.queue_send(id.index());
        }
        if unsent == 0 {
            connection.stalled = None;
        } else if sent > 0 || connection.stalled.is_none() {
            connection.stalled = Some(now);
            self.watched.insert(id.index());
        }
        if was_congested && unsent <= output_pause {
            self.queue_read(id.index());
        }
        // Counting visits all unsent values. A partial send only lowers the count, so the recount can wait for the next
        // sweep.
        if unsent == 0 {
            self.count_output(id.index());
        }
        if unsent > 0 && is_writable {
            self.queue_send(id.index());
        }
        self.close_if_finished(id.index());
    }

    /// Checks all deadlines if the last check was at least 50 ms ago.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        if now.saturating_sub(self.last_sweep) >= SWEEP_INTERVAL {
            self.last_sweep = now;
            self.sweep();
        }
        if self.service.next_timeout(now).is_some_and(|time| time <= now) {
            self.service.handle_timeout(now);
        }
    }

    // ---- actions ----

    /// Returns the next action. Returns `None` at the end of a pass. The driver then polls its sockets before it calls
    /// this method again.
    ///
    /// In a pass, each readable connection has one turn. Of the connections with an upload, only the one whose upload
    /// was admitted first has a turn.
    #[inline]
    pub fn poll_action(&mut self, now: Duration) -> Option<Action> {
        self.now = now;
        if S::IS_PRESENT {
            self.run_service();
            if let Some(id) = self.unconnected.pop_front() {
                return Some(Action::Connect(id));
            }
        }
        let mut left = self.pass.unwrap_or_else(|| {
            self.read_queue.extend(self.upload_queue.pop_first().map(|(_, index)| index));
            self.read_queue.len()
        });
        loop {
            let is_batch_full = self.batch.0 >= BATCH_READS || self.batch.1 >= BATCH_BYTES;
            if left > 0 && !is_batch_full {
                left -= 1;
                self.pass = Some(left);
                if let Some(index) = self.read_queue.pop_front()
                    && let Some(action) = self.take_turn(index)
                {
                    self.batch.0 += 1;
                    return Some(action);
                }
            } else if let Some(index) = self.send_queue.pop_front() {
                let Some(connection) = self.connections.get_mut(index) else { continue };
                connection.in_send_queue = false;
                let id = connection.id;
                if connection.outbox.unsent() > 0 {
                    return Some(Action::Send(id));
                }
                if connection.closing {
                    self.connections.remove(index);
                    return Some(Action::Close(id));
                }
                self.close_if_finished(index);
            } else {
                self.batch = (0, 0);
                if left == 0 {
                    self.pass = None;
                    return None;
                }
            }
        }
    }

    /// Returns the next bytes to send to a connection: an array of slices, and the number of slices in use.
    pub fn transmit(&mut self, id: ConnectionId) -> ([&[u8]; MAX_SLICES], usize) {
        match self.find(id) {
            Some(connection) => connection.outbox.slices(),
            None => ([&[]; MAX_SLICES], 0),
        }
    }

    /// Returns the time after which the driver must call [`Hub::handle_timeout`] and [`Hub::poll_action`], even without
    /// an event. Returns `None` if only an event can change the hub.
    pub fn poll_timeout(&self, now: Duration) -> Option<Duration> {
        if !self.read_queue.is_empty() || !self.upload_queue.is_empty() {
            return Some(Duration::ZERO);
        }
        let is_idle = self.watched.is_empty() && self.jobs.as_ref().is_none_or(Jobs::is_empty);
        let sweep = (!is_idle).then(|| self.last_sweep + SWEEP_INTERVAL);
        let next = sweep.into_iter().chain(self.service.next_timeout(now)).min();
        next.map(|time| time.saturating_sub(now))
    }

    /// Returns the next event for the log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the counters and gauges of the server.
    pub fn stats(&self) -> ServerStats {
        let stored = self.engine.snapshot();
        ServerStats {
            connections: self.connections.len() as u64,
            keys: stored.keys as u64,
            bytes: stored.bytes as u64,
            ..self.stats
        }
    }

    /// Returns a snapshot of the engine.
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.engine.snapshot()
    }

    /// Checks the invariants of the hub and its engine, for tests. The check visits all connections and clients.
    ///
    /// # Panics
    ///
    /// Panics if the parts of the hub are inconsistent, or if a limit is exceeded.
    pub fn check_invariants(&self) {
        self.engine.check_invariants();
        let sum =
            |part: fn(&Connection) -> usize| self.connections.iter().map(|(_, c)| part(c)).sum::<usize>();
        assert_eq!((sum(|c| c.input_bytes), sum(|c| c.output_bytes)), (self.input_bytes, self.output_bytes));
        assert_eq!(sum(|c| usize::from(c.blocked && !c.closing)), self.engine.snapshot().blocked);
        let waiting = |c: &Connection| usize::from(c.upload == Upload::Waiting);
        assert_eq!(sum(waiting), self.uploads.waiting());
        for (_, connection) in &self.connections {
            let session = &connection.session;
            // The decoder detects that a request is too long only when the length field that makes it too long has
            // arrived. Up to 7 of the 8 bytes of that field may be buffered beyond the limit.
            let max = self.limits.frame_len + size_of::<u64>() - 1;
            let len = session.buffered_bytes() - session.backlog_bytes();
            assert!(len <= max, "{len} bytes of one request");
        }
    }

    // ---- the turn of a connection ----

    fn find(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.index()).filter(|connection| connection.id == id)
    }

    fn find_open(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.find(id).filter(|connection| !connection.closing)
    }

    fn queue_read(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if std::mem::replace(&mut connection.in_read_queue, true) {
            return;
        }
        match connection.upload {
            Upload::Admitted { number, .. } => _ = self.upload_queue.insert((number, index)),
            _ => self.read_queue.push_back(index),
        }
    }

    fn queue_read_if_unread(&mut self, index: usize) {
        let connection = &self.connections[index];
        if connection.unread && connection.wants_input(&self.limits) {
            self.queue_read(index);
        }
    }

    fn queue_send(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if !std::mem::replace(&mut connection.in_send_queue, true) {
            self.send_queue.push_back(index);
        }
    }

    /// Handles the deferred requests of a connection. Returns its next read, or `None` if the hub does not read from it
    /// now.
    fn take_turn(&mut self, index: usize) -> Option<Action> {
        let connection = self.connections.get_mut(index)?;
        connection.in_read_queue = false;
        if connection.session.has_backlog() {
            let unparsed = connection.session.take_unparsed();
            self.process_input(index, &unparsed);
            self.queue_send(index);
        }
        let connection = &self.connections[index];
        if !connection.unread || !connection.wants_input(&self.limits) {
            return None;
        }
        let is_upload = connection.upload != Upload::None;
        Some(Action::Read { id: connection.id, len: if is_upload { UPLOAD_READ_BYTES } else { READ_BYTES } })
    }

    /// Handles the deferred requests of a connection, and then the requests in `input`, its next bytes. While a request
    /// is blocked, the session defers the requests after it.
    fn process_input(&mut self, index: usize, mut input: &[u8]) {
        loop {
            let connection = &mut self.connections[index];
            if connection.closing {
                return;
            }
            if !connection.blocked {
                if connection.is_congested(&self.limits) {
                    connection.session.put_back(input);
                    break;
                }
                if let Some(request) = connection.session.next_in_place(&mut input, &self.limits) {
                    self.handle_request(index, request);
                    continue;
                }
            }
            match self.handle_next(index, input) {
                Some(rest) => input = rest,
                None => break,
            }
        }
        self.count_input(index);
        self.count_output(index);
    }

    /// Handles the next request of a connection, which may be incomplete, deferred or invalid. Returns the bytes after
    /// the request, or `None` if the session has consumed all of `input` and has no request for the engine.
    ///
    /// The method is never inlined, so that the loop over complete requests stays small.
    #[inline(never)]
    fn handle_next<'a>(&mut self, index: usize, mut input: &'a [u8]) -> Option<&'a [u8]> {
        let connection = &mut self.connections[index];
        match connection.session.next(&mut input, &self.limits, connection.blocked) {
            Ok(decoded) => self.handle_request(index, decoded?.request()),
            Err(error) => self.close_for(index, error.into()),
        }
        Some(input)
    }

    /// Handles a request of a connection.
    ///
    /// The method is always inlined, so that a decoded request stays in registers.
    #[inline(always)]
    fn handle_request(&mut self, index: usize, request: Request<'_>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.handle_request(index, request, self.now);
        }
        if let Request::Message { message } = request {
            return self.handle_message(index, message.bytes());
        }
        match self.engine.handle_request(ClientId::new(index as u32), request) {
            Ok(Outcome::NoReply) => {}
            Ok(Outcome::Reply(reply)) => {
                let connection = &mut self.connections[index];
                // If the client was blocked, the request is the CANCEL_WAIT that ends its WAIT or BARRIER.
                connection.blocked = false;
                connection.outbox.push(reply);
            }
            Ok(Outcome::Blocked) => self.connections[index].blocked = true,
            Err(refusal) => self.close_for(index, (*refusal).into()),
        }
        self.wake_clients();
    }

    /// Wakes all connections whose WAIT or BARRIER has ended.
    #[inline]
    fn wake_clients(&mut self) {
        while let Some(client) = self.engine.poll_woken() {
            self.wake(client.index());
        }
    }

    /// Replies to the blocked request of a connection. If the connection has deferred requests or unread bytes, queues
    /// it for another turn.
    fn wake(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.blocked = false;
        connection.outbox.push(Reply::Stop);
        self.queue_send(index);
        if self.connections[index].session.has_backlog() {
            self.queue_read(index);
        }
        self.queue_read_if_unread(index);
    }

    // ---- totals of input and output ----

    /// Counts the buffered bytes of a connection's requests. Starts an upload if the incomplete request is large, and
    /// admits uploads if the budget suffices. Closes the connection with the most buffered bytes if the total exceeds
    /// `input_total`.
    fn count_input(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let input_bytes = connection.session.buffered_bytes();
        if input_bytes == 0 && connection.input_bytes == 0 && connection.receiving.is_none() {
            // Nearly every turn ends here.
            return;
        }
        self.input_bytes = self.input_bytes + input_bytes - connection.input_bytes;
        connection.input_bytes = input_bytes;
        if connection.track_request(self.now) {
            self.uploads.end(index, std::mem::take(&mut connection.upload));
        }
        if let Some(receiving) = connection.receiving {
            self.watched.insert(index);
            let is_large = receiving.len >= READ_BYTES && connection.wants_input(&self.limits);
            if is_large && connection.upload == Upload::None {
                let len = connection.session.decoder().expected().unwrap_or(self.limits.frame_len);
                connection.upload = self.uploads.start(index, len);
            }
        }
        if self.input_bytes > self.limits.input_total {
            self.close_largest_input();
        }
        self.admit_uploads();
    }

    fn admit_uploads(&mut self) {
        while let Some((index, upload)) = self.uploads.admit_next() {
            self.connections[index].upload = upload;
            self.queue_read(index);
        }
    }

    fn close_largest_input(&mut self) {
        let open = self.connections.iter().filter(|(_, connection)| !connection.closing);
        let Some((index, connection)) = open.max_by_key(|(_, c)| c.input_bytes) else { return };
        let (total, limit, buffered) = (self.input_bytes, self.limits.input_total, connection.input_bytes);
        self.close_for(index, CloseReason::TooMuchInput { total, limit, buffered });
    }

    /// Counts the memory of a connection's unsent replies. If the total exceeds `output_total`, closes the connection
    /// that `close_oldest_output` selects.
    fn count_output(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let output_bytes = if connection.outbox.unsent() > 0 { connection.outbox.memory_bytes() } else { 0 };
        self.batch.1 += output_bytes.saturating_sub(connection.output_bytes);
        self.output_bytes = self.output_bytes + output_bytes - connection.output_bytes;
        connection.output_bytes = output_bytes;
        if self.output_bytes > self.limits.output_total {
            self.close_oldest_output();
        }
    }

    /// Closes the connection that has read none of its replies for the longest time. Connections with at least
    /// [`READ_BYTES`] of unsent replies are closed first.
    fn close_oldest_output(&mut self) {
        let open = self.connections.iter().filter(|(_, c)| !c.closing && c.output_bytes > 0);
        let oldest = open.min_by_key(|(_, c)| (c.output_bytes < READ_BYTES, c.stalled.is_none(), c.stalled));
        let Some((index, connection)) = oldest else { return };
        let age = connection.stalled.map_or(Duration::ZERO, |since| self.now.saturating_sub(since));
        let (total, limit, buffered) = (self.output_bytes, self.limits.output_total, connection.output_bytes);
        self.connections[index].outbox = Default::default();
        self.close_for(index, CloseReason::TooMuchOutput { total, limit, buffered, age });
    }

    // ---- closing connections ----

    fn close_if_finished(&mut self, index: usize) {
        if self.connections[index].is_finished(&self.limits) {
            self.close(index);
        }
    }

    /// Closes a connection for a violation of its peer.
    fn close_for(&mut self, index: usize, reason: CloseReason) {
        let peer = self.connections[index].peer;
        // A host that does not answer violates nothing, and its address is not known here. The service is told.
        if !matches!(reason, CloseReason::NoLink { .. }) {
            self.violations.count(peer.ip(), self.now, &self.limits);
            self.report(peer, reason);
        }
        self.close(index);
    }

    /// Counts a refused or closed connection, and logs it unless the log has reached `log_lines_per_second`.
    fn report(&mut self, peer: SocketAddr, reason: CloseReason) {
        self.stats.count(&reason);
        if self.now.saturating_sub(self.log_window.0) >= Duration::from_secs(1) {
            self.log_window = (self.now, 0);
        }
        if self.log_window.1 >= self.limits.log_lines_per_second {
            self.suppressed += 1;
            return;
        }
        self.log_window.1 += 1;
        let suppressed = std::mem::take(&mut self.suppressed);
        self.events.push_back(Event::Closed { peer, reason, suppressed });
    }

    /// Closes a connection. Before that, the hub sends the unsent replies, until all are sent or the connection is no
    /// longer writable.
    fn close(&mut self, index: usize) {
        self.queue_send(index);
        let connection = &mut self.connections[index];
        if std::mem::replace(&mut connection.closing, true) {
            return;
        }
        self.input_bytes -= std::mem::take(&mut connection.input_bytes);
        self.output_bytes -= std::mem::take(&mut connection.output_bytes);
        connection.session = Default::default();
        self.uploads.end(index, std::mem::take(&mut connection.upload));
        if let Some(jobs) = &mut self.jobs {
            jobs.handle_disconnect(index, self.now);
        }
        self.engine.handle_disconnect(ClientId::new(index as u32));
        self.wake_clients();
        self.admit_uploads();
        self.end_messages(index, LinkEnd::Closed);
    }
}
