//! Free ports: found, or held so that no other process can take them. Torch's `get_free_port` and `get_socket_with_port`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rallypoint_store::{Result, StoreError};
use socket2::{Domain, Socket, Type};

/// A port held by a bound socket that does not listen.
#[derive(Debug)]
pub struct ReservedPort {
    socket: Socket,
    port: u16,
}

impl ReservedPort {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The socket, bound and not listening.
    pub fn into_socket(self) -> OwnedFd {
        self.socket.into()
    }
}

/// Holds a free port on all addresses of this machine: IPv6 and IPv4 together where there is IPv6, else IPv4.
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

/// A port that was free a moment ago. Another process may take it before you do; [`reserve_port`] has no such gap.
pub fn free_port() -> Result<u16> {
    reserve_port().map(|reserved| reserved.port())
}
