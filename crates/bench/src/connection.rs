//! One client connection. It runs one exchange at a time and never blocks.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use crate::error::ConnectionError;
use crate::exchange::{Exchange, Expected};

/// A connection with the progress of its exchange.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    exchange: Rc<Exchange>,
    is_busy: bool,
    sent: usize,
    received: usize,
    /// The last number of a reply that consists of numbers, as bytes.
    number: [u8; 8],
    started: Instant,
}

/// A finished exchange.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) requests: u64,
    /// The last number, if the reply consists of numbers.
    pub(crate) number: i64,
    pub(crate) latency: Duration,
    pub(crate) at: Instant,
}

impl Connection {
    /// Starts to connect. [`Connection::send`] sends `first` when the connection is established.
    pub(crate) fn open(
        address: SocketAddr,
        registry: &Registry,
        token: Token,
        first: &Rc<Exchange>,
    ) -> io::Result<Connection> {
        let started = Instant::now();
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Connection {
            stream,
            exchange: Rc::clone(first),
            is_busy: true,
            sent: 0,
            received: 0,
            number: [0; 8],
            started,
        })
    }

    /// Returns whether an exchange is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Starts the next exchange.
    pub(crate) fn start(&mut self, exchange: Rc<Exchange>, now: Instant) {
        debug_assert!(!self.is_busy, "one exchange at a time");
        self.exchange = exchange;
        self.is_busy = true;
        (self.sent, self.received) = (0, 0);
        self.started = now;
    }

    /// Sends the rest of the request. Returns the completion if this finishes the exchange.
    pub(crate) fn send(&mut self) -> Result<Option<Completion>, ConnectionError> {
        while self.is_busy && self.sent < self.exchange.request.len() {
            match self.stream.write(&self.exchange.request[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ConnectionError::Failed { during: self.exchange.name, source }),
            }
        }
        Ok(self.completion())
    }

    /// Reads the available bytes of the reply. Returns the completion if this finishes the exchange.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<Option<Completion>, ConnectionError> {
        loop {
            let len = match self.stream.read(scratch) {
                Ok(0) => return Err(ConnectionError::Closed { during: self.exchange.name }),
                Ok(len) => len,
                // The connection is not established yet, or all available bytes were read.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) =>
                {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(ConnectionError::Failed { during: self.exchange.name, source }),
            };
            self.check(&scratch[..len])?;
            // No bytes follow a complete reply, and a short read means that all available bytes were read.
            let completion = self.completion();
            if completion.is_some() || len < scratch.len() {
                return Ok(completion);
            }
        }
    }

    /// Counts received bytes. Compares them with the expected bytes, or stores the last number of a reply that consists
    /// of numbers.
    fn check(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let during = self.exchange.name;
        let left = if self.is_busy { self.exchange.reply.len() - self.received } else { 0 };
        if bytes.len() > left {
            return Err(ConnectionError::UnexpectedBytes { after: during, bytes: bytes.len() - left });
        }
        match &self.exchange.reply {
            Expected::Exactly(reply) => {
                let expected = &reply[self.received..self.received + bytes.len()];
                if bytes != expected {
                    let at = bytes.iter().zip(expected).position(|(a, b)| a != b).unwrap_or_default();
                    let (found, expected) = (bytes[at], expected[at]);
                    return Err(ConnectionError::WrongReply {
                        during,
                        at: self.received + at,
                        found,
                        expected,
                    });
                }
            }
            Expected::Numbers(_) => {
                for (n, byte) in bytes.iter().enumerate().skip(bytes.len().saturating_sub(8)) {
                    self.number[(self.received + n) % 8] = *byte;
                }
            }
        }
        self.received += bytes.len();
        Ok(())
    }

    fn completion(&mut self) -> Option<Completion> {
        if !self.is_busy
            || self.sent < self.exchange.request.len()
            || self.received < self.exchange.reply.len()
        {
            return None;
        }
        self.is_busy = false;
        let at = Instant::now();
        Some(Completion {
            requests: self.exchange.requests,
            number: i64::from_le_bytes(self.number),
            latency: at.duration_since(self.started),
            at,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Reset the connection on close. Otherwise 10,000 ports would stay in TIME_WAIT for a minute.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }
}
