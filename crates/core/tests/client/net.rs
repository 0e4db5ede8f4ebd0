//! A simulated network with a virtual clock, which advances while a client waits or when a test advances it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::client::{Client, ConnectionFault, Deadline, Io, OnReset};

use crate::server::{Behavior, Model, Response};

/// The process at an address.
pub(crate) enum Host {
    /// No process listens: connections are refused.
    Refuses,
    /// Connection attempts get no reply.
    Unreachable,
    /// The process accepts connections and closes them when the first byte arrives.
    Closes,
    /// The process accepts connections. It sends these bytes when it first receives data, and nothing afterwards.
    Sends(Vec<u8>),
    /// A store.
    Store(Box<Model>),
}

/// A change of the network at a given time.
type Event = Box<dyn FnOnce(&mut NetState)>;

/// The state of the simulated network.
pub(crate) struct NetState {
    pub(crate) now: Duration,
    pub(crate) hosts: Vec<Host>,
    /// Whether the network is cut. Requests that are sent during the cut are lost.
    pub(crate) is_cut: bool,
    /// Whether the store processes are stopped. When they resume, they handle the requests that arrived in the
    /// meantime.
    pub(crate) is_stopped: bool,
    pub(crate) connections: Vec<Connection>,
    /// The values of TCP_USER_TIMEOUT that clients have set, in order.
    pub(crate) user_timeouts: Vec<Duration>,
    pub(crate) is_resolvable: bool,
    events: Vec<(Duration, Event)>,
    /// How long a reply takes to arrive.
    pub(crate) latency: Duration,
    /// A link that delays and loses packets. It replaces `latency`.
    pub(crate) bad_link: Option<BadLink>,
}

/// A link that delays every packet by 100 to 500 ms and loses 10 % of the packets.
///
/// A lost packet is sent again after [`BadLink::RETRANSMISSION_TIMEOUT`], which doubles with each loss.
pub(crate) struct BadLink {
    pub(crate) random: u64,
}

impl BadLink {
    const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(1_200);

    /// Returns the next number of a deterministic sequence. The number is less than `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    /// Returns how long the next packet takes to arrive, including retransmissions.
    fn next_delay(&mut self) -> Duration {
        let mut delay = Duration::ZERO;
        let mut retransmission = BadLink::RETRANSMISSION_TIMEOUT;
        while self.below(10) == 0 {
            delay += retransmission;
            retransmission *= 2;
        }
        delay + Duration::from_millis(100 + self.below(401))
    }
}

/// The network's side of one connection.
#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) host: usize,
    /// Chunks of bytes for the client, each with the time at which it arrives.
    inbound: VecDeque<(Duration, Vec<u8>)>,
    /// When the client notices that the server closed the connection.
    closed_at: Option<Duration>,
    /// When TCP_USER_TIMEOUT breaks the connection of the client.
    breaks_at: Option<Duration>,
    /// Bytes that a stopped store has not read yet.
    unread: Vec<u8>,
    is_dropped: bool,
}

/// A handle to the simulated network. It is the [`Io`] of the clients.
#[derive(Clone)]
pub(crate) struct Net(pub(crate) Rc<RefCell<NetState>>);

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Net")
    }
}

/// The client's side of one connection.
#[derive(Debug)]
pub(crate) struct Stream {
    net: Net,
    id: usize,
    user_timeout: std::cell::Cell<Duration>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.net.0.borrow_mut();
        state.connections[self.id].is_dropped = true;
        let host = state.connections[self.id].host;
        if let Host::Store(model) = &mut state.hosts[host] {
            model.disconnect(self.id);
        }
    }
}

impl Net {
    /// Creates a network with one address for each host.
    pub(crate) fn new(hosts: Vec<Host>) -> Net {
        Net(Rc::new(RefCell::new(NetState {
            now: Duration::from_secs(1_000_000),
            hosts,
            is_cut: false,
            is_stopped: false,
            connections: Vec::new(),
            user_timeouts: Vec::new(),
            is_resolvable: true,
            events: Vec::new(),
            latency: Duration::from_micros(50),
            bad_link: None,
        })))
    }

    /// Creates a network with one store.
    pub(crate) fn store(model: Model) -> Net {
        Net::new(vec![Host::Store(Box::new(model))])
    }

    pub(crate) fn client(&self) -> Client<Net> {
        Client::new(self.clone(), Limits::default(), OnReset::Fail)
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.borrow().now
    }

    pub(crate) fn deadline(&self, timeout: Duration) -> Deadline {
        Deadline::after(self.now(), Some(timeout))
    }

    /// Schedules an event.
    pub(crate) fn after(&self, delay: Duration, event: impl FnOnce(&mut NetState) + 'static) {
        let mut state = self.0.borrow_mut();
        let at = state.now + delay;
        state.events.push((at, Box::new(event)));
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut NetState) -> T) -> T {
        change(&mut self.0.borrow_mut())
    }

    /// Advances the clock and runs the events that become due.
    pub(crate) fn advance_clock(&self, time: Duration) {
        let until = self.now() + time;
        while self.0.borrow_mut().run_next_event(until) {}
        self.0.borrow_mut().now = until;
    }

    /// Calls `access` with the store at the first address.
    pub(crate) fn model<T>(&self, access: impl FnOnce(&mut Model) -> T) -> T {
        self.change(|state| access(state.model()))
    }

    /// Advances the clock until `poll` returns [`Poll::Ready`]. Returns `None` at the deadline.
    fn wait(&self, deadline: &Deadline, mut poll: impl FnMut(&mut NetState) -> Option<Poll>) -> Option<Poll> {
        loop {
            let mut state = self.0.borrow_mut();
            let next = match poll(&mut state) {
                Some(Poll::Later(at)) => Some(at),
                Some(ready) => return Some(ready),
                None => None,
            };
            let now = state.now;
            let left = deadline.left(now);
            if left == Some(Duration::ZERO) {
                return None;
            }
            let until = left.map(|left| now + left);
            let end = match (next, until) {
                (Some(next), Some(until)) => next.min(until),
                (Some(end), None) | (None, Some(end)) => end,
                (None, None) => state.next_event().expect("the client would wait forever"),
            };
            if !state.run_next_event(end) {
                state.now = end;
            }
        }
    }
}

/// The result of polling a connection: bytes, a fault, or the time at which to poll again.
enum Poll {
    Later(Duration),
    Ready(Result<usize, ConnectionFault>),
}

impl NetState {
    pub(crate) fn model(&mut self) -> &mut Model {
        match &mut self.hosts[0] {
            Host::Store(model) => model,
            _ => panic!("the process at the first address is not a store"),
        }
    }

    /// Sets a key of the store, as another client would.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        let mut responses = Vec::new();
        let model = self.model();
        model.values.insert(key.into(), value.into());
        model.wake(&mut responses);
        self.deliver(responses);
    }

    pub(crate) fn is_dropped(&self, id: usize) -> bool {
        self.connections[id].is_dropped
    }

    /// Kills the process at the first address: its connections are closed, and new ones are refused.
    pub(crate) fn kill(&mut self) {
        self.hosts[0] = Host::Refuses;
        self.close_all();
    }

    /// Replaces the store at the first address and closes all connections.
    pub(crate) fn restart(&mut self, model: Model) {
        self.hosts[0] = Host::Store(Box::new(model));
        self.close_all();
    }

    pub(crate) fn close_all(&mut self) {
        (0..self.connections.len()).for_each(|id| self.close(id));
    }

    pub(crate) fn close(&mut self, id: usize) {
        let at = self.now + self.latency;
        self.connections[id].closed_at.get_or_insert(at);
    }

    /// Resumes the stopped stores.
    pub(crate) fn resume(&mut self) {
        self.is_stopped = false;
        for id in 0..self.connections.len() {
            let unread = std::mem::take(&mut self.connections[id].unread);
            self.serve(id, &unread);
        }
    }

    fn next_event(&self) -> Option<Duration> {
        self.events.iter().map(|(at, _)| *at).min()
    }

    /// Advances the clock to the next event and runs it, if it is due by `end`. Returns whether an event ran.
    fn run_next_event(&mut self, end: Duration) -> bool {
        let due = self.next_event().filter(|at| *at <= end);
        let Some(at) = due else { return false };
        self.now = self.now.max(at);
        let index = self.events.iter().position(|(time, _)| *time == at).unwrap();
        let (_, event) = self.events.remove(index);
        event(self);
        true
    }

    /// Returns the time between sending a request now and the arrival of its reply.
    fn round_trip(&mut self) -> Duration {
        self.bad_link.as_mut().map_or(self.latency, |link| link.next_delay() + link.next_delay())
    }

    fn serve(&mut self, id: usize, bytes: &[u8]) {
        let (now, latency) = (self.now, self.latency);
        if self.is_stopped {
            self.connections[id].unread.extend_from_slice(bytes);
            return;
        }
        let connection = &mut self.connections[id];
        match &mut self.hosts[connection.host] {
            Host::Refuses | Host::Unreachable | Host::Closes => connection.closed_at = Some(now + latency),
            Host::Sends(reply) if reply.is_empty() => {}
            Host::Sends(reply) => connection.inbound.push_back((now + latency, std::mem::take(reply))),
            Host::Store(model) => {
                let responses = model.receive(id, bytes);
                self.deliver(responses);
            }
        }
    }

    fn deliver(&mut self, responses: Vec<Response>) {
        let (at, latency) = (self.now + self.round_trip(), self.latency);
        for Response { to, behavior, reply } in responses {
            let connection = &mut self.connections[to];
            let at = connection.inbound.back().map_or(at, |(last, _)| at.max(*last));
            match behavior {
                Behavior::Refuse | Behavior::Close => connection.closed_at = Some(at),
                Behavior::Ignore => {}
                Behavior::Send(bytes) => connection.inbound.push_back((at, bytes)),
                Behavior::Truncate(len) => {
                    connection.inbound.push_back((at, reply[..len.min(reply.len())].to_vec()));
                    connection.closed_at = Some(at + latency);
                }
                Behavior::Duplicate => {
                    connection.inbound.push_back((at, reply.clone()));
                    connection.inbound.push_back((at + Duration::from_millis(3), reply));
                }
                Behavior::SplitBytes(pause) => {
                    for (n, byte) in reply.into_iter().enumerate() {
                        connection.inbound.push_back((at + pause * (n as u32 + 1), vec![byte]));
                    }
                }
                Behavior::Reply => connection.inbound.push_back((at, reply)),
            }
            connection.inbound.retain(|(_, bytes)| !bytes.is_empty());
        }
    }

    fn poll_read(&mut self, id: usize, buffer: &mut [u8]) -> Option<Poll> {
        let now = self.now;
        let is_cut = self.is_cut;
        let connection = &mut self.connections[id];
        let breaks_at = connection.breaks_at;
        if let Some((at, bytes)) = connection.inbound.front_mut().filter(|_| !is_cut) {
            if *at > now {
                return Some(Poll::Later(*at));
            }
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            bytes.drain(..len);
            if bytes.is_empty() {
                connection.inbound.pop_front();
            }
            return Some(Poll::Ready(Ok(len)));
        }
        match (connection.closed_at.filter(|_| !is_cut), breaks_at) {
            (Some(at), _) if at <= now => Some(Poll::Ready(Err(ConnectionFault::Closed))),
            (_, Some(at)) if at <= now => Some(Poll::Ready(Err(ConnectionFault::Unacknowledged))),
            (Some(at), _) | (None, Some(at)) => Some(Poll::Later(at)),
            (None, None) => None,
        }
    }
}

impl Io for Net {
    type Address = usize;
    type Stream = Stream;

    fn now(&self) -> Duration {
        Net::now(self)
    }

    fn random(&self) -> u32 {
        512
    }

    async fn resolve(&self, deadline: &Deadline) -> Result<Vec<usize>, ConnectionFault> {
        let (count, is_resolvable) = self.change(|state| (state.hosts.len(), state.is_resolvable));
        if is_resolvable {
            return Ok((0..count).collect());
        }
        let fault = ConnectionFault::Unresolvable { host: "node0".into(), reason: "unknown".into() };
        self.sleep(&deadline.or_after(self.now(), Duration::from_millis(20))).await;
        Err(fault)
    }

    async fn connect(&self, address: &usize, deadline: &Deadline) -> Result<Stream, ConnectionFault> {
        let (is_lost, is_refused, round_trip) = self.change(|state| {
            let host = &state.hosts[*address];
            let (is_lost, is_refused) =
                (state.is_cut || matches!(host, Host::Unreachable), matches!(host, Host::Refuses));
            (
                is_lost,
                is_refused,
                if state.bad_link.is_some() { state.round_trip() } else { 2 * state.latency },
            )
        });
        if is_lost || deadline.left(self.now()).is_some_and(|left| left < round_trip) {
            self.sleep(deadline).await;
            return Err(ConnectionFault::ConnectTimeout);
        }
        self.advance_clock(round_trip);
        if is_refused {
            return Err(ConnectionFault::Refused);
        }
        let id = self.change(|state| {
            state.connections.push(Connection { host: *address, ..Connection::default() });
            state.connections.len() - 1
        });
        Ok(Stream { net: self.clone(), id, user_timeout: Duration::MAX.into() })
    }

    async fn write(&self, stream: &mut Stream, bytes: &[u8], _: &Deadline) -> Result<usize, ConnectionFault> {
        self.change(|state| {
            let (now, connection) = (state.now, &mut state.connections[stream.id]);
            if connection.closed_at.is_some_and(|at| at <= now) {
                return Err(ConnectionFault::Closed);
            }
            if state.is_cut {
                connection.breaks_at.get_or_insert(now.saturating_add(stream.user_timeout.get()));
            } else {
                state.serve(stream.id, bytes);
            }
            Ok(bytes.len())
        })
    }

    async fn read(
        &self,
        stream: &mut Stream,
        buffer: &mut [u8],
        deadline: &Deadline,
    ) -> Result<usize, ConnectionFault> {
        match self.wait(deadline, |state| state.poll_read(stream.id, buffer)) {
            Some(Poll::Ready(read)) => read,
            _ => Err(ConnectionFault::Silent),
        }
    }

    async fn sleep(&self, deadline: &Deadline) {
        self.wait(deadline, |_| None);
    }

    fn is_quiet(&self, stream: &Stream) -> bool {
        self.change(|state| {
            let (now, connection) = (state.now, &state.connections[stream.id]);
            let has_input = connection.inbound.front().is_some_and(|(at, _)| *at <= now);
            !has_input && connection.closed_at.is_none_or(|at| at > now)
        })
    }

    fn set_user_timeout(&self, stream: &Stream, timeout: Duration) {
        stream.user_timeout.set(timeout);
        self.change(|state| state.user_timeouts.push(timeout));
    }
}
