//! Free ports, as returned by torch's `get_free_port` and `get_socket_with_port`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rallypoint_store::{Result, StoreError};
use socket2::{Domain, Socket, Type};

/// A port that is reserved by a bound socket, which does not listen.
#[derive(Debug)]
pub struct ReservedPort {
    socket: Socket,
    port: u16,
}

impl ReservedPort {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the bound socket.
    pub fn into_socket(self) -> OwnedFd {
        self.socket.into()
    }
}

/// Reserves a free port on all addresses of this machine: for IPv6 and IPv4, or only for IPv4 if IPv6 is unavailable.
///
/// # Errors
///
/// Fails with `StoreError::Listen` if no socket can be bound.
pub fn reserve_port() -> Result<ReservedPort> {
    let bind = |address: SocketAddr| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        Ok(socket)
    };
    let failed = |error| StoreError::Listen { address: "any free port".into(), error };
    let bind_ipv4 = |_| bind((Ipv4Addr::UNSPECIFIED, 0).into());
    let socket = bind((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(bind_ipv4).map_err(failed)?;
    let port = socket.local_addr().map_err(failed)?.as_socket().map_or(0, |address| address.port());
    Ok(ReservedPort { socket, port })
}

/// Returns a port that was free during the call. Another process may bind it at any time; [`reserve_port`] prevents
/// that.
///
/// # Errors
///
/// Fails with `StoreError::Listen` if no socket can be bound.
pub fn free_port() -> Result<u16> {
    reserve_port().map(|reserved| reserved.port())
}
