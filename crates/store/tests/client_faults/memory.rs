//! Tests of the memory that a reply takes. The client allocates memory for the bytes that have arrived, and for the
//! announced length only after 128 KiB have arrived. This is part of row K09 of docs/internals/robustness.md.
//!
//! The client runs in a child process, so that the memory of other tests is not measured.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rallypoint_core::wire::Op;
use rallypoint_store::{Failure, Oversized, Store, StoreError};

use crate::child::{print_line, read_line, start};
use crate::{CALL_TIMEOUT, client};

const KIB: u64 = 1024;

/// Returns the current and the peak resident memory of this process in bytes.
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * KIB
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Runs in the child: gets a value, and prints the kind of the error and the number of bytes by which memory grew.
pub(crate) fn measure_read(port: u16) {
    let store = client(port, Duration::from_secs(2));
    let (before, _) = resident();
    let error = store.get("k").unwrap_err();
    let (_, peak) = resident();
    let kind = match error.failure() {
        Some(Failure::TooLarge { what: Oversized::Reply, .. }) => "too-large",
        Some(Failure::Timeout(_)) => "timeout",
        other => panic!("{other:?}"),
    };
    print_line(&format!("{kind} {}", peak.saturating_sub(before)));
}

/// Serves one connection. Replies like torch's server to the handshake, a CHECK and a WAIT, and with `reply` to a GET.
fn serve_once(listener: &TcpListener, reply: &[u8]) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut handshake = [0; 10];
    stream.read_exact(&mut handshake).unwrap();
    stream.write_all(&handshake[6..10]).unwrap();
    // A CHECK of the key under which our servers store their identity: operation code, number of keys, length of the
    // key, key. The reply is "absent".
    stream.read_exact(&mut [0; 1 + 8 + 8 + 17]).unwrap();
    stream.write_all(&[1]).unwrap();
    // A WAIT: operation code, number of keys, length of the key, key.
    stream.read_exact(&mut [0; 1 + 8 + 8 + 2]).unwrap();
    stream.write_all(&[0]).unwrap();
    // A GET: operation code, length of the key, key.
    stream.read_exact(&mut [0; 1 + 8 + 2]).unwrap();
    stream.write_all(reply).unwrap();
    drain(stream);
}

/// Reads until the client closes or resets the connection.
fn drain(mut stream: TcpStream) {
    while stream.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {}
}

#[test]
fn a_reply_takes_memory_for_the_bytes_that_arrive_and_not_for_its_announced_length() {
    for (announced, sent, outcome) in [
        (1u64 << 31, 0, "too-large"),
        (1 << 62, 0, "too-large"),
        (64 << 20, 0, "too-large"),
        // The announced length is within the limit, but few or no bytes arrive.
        ((64 << 20) - 8, 0, "timeout"),
        ((64 << 20) - 8, 100_000, "timeout"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let reply = [&announced.to_le_bytes()[..], &vec![7; sent]].concat();
        let mut child = start(&[], &format!("read {port}"));
        serve_once(&listener, &reply);
        let line = read_line(&mut child);
        child.wait().unwrap();
        let (kind, grown) = line.split_once(' ').unwrap();
        assert_eq!(kind, outcome, "{announced} announced, {sent} sent");
        let grown: u64 = grown.parse().unwrap();
        assert!(grown < 4 << 20, "grew by {grown} bytes for {announced} announced and {sent} sent");
    }
}

#[test]
fn a_reply_of_56_mib_is_accepted_and_one_above_64_mib_is_refused() {
    let server = rallypoint_store::TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let store = client(server.port(), CALL_TIMEOUT);
    let value = vec![7; 8 << 20];
    for key in ["a", "b", "c"] {
        store.set(key, &value).unwrap();
    }
    // With their lengths, seven values of 8 MiB are below the limit of 64 MiB and eight are above it.
    let values = store.multi_get(&["a", "b", "c", "a", "b", "c", "a"]).unwrap();
    assert!(values.iter().all(|got| *got == value));
    let error = store.multi_get(&["a", "b", "c", "a", "b", "c", "a", "b"]).unwrap_err();
    let StoreError::Call { context, failure: Failure::TooLarge { what: Oversized::Reply, len, limit } } =
        &error
    else {
        panic!("{error:?}")
    };
    let endpoint = format!("127.0.0.1:{}", server.port());
    assert_eq!((&context.peer, context.op, context.keys.len()), (&endpoint, Some(Op::MultiGet), 8));
    assert!(*limit == 64 << 20 && *len > 64 << 20, "{error}");
    assert!(error.to_string().contains("to multi_get of a, b, c, a, b, c, a, b has at least"), "{error}");
    assert!(error.to_string().contains("request fewer keys at a time"), "{error}");
    assert!(store.get("a").unwrap() == value);
}
