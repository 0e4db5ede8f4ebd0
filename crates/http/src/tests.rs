//! Tests of the health server with well-formed and malformed requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde_json::Value;

use super::*;
use crate::connections::{MAX_CONNECTIONS, REQUEST_TIMEOUT};

fn request(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn start(snapshot: impl Fn(Duration) -> Option<Value> + Send + Sync + 'static) -> HealthServer {
    HealthServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), snapshot).unwrap()
}

fn running(_: Duration) -> Option<Value> {
    Some(json!({"status": "running"}))
}

#[test]
fn every_get_is_answered_with_the_snapshot() {
    let server = start(running);
    for path in ["/", "/healthz", "/a/b?c"] {
        let text = request(server.address(), format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.to_lowercase().contains("content-type: application/json\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n{\"status\":\"running\"}\n"), "{text}");
    }
    let text = request(server.address(), b"HEAD / HTTP/1.1\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    let text = request(server.address(), b"GET / HTTP/1.0\r\n\r\n");
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n") || text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
}

#[test]
fn other_methods_are_refused() {
    let server = start(running);
    let text = request(server.address(), b"POST / HTTP/1.1\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    // The client receives the response even if it sends a body that the server does not parse.
    for len in [6_000, 100_000] {
        let head = format!("POST / HTTP/1.1\r\nContent-Length: {len}\r\n\r\n");
        let text = request(server.address(), &[head.as_bytes(), &vec![b'b'; len]].concat());
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    }
}

#[test]
fn a_malformed_or_incomplete_request_is_refused() {
    let server = start(running);
    let text = request(server.address(), b"\x16\x03\x01\r\n\r\n");
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 400 "), "{text}");
    let incomplete = [b"GET / HTTP/1.1\r\nx: ".to_vec(), vec![b'x'; 7_000]].concat();
    let start = Instant::now();
    let text = request(server.address(), &incomplete);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    assert!(start.elapsed() < 2 * REQUEST_TIMEOUT, "{:?}", start.elapsed());
}

#[test]
fn silent_clients_do_not_delay_another_client() {
    let server = start(running);
    let silent: Vec<_> =
        (0..3 * MAX_CONNECTIONS).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let start = Instant::now();
    let text = request(server.address(), b"GET / HTTP/1.1\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(start.elapsed() < REQUEST_TIMEOUT / 2, "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn an_event_loop_that_does_not_answer_is_reported_with_503() {
    let server = start(|_| None);
    let text = request(server.address(), b"GET /health HTTP/1.1\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("{\"status\":\"no answer\"}\n"), "{text}");
}

#[test]
fn a_dropped_server_closes_its_port() {
    let server = start(running);
    let address = server.address();
    drop(server);
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
}
