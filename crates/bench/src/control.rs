//! The control connection of a run. It finds the server, sets keys before a workload, and deletes them afterwards. Its
//! requests block up to a timeout and are not measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rallypoint_core::wire::Request;
use rallypoint_store::{ConnectionFault, Endpoint};

use crate::error::{BenchError, ConnectionError};
use crate::exchange::{Exchange, Expected};
use crate::keys::Keys;

/// The number of keys that are set or deleted before the run waits for the replies.
const KEYS_PER_BATCH: usize = 1000;
/// The maximum latency of a PING to an idle server, and the pause between two PINGs.
const IDLE_PING_INTERVAL: Duration = Duration::from_millis(2);
/// The number of consecutive PINGs to which an idle server replies within [`IDLE_PING_INTERVAL`] each.
const IDLE_PINGS: usize = 5;

/// A blocking connection to the server.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    address: SocketAddr,
    timeout: Duration,
}

impl Control {
    /// Connects to the host's first address that replies to the handshake as a store does.
    pub(crate) fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Control, BenchError> {
        let started = Instant::now();
        let addresses = endpoint.resolve_within(timeout)?;
        Control::connect_to_any(endpoint, &addresses, timeout, started)
    }

    fn connect_to_any(
        endpoint: &Endpoint,
        addresses: &[SocketAddr],
        timeout: Duration,
        started: Instant,
    ) -> Result<Control, BenchError> {
        let (mut tried, mut not_a_store) = (Vec::new(), None);
        for (address, remaining) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
            // Each address gets an equal share of the remaining timeout, so that an address that does not answer leaves
            // time for the others.
            let share = timeout.saturating_sub(started.elapsed()) / remaining;
            let share = share.max(Duration::from_millis(1));
            match TcpStream::connect_timeout(address, share) {
                Err(error) => {
                    let fault = ConnectionFault::from(&error);
                    let is_endpoint = address.to_string() == endpoint.to_string();
                    tried.push(if is_endpoint { fault.to_string() } else { format!("{address}: {fault}") });
                }
                Ok(stream) => {
                    let mut control = Control { stream, address: *address, timeout: share };
                    match control.handshake() {
                        Ok(()) => return Ok(Control { timeout, ..control }),
                        Err(error) => {
                            not_a_store
                                .get_or_insert(BenchError::NotAStore { peer: address.to_string(), error });
                        }
                    }
                }
            }
        }
        Err(not_a_store.unwrap_or(BenchError::Unreachable { endpoint: endpoint.to_string(), tried }))
    }

    fn handshake(&mut self) -> Result<(), ConnectionError> {
        let prepared = self.stream.set_nodelay(true);
        prepared.map_err(|source| ConnectionError::Failed { during: "connect", source })?;
        self.exchange(&Exchange::handshake())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stores the same value under each of these keys.
    pub(crate) fn set(&mut self, keys: &[Vec<u8>], value: &[u8]) -> Result<(), ConnectionError> {
        for keys in keys.chunks(KEYS_PER_BATCH) {
            let mut chunk = Exchange::new("set");
            for key in keys {
                chunk = chunk.without_reply(Request::Set { key, value: value.into() });
            }
            self.exchange(&chunk.ping())?;
        }
        Ok(())
    }

    /// Deletes the first `count` keys of a run, whether they are present or not.
    pub(crate) fn delete(&mut self, keys: &Keys, count: usize) -> Result<(), ConnectionError> {
        for keys in keys.names(0, count).chunks(KEYS_PER_BATCH) {
            let mut chunk = Exchange::new("delete_key");
            for key in keys {
                chunk = chunk.with_number_reply(Request::DeleteKey { key });
            }
            self.exchange(&chunk)?;
        }
        Ok(())
    }

    /// Waits until the server seems idle: it replies to `IDLE_PINGS` PINGs in a row within [`IDLE_PING_INTERVAL`] each,
    /// so it has probably processed the requests of all connections. Returns without an error if the timeout passes
    /// before that.
    pub(crate) fn await_idle(&mut self) -> Result<(), ConnectionError> {
        let ping = Exchange::new("ping").ping();
        let started = Instant::now();
        let mut quick_pings = 0;
        while quick_pings < IDLE_PINGS && started.elapsed() < self.timeout {
            let sent = Instant::now();
            self.exchange(&ping)?;
            quick_pings = if sent.elapsed() < IDLE_PING_INTERVAL { quick_pings + 1 } else { 0 };
            std::thread::sleep(IDLE_PING_INTERVAL);
        }
        Ok(())
    }

    fn exchange(&mut self, exchange: &Exchange) -> Result<(), ConnectionError> {
        let during = exchange.name;
        let started = Instant::now();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ConnectionError::Timeout { during, waited: started.elapsed() }
            }
            io::ErrorKind::UnexpectedEof => ConnectionError::Closed { during },
            _ => ConnectionError::Failed { during, source },
        };
        self.stream.set_write_timeout(Some(self.timeout)).map_err(failed)?;
        self.stream.set_read_timeout(Some(self.timeout)).map_err(failed)?;
        self.stream.write_all(&exchange.request).map_err(failed)?;
        let mut reply = vec![0; exchange.reply.len()];
        let mut received = 0;
        while received < reply.len() {
            // The read timeout restarts with each read. This check also ends the wait for a peer that sends one byte at
            // a time.
            if started.elapsed() > self.timeout {
                return Err(ConnectionError::Timeout { during, waited: started.elapsed() });
            }
            match self.stream.read(&mut reply[received..]) {
                Ok(0) => return Err(ConnectionError::Closed { during }),
                Ok(len) => received += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        match &exchange.reply {
            Expected::Exactly(expected) => {
                match reply.iter().zip(expected).position(|(found, expected)| found != expected) {
                    None => Ok(()),
                    Some(at) => Err(ConnectionError::WrongReply {
                        during,
                        at,
                        found: reply[at],
                        expected: expected[at],
                    }),
                }
            }
            Expected::Numbers(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rallypoint_store::TcpStoreServer;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    fn connect(addresses: &[SocketAddr]) -> Result<Control, BenchError> {
        Control::connect_to_any(&Endpoint::new("somewhere", 1), addresses, TIMEOUT, Instant::now())
    }

    /// Returns the addresses of a closed port, of a listener that sends nothing, and of another kind of server. The
    /// caller keeps that listener, because dropping it closes its port.
    fn non_stores() -> (TcpListener, [SocketAddr; 3]) {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [closed, silent.local_addr().unwrap(), other.local_addr().unwrap()];
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = other.accept() {
                let _ = stream.write_all(b"220 mail.example ready\r\n");
            }
        });
        (silent, addresses)
    }

    #[test]
    fn connect_skips_addresses_without_a_store_and_stays_within_the_timeout() {
        let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        let store = server.addresses()[0];
        let (_silent, addresses) = non_stores();
        for before in addresses {
            let started = Instant::now();
            let control = connect(&[before, store]).unwrap();
            assert_eq!((control.address(), control.timeout), (store, TIMEOUT));
            assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
        }
        assert_eq!(connect(&[addresses[0], addresses[1], addresses[2], store]).unwrap().address(), store);
    }

    #[test]
    fn the_error_names_what_was_found_instead_of_a_store() {
        let (_silent, addresses @ [closed, _, other]) = non_stores();
        let Err(BenchError::Unreachable { tried, .. }) = connect(&[closed, closed]) else { panic!() };
        let refused = format!("{closed}: connection refused (nothing listens there)");
        assert_eq!(tried, [refused.clone(), refused]);
        for pair in [&[closed, other][..], &[other, closed]] {
            let error = connect(pair).unwrap_err();
            assert!(
                matches!(&error, BenchError::NotAStore { peer, .. } if *peer == other.to_string()),
                "{error}"
            );
        }
        let started = Instant::now();
        connect(&addresses).unwrap_err();
        assert!(started.elapsed() < TIMEOUT + TIMEOUT / 20, "{:?}", started.elapsed());
    }
}
