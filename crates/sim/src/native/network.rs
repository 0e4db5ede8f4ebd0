//! The network: TCP connections between processes, with latency, packet loss, and links that are cut.
//!
//! A segment that can't reach its host is held, and arrives after the link is restored. So each direction of a
//! connection delivers its segments in order, once, or not at all.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::world::{Event, World};

/// The index of a connection.
pub(super) type ConnectionIndex = usize;

/// One side of a connection. As a number, it is the index of the side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Opener,
    Acceptor,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Opener => Side::Acceptor,
            Side::Acceptor => Side::Opener,
        }
    }
}

/// What arrives at one side of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// A request to open the connection.
    Open,
    /// The kernel of the other host has accepted the connection.
    Accepted,
    /// The other host has refused the connection.
    Refused,
    Bytes(Vec<u8>),
    /// The other process has closed the connection.
    End,
    /// The connection was reset.
    Reset,
}

/// A process at one side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: usize,
    /// The number of the process. Zero is a process that has not accepted the connection yet.
    pub(super) process: u64,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The opener and the acceptor.
    pub(super) ends: [Endpoint; 2],
    /// Whether the process at each side has closed the connection, or was told that it is over.
    pub(super) is_over: [bool; 2],
    /// When the last segment arrives at each side.
    last_arrival: [Duration; 2],
    /// Segments that can't reach each side.
    held: [VecDeque<Segment>; 2],
}

/// All connections, and the links that are cut.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) connections: Vec<Connection>,
    /// The number of faults that cut each directed link.
    cuts: BTreeMap<(usize, usize), u32>,
    /// The connections with segments that are held.
    holding: Vec<ConnectionIndex>,
    /// The number of bytes that processes on different hosts have sent.
    pub(super) bytes: u64,
    /// The number of times that bytes were sent between processes on different hosts.
    pub(super) messages: u64,
}

impl Network {
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        !self.cuts.is_empty() && self.cuts.contains_key(&(from, to))
    }

    pub(super) fn connects(&self, one: usize, other: usize) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }

    pub(super) fn cut(&mut self, links: &[(usize, usize)]) {
        for link in links.iter().filter(|(from, to)| from != to) {
            *self.cuts.entry(*link).or_default() += 1;
        }
    }

    pub(super) fn restore_all(&mut self) {
        self.cuts.clear();
    }

    pub(super) fn restore(&mut self, links: &[(usize, usize)]) {
        for link in links {
            if let Some(count) = self.cuts.get_mut(link) {
                *count -= 1;
                if *count == 0 {
                    self.cuts.remove(link);
                }
            }
        }
    }
}

impl World {
    /// Opens a connection from a process to a host.
    pub(super) fn open(&mut self, host: usize, process: u64, to: usize) -> ConnectionIndex {
        let ends = [Endpoint { host, process }, Endpoint { host: to, process: 0 }];
        let connection = Connection {
            ends,
            is_over: [false; 2],
            last_arrival: [self.now; 2],
            held: [VecDeque::new(), VecDeque::new()],
        };
        self.network.connections.push(connection);
        let index = self.network.connections.len() - 1;
        self.transmit(index, Side::Acceptor, Segment::Open);
        index
    }

    /// Sends a segment to one side of a connection.
    pub(super) fn transmit(&mut self, index: ConnectionIndex, to: Side, segment: Segment) {
        let connection = &self.network.connections[index];
        let is_local = connection.ends[0].host == connection.ends[1].host;
        let latency = self.draw_latency(is_local);
        if let (Segment::Bytes(bytes), false) = (&segment, is_local) {
            self.network.bytes += bytes.len() as u64;
            self.network.messages += 1;
        }
        let last = &mut self.network.connections[index].last_arrival[to as usize];
        *last = (self.now + latency).max(*last);
        let at = *last;
        self.queue.schedule(at, Event::Arrive { connection: index, to, segment });
    }

    fn draw_latency(&mut self, is_local: bool) -> Duration {
        if is_local {
            return Duration::from_micros(self.random.between(20, 100));
        }
        let (low, high) = self.config.latency_us;
        let mut latency = self.random.between(low, high);
        let mut timeout = 200_000;
        while self.config.lost_one_in > 0 && self.has_faults() && self.random.one_in(self.config.lost_one_in)
        {
            // With thin streams, Linux does not double the timeout of a retransmission for the first six times.
            latency += timeout;
            timeout += 50_000;
        }
        Duration::from_micros(latency)
    }

    /// Handles a segment that arrives at a host.
    pub(super) fn handle_arrival(&mut self, index: ConnectionIndex, to: Side, segment: Segment) {
        let connection = &mut self.network.connections[index];
        let (from, end) = (connection.ends[to.other() as usize].host, connection.ends[to as usize]);
        let is_blocked = self.network.cuts.contains_key(&(from, end.host))
            || !connection.held[to as usize].is_empty()
            || !self.hosts[end.host].is_powered;
        if is_blocked {
            connection.held[to as usize].push_back(segment);
            self.network.holding.push(index);
            return;
        }
        self.deliver(index, to, segment);
    }

    /// Sends the segments again that were held and can arrive now. TCP repeats them some time after the link is restored.
    pub(super) fn release_held(&mut self) {
        let mut holding = std::mem::take(&mut self.network.holding);
        holding.sort_unstable();
        holding.dedup();
        for index in holding {
            for side in [Side::Opener, Side::Acceptor] {
                if !self.network.connections[index].held[side as usize].is_empty() {
                    let delay =
                        Duration::from_micros(self.random.between(1_000, self.config.max_retransmission_us));
                    self.queue.schedule(self.now + delay, Event::Retransmit { connection: index, to: side });
                    self.network.holding.push(index);
                }
            }
        }
    }

    pub(super) fn retransmit(&mut self, index: ConnectionIndex, to: Side) {
        let connection = &mut self.network.connections[index];
        let (from, end) = (connection.ends[to.other() as usize].host, connection.ends[to as usize]);
        if self.network.cuts.contains_key(&(from, end.host)) || !self.hosts[end.host].is_powered {
            return;
        }
        for segment in std::mem::take(&mut connection.held[to as usize]) {
            self.deliver(index, to, segment);
        }
    }

    /// Passes a segment to the process at one side of a connection. A host without that process resets the connection.
    fn deliver(&mut self, index: ConnectionIndex, to: Side, segment: Segment) {
        let connection = &mut self.network.connections[index];
        let end = connection.ends[to as usize];
        if connection.is_over[to as usize] {
            // The sender does not know yet that the connection is over.
            if matches!(segment, Segment::Bytes(_)) && !connection.is_over[to.other() as usize] {
                self.transmit(index, to.other(), Segment::Reset);
            }
            return;
        }
        if segment == Segment::Open {
            return self.accept(index, end.host);
        }
        if matches!(segment, Segment::End | Segment::Reset | Segment::Refused) {
            connection.is_over[to as usize] = true;
        }
        if self.operators.contains_key(&end.process) {
            return self.handle_operator_segment(index, end.process, segment);
        }
        if self.is_running(end.host, end.process) {
            return self.receive(end.host, (index, to), segment);
        }
        let connection = &mut self.network.connections[index];
        if !std::mem::replace(&mut connection.is_over[to as usize], true) {
            self.transmit(index, to.other(), Segment::Reset);
        }
    }

    /// Handles a request to open a connection to a host. The kernel accepts it if a process listens, even if the process
    /// is paused.
    fn accept(&mut self, index: ConnectionIndex, host: usize) {
        let Some(process) = self.hosts[host].process.as_ref().map(|process| process.number) else {
            self.network.connections[index].is_over[Side::Acceptor as usize] = true;
            return self.transmit(index, Side::Opener, Segment::Refused);
        };
        self.network.connections[index].ends[Side::Acceptor as usize].process = process;
        self.transmit(index, Side::Opener, Segment::Accepted);
        self.receive(host, (index, Side::Acceptor), Segment::Open);
    }

    /// Closes one side of a connection, because the process has closed it or has ended.
    pub(super) fn close_side(&mut self, index: ConnectionIndex, side: Side, segment: Segment) {
        let connection = &mut self.network.connections[index];
        if !std::mem::replace(&mut connection.is_over[side as usize], true) {
            self.transmit(index, side.other(), segment);
        }
    }

    /// Resets a connection, as a middlebox does. `sides` says which of the sides learn that now. The other side learns it
    /// when it sends something.
    pub(super) fn reset(&mut self, index: ConnectionIndex, sides: &[Side]) {
        for side in sides {
            self.transmit(index, *side, Segment::Reset);
        }
    }

    /// Returns the connections between running processes.
    pub(super) fn open_connections(&self) -> Vec<ConnectionIndex> {
        let is_open = |index: &ConnectionIndex| {
            let connection = &self.network.connections[*index];
            let is_live = |end: &Endpoint| self.is_running(end.host, end.process);
            connection.is_over == [false; 2] && connection.ends.iter().all(is_live)
        };
        (0..self.network.connections.len()).filter(is_open).collect()
    }
}
