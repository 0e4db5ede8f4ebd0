//! The event loop of the server. It polls, reads and writes the sockets, and reads the clock. The [`Hub`] makes all
//! decisions.

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rallypoint_core::hub::{
    Action, ConnectionId, Event, Hub, HubOptions, MAX_SLICES, ServerStats, Service, UPLOAD_READ_BYTES,
};
use rallypoint_core::{counted, printable};

use super::accept::{Accepted, Acceptor};
use super::boot_time;
use super::links::{Links, Step};

/// The token of the waker. The tokens of the listeners follow. The token of a connection has the generation of the
/// connection in its upper half. A generation is never zero, so the tokens of connections are greater than all others.
const WAKE_TOKEN: Token = Token(0);
const FIRST_LISTENER_TOKEN: Token = Token(1);

/// A command from another thread. The sender must wake the loop afterwards.
#[derive(Debug)]
pub(super) enum Command {
    /// Sends the statistics of the server.
    Stats(Sender<ServerStats>),
    /// Ends the loop.
    Stop,
}

/// A call of another thread to the service. The sender must wake the loop afterwards.
pub(super) type ServiceCall<S> = Box<dyn FnOnce(&mut S, Duration) + Send>;

/// The service of a server, and its connections to other threads.
pub(super) struct ServiceSetup<S: Service> {
    pub(super) service: S,
    pub(super) calls: Receiver<ServiceCall<S>>,
    /// Handles the events of the service.
    pub(super) on_event: Box<dyn FnMut(S::Event) + Send>,
}

/// The event loop and its resources.
pub(super) struct EventLoop<S: Service> {
    poll: Poll,
    acceptor: Acceptor,
    hub: Hub<(), S>,
    links: Links,
    service_calls: Receiver<ServiceCall<S>>,
    on_service_event: Box<dyn FnMut(S::Event) + Send>,
    /// The sockets, by the index of their connection.
    sockets: Vec<Option<TcpStream>>,
    /// The read buffer of all connections.
    buffer: Box<[u8]>,
    commands: Receiver<Command>,
}

impl<S: Service> EventLoop<S> {
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        mut options: HubOptions,
        commands: Receiver<Command>,
        setup: ServiceSetup<S>,
    ) -> io::Result<(EventLoop<S>, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE_TOKEN)?);
        let acceptor = Acceptor::new(poll.registry(), listeners, FIRST_LISTENER_TOKEN)?;
        options.limits.connections = options.limits.connections_within(super::raise_file_limit());
        let event_loop = EventLoop {
            poll,
            acceptor,
            hub: Hub::with_service(options, (), setup.service),
            links: Links::new(Arc::clone(&waker)),
            service_calls: setup.calls,
            on_service_event: setup.on_event,
            sockets: Vec::new(),
            buffer: vec![0; UPLOAD_READ_BYTES].into(),
            commands,
        };
        Ok((event_loop, waker))
    }

    /// Runs until [`Command::Stop`], or until the sockets cannot be polled.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, self.timeout()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!("the store server stops because it cannot poll its sockets: {error}");
                    return;
                }
            }
            let now = boot_time();
            let mut has_commands = false;
            for event in &events {
                match event.token() {
                    WAKE_TOKEN => has_commands = true,
                    Token(token) if self.acceptor.set_ready(token - FIRST_LISTENER_TOKEN.0) => {}
                    Token(token) => {
                        let id = ConnectionId::from_bits(token as u64);
                        if S::IS_PRESENT && self.links.is_connecting(id) {
                            self.handle_link_event(id, now);
                            continue;
                        }
                        if event.is_writable() {
                            self.hub.handle_writable(id);
                        }
                        let is_closed = event.is_read_closed() || event.is_error();
                        if event.is_readable() || is_closed {
                            self.hub.handle_readable(id, is_closed);
                        }
                    }
                }
            }
            self.accept(now);
            self.hub.handle_timeout(now);
            if S::IS_PRESENT && has_commands {
                self.service_calls.try_iter().for_each(|call| call(self.hub.service(), now));
            }
            self.connect_links(now);
            while let Some(action) = self.hub.poll_action(now) {
                match action {
                    Action::Read { id, len } => self.read(id, len, now),
                    Action::Send(id) => self.send(id, now),
                    Action::Close(id) => self.close(id),
                    Action::Connect(id) => {
                        self.links.resolve(id, self.hub.link_address(id).unwrap_or_default());
                        self.connect_links(now);
                    }
                }
            }
            while let Some(event) = self.hub.poll_service_event() {
                (self.on_service_event)(event);
            }
            self.log_events();
            if has_commands && !self.handle_commands() {
                return;
            }
        }
    }

    /// Handles the commands of other threads. Returns `false` if the loop must end.
    fn handle_commands(&mut self) -> bool {
        let mut stats = self.hub.stats();
        stats.out_of_files = u64::from(self.acceptor.is_out_of_files());
        self.commands.try_iter().all(|command| match command {
            Command::Stop => false,
            Command::Stats(reply) => {
                // Sending fails if the other thread no longer waits for the reply.
                let _ = reply.send(stats);
                true
            }
        })
    }

    /// Returns how long the next poll may block.
    fn timeout(&self) -> Option<Duration> {
        self.hub.poll_timeout(boot_time()).into_iter().chain(self.acceptor.timeout()).min()
    }

    fn read(&mut self, id: ConnectionId, len: usize, now: Duration) {
        let Some(socket) = &mut self.sockets[id.index()] else { return };
        match socket.read(&mut self.buffer[..len]) {
            Ok(0) => self.hub.handle_end(id),
            // A short read has drained the socket, so later bytes raise a new event.
            Ok(read) => {
                // A service must not take a message for older than it is, even if this loop has stalled.
                let now = if S::IS_PRESENT { boot_time() } else { now };
                self.hub.handle_bytes(id, &self.buffer[..read], read < len, now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.hub.handle_bytes(id, &[], true, now);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.hub.handle_readable(id, false),
            Err(_) => self.hub.handle_failure(id, now),
        }
    }

    fn send(&mut self, id: ConnectionId, now: Duration) {
        let Some(socket) = &mut self.sockets[id.index()] else { return };
        let (slices, count) = self.hub.transmit(id);
        let offered: usize = slices[..count].iter().map(|slice| slice.len()).sum();
        let sent = match count {
            1 => socket.write(slices[0]),
            _ => {
                let mut vectors = [IoSlice::new(&[]); MAX_SLICES];
                vectors.iter_mut().zip(slices).for_each(|(vector, slice)| *vector = IoSlice::new(slice));
                socket.write_vectored(&vectors[..count])
            }
        };
        match sent {
            // After a partial write the send buffer is full, and an event reports when the socket is writable again.
            Ok(sent) if sent > 0 => self.hub.handle_sent(id, sent, sent == offered, now),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.hub.handle_sent(id, 0, false, now);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.hub.handle_sent(id, 0, true, now);
            }
            Ok(_) | Err(_) => self.hub.handle_failure(id, now),
        }
    }

    fn close(&mut self, id: ConnectionId) {
        if let Some(socket) = self.sockets.get_mut(id.index()) {
            *socket = None;
        }
        self.links.remove(id);
        self.acceptor.handle_close();
    }

    fn accept(&mut self, now: Duration) {
        self.acceptor.start_pass(now);
        while let Some(accepted) = self.acceptor.accept(now) {
            match accepted {
                Accepted::Open(socket, peer) => {
                    if let Some(id) = self.hub.handle_open(peer, now) {
                        self.insert_socket(id, socket, now);
                    }
                }
                Accepted::Refused(peer, error) => self.hub.handle_out_of_files(peer, &error.to_string(), now),
            }
        }
    }

    fn insert_socket(&mut self, id: ConnectionId, mut socket: TcpStream, now: Duration) {
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, Token(id.to_bits() as usize), interest).is_err() {
            self.hub.handle_failure(id, now);
        }
        if id.index() >= self.sockets.len() {
            self.sockets.resize_with(id.index() + 1, || None);
        }
        self.sockets[id.index()] = Some(socket);
    }

    // ---- connections that the service opens ----

    fn connect_links(&mut self, now: Duration) {
        while S::IS_PRESENT
            && let Some((id, step)) = self.links.take_resolved()
        {
            self.take_link_step(id, step, now);
        }
    }

    fn handle_link_event(&mut self, id: ConnectionId, now: Duration) {
        if let Some(Some(socket)) = self.sockets.get(id.index()) {
            let step = self.links.handle_event(id, socket);
            self.take_link_step(id, step, now);
        }
    }

    fn take_link_step(&mut self, id: ConnectionId, step: Step, now: Duration) {
        match step {
            Step::Wait(None) => {}
            Step::Wait(Some(socket)) => self.insert_socket(id, socket, now),
            Step::Connected => self.hub.handle_connected(id, now),
            Step::Failed { is_refused } => self.hub.handle_not_connected(id, is_refused, now),
        }
    }

    fn log_events(&mut self) {
        while let Some(event) = self.hub.poll_event() {
            match event {
                Event::Closed { peer, reason, suppressed } => {
                    let more = match suppressed {
                        0 => String::new(),
                        more => format!(" ({more} more not logged)"),
                    };
                    tracing::warn!("closed {peer}: {:.160}{more}", reason.to_string());
                }
                Event::Expired(job) => tracing::info!(
                    "job {} expired after {:.1} s without a client: deleted {}",
                    printable(&job.run_id),
                    job.idle.as_secs_f64(),
                    counted(job.keys, "key")
                ),
            }
        }
    }
}
