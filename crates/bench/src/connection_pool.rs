//! Many connections on one thread: tells a script what each has finished, and does what the script says next.
//!
//! It decides nothing about the load. A connection that breaks is counted, and the others go on.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use mio::{Events, Poll, Token};

use crate::connection::{Completion, Connection};
use crate::error::{BenchError, ConnectionError};
use crate::exchange::Exchange;
use crate::latencies::Latencies;
use crate::monitor::{Monitor, Progress};

/// Room for replies; one that fills it is read in several goes.
const READ_BYTES: usize = 256 * 1024;

/// What a load consists of.
pub(crate) trait Load {
    /// What this connection does next; `None`: it is done. `answer` is what it has just got, `None` at the start.
    fn next(&mut self, index: usize, completion: Option<&Completion>) -> Option<Rc<Exchange>>;

    /// How far it has come.
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
    /// Opens so many connections, at most `at_once` of them on their way at a time, and notes how long each took from
    /// the first packet to the answered PING.
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
                        // On one machine it is connected by now; elsewhere this finds out that it isn't.
                        connecting -= pool.step(index, false, &mut handshakes);
                    }
                }
            }
            connecting -= pool.poll_once(monitor, &mut handshakes)?;
        }
        pool.check_errors(monitor)?;
        Ok(pool)
    }

    /// Runs a script on all connections until it has nothing more for any of them.
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

    /// Waits for sockets and serves them; how many connections were done with that.
    fn poll_once(&mut self, monitor: &mut Monitor, load: &mut impl Load) -> Result<usize, BenchError> {
        match self.poll.poll(&mut self.events, Some(monitor.poll_timeout())) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        // Taken out so that the connections can be changed while walking through them.
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

    /// Moves one connection on as far as it goes; 1 if it was busy and is no more.
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

    /// Connections lost so far.
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

/// The script of connections that only come.
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
