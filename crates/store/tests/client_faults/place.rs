//! A port of this machine that stays a test's own while its servers come and go. Without it, a connection or a server of
//! another test could be given the port in between.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// The port is held by a socket that is bound and does nothing. Servers can share it, because they set what this one sets;
/// but the system gives it to nobody who asks for any port.
pub(crate) struct Place {
    _socket: Socket,
    port: u16,
}

impl Place {
    pub(crate) fn new() -> Place {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        Place { _socket: socket, port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Does something that needs nobody to listen at the port any more. Whoever did may have been copied into a process
    /// that another test was just starting, and lives there until that process runs its own program.
    pub(crate) fn taken_over<T, E: std::fmt::Debug>(&self, listen: impl Fn(u16) -> Result<T, E>) -> T {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match listen(self.port) {
                Ok(listener) => return listener,
                Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
