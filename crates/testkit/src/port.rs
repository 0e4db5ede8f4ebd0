//! Ports of this machine that the system assigns to no other program.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::wait::eventually_or;

/// The maximum time for which a port may stay in use after its server was dropped.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// A port of the loopback address on which no process listens yet.
#[derive(Debug)]
pub struct Port {
    /// The number of the port.
    pub number: u16,
    _holder: Option<Socket>,
}

impl Port {
    /// Reserves a port until the value is dropped.
    ///
    /// A socket that is bound but does not listen reserves the port. Our servers can bind it as well, because they also
    /// set `SO_REUSEADDR`. The system assigns the port to no other program.
    pub fn reserve() -> Port {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let number = socket.local_addr().unwrap().as_socket().unwrap().port();
        Port { number, _holder: Some(socket) }
    }

    /// Returns a port that no socket is bound to. It is not reserved, but it is outside of the default range from which
    /// Linux assigns ports.
    pub fn unassigned() -> Port {
        let number = || 20_000 + (RandomState::new().build_hasher().finish() % 12_000) as u16;
        let is_free = |number: &u16| TcpListener::bind(("127.0.0.1", *number)).is_ok();
        let number = std::iter::repeat_with(number).take(1000).find(is_free).expect("a port is free");
        Port { number, _holder: None }
    }

    /// Returns the endpoint `127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }

    /// Calls `listen` until it succeeds.
    ///
    /// The first attempts may fail, because another test may be starting a process. Until that process executes its own
    /// program, it has a copy of every listening socket of this process, including closed ones.
    pub fn listen<T, E: Debug>(&self, listen: impl Fn(u16) -> Result<T, E>) -> T {
        let mut listener = listen(self.number);
        let failure = format!("port {} stays in use: {:?}", self.number, listener.as_ref().err());
        eventually_or(
            RELEASE_TIMEOUT,
            || failure.clone(),
            || {
                if listener.is_err() {
                    listener = listen(self.number);
                }
                listener.is_ok()
            },
        );
        listener.unwrap_or_else(|_| unreachable!("the listener was bound"))
    }
}

/// Reserves a port as [`Port::reserve`] does, for as long as the test process runs.
pub fn reserve_port() -> u16 {
    let port = Port::reserve();
    let number = port.number;
    std::mem::forget(port);
    number
}
