//! Opens the listening sockets of a server.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mio::net::TcpListener;
use rallypoint_core::Limits;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::endpoint::Endpoint;
use crate::error::{Result, StoreError};

/// Where a server listens.
#[derive(Debug)]
pub enum Listen {
    /// A host name or IP address with a port.
    ///
    /// The server binds all addresses of a name that are available on this machine. The empty host means all IPv6 and
    /// IPv4 addresses of this machine. Port 0 selects a free port.
    Endpoint(Endpoint),
    /// A socket that already listens.
    Socket(std::net::TcpListener),
}

impl Listen {
    /// Creates a [`Listen::Endpoint`].
    pub fn at(host: &str, port: u16) -> Listen {
        Listen::Endpoint(Endpoint::new(host, port))
    }
}

/// Opens all listening sockets. If one of them cannot be opened, fails and closes those that are open.
pub(super) fn open_listeners(listen: Vec<Listen>, limits: &Limits) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for target in listen {
        match target {
            Listen::Endpoint(endpoint) => listeners.extend(open_endpoint(&endpoint)?),
            Listen::Socket(listener) => listeners.push(listener),
        }
    }
    if listeners.is_empty() {
        return Err(StoreError::InvalidArgument("a server needs at least one address to listen on".into()));
    }
    listeners.into_iter().map(|listener| prepare(listener, limits)).collect()
}

fn open_endpoint(endpoint: &Endpoint) -> Result<Vec<std::net::TcpListener>> {
    if endpoint.host.is_empty() {
        let listener = open_address((Ipv6Addr::UNSPECIFIED, endpoint.port).into());
        return Ok(vec![match listener {
            // The machine probably has no IPv6, so the server listens on all IPv4 addresses.
            Err(error) if !error.is_address_in_use() => {
                open_address((Ipv4Addr::UNSPECIFIED, endpoint.port).into())?
            }
            listener => listener?,
        }]);
    }
    let addresses = endpoint.resolve_within(None)?;
    // With port 0, the system selects a port for the first address. If that port is in use at another address, another
    // attempt follows.
    let mut attempts = if endpoint.port == 0 { 16 } else { 1 };
    loop {
        attempts -= 1;
        match open_all(&addresses) {
            Err(error) if error.is_address_in_use() && attempts > 0 => {}
            other => return other,
        }
    }
}

fn open_all(addresses: &[SocketAddr]) -> Result<Vec<std::net::TcpListener>> {
    let mut listeners: Vec<std::net::TcpListener> = Vec::new();
    let mut unavailable = None;
    for mut address in addresses.iter().copied() {
        if address.port() == 0
            && let Some(first) = listeners.first().and_then(|listener| listener.local_addr().ok())
        {
            address.set_port(first.port());
        }
        match open_address(address) {
            // A name such as `localhost` may have an address that is not available on this machine. One available
            // address is enough.
            Err(StoreError::Listen { address, error }) if error.kind() == ErrorKind::AddrNotAvailable => {
                unavailable.get_or_insert(StoreError::Listen { address, error });
            }
            other => listeners.push(other?),
        }
    }
    match unavailable {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

fn open_address(address: SocketAddr) -> Result<std::net::TcpListener> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // This option allows a restart while connections of the previous server are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        if let IpAddr::V6(ip) = address.ip() {
            // The unspecified IPv6 address also accepts IPv4 connections.
            socket.set_only_v6(!ip.is_unspecified())?;
        }
        socket.bind(&address.into())?;
        // The system lowers the backlog to its own limit.
        socket.listen(i32::MAX)?;
        Ok(socket.into())
    };
    open().map_err(|error| StoreError::Listen { address: address.to_string(), error })
}

/// Makes a listener non-blocking and sets the socket options of its connections. Accepted connections inherit these
/// options, so that accepting takes one system call.
fn prepare(listener: std::net::TcpListener, limits: &Limits) -> Result<TcpListener> {
    let set = || {
        listener.set_nonblocking(true)?;
        let socket = SockRef::from(&listener);
        if limits.socket_bytes < Limits::default().socket_bytes {
            // The kernel doubles the size for its bookkeeping.
            socket.set_recv_buffer_size(limits.socket_bytes / 2)?;
            socket.set_send_buffer_size(limits.socket_bytes / 2)?;
        }
        socket.set_tcp_nodelay(true)?;
        // Retransmit small messages at a constant interval, as the client does (`tcp/sockets`).
        let _ = socket.set_tcp_thin_linear_timeouts(true);
        socket.set_tcp_user_timeout(Some(limits.user_timeout))?;
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(limits.keepalive_idle)
                .with_interval(limits.keepalive_interval)
                .with_retries(limits.keepalive_probes),
        )
    };
    let address = || listener.local_addr().map_or_else(|_| "the given socket".into(), |a| a.to_string());
    set().map_err(|error| StoreError::Listen { address: address(), error })?;
    Ok(TcpListener::from_std(listener))
}
