//! Many connections on one thread. The pool reports each finished exchange to a [`Load`], which returns the next
//! exchange.
//!
//! If a connection fails, the pool counts it and continues with the other connections.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use mio::{Events, Poll, Token};

use crate::connection::{Completion, Connection};
use crate::error::{BenchError, ConnectionError};
use crate::exchange::Exchange;
use crate::latencies::Latencies;
use crate::monitor::{Monitor, Progress};

/// The size of the read buffer. A longer reply takes several reads.
const READ_BYTES: usize = 256 * 1024;

/// A source of exchanges for connections.
pub(crate) trait Load {
    /// Returns the next exchange of this connection, or `None` if it has no more. `completion` is the exchange that the
    /// connection has finished, or `None` at the start.
    fn next(&mut self, index: usize, completion: Option<&Completion>) -> Option<Rc<Exchange>>;

    /// Returns the progress of the load.
    fn progress(&self) -> Progress;
}

/// Connections to one server.
pub(crate) struct ConnectionPool {
    poll: Poll,
    events: Events,
    connections: Vec<Option<Connection>>,
    scratch: Vec<u8>,
    lost: u64,
    first_error: Option<ConnectionError>,
}

impl ConnectionPool {
    /// Opens `count` connections, at most `max_connecting` of them at a time. For each connection, records in
    /// `ready` the time from connecting to the reply to its PING.
    pub(crate) fn open(
        address: SocketAddr,
        count: usize,
        max_connecting: usize,
        monitor: &mut Monitor,
        ready: &mut Latencies,
    ) -> Result<ConnectionPool, BenchError> {
        let mut pool = ConnectionPool {
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            connections: Vec::with_capacity(count),
            scratch: vec![0; READ_BYTES],
            lost: 0,
            first_error: None,
        };
        let handshake = Rc::new(Exchange::handshake());
        let mut handshakes = Handshakes { ready, total: count as u64 };
        let mut connecting = 0;
        while pool.connections.len() < count || connecting > 0 {
            while pool.connections.len() < count && connecting < max_connecting {
                let index = pool.connections.len();
                let opened = Connection::open(address, pool.poll.registry(), Token(index), &handshake);
                pool.connections.push(None);
                match opened {
                    Err(source) => {
                        pool.drop_connection(index, ConnectionError::Failed { during: "connect", source })
                    }
                    Ok(connection) => {
                        pool.connections[index] = Some(connection);
                        connecting += 1;
                        // A connection to the same machine is usually established by now, so this step sends the
                        // handshake. For other connections the step does nothing.
                        connecting -= pool.step(index, false, &mut handshakes);
                    }
                }
            }
            connecting -= pool.poll_once(monitor, &mut handshakes)?;
        }
        pool.check_errors(monitor)?;
        Ok(pool)
    }

    /// Runs a load until it has no exchange left for any connection.
    pub(crate) fn run(&mut self, load: &mut impl Load, monitor: &mut Monitor) -> Result<(), BenchError> {
        let mut busy = 0;
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            if let Some(exchange) = load.next(index, None) {
                connection.start(exchange, Instant::now());
                busy += 1;
                busy -= self.step(index, false, load);
            }
        }
        while busy > 0 {
            busy -= self.poll_once(monitor, load)?;
        }
        self.check_errors(monitor)
    }

    /// Waits for events on the sockets and advances their connections. Returns the number of connections that have
    /// finished or failed.
    fn poll_once(&mut self, monitor: &mut Monitor, load: &mut impl Load) -> Result<usize, BenchError> {
        match self.poll.poll(&mut self.events, Some(monitor.poll_timeout())) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        // The events are moved out of the pool, because the loop borrows the pool mutably.
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let mut finished = 0;
        for event in &events {
            let readable = event.is_readable() || event.is_read_closed() || event.is_error();
            finished += self.step(event.token().0, readable, load);
        }
        self.events = events;
        monitor.check(|| load.progress())?;
        Ok(finished)
    }

    /// Advances one connection as far as possible without blocking. Returns 1 if the connection was busy and has
    /// finished or failed, else 0.
    fn step(&mut self, index: usize, mut readable: bool, load: &mut impl Load) -> usize {
        let Some(connection) = &mut self.connections[index] else { return 0 };
        let was_busy = connection.is_busy();
        loop {
            let moved = match connection.send() {
                Ok(None) if readable => {
                    readable = false;
                    connection.receive(&mut self.scratch)
                }
                other => other,
            };
            match moved {
                Ok(None) => return 0,
                Ok(Some(completion)) => match load.next(index, Some(&completion)) {
                    Some(exchange) => connection.start(exchange, completion.at),
                    None => return 1,
                },
                Err(error) => {
                    self.drop_connection(index, error);
                    return usize::from(was_busy);
                }
            }
        }
    }

    fn drop_connection(&mut self, index: usize, error: ConnectionError) {
        self.connections[index] = None;
        self.lost += 1;
        self.first_error.get_or_insert(error);
    }

    /// Returns the number of lost connections.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn check_errors(&mut self, monitor: &Monitor) -> Result<(), BenchError> {
        match self.first_error.take() {
            None => Ok(()),
            Some(error) => Err(BenchError::Lost {
                during: monitor.name().to_owned(),
                error,
                lost: self.lost,
                connections: self.connections.len(),
            }),
        }
    }
}

/// The load of connections that only complete the handshake.
struct Handshakes<'a> {
    ready: &'a mut Latencies,
    total: u64,
}

impl Load for Handshakes<'_> {
    fn next(&mut self, _: usize, completion: Option<&Completion>) -> Option<Rc<Exchange>> {
        if let Some(completion) = completion {
            self.ready.record(completion.latency, 1);
        }
        None
    }

    fn progress(&self) -> Progress {
        Progress { done: self.ready.total(), total: self.total, unit: "connections" }
    }
}
