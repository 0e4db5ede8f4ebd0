//! The interface to a service: a protocol of its own that a hub runs beside the store, on the same port.
//!
//! Clients send messages to the service with the operation MESSAGE. The service replies with values, at any time. It
//! also opens connections to the services of other hubs. These connections are called *links*.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{CloseReason, ConnectionId, Hub};
use crate::error::WireError;
use crate::limits::Limits;
use crate::store::{EffectLog, SERVER_KEY};
use crate::value::Value;
use crate::wire::{MAGIC, Op, Reply, Request};

/// The number of a link. The service chooses it.
pub type LinkId = u64;

/// How long a link may take to connect and to identify the server.
const LINK_TIMEOUT: Duration = Duration::from_secs(2);
/// The capability in the identity of a server whose hub has a service.
pub const SERVICE_CAPABILITY: &str = "messages";
/// The address of the peer of a link, which the hub does not know.
const UNKNOWN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The other side of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// A connection that the hub accepted.
    Client(ConnectionId),
    /// A connection that the service opened.
    Link(LinkId),
}

/// Why the connection to a peer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEnd {
    /// The connection was closed or reset, or could not be opened.
    Closed,
    /// The host refused the connection, so no process listens at the address.
    Refused,
    /// The peer is a store server without a service, such as torch's.
    NoService,
}

/// An instruction of a service to its hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceAction<E> {
    /// Open a link to `HOST:PORT`.
    Connect(LinkId, String),
    /// Send a message.
    Send(Peer, Vec<u8>),
    /// Close a connection after its messages are sent. [`Service::handle_close`] is not called for it.
    Close(Peer),
    /// Pass an event to the program.
    Event(E),
}

/// A protocol that a hub runs beside the store. `()` is no service: MESSAGE is then an unknown operation.
pub trait Service {
    /// An event for the program.
    type Event: Send;
    /// Whether there is a service.
    const IS_PRESENT: bool = true;

    /// Handles a message.
    ///
    /// # Errors
    ///
    /// Fails with a description if the message is invalid. The hub then closes the connection.
    fn handle_message(&mut self, peer: Peer, message: &[u8], now: Duration) -> Result<(), String>;

    /// Handles a link that is open and leads to a service.
    fn handle_open(&mut self, link: LinkId, now: Duration);

    /// Handles a link, or the connection of a client that has sent a message, that has ended.
    fn handle_close(&mut self, peer: Peer, end: LinkEnd, now: Duration);

    /// Handles the passage of time.
    fn handle_timeout(&mut self, now: Duration);

    /// Returns the time at which [`handle_timeout`](Service::handle_timeout) is due.
    fn next_timeout(&self, now: Duration) -> Option<Duration>;

    /// Returns the next action.
    fn poll_action(&mut self) -> Option<ServiceAction<Self::Event>>;
}

impl Service for () {
    type Event = std::convert::Infallible;
    const IS_PRESENT: bool = false;

    fn handle_message(&mut self, _: Peer, _: &[u8], _: Duration) -> Result<(), String> {
        Ok(())
    }

    fn handle_open(&mut self, _: LinkId, _: Duration) {}

    fn handle_close(&mut self, _: Peer, _: LinkEnd, _: Duration) {}

    fn handle_timeout(&mut self, _: Duration) {}

    fn next_timeout(&self, _: Duration) -> Option<Duration> {
        None
    }

    fn poll_action(&mut self) -> Option<ServiceAction<Self::Event>> {
        None
    }
}

/// The state of a link.
#[derive(Debug)]
pub(super) struct Link {
    id: LinkId,
    address: String,
    /// Whether the server has identified itself as one with a service.
    pub(super) is_open: bool,
    input: Vec<u8>,
}

impl Link {
    /// Returns whether a link of this age has missed its deadline.
    pub(super) fn is_late(&self, age: Duration) -> bool {
        !self.is_open && age >= LINK_TIMEOUT
    }

    /// Removes and returns the first value of the input, or returns `None` if it has not arrived completely.
    fn next_value(&mut self, limits: &Limits) -> Result<Option<Vec<u8>>, WireError> {
        let Some((len, _)) = self.input.split_first_chunk::<8>() else { return Ok(None) };
        let (len, limit) = (u64::from_le_bytes(*len), limits.frame_len);
        if len > limit as u64 {
            return Err(WireError::TooLong { what: "message", key: None, len, limit });
        }
        let end = 8 + len as usize;
        if self.input.len() < end {
            return Ok(None);
        }
        let rest = self.input.split_off(end);
        let mut value = std::mem::replace(&mut self.input, rest);
        value.drain(..8);
        Ok(Some(value))
    }
}

impl<L: EffectLog, S: Service> Hub<L, S> {
    /// Returns the service. Its actions are carried out by the next call of [`Hub::poll_action`].
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// Returns the next event of the service.
    pub fn poll_service_event(&mut self) -> Option<S::Event> {
        self.service_events.pop_front()
    }

    /// Returns the address, as `HOST:PORT`, of a link that the driver has to connect.
    pub fn link_address(&self, id: ConnectionId) -> Option<&str> {
        let connection = self.connections.get(id.index()).filter(|connection| connection.id == id)?;
        Some(&connection.link.as_ref()?.address)
    }

    /// Handles a link whose socket is connected.
    pub fn handle_connected(&mut self, id: ConnectionId, now: Duration) {
        self.now = now;
        if let Some(connection) = self.find_open(id) {
            // Torch's servers know both requests. Messages follow only if the server says that it has a service.
            connection.outbox.push_request(&Request::Validate { magic: MAGIC });
            connection.outbox.push_request(&Request::Get { key: SERVER_KEY });
            self.queue_send(id.index());
        }
    }

    /// Handles a link that could not be connected. `is_refused` says that the host has refused the connection.
    pub fn handle_not_connected(&mut self, id: ConnectionId, is_refused: bool, now: Duration) {
        self.now = now;
        if self.find_open(id).is_some() {
            self.end_messages(id.index(), if is_refused { LinkEnd::Refused } else { LinkEnd::Closed });
            self.close(id.index());
        }
    }

    /// Handles a message of a client.
    #[cold]
    pub(super) fn handle_message(&mut self, index: usize, message: &[u8]) {
        if !S::IS_PRESENT {
            return self.close_for(index, WireError::UnknownOp { code: Op::Message as u8 }.into());
        }
        let connection = &mut self.connections[index];
        connection.is_messenger = true;
        let peer = Peer::Client(connection.id);
        if let Err(reason) = self.service.handle_message(peer, message, self.now) {
            self.close_for(index, CloseReason::InvalidMessage { reason });
        }
        // The service may have closed this connection, so that it must not get the messages that follow.
        self.run_service();
    }

    /// Handles bytes that arrived on a link: the identity of the server, and then messages.
    pub(super) fn handle_link_bytes(&mut self, index: usize, bytes: &[u8]) {
        if let Some(link) = &mut self.connections[index].link {
            link.input.extend_from_slice(bytes);
        }
        while let Some(link) = &mut self.connections[index].link {
            let (id, is_open) = (link.id, link.is_open);
            match link.next_value(&self.limits) {
                Ok(None) => return,
                Ok(Some(message)) if is_open => {
                    if let Err(reason) = self.service.handle_message(Peer::Link(id), &message, self.now) {
                        self.close_for(index, CloseReason::InvalidMessage { reason });
                    }
                }
                Ok(Some(identity)) if has_service(&identity) => {
                    link.is_open = true;
                    self.service.handle_open(id, self.now);
                }
                Ok(Some(_)) => {
                    self.end_messages(index, LinkEnd::NoService);
                    self.close(index);
                }
                Err(error) => self.close_for(index, error.into()),
            }
        }
    }

    /// Carries out the actions of the service.
    pub(super) fn run_service(&mut self) {
        while let Some(action) = self.service.poll_action() {
            match action {
                ServiceAction::Connect(id, address) => {
                    let connection = self.insert_connection(UNKNOWN_ADDRESS);
                    let link = Link { id, address, is_open: false, input: Vec::new() };
                    self.connections[connection.index()].link = Some(Box::new(link));
                    self.links.insert(id, connection.index());
                    self.unconnected.push_back(connection);
                }
                ServiceAction::Send(peer, message) => self.send_message(peer, &message),
                ServiceAction::Close(peer) => {
                    if let Some(index) = self.index_of(peer) {
                        self.forget_messages(index);
                        self.close(index);
                    }
                }
                ServiceAction::Event(event) => self.service_events.push_back(event),
            }
        }
    }

    fn index_of(&mut self, peer: Peer) -> Option<usize> {
        match peer {
            Peer::Client(id) => self.find_open(id).map(|_| id.index()),
            Peer::Link(link) => self.links.get(&link).copied(),
        }
    }

    fn send_message(&mut self, peer: Peer, message: &[u8]) {
        let Some(index) = self.index_of(peer) else { return };
        let outbox = &mut self.connections[index].outbox;
        match peer {
            Peer::Client(_) => outbox.push(Reply::Value(Value::copied(message))),
            Peer::Link(_) => outbox.push_request(&Request::Message { message: message.into() }),
        }
        self.queue_send(index);
        self.count_output(index);
    }

    /// Tells the service that a connection has ended, if the service uses the connection.
    #[inline]
    pub(super) fn end_messages(&mut self, index: usize, end: LinkEnd) {
        if S::IS_PRESENT
            && let Some(peer) = self.forget_messages(index)
        {
            self.service.handle_close(peer, end, self.now);
        }
    }

    /// Records that the service does not use a connection any more. Returns the peer that the service has used.
    fn forget_messages(&mut self, index: usize) -> Option<Peer> {
        let connection = &mut self.connections[index];
        if let Some(link) = connection.link.take() {
            self.links.remove(&link.id);
            return Some(Peer::Link(link.id));
        }
        std::mem::take(&mut connection.is_messenger).then_some(Peer::Client(connection.id))
    }
}

/// Returns whether the identity of a server, which clients read under [`SERVER_KEY`], says that its hub has a service.
pub fn has_service(identity: &[u8]) -> bool {
    let identity = String::from_utf8_lossy(identity);
    let capabilities = identity.split(' ').find_map(|word| word.strip_prefix("capabilities="));
    capabilities.is_some_and(|names| names.split(',').any(|name| name == SERVICE_CAPABILITY))
}

#[cfg(test)]
mod tests;
