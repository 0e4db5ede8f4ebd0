//! A driver that runs the hub in memory and in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use rallypoint_core::hub::{Action, ConnectionId, Event, Hub, HubOptions};
use rallypoint_core::store::EffectLog;

/// A hub and the peers of its connections.
pub(crate) struct Loopback<L = ()> {
    pub(crate) hub: Hub<L>,
    pub(crate) now: Duration,
    pub(crate) events: Vec<Event>,
    peers: BTreeMap<ConnectionId, Peer>,
    /// The bytes that each peer has received, including peers whose connection was closed.
    received: BTreeMap<ConnectionId, Vec<u8>>,
}

/// The peer of a connection.
#[derive(Default)]
struct Peer {
    /// The bytes that the hub has not read yet.
    sending: Vec<u8>,
    has_ended: bool,
    /// The number of bytes that the peer reads before it stops.
    window: usize,
}

#[allow(dead_code)] // Each test program uses only some of the methods.
impl<L: EffectLog> Loopback<L> {
    pub(crate) fn new(options: HubOptions, log: L) -> Loopback<L> {
        Loopback {
            hub: Hub::new(options, log),
            now: Duration::ZERO,
            events: Vec::new(),
            peers: BTreeMap::new(),
            received: BTreeMap::new(),
        }
    }

    /// Opens a connection. Returns `None` if the hub refuses it. The peer reads all bytes that it receives.
    pub(crate) fn open(&mut self) -> Option<ConnectionId> {
        self.open_from("10.0.0.1:1000".parse().unwrap())
    }

    pub(crate) fn open_from(&mut self, peer: std::net::SocketAddr) -> Option<ConnectionId> {
        let id = self.hub.handle_open(peer, self.now);
        id.map(|id| self.peers.insert(id, Peer { window: usize::MAX, ..Peer::default() }));
        self.run();
        id
    }

    pub(crate) fn is_open(&self, id: ConnectionId) -> bool {
        self.peers.contains_key(&id)
    }

    /// Sends bytes to the hub, and runs the hub.
    pub(crate) fn send(&mut self, id: ConnectionId, bytes: &[u8]) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.sending.extend_from_slice(bytes);
            self.hub.handle_readable(id, false);
        }
        self.run();
    }

    /// Ends the stream of the peer, and runs the hub.
    pub(crate) fn end(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.has_ended = true;
            self.hub.handle_readable(id, true);
        }
        self.run();
    }

    /// Makes the connection fail, and runs the hub.
    pub(crate) fn fail(&mut self, id: ConnectionId) {
        self.hub.handle_failure(id, self.now);
        self.run();
    }

    /// Sets the number of bytes that the peer reads before it stops, and runs the hub.
    pub(crate) fn set_window(&mut self, id: ConnectionId, window: usize) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.window = window;
            self.hub.handle_writable(id);
        }
        self.run();
    }

    /// Removes and returns the bytes that the peer has received.
    pub(crate) fn take_received(&mut self, id: ConnectionId) -> Vec<u8> {
        self.received.remove(&id).unwrap_or_default()
    }

    /// Advances the virtual time, in the steps that the hub requests.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(timeout) = self.hub.poll_timeout(self.now).filter(|_| self.now < end) {
            self.now = (self.now + timeout.max(Duration::from_millis(1))).min(end);
            self.run();
        }
        self.now = end;
    }

    /// Carries out all actions of the hub.
    pub(crate) fn run(&mut self) {
        loop {
            self.hub.handle_timeout(self.now);
            while let Some(action) = self.hub.poll_action(self.now) {
                self.perform(action);
            }
            self.events.extend(std::iter::from_fn(|| self.hub.poll_event()));
            if self.hub.poll_timeout(self.now) != Some(Duration::ZERO) {
                return;
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Read { id, len } => {
                let Some(peer) = self.peers.get_mut(&id) else { return };
                let read: Vec<u8> = peer.sending.drain(..len.min(peer.sending.len())).collect();
                match (read.is_empty(), peer.has_ended) {
                    (true, true) => self.hub.handle_end(id),
                    _ => self.hub.handle_bytes(id, &read, read.len() < len, self.now),
                }
            }
            Action::Send(id) => {
                let (slices, count) = self.hub.transmit(id);
                let mut bytes = slices[..count].concat();
                assert!(!bytes.is_empty(), "the hub requested a send without bytes");
                let Some(peer) = self.peers.get_mut(&id) else {
                    return self.hub.handle_failure(id, self.now);
                };
                let offered = bytes.len();
                bytes.truncate(peer.window);
                peer.window -= if peer.window == usize::MAX { 0 } else { bytes.len() };
                self.received.entry(id).or_default().extend_from_slice(&bytes);
                self.hub.handle_sent(id, bytes.len(), bytes.len() == offered, self.now);
            }
            Action::Connect(_) => unreachable!("the hub has no service"),
            Action::Close(id) => {
                self.peers.remove(&id);
            }
        }
    }
}
