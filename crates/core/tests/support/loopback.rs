//! A driver of the hub in memory: peers send and receive bytes, and time passes when it is told to.

use std::collections::BTreeMap;
use std::time::Duration;

use rallypoint_core::hub::{Action, ConnectionId, Event, Hub, HubOptions};
use rallypoint_core::store::EffectLog;

/// A server whose connections end in memory.
pub(crate) struct Loopback<L = ()> {
    pub(crate) hub: Hub<L>,
    pub(crate) now: Duration,
    pub(crate) events: Vec<Event>,
    peers: BTreeMap<ConnectionId, Peer>,
    /// What peers have received, also those whose connection was closed since.
    received: BTreeMap<ConnectionId, Vec<u8>>,
}

/// The other end of a connection.
#[derive(Default)]
struct Peer {
    sending: Vec<u8>,
    has_ended: bool,
    /// How many more bytes it takes.
    window: usize,
}

#[allow(dead_code)] // Each test uses a part of it.
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

    /// Opens a connection, if the hub accepts it. The peer takes all bytes it gets.
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

    /// Sends bytes to the hub, and lets it do all there is to do.
    pub(crate) fn send(&mut self, id: ConnectionId, bytes: &[u8]) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.sending.extend_from_slice(bytes);
            self.hub.handle_readable(id, false);
        }
        self.run();
    }

    /// Ends what the peer sends.
    pub(crate) fn end(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.has_ended = true;
            self.hub.handle_readable(id, true);
        }
        self.run();
    }

    /// Breaks the connection.
    pub(crate) fn fail(&mut self, id: ConnectionId) {
        self.hub.handle_failure(id, self.now);
        self.run();
    }

    /// Lets the peer take this many more bytes.
    pub(crate) fn set_window(&mut self, id: ConnectionId, window: usize) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.window = window;
            self.hub.handle_writable(id);
        }
        self.run();
    }

    /// Takes what the peer has received.
    pub(crate) fn take_received(&mut self, id: ConnectionId) -> Vec<u8> {
        self.received.remove(&id).unwrap_or_default()
    }

    /// Lets time pass, in steps as the hub asks for them.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(timeout) = self.hub.poll_timeout(self.now).filter(|_| self.now < end) {
            self.now = (self.now + timeout.max(Duration::from_millis(1))).min(end);
            self.run();
        }
        self.now = end;
    }

    /// Does all there is to do.
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
                assert!(!bytes.is_empty(), "nothing to send");
                let Some(peer) = self.peers.get_mut(&id) else {
                    return self.hub.handle_failure(id, self.now);
                };
                let offered = bytes.len();
                bytes.truncate(peer.window);
                peer.window -= if peer.window == usize::MAX { 0 } else { bytes.len() };
                self.received.entry(id).or_default().extend_from_slice(&bytes);
                self.hub.handle_sent(id, bytes.len(), bytes.len() == offered, self.now);
            }
            Action::Close(id) => {
                self.peers.remove(&id);
            }
        }
    }
}
