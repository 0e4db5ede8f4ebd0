//! One connection to a server: requests out, replies in, each within its deadline. It never tries twice, and after a
//! broken exchange it is good for nothing but being dropped.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rallypoint_core::store::SERVER_KEY;
use rallypoint_core::wire::{KeyList, MAGIC, Op, Reply, ReplyDecoder, ReplyKind, Request};
use rallypoint_core::{Limits, WireError};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::broken::{Broken, broke, came, is_pause, lost};
use super::looking::Looker;
use super::pulse::Pulse;
use crate::deadline::Deadline;
use crate::fault::{ConnectionFault, SILENCE_INTERVAL};
use crate::interrupt;

/// A connection with its handshake done.
#[derive(Debug)]
pub(super) struct Connection {
    /// Shared with those who look at it from outside.
    stream: Arc<TcpStream>,
    address: SocketAddr,
    pulse: Arc<Pulse>,
    decoder: ReplyDecoder,
    /// What is received goes in here; `input[at..end]` is not decoded yet.
    input: Vec<u8>,
    at: usize,
    end: usize,
    out: Vec<u8>,
    limits: Limits,
    /// The socket's time-outs as they are set now, to set them only when they change.
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    user_timeout: Option<Duration>,
    /// Whether what is sent may be sent again over another connection.
    is_repeatable: bool,
    ack: Ack,
    nonce: u32,
    /// Replies may still come that nobody waits for.
    spoiled: bool,
    /// The last answer came soon, so the next is looked for before sleeping.
    is_brisk: bool,
    /// Whose it is.
    process: u32,
    is_recognized: bool,
}

/// The request whose reply shows that the server has handled everything sent before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Ack {
    #[default]
    Ping,
    /// For torch's servers before 2.5. They have no PING and close the connection on one.
    Check,
}

/// What `read` is offered when little is expected.
const READ: usize = 8 * 1024;
/// And when a large reply is under way.
const READ_LARGE: usize = 256 * 1024;
/// An answer within this time has come soon; falling asleep and being woken may take most of it.
const SOON: Duration = Duration::from_micros(200);
/// How long it is looked for one where the last came soon, letting others run meanwhile.
const LOOKING: Duration = Duration::from_micros(100);

/// How long one attempt to open a connection may take. A longer attempt means a lost packet or a dead machine, and a new
/// attempt is better than the system's growing pauses between retransmissions.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The nonce of the first PING. Together with the operation code before it, the bytes are `\r\n\r\n`. An HTTP server takes
/// them for the end of a request, answers immediately, and is recognized by its reply.
const HANDSHAKE_NONCE: u32 = u32::from_le_bytes(*b"\n\r\n\0");

impl Connection {
    /// Connects and performs the handshake. With `identify`, the same message also asks for the server's identity, which is
    /// returned beside the connection. Without, the client sends exactly what torch's client sends.
    ///
    /// `on_silence` is called once per [`SILENCE_INTERVAL`] while the server has accepted the connection and not answered.
    pub(super) fn open(
        address: SocketAddr,
        ack: Ack,
        identify: bool,
        limits: &Limits,
        deadline: &Deadline,
        on_silence: &mut dyn FnMut(),
    ) -> Result<(Connection, Option<String>), Broken> {
        let failed = |error: std::io::Error| lost(&error, false);
        let stream = connect(address, &deadline.or_after(CONNECT_TIMEOUT)).map_err(failed)?;
        if is_to_itself(&stream) {
            return Err(Broken::Lost { reason: ConnectionFault::Refused, sent: false, ended: false });
        }
        stream.set_nodelay(true).map_err(failed)?;
        // Best effort, as is how long it may stay without an acknowledgement: without them a dead peer is noticed later, not
        // never.
        let _ = SockRef::from(&stream).set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(limits.client_keepalive_idle)
                .with_interval(limits.client_keepalive_interval)
                .with_retries(limits.keepalive_probes),
        );
        let mut connection = Connection {
            stream: Arc::new(stream),
            address,
            pulse: Arc::default(),
            decoder: ReplyDecoder::default(),
            input: Vec::new(),
            at: 0,
            end: 0,
            out: Vec::new(),
            limits: limits.clone(),
            read_timeout: None,
            write_timeout: None,
            user_timeout: None,
            is_repeatable: true,
            ack,
            nonce: HANDSHAKE_NONCE.wrapping_sub(1),
            spoiled: false,
            is_brisk: false,
            process: std::process::id(),
            is_recognized: false,
        };
        connection.queue(&Request::Validate { magic: MAGIC });
        connection.queue_ack();
        if identify {
            connection.queue_identify();
        }
        connection.send(deadline)?;
        connection.await_input(deadline, on_silence)?;
        connection.receive_ack(deadline)?;
        let identity = if identify { connection.receive_identity(deadline)? } else { None };
        Ok((connection, identity))
    }

    /// Asks the server for its identity; `None` if it is not one of ours.
    pub(super) fn identify(&mut self, deadline: &Deadline) -> Result<Option<String>, Broken> {
        self.queue_identify();
        self.send(deadline)?;
        self.receive_identity(deadline)
    }

    /// Queues a CHECK of the key that our own servers have and torch's have not.
    fn queue_identify(&mut self) {
        self.queue(&Request::Check { keys: KeyList::new(&[SERVER_KEY]) });
    }

    fn receive_identity(&mut self, deadline: &Deadline) -> Result<Option<String>, Broken> {
        match self.receive(ReplyKind::Checked, deadline)? {
            Reply::Checked(true) => {}
            _ => return Ok(None),
        }
        self.queue(&Request::Get { key: SERVER_KEY });
        self.send(deadline)?;
        match self.receive(ReplyKind::Value, deadline)? {
            Reply::Value(value) if !value.is_empty() => {
                Ok(Some(String::from_utf8_lossy(&value).into_owned()))
            }
            _ => Ok(None),
        }
    }

    /// Waits for the first bytes from the server.
    fn await_input(&mut self, deadline: &Deadline, on_silence: &mut dyn FnMut()) -> Result<(), Broken> {
        loop {
            match self.read_more(&deadline.or_after(SILENCE_INTERVAL)) {
                Err(Broken::Silent { .. }) if !deadline.has_passed() => on_silence(),
                read => return read,
            }
        }
    }

    /// Whether the server behind this connection was compared with the one that is known.
    pub(super) fn is_recognized(&self) -> bool {
        self.is_recognized
    }

    /// Records that the server behind this connection is the one that is known.
    pub(super) fn set_recognized(&mut self) {
        self.is_recognized = true;
    }

    /// This machine's address on it.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok()
    }

    /// Its socket's number, and both its ends.
    pub(super) fn socket(&self) -> Option<(RawFd, SocketAddr, SocketAddr)> {
        let (local, remote) = (self.stream.local_addr().ok()?, self.stream.peer_addr().ok()?);
        Some((self.stream.as_raw_fd(), local, remote))
    }

    /// What others may see of it: where it leads, its socket and its signs of life.
    pub(super) fn life(&self) -> (SocketAddr, Weak<TcpStream>, Arc<Pulse>) {
        (self.address, Arc::downgrade(&self.stream), Arc::clone(&self.pulse))
    }

    /// Lets others know that a call over it was answered.
    pub(super) fn beat(&self) {
        self.pulse.beat();
    }

    /// Whether what is sent from now on may be sent again over another connection, so that this one can be given up early.
    pub(super) fn set_repeatable(&mut self, is_repeatable: bool) {
        self.is_repeatable = is_repeatable;
    }

    /// Adds a request to what is sent next.
    pub(super) fn queue(&mut self, request: &Request<'_>) {
        request.encode(&mut self.out);
    }

    /// Queues a request whose reply shows that the server has handled everything before it.
    fn queue_ack(&mut self) {
        match self.ack {
            Ack::Ping => {
                self.nonce = self.nonce.wrapping_add(1);
                self.queue(&Request::Ping { nonce: self.nonce });
            }
            Ack::Check => self.queue_identify(),
        }
    }

    /// Sends what was queued.
    pub(super) fn send(&mut self, deadline: &Deadline) -> Result<(), Broken> {
        self.be_patient();
        let mut sent = 0;
        while sent < self.out.len() {
            match self.write(sent, deadline) {
                Ok(len) => sent += len,
                // What was handed over before may have got there, so it counts from the first byte on.
                Err(Broken::Lost { reason, ended, .. }) => {
                    return Err(Broken::Lost { reason, ended, sent: sent > 0 });
                }
                Err(Broken::Silent { .. }) => return Err(Broken::Silent { sent: sent > 0 }),
                Err(broken) => return Err(broken),
            }
        }
        self.out.clear();
        self.out.shrink_to(READ_LARGE);
        Ok(())
    }

    /// Sets how long the other machine may acknowledge nothing.
    fn be_patient(&mut self) {
        let limits = &self.limits;
        let is_brief = self.is_repeatable && self.out.len() <= limits.client_user_timeout_len;
        let wanted = if is_brief { limits.client_user_timeout } else { limits.user_timeout };
        if self.user_timeout != Some(wanted) {
            let _ = SockRef::from(&*self.stream).set_tcp_user_timeout(Some(wanted));
            self.user_timeout = Some(wanted);
        }
    }

    /// Hands over some of what is to be sent, from this byte on.
    fn write(&mut self, from: usize, deadline: &Deadline) -> Result<usize, Broken> {
        if let Some(timeout) = new_timeout(self.write_timeout, deadline.slice())? {
            self.stream.set_write_timeout(timeout).map_err(|error| lost(&error, false))?;
            self.write_timeout = timeout;
        }
        match (&*self.stream).write(&self.out[from..]) {
            Ok(len) => Ok(len),
            Err(error) if is_pause(&error) => {
                interrupt::look_up();
                Ok(0)
            }
            Err(error) => Err(broke(&error, false)),
        }
    }

    /// The next reply, of this kind.
    pub(super) fn receive(&mut self, kind: ReplyKind, deadline: &Deadline) -> Result<Reply, Broken> {
        loop {
            let mut input = &self.input[self.at..self.end];
            let offered = input.len();
            let reply = self.decoder.next(kind, &mut input, &self.limits).map_err(Broken::Violation)?;
            self.at += offered - input.len();
            if let Some(reply) = reply {
                return Ok(reply);
            }
            self.read_more(deadline)?;
        }
    }

    /// Reads the reply to the last [`Connection::queue_ack`].
    fn receive_ack(&mut self, deadline: &Deadline) -> Result<(), Broken> {
        if self.ack == Ack::Check {
            return self.receive(ReplyKind::Checked, deadline).map(drop);
        }
        match self.receive(ReplyKind::Nonce, deadline)? {
            Reply::Nonce(found) if found == self.nonce => Ok(()),
            Reply::Nonce(found) => Err(Broken::WrongNonce { sent: self.nonce, found }),
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    /// Sends what was queued, and waits until the server has handled it.
    pub(super) fn acknowledge(&mut self, deadline: &Deadline) -> Result<(), Broken> {
        self.queue_ack();
        self.send(deadline)?;
        self.receive_ack(deadline)
    }

    /// All bytes received so far are decoded; reads more.
    fn read_more(&mut self, deadline: &Deadline) -> Result<(), Broken> {
        let room = if self.decoder.is_mid_reply() { READ_LARGE } else { READ };
        (self.at, self.end) = (0, 0);
        if self.input.len() != room {
            self.input = vec![0; room];
        }
        self.end = self.read(deadline)?;
        Ok(())
    }

    fn read(&mut self, deadline: &Deadline) -> Result<usize, Broken> {
        let asked = Instant::now();
        if let Some(read) = self.read_soon(asked) {
            return read;
        }
        loop {
            if let Some(timeout) = new_timeout(self.read_timeout, deadline.slice())? {
                self.stream.set_read_timeout(timeout).map_err(|error| lost(&error, true))?;
                self.read_timeout = timeout;
            }
            match (&*self.stream).read(&mut self.input) {
                Err(error) if is_pause(&error) => interrupt::look_up(),
                read => {
                    self.is_brisk = asked.elapsed() < SOON;
                    return came(read);
                }
            }
        }
    }

    /// What has come within a short time, without sleeping, if it is worth looking for.
    fn read_soon(&mut self, asked: Instant) -> Option<Result<usize, Broken>> {
        use rustix::net::{RecvFlags, recv};
        let _looker = if self.is_brisk { Looker::start(self.process)? } else { return None };
        while self.is_brisk {
            match recv(&self.stream, &mut self.input[..], RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    self.is_brisk = asked.elapsed() < LOOKING;
                    std::thread::yield_now();
                }
                read => return Some(came(read.map(|(len, _)| len).map_err(Into::into))),
            }
        }
        None
    }

    /// It is out of step with the server and must not be used again.
    pub(super) fn spoil(&mut self) {
        self.spoiled = true;
    }

    /// Whether nothing is under way on it, as far as is known here.
    pub(super) fn is_clean(&self) -> bool {
        !self.spoiled && self.at == self.end && !self.decoder.is_mid_reply() && self.out.is_empty()
    }

    /// Whether it can be used again: no byte has come unasked, and the other side has not closed it.
    pub(super) fn is_alive(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        let peeked = recv(&self.stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        self.is_clean() && matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }

    /// After a WAIT or BARRIER has run out of time: takes it back. `true` if it ended just before that after all.
    ///
    /// `behind` is the reply to a request that was sent together with the wait; it comes in either case and is handed
    /// back only if the wait ended.
    pub(super) fn cancel(
        &mut self,
        op: Op,
        behind: Option<ReplyKind>,
        deadline: &Deadline,
    ) -> Result<(bool, Option<Reply>), Broken> {
        self.queue(&Request::CancelWait);
        self.send(deadline)?;
        let came = self.receive(ReplyKind::Waited(op), deadline)? == Reply::Stop;
        let reply = behind.map(|kind| self.receive(kind, deadline)).transpose()?;
        if came {
            match self.receive(ReplyKind::Waited(Op::CancelWait), deadline)? {
                Reply::Canceled => {}
                _ => return Err(Broken::Violation(WireError::BadReplyByte { op: Op::CancelWait, found: 0 })),
            }
        }
        Ok((came, reply.filter(|_| came)))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // What its caller has given up says nothing against the server.
        if interrupt::is_stopped() {
            self.pulse.beat();
        }
        self.pulse.end();
    }
}

/// Whether the other side has ended a connection, also where bytes that came before are not read yet.
pub(super) fn is_ended(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Errors and the end of both directions are told without being asked for.
    matches!(poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Some(&now)), Ok(1..))
}

/// The socket time-out to set, if the one that is set doesn't serve. A call's first read comes so soon after the last
/// call's that the same time-out usually does.
fn new_timeout(set: Option<Duration>, left: Option<Duration>) -> Result<Option<Option<Duration>>, Broken> {
    match left {
        None => Ok(set.is_some().then_some(None)),
        Some(Duration::ZERO) => Err(Broken::Silent { sent: true }),
        // Linux counts the time of a socket in steps that grow with it: it may wake an eighth too late. So it is to wake
        // well before the end, and sleep again for what is left then.
        Some(left) if left > SHORT => match set {
            Some(set) if set <= left / 8 * 7 && set >= left / 2 => Ok(None),
            _ => Ok(Some(Some(left / 8 * 7 - SLACK))),
        },
        Some(left) => match set {
            Some(set) if set >= left && set - left <= SLACK => Ok(None),
            _ => Ok(Some(Some((left + SLACK / 2).max(Duration::from_millis(1))))),
        },
    }
}

/// How much later than asked a socket may wake, so that the next call with the same time-out finds it good enough.
const SLACK: Duration = Duration::from_millis(10);
/// Up to here a socket wakes in time.
const SHORT: Duration = Duration::from_millis(200);

/// Connects, looking up while the other side has not answered.
fn connect(address: SocketAddr, deadline: &Deadline) -> std::io::Result<TcpStream> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => return Err(error),
        _ => {}
    }
    loop {
        let slice = deadline.slice().unwrap_or(SLACK).max(Duration::from_millis(1));
        let timeout = Timespec::try_from(slice).map_err(std::io::Error::other)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => interrupt::look_up(),
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
        if deadline.has_passed() {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    match socket.take_error()? {
        Some(error) => Err(error),
        None => {
            socket.set_nonblocking(false)?;
            Ok(socket.into())
        }
    }
}

/// Whoever asks for a port that nobody listens at may be given that very port as its own, and be connected to itself.
fn is_to_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_wakes_an_eighth_too_late_is_still_in_time() {
        for millis in [1, 100, 250, 1_000, 10_000, 300_000, 600_000, 86_400_000] {
            let timeout = Duration::from_millis(millis);
            let set = new_timeout(None, Some(timeout)).unwrap().unwrap().unwrap();
            let latest = if timeout > SHORT { set * 9 / 8 } else { set };
            assert!(latest <= timeout + SLACK, "{set:?} for {timeout:?}");
            // It serves for the next call, and what was set for a longer call does not.
            assert_eq!(new_timeout(Some(set), Some(timeout)).unwrap(), None);
            assert!(new_timeout(Some(timeout + 5 * SLACK), Some(timeout)).unwrap().is_some());
        }
    }

    /// Of lengths for which Linux' steps are a large part.
    #[test]
    fn a_read_ends_in_time_whatever_the_steps_of_the_system() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            for millis in [150, 260, 600, 1_100, 2_100, 2_600, 4_200] {
                scope.spawn(move || {
                    let timeout = Duration::from_millis(millis);
                    let stream = TcpStream::connect(address).unwrap();
                    let lateness = || {
                        let (mut set, start) = (None, Instant::now());
                        let deadline = Deadline::after(Some(timeout));
                        while let Ok(new) = new_timeout(set, deadline.slice()) {
                            if let Some(new) = new {
                                stream.set_read_timeout(new).unwrap();
                                set = new;
                            }
                            assert!((&stream).read(&mut [0]).is_err_and(|error| is_pause(&error)));
                        }
                        start.elapsed().saturating_sub(timeout)
                    };
                    // The system's steps are the same each time; what else the machine does is not.
                    let is_in_time = |late: Duration| late < (timeout / 25).max(Duration::from_millis(100));
                    assert!((0..5).any(|_| is_in_time(lateness())), "late after {timeout:?}");
                });
            }
        });
    }

    #[test]
    fn a_connection_to_itself_is_seen_to_be_one() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let own = socket.local_addr().unwrap();
        socket.connect(&own).unwrap();
        assert!(is_to_itself(&socket.into()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_to_itself(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }

    #[test]
    fn a_socket_has_no_time_out_only_where_the_call_has_none() {
        let never = Deadline::after(None).slice();
        assert_eq!(new_timeout(None, never).unwrap(), None);
        assert_eq!(new_timeout(Some(Duration::from_secs(1)), never).unwrap(), Some(None));
        let over = Deadline::after(Some(Duration::from_nanos(1)));
        while !over.has_passed() {}
        assert!(matches!(new_timeout(None, over.slice()), Err(Broken::Silent { .. })));
    }
}
