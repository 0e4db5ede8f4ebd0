//! The driver of the client: sockets and the real clock.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::client::{ConnectionFault, Deadline, Io};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::deadline::{now, random, sleep_until};
use crate::endpoint::Endpoint;

/// The driver for the server at one endpoint.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) endpoint: Endpoint,
    pub(super) limits: Limits,
}

/// A connected, non-blocking socket.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    /// Whether the last reply was fast. If so, the thread spins for the next reply before it sleeps.
    is_fast: bool,
}

/// A reply that takes less than this time is fast. For such a reply, putting the thread to sleep and waking it would
/// take most of the time.
const FAST_REPLY_TIMEOUT: Duration = Duration::from_micros(200);
/// How long a thread spins for a reply. While it spins, it yields to other threads.
const SPIN_TIMEOUT: Duration = Duration::from_micros(100);

impl Io for Sockets {
    type Address = SocketAddr;
    type Stream = Stream;

    fn now(&self) -> Duration {
        now()
    }

    fn random(&self) -> u32 {
        random() as u32
    }

    async fn resolve(&self, deadline: &Deadline) -> Result<Vec<SocketAddr>, ConnectionFault> {
        self.endpoint.resolve_until(deadline)
    }

    async fn connect(&self, address: &SocketAddr, deadline: &Deadline) -> Result<Stream, ConnectionFault> {
        let socket = connect(*address, deadline)?;
        if is_self_connection(&socket) {
            return Err(ConnectionFault::Refused);
        }
        socket.set_nodelay(true).map_err(|error| ConnectionFault::from(&error))?;
        // Retransmit small messages at a constant interval. With exponential backoff, five lost packets in a row have
        // delayed a call by 45 s on a link with a round trip of 0.3 s. An error is ignored, because only Linux has this
        // option.
        let _ = SockRef::from(&socket).set_tcp_thin_linear_timeouts(true);
        // An error is ignored: without keep-alive, the client only detects a dead peer later.
        let _ = SockRef::from(&socket).set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(self.limits.client_keepalive_idle)
                .with_interval(self.limits.client_keepalive_interval)
                .with_retries(self.limits.keepalive_probes),
        );
        Ok(Stream { socket, is_fast: false })
    }

    async fn write(
        &self,
        stream: &mut Stream,
        bytes: &[u8],
        deadline: &Deadline,
    ) -> Result<usize, ConnectionFault> {
        loop {
            match send(&stream.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN | Errno::INTR) => wait_until(&stream.socket, PollFlags::OUT, deadline)?,
                sent => return sent.map_err(to_fault),
            }
        }
    }

    async fn read(
        &self,
        stream: &mut Stream,
        buffer: &mut [u8],
        deadline: &Deadline,
    ) -> Result<usize, ConnectionFault> {
        let start = now();
        let mut spin = stream.is_fast.then(Spin::start).flatten();
        if spin.is_none() {
            // A thread that does not spin waits first, because the reply has rarely arrived by now.
            wait_until(&stream.socket, PollFlags::IN, deadline)?;
        }
        loop {
            match recv(&stream.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ConnectionFault::Closed),
                Ok((len, _)) => {
                    stream.is_fast = now() - start < FAST_REPLY_TIMEOUT;
                    return Ok(len);
                }
                Err(Errno::AGAIN | Errno::INTR) if spin.is_some() => {
                    std::thread::yield_now();
                    spin = spin.filter(|_| now() - start < SPIN_TIMEOUT);
                }
                Err(Errno::AGAIN | Errno::INTR) => wait_until(&stream.socket, PollFlags::IN, deadline)?,
                Err(error) => return Err(to_fault(error)),
            }
        }
    }

    async fn sleep(&self, deadline: &Deadline) {
        sleep_until(deadline);
    }

    fn is_quiet(&self, stream: &Stream) -> bool {
        let peeked = recv(&stream.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(Errno::AGAIN))
    }

    fn set_user_timeout(&self, stream: &Stream, timeout: Duration) {
        // An error is ignored: without the timeout, the client only detects a dead peer later.
        let _ = SockRef::from(&stream.socket).set_tcp_user_timeout(Some(timeout));
    }
}

/// Permission for a thread to spin. The number of spinning threads is at most half the number of processors, because
/// they take processor time from the threads that produce the replies.
struct Spin;

static SPINNING: AtomicUsize = AtomicUsize::new(0);

impl Spin {
    fn start() -> Option<Spin> {
        static MAX_SPINNING: AtomicUsize = AtomicUsize::new(0);
        let mut max = MAX_SPINNING.load(Ordering::Relaxed);
        if max == 0 {
            max = std::thread::available_parallelism().map_or(1, |cpus| (cpus.get() / 2).max(1));
            MAX_SPINNING.store(max, Ordering::Relaxed);
        }
        let increment = |spinning| (spinning < max).then_some(spinning + 1);
        SPINNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment).ok().map(|_| Spin)
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Blocks until the socket is ready for one of `flags`. Fails with [`ConnectionFault::Silent`] if the deadline passes
/// first.
fn wait_until(socket: impl AsFd, flags: PollFlags, deadline: &Deadline) -> Result<(), ConnectionFault> {
    loop {
        let slice = deadline.slice(now());
        if slice == Some(Duration::ZERO) {
            return Err(ConnectionFault::Silent);
        }
        let timeout = slice.and_then(|slice| Timespec::try_from(slice).ok());
        match poll(&mut [PollFd::new(&socket, flags)], timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => deadline.on_wait(),
            Ok(_) => return Ok(()),
            Err(error) => return Err(to_fault(error)),
        }
    }
}

fn connect(address: SocketAddr, deadline: &Deadline) -> Result<TcpStream, ConnectionFault> {
    let failed = |error: io::Error| ConnectionFault::from(&error);
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    match socket.connect(&address.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => return Err(failed(error)),
        _ => {}
    }
    wait_until(&socket, PollFlags::OUT, deadline).map_err(|fault| match fault {
        ConnectionFault::Silent => ConnectionFault::ConnectTimeout,
        fault => fault,
    })?;
    match socket.take_error().map_err(failed)? {
        Some(error) => Err(failed(error)),
        None => Ok(socket.into()),
    }
}

/// Converts an error on an established connection.
fn to_fault(error: Errno) -> ConnectionFault {
    match error {
        Errno::TIMEDOUT => ConnectionFault::Unacknowledged,
        error => ConnectionFault::from(&io::Error::from(error)),
    }
}

/// Returns whether a socket is connected to itself. This happens if no process listens on the port and the kernel
/// assigns the same port to the client.
fn is_self_connection(socket: &TcpStream) -> bool {
    matches!((socket.local_addr(), socket.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_connection_is_detected() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap();
        socket.connect(&address).unwrap();
        assert!(is_self_connection(&socket.into()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_self_connection(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }
}
