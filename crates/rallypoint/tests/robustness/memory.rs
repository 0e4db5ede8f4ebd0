//! Rows R04–R06 in docs/internals/robustness.md: memory that clients make the server use, by uploads that they don't
//! complete, by replies that they don't read, and by requests behind a WAIT.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{KeyList, Op, Request};
use rallypoint_store::Limits;

use crate::harness::{Client, HEAP_BYTES, KIB, MIB, Server, eventually, exclusive, message, scaled};

/// Returns a SET request of 8 MiB without its last byte.
fn incomplete_upload() -> Vec<u8> {
    let mut frame = message(Request::Set { key: b"/k", value: vec![1; 8 * MIB][..].into() });
    frame.pop();
    frame
}

#[test]
fn r04_aborted_uploads_free_their_memory() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let upload = incomplete_upload();
    for round in 0..scaled(40, 400) {
        let mut client = server.connect();
        client.send(&upload);
        if round % 2 == 0 { client.reset() } else { drop(client) }
    }
    eventually(Duration::from_secs(5), "all connections are closed", || server.connections() == 0);
    assert!(!server.connect().is_present("/k"));
    server.assert_healthy();
}

#[test]
fn r04_incomplete_requests_share_a_limit_and_stalled_ones_are_closed() {
    let _exclusive = exclusive();
    let limits = Limits::default();
    assert_eq!((limits.input_total, limits.input_stall), (256 * MIB, Duration::from_secs(3)));
    // The short test uses a quarter of the full numbers, because each stalled upload delays the next one by
    // `input_stall`.
    let (uploads, total) = (scaled(13, 50), scaled(64, 256));
    let mut server = Server::with_limits(&["input_stall=500ms", &format!("input_total={total}MiB")]);
    let upload = incomplete_upload();
    let mut small = server.connect();
    small.send(&upload[..1_000]);
    let mut clients: Vec<(Client, usize)> = (0..uploads).map(|_| (server.connect(), 0)).collect();
    let (mut peak, start) = (0, Instant::now());
    // All clients send as much as the server reads, for 1 s.
    while start.elapsed() < Duration::from_secs(1) {
        for (client, sent) in &mut clients {
            *sent += client.send_nonblocking(&upload[*sent..]);
        }
        peak = peak.max(server.memory_growth());
    }
    println!("{uploads} stalled uploads of 8 MiB: {} MiB at most", peak / MIB);
    assert!(peak > total / 4 * MIB && peak < (total + 16) * MIB, "{peak}");
    // The uploads have stalled. Clients that continue to send must succeed: `other` starts a new upload, and `small`
    // completes one that it has started before.
    let mut other = server.connect();
    other.send(&upload);
    other.send(&[1]);
    other.ping();
    small.send(&upload[1_000..]);
    small.send(&[1]);
    small.ping();
    assert_eq!(small.number(Request::DeleteKey { key: b"/k" }), 1);
    assert!(server.first_disconnect().contains("upload stalled"), "{:?}", server.disconnects());
    drop((clients, small, other));
    eventually(Duration::from_secs(5), "all connections are closed", || server.connections() == 0);
    server.assert_healthy_with_stored(HEAP_BYTES);
}

#[test]
fn r05_unread_replies_share_the_stored_value_and_later_requests_are_not_read() {
    let mut server = Server::start();
    let value = vec![9; 8 * MIB];
    server.connect().set("/k", &value);
    server.wait_until_idle();
    let before = server.process().memory();
    let mut slow_reader = server.connect();
    (0..100).for_each(|_| slow_reader.send_request(Request::Get { key: b"/k" }));
    slow_reader.send_request(Request::Set { key: b"/behind", value: (&b"v"[..]).into() });
    server.wait_until_idle();
    let cost = server.process().memory().saturating_sub(before);
    assert!(cost < 16 * MIB, "{cost}");
    let mut other = server.connect();
    assert!(!other.is_present("/behind"), "the server reads although more than 1 MiB of replies are unsent");
    // A client that starts to read later gets all replies.
    for _ in 0..100 {
        assert_eq!(slow_reader.bytes(8), (value.len() as u64).to_le_bytes());
        assert!(slow_reader.bytes(value.len()) == value);
    }
    slow_reader.ping();
    assert!(other.is_present("/behind"));
    drop((slow_reader, other));
    server.assert_healthy_with_stored(value.len());
}

#[test]
fn r05_a_client_that_reads_no_replies_is_closed_and_a_slow_reader_is_not() {
    assert_eq!(Limits::default().output_stall, Duration::from_secs(30));
    let mut server = Server::with_limits(&["output_stall=2s"]);
    let value = vec![9; 8 * MIB];
    server.connect().set("/k", &value);
    let [mut stuck, mut slow] = [(); 2].map(|()| server.connect());
    for client in [&mut stuck, &mut slow] {
        (0..4).for_each(|_| client.send_request(Request::Get { key: b"/k" }));
    }
    let start = Instant::now();
    let mut taken = 0;
    // `slow` reads slowly, for longer than `output_stall`. `stuck` reads nothing.
    while server.connections() > 1 {
        assert!(start.elapsed() < Duration::from_secs(10), "the stalled connection is not closed");
        taken += slow.bytes(256 * KIB).len();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    slow.bytes(4 * (8 + value.len()) - taken);
    slow.ping();
    let line = server.only_disconnect();
    assert!(line.contains("read none"), "{line}");
    drop((stuck, slow));
    server.assert_healthy_with_stored(value.len());
}

#[test]
fn r05_a_client_above_output_hard_is_closed_after_a_third_of_output_stall() {
    let mut server = Server::with_limits(&["output_hard=1MiB", "output_stall=6s"]);
    let mut client = server.connect();
    let item = vec![7; 8 * MIB];
    client.send_request(Request::QueuePush { key: b"/q", value: item[..].into() });
    client.ping();
    let start = Instant::now();
    client.send_request(Request::QueuePop { key: b"/q" });
    eventually(Duration::from_secs(5), "the connection is closed", || server.connections() == 0);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(server.only_disconnect().contains("read none"), "{}", server.only_disconnect());
    drop(client);
    server.assert_healthy_with_stored(item.len());
}

#[test]
fn r05_requests_deferred_behind_a_wait_use_bounded_memory() {
    let mut server = Server::start();
    let clients: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = server.connect();
            client.start_waiting(&["/absent"]);
            // Each request is one byte long. The kernel buffers a part of the requests that the server does not read.
            client.send_nonblocking(&[Op::NumKeys as u8].repeat(MIB));
            client
        })
        .collect();
    server.wait_until_idle();
    let growth = server.memory_growth();
    println!("10 MiB of one-byte requests: {} KiB", growth / KIB);
    assert!(growth < 48 * MIB, "{growth}");
    // The clients reset their connections. A FIN would reach the server only after the data that the server does not
    // read.
    clients.into_iter().for_each(Client::reset);
    server.assert_healthy();
}

#[test]
fn r06_a_multi_get_of_one_large_value_many_times_is_streamed() {
    let mut server = Server::start();
    let value = vec![9; 8 * MIB];
    server.connect().set("/k", &value);
    server.wait_until_idle();
    let before = server.process().memory();
    let mut client = server.connect();
    client.send_request(Request::MultiGet { keys: KeyList::new(&[&b"/k"[..]; 64]) });
    server.wait_until_idle();
    let mut peak = server.process().memory();
    for _ in 0..64 {
        assert_eq!(client.bytes(8), (value.len() as u64).to_le_bytes());
        assert!(client.bytes(value.len()) == value);
        peak = peak.max(server.process().memory());
    }
    assert!(peak.saturating_sub(before) < 16 * MIB, "{}", peak - before);
    client.ping();
    drop(client);
    server.assert_healthy_with_stored(value.len());
}
