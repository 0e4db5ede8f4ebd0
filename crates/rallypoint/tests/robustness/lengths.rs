//! Rows C06–C08 in docs/internals/robustness.md: announced lengths and counts whose data never arrives.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{MAGIC, Op, Request};
use rallypoint_store::Limits;

use crate::harness::{
    Client, End, KIB, MIB, Server, announced, assert_latency_unaffected, eventually, exclusive, header,
    message, scaled, string,
};

/// Sends `bytes` over a new connection after the handshake. Waits until the server ends the connection, and returns how
/// it ended.
fn ended_by(server: &Server, bytes: &[u8]) -> End {
    let mut client = server.connect();
    client.send(bytes);
    client.end()
}

const OVERSIZED_KEY_LENGTHS: [u64; 6] = [8193, 1 << 20, 1 << 31, 1 << 62, 1 << 63, u64::MAX];
const OVERSIZED_VALUE_LENGTHS: [u64; 6] = [(8 << 20) + 1, 64 << 20, 1 << 31, 1 << 62, 1 << 63, u64::MAX];
const OVERSIZED_KEY_COUNTS: [u64; 6] = [131_073, 1 << 25, 1 << 31, 1 << 61, 1 << 63, u64::MAX];

#[test]
fn c06_an_oversized_key_closes_the_connection_before_memory_is_allocated() {
    let mut server = Server::start();
    let with_a_key = [
        Op::Set,
        Op::CompareSet,
        Op::Get,
        Op::Add,
        Op::DeleteKey,
        Op::Append,
        Op::QueuePush,
        Op::QueuePop,
        Op::QueueLen,
        Op::Barrier,
    ];
    for len in OVERSIZED_KEY_LENGTHS {
        for op in with_a_key {
            let end = ended_by(&server, &header(op, &[len]));
            assert_eq!(end, End { received: vec![], is_reset: false }, "{op} {len}");
        }
        for op in [Op::Check, Op::Wait, Op::MultiGet, Op::MultiSet] {
            let end = ended_by(&server, &header(op, &[1, len]));
            assert_eq!(end, End { received: vec![], is_reset: false }, "{op} {len}");
        }
    }
    assert!(server.memory_growth() < 4 * MIB, "{}", server.memory_growth());
    assert!(
        server.first_disconnect().contains("key of 8193 bytes, limit 8192"),
        "{:?}",
        server.disconnects()
    );
    let longest = "k".repeat(8192);
    let mut client = server.connect();
    client.set(&longest, "v");
    assert_eq!(client.value(&longest), b"v");
    drop(client);
    server.assert_healthy();
}

#[test]
fn c06_ten_thousand_bad_frames_per_second_delay_no_other_client() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let frame = [message(Request::Validate { magic: MAGIC }), header(Op::Set, &[u64::MAX])].concat();
    let seconds = scaled(1, 10) as f64;
    let mut sent = 0;
    assert_latency_unaffected(&server, Duration::from_millis(2), || {
        let start = Instant::now();
        sent = 0;
        while start.elapsed().as_secs_f64() < seconds {
            // The loop sends at most 10,000 bad frames per second.
            if f64::from(sent) < start.elapsed().as_secs_f64() * 10_000.0 {
                let mut client = server.dial();
                client.send(&frame);
                drop(client);
                sent += 1;
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    println!("{sent} bad frames in {seconds} s");
    server.assert_healthy();
}

/// Returns an address of this machine that is not a loopback address, if there is one. Connecting a UDP socket sends
/// nothing.
fn non_loopback_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[test]
fn c06_an_address_with_repeated_violations_is_refused_during_the_penalty() {
    let limits = Limits::default();
    assert_eq!((limits.violations_per_second, limits.violation_penalty), (20, Duration::from_secs(10)));
    let Some(ip) = non_loopback_address() else {
        return eprintln!("skipped: this machine has only loopback addresses");
    };
    let mut server = Server::listening_on("0.0.0.0:0", &["violation_penalty=1s", "violations_per_second=5"]);
    let from_outside = (ip, server.address().port()).into();
    let mut connected = Client::connect(from_outside);
    let frame = header(Op::Set, &[u64::MAX]);
    let offend = || Client::try_connect(from_outside).is_ok_and(|mut client| client.try_send(&frame).is_ok());
    let start = Instant::now();
    // The sixth violation within a second starts the penalty. If the second ends before that, the count starts again at
    // zero.
    while offend() {
        assert!(start.elapsed() < Duration::from_secs(10), "the address is never refused");
    }
    // The penalty affects neither a client that is already connected nor a client with another address.
    connected.ping();
    server.connect().ping();
    eventually(Duration::from_secs(5), "the penalty is over", || Client::try_connect(from_outside).is_ok());
    drop(connected);
    server.assert_healthy();
}

#[test]
fn c07_an_oversized_value_closes_the_connection() {
    let mut server = Server::start();
    for len in OVERSIZED_VALUE_LENGTHS {
        for op in [Op::Set, Op::Append, Op::QueuePush, Op::CompareSet] {
            assert_eq!(
                ended_by(&server, &announced(op, b"/k", len)),
                End { received: vec![], is_reset: false },
                "{op} {len}"
            );
        }
        let bytes = [&header(Op::MultiSet, &[1])[..], &announced(Op::Set, b"/k", len)[1..]].concat();
        assert_eq!(ended_by(&server, &bytes), End { received: vec![], is_reset: false }, "multi_set {len}");
    }
    assert!(server.memory_growth() < 4 * MIB, "{}", server.memory_growth());
    let mut client = server.connect();
    assert!(!client.is_present("/k"));
    let largest = vec![7; 8 * MIB];
    client.set("/k", &largest);
    assert!(client.value("/k") == largest);
    client.number(Request::DeleteKey { key: b"/k" });
    drop(client);
    server.assert_healthy();
}

#[test]
fn c07_memory_grows_with_received_bytes_and_not_with_the_announced_length() {
    let mut server = Server::start();
    // This number of uploads fits into the limit `input_total`.
    const UPLOADS: usize = 20;
    const SENT: usize = 100 * KIB;
    let beginning = announced(Op::Set, b"/k", 8 << 20);
    let clients: Vec<Client> = (0..UPLOADS)
        .map(|_| {
            let mut client = server.connect();
            client.send(&beginning);
            client.send(&vec![1; SENT]);
            client
        })
        .collect();
    server.wait_until_idle();
    assert!(
        server.memory_growth() > UPLOADS * SENT / 2,
        "the server has not read the bytes: {}",
        server.memory_growth()
    );
    let max_growth = UPLOADS * (SENT + 64 * KIB) + MIB;
    assert!(server.memory_growth() < max_growth, "{} for {} sent", server.memory_growth(), UPLOADS * SENT);
    drop(clients);
    server.assert_healthy();
}

#[test]
fn c08_a_key_count_above_the_limit_closes_the_connection_and_a_count_at_the_limit_allocates_nothing() {
    let mut server = Server::start();
    let with_a_list = [Op::Check, Op::Wait, Op::MultiGet, Op::MultiSet];
    for count in OVERSIZED_KEY_COUNTS {
        for op in with_a_list {
            let end = ended_by(&server, &header(op, &[count]));
            assert_eq!(end, End { received: vec![], is_reset: false }, "{op} {count}");
        }
    }
    let mut clients = Vec::new();
    for op in with_a_list {
        for _ in 0..100 {
            let mut client = server.connect();
            client.send(&[header(op, &[131_072]), string(b"/k")].concat());
            clients.push(client);
        }
    }
    server.wait_until_idle();
    assert!(server.memory_growth() < 2 * MIB, "{} for 400 counts of 131,072", server.memory_growth());
    assert!(clients.iter_mut().all(|client| !client.has_ended()), "a key count at the limit is refused");
    drop(clients);
    server.assert_healthy();
}
