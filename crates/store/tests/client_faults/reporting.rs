//! What a client that waits for its first connection reports meanwhile, and how it recognizes what is not a store.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rallypoint_store::{
    ConnectionFault, Endpoint, PeerProtocol, StoreError, TcpStore, TcpStoreOptions, reserve_port,
};

use crate::clock::SOON;
use crate::fake::{Act, Fake, TORCHS};

/// Tries to connect until `timeout`. Returns the error and the faults that were reported before it.
fn reported(host: &str, port: u16, timeout: Duration) -> (StoreError, Vec<ConnectionFault>) {
    let options = TcpStoreOptions::new(Endpoint::new(host, port)).timeout(timeout);
    let mut faults = Vec::new();
    let error = TcpStore::open_reporting(options, &mut |fault| faults.push(fault.clone())).unwrap_err();
    (error, faults)
}

#[test]
fn a_name_that_cannot_be_resolved_is_reported_while_the_client_waits() {
    let (error, faults) = reported("no-such-host.invalid", 29400, Duration::from_secs(1));
    let Some(ConnectionFault::Unresolvable { host, .. }) = faults.first() else { panic!("{faults:?}") };
    assert_eq!(host, "no-such-host.invalid");
    let fault = error.connection_fault().expect("the error has it, too");
    assert!(fault.hint().contains("DNS"), "{}", fault.hint());
}

#[test]
fn a_refused_connection_is_reported_while_the_client_waits() {
    let held = reserve_port().unwrap();
    let (error, faults) = reported("127.0.0.1", held.port(), Duration::from_millis(500));
    assert_eq!(faults.first(), Some(&ConnectionFault::Refused));
    assert_eq!(error.connection_fault(), Some(ConnectionFault::Refused));
}

#[test]
fn a_server_that_accepts_and_stays_silent_is_reported_before_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let (error, faults) = reported("127.0.0.1", port, Duration::from_secs(4));
    assert_eq!(faults.first(), Some(&ConnectionFault::Silent), "{error}");
    assert_eq!(error.connection_fault(), Some(ConnectionFault::Silent));
}

#[test]
fn a_server_that_closes_during_the_handshake_is_reported() {
    let server = Fake::start(TORCHS, |_| Act::Refuse);
    let (_, faults) = reported("127.0.0.1", server.port(), Duration::from_millis(500));
    assert_eq!(faults.first(), Some(&ConnectionFault::Closed));
}

/// Serves one connection after another until the test ends.
fn serve(answer: fn(TcpStream) -> std::io::Result<()>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().try_for_each(answer));
    port
}

/// Servers in Go and Python read a whole request before they answer, so the handshake must look like one.
#[test]
fn an_http_server_that_waits_for_the_end_of_the_request_is_recognized_at_once() {
    let port = serve(|mut stream| {
        let mut request = BufReader::new(stream.try_clone()?);
        let mut line = Vec::new();
        while line != b"\r\n" {
            line.clear();
            request.read_until(b'\n', &mut line)?;
        }
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    });
    let start = Instant::now();
    let (error, _) = reported("127.0.0.1", port, SOON);
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
    assert_eq!(error.connection_fault(), Some(ConnectionFault::NotAStore(PeerProtocol::Http)));
    assert!(error.to_string().contains("answered like an HTTP server: not a c10d store server"), "{error}");
}

#[test]
fn a_tls_alert_is_recognized_at_once() {
    let port = serve(|mut stream| {
        stream.read_exact(&mut [0; 5])?;
        stream.write_all(b"\x15\x03\x03\x00\x02\x02\x46")?;
        // What is unread would make the system reset the connection before the alert is read.
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    });
    let (error, _) = reported("127.0.0.1", port, SOON);
    assert_eq!(error.connection_fault(), Some(ConnectionFault::NotAStore(PeerProtocol::Tls)));
    assert!(error.to_string().contains("answered like a TLS server"), "{error}");
}
