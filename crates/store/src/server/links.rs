//! The connections that the service of a server opens: name resolution and non-blocking connects.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use mio::Waker;
use mio::net::TcpStream;
use rallypoint_core::hub::ConnectionId;
use socket2::SockRef;

use crate::endpoint::Endpoint;

/// How long sent data may stay unacknowledged before a link is closed. TCP doubles the interval of its retransmissions, so
/// after an outage an old link would stay silent for as long as the outage took. A new link works at once.
const LINK_USER_TIMEOUT: Duration = Duration::from_secs(3);

/// The addresses of a name, or none if the name does not resolve.
type Resolved = (ConnectionId, Vec<SocketAddr>);

/// The links that are not connected yet.
pub(super) struct Links {
    connecting: BTreeMap<ConnectionId, Connecting>,
    sender: Sender<Resolved>,
    resolved: Receiver<Resolved>,
    waker: Arc<Waker>,
}

/// The state of a link that is not connected yet.
#[derive(Debug, Default)]
struct Connecting {
    /// The addresses that have not been tried.
    addresses: VecDeque<SocketAddr>,
    /// Whether an attempt failed for another reason than a refusal.
    has_other_failure: bool,
}

/// The next step of a link.
pub(super) enum Step {
    /// Wait for an event of the socket, which may be new.
    Wait(Option<TcpStream>),
    /// The socket is connected.
    Connected,
    /// No address can be connected. The flag says whether the host has refused all connections.
    Failed { is_refused: bool },
}

impl Links {
    pub(super) fn new(waker: Arc<Waker>) -> Links {
        let (sender, resolved) = channel();
        Links { connecting: BTreeMap::new(), sender, resolved, waker }
    }

    /// Returns whether this connection is a link that is not connected yet.
    pub(super) fn is_connecting(&self, id: ConnectionId) -> bool {
        self.connecting.contains_key(&id)
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.connecting.remove(&id);
    }

    /// Starts to resolve the address of a link, on another thread. [`Links::take_resolved`] returns the link afterwards.
    pub(super) fn resolve(&mut self, id: ConnectionId, address: &str) {
        self.connecting.insert(id, Connecting::default());
        let (endpoint, sender, waker) =
            (address.parse::<Endpoint>(), self.sender.clone(), Arc::clone(&self.waker));
        let resolve = move || {
            let addresses = endpoint.and_then(|endpoint| endpoint.resolve_within(None)).unwrap_or_default();
            // These calls fail only if the server has stopped.
            let _ = sender.send((id, addresses));
            let _ = waker.wake();
        };
        match address.parse::<SocketAddr>() {
            Ok(address) => _ = self.sender.send((id, vec![address])),
            // Without a thread the link is not connected, and the hub closes it after a timeout.
            Err(_) => _ = std::thread::Builder::new().name("resolve".into()).spawn(resolve),
        }
    }

    /// Returns a link whose address has been resolved since the last call, with its next step.
    pub(super) fn take_resolved(&mut self) -> Option<(ConnectionId, Step)> {
        loop {
            let (id, addresses) = self.resolved.try_recv().ok()?;
            if let Some(connecting) = self.connecting.get_mut(&id) {
                connecting.has_other_failure = addresses.is_empty();
                connecting.addresses = addresses.into();
                return Some((id, self.try_next(id)));
            }
        }
    }

    /// Returns the next step of a link after an event of its socket.
    pub(super) fn handle_event(&mut self, id: ConnectionId, socket: &TcpStream) -> Step {
        let error = match socket.take_error() {
            Ok(None) => match (socket.peer_addr(), socket.local_addr()) {
                // A socket that connects to a free port of this machine may be connected to itself.
                (Ok(peer), Ok(local)) if peer == local => io::ErrorKind::ConnectionRefused.into(),
                (Ok(_), _) => {
                    self.connecting.remove(&id);
                    configure(socket);
                    return Step::Connected;
                }
                (Err(error), _) if error.kind() == io::ErrorKind::NotConnected => return Step::Wait(None),
                (Err(error), _) => error,
            },
            Ok(Some(error)) | Err(error) => error,
        };
        self.count_failure(id, &error);
        self.try_next(id)
    }

    fn count_failure(&mut self, id: ConnectionId, error: &io::Error) {
        if let Some(connecting) = self.connecting.get_mut(&id) {
            connecting.has_other_failure |= error.kind() != io::ErrorKind::ConnectionRefused;
        }
    }

    /// Starts to connect to the next address of a link.
    fn try_next(&mut self, id: ConnectionId) -> Step {
        while let Some(address) = self.connecting.get_mut(&id).and_then(|link| link.addresses.pop_front()) {
            match TcpStream::connect(address) {
                Ok(socket) => return Step::Wait(Some(socket)),
                Err(error) => self.count_failure(id, &error),
            }
        }
        let connecting = self.connecting.remove(&id);
        Step::Failed { is_refused: connecting.is_some_and(|connecting| !connecting.has_other_failure) }
    }
}

/// Sets the options of a connected socket. Errors are ignored: without an option, messages are only delayed.
fn configure(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let socket = SockRef::from(socket);
    let _ = socket.set_tcp_thin_linear_timeouts(true);
    let _ = socket.set_tcp_user_timeout(Some(LINK_USER_TIMEOUT));
}
