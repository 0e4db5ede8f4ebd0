//! Free ports: found, or held so that no other process can take them before they are used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Socket, Type};

use crate::error::{Result, StoreError};

/// A port held by a bound socket. A server can listen on this socket ([`ReservedPort::listen`]), so that no other program can
/// take the port in between.
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
    pub fn into_socket(self) -> std::os::fd::OwnedFd {
        self.socket.into()
    }

    /// The socket, listening now.
    pub fn listen(self) -> Result<TcpListener> {
        let listen = || {
            self.socket.listen(BACKLOG)?;
            // So that another server can follow at once although connections of this one linger. Not before it listens:
            // until then, others who set it too could bind the port.
            self.socket.set_reuse_address(true)
        };
        let address = || format!("port {}", self.port);
        listen().map_err(|error| StoreError::Listen { address: address(), error })?;
        Ok(self.socket.into())
    }
}

/// As many pending connections as the system allows; it cuts the number to its own limit.
pub(crate) const BACKLOG: i32 = i32::MAX;

/// Holds a free port on all addresses of this machine: IPv6 and IPv4 together where there is IPv6, else IPv4.
pub fn reserve_port() -> Result<ReservedPort> {
    let failed = |error| StoreError::Listen { address: "any free port".into(), error };
    let four = |_| bind((Ipv4Addr::UNSPECIFIED, 0).into(), false);
    let socket = bind((Ipv6Addr::UNSPECIFIED, 0).into(), false).or_else(four).map_err(failed)?;
    let port = socket.local_addr().map_err(failed)?.as_socket().map_or(0, |address| address.port());
    Ok(ReservedPort { socket, port })
}

/// A port that was free a moment ago. Another process may take it before you do; [`reserve_port`] has no such gap.
pub fn free_port() -> Result<u16> {
    reserve_port().map(|held| held.port())
}

/// Binds a socket. The unspecified IPv6 address includes all of IPv4. With `reuse`, other sockets with this option can have
/// the same address unless one of them listens.
pub(crate) fn bind(address: SocketAddr, reuse: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(reuse)?;
    if let IpAddr::V6(ip) = address.ip() {
        socket.set_only_v6(!ip.is_unspecified())?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_cannot_be_taken_and_a_free_one_can() {
        let held = reserve_port().unwrap();
        assert!(TcpListener::bind(("127.0.0.1", held.port())).is_err());
        let port = held.port();
        let listener = held.listen().unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), port);
        assert_ne!(free_port().unwrap(), 0);
    }
}
