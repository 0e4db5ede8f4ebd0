//! A port that stays a test's own until a program of ours listens at it.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// One for as long as the tests run. It is held by a socket that is bound and does nothing: a store can share it, because it
/// sets what this one sets, but the system gives it to nobody who asks for any port.
pub(crate) fn held_port() -> u16 {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    std::mem::forget(socket);
    port
}
