//! Rows C01–C05 in docs/internals/robustness.md: the first bytes of a connection, and unknown opcodes.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{KeyList, MAGIC, Op, PairList, Reply, ReplyKind, Request};
use rallypoint_store::{Limits, Listen, ServerOptions, TcpStoreServer};

use crate::harness::{Client, Server, eventually, exclusive, list, message, pairs, scaled};

fn validate() -> Vec<u8> {
    message(Request::Validate { magic: MAGIC })
}

/// Returns one encoded request per operation, except VALIDATE.
fn one_request_per_operation() -> Vec<Vec<u8>> {
    let (key, value) = (&b"/k"[..], (&b"v"[..]).into());
    let (keys, entries) = (list(&["/k"]), pairs(&[("/k", "v")]));
    let requests = [
        Request::Set { key, value },
        Request::CompareSet { key, expected: b"".into(), desired: value },
        Request::Get { key },
        Request::Add { key, delta: 1 },
        Request::Check { keys: KeyList::new(&keys) },
        Request::Wait { keys: KeyList::new(&keys) },
        Request::NumKeys,
        Request::DeleteKey { key },
        Request::Append { key, value },
        Request::MultiGet { keys: KeyList::new(&keys) },
        Request::MultiSet { pairs: PairList::new(&entries) },
        Request::CancelWait,
        Request::Ping { nonce: 1 },
        Request::QueuePush { key, value },
        Request::QueuePop { key },
        Request::QueueLen { key },
        Request::ListKeys,
        Request::Barrier { key, world_size: 1 },
        Request::Message { message: value },
    ];
    assert_eq!(requests.len(), Op::ALL.len() - 1);
    requests.into_iter().map(message).collect()
}

/// Sends `bytes` over a new connection without a handshake. Waits until the server ends the connection, and returns how
/// it ended.
fn ended_by(server: &Server, bytes: &[u8]) -> crate::harness::End {
    let mut client = server.dial();
    client.send(bytes);
    client.end()
}

#[test]
fn c01_a_wrong_magic_closes_the_connection_and_later_requests_are_not_carried_out() {
    let mut server = Server::start();
    let set = message(Request::Set { key: b"/k", value: (&b"v"[..]).into() });
    let bytes =
        [message(Request::Validate { magic: MAGIC ^ 1 }), set, message(Request::Ping { nonce: 5 })].concat();
    let end = ended_by(&server, &bytes);
    assert_eq!(end.received, b"");
    assert!(!server.connect().is_present("/k"));
    assert!(server.only_disconnect().contains("magic 0x3c85f7cf"));
    server.assert_healthy();
}

#[test]
fn c01_a_wrong_magic_is_counted() {
    let listen = vec![Listen::at("127.0.0.1", 0)];
    let server = TcpStoreServer::start(ServerOptions::new(listen)).unwrap();
    let mut client = Client::dial(server.addresses()[0]);
    client.send(&message(Request::Validate { magic: 0 }));
    client.end();
    let stats = server.stats();
    assert_eq!((stats.bad_magic, stats.protocol_errors), (1, 1));
}

#[test]
fn c02_a_request_before_validate_closes_the_connection_and_is_not_carried_out() {
    let mut server = Server::start();
    let mut other = server.connect();
    let before = other.num_keys();
    for command in one_request_per_operation() {
        // The request is sent once before a VALIDATE in the same segment, and once alone.
        let end = ended_by(&server, &[command.clone(), validate(), command.clone()].concat());
        assert_eq!(end.received, b"", "{command:?}");
        let mut client = server.dial();
        client.send(&command);
        eventually(Duration::from_secs(5), "the connection is closed", || client.has_ended());
        assert!(!other.is_present("/k"), "{command:?}");
    }
    assert_eq!(other.num_keys(), before);
    drop(other);
    server.assert_healthy();
}

#[test]
fn c03_a_handshake_split_at_any_byte_works() {
    let mut server = Server::start();
    let mut other = server.connect();
    let bytes = [validate(), message(Request::Ping { nonce: 9 })].concat();
    for split in 1..bytes.len() {
        let mut client = server.dial();
        client.send(&bytes[..split]);
        // When the server has replied to this later ping, it has read the first part separately from the second.
        other.ping();
        client.send(&bytes[split..]);
        assert_eq!(client.reply(ReplyKind::Nonce), Reply::Nonce(9), "split after {split} bytes");
    }
    let mut client = server.dial();
    for byte in &bytes {
        client.send(&[*byte]);
        other.ping();
    }
    assert_eq!(client.reply(ReplyKind::Nonce), Reply::Nonce(9), "byte by byte");
    drop((client, other));
    server.assert_healthy();
    assert_eq!(server.disconnects(), [""; 0]);
}

#[test]
fn c03_the_handshake_has_one_deadline_for_all_of_its_bytes() {
    assert_eq!(Limits::default().handshake, Duration::from_secs(10));
    let mut server = Server::with_limits(&["handshake=400ms"]);
    let mut idle = server.connect();
    let (start, mut client) = (Instant::now(), server.dial());
    for byte in &validate()[..4] {
        // On a busy machine, the server may close the connection before the last byte is sent.
        let _ = client.try_send(&[*byte]);
        // The bytes arrive at intervals of 90 ms. A timeout of 400 ms for each read would expire only 400 ms after the
        // last byte.
        std::thread::sleep(Duration::from_millis(90));
    }
    client.end();
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(3), "{took:?}");
    assert!(server.only_disconnect().contains("no handshake"));
    // The deadline does not apply to a connection that has completed the handshake.
    idle.ping();
    drop(idle);
    server.assert_healthy();
}

#[test]
fn c04_an_unknown_opcode_or_a_second_validate_closes_the_connection() {
    let mut server = Server::start();
    let second = validate();
    let codes = (19..=255).map(|code| vec![code]);
    for bytes in codes.chain([second]) {
        // The server answers the PING before the bad bytes, and does not carry out the SET after them.
        let before = message(Request::Ping { nonce: 1 });
        let after = message(Request::Set { key: b"/k", value: (&b"v"[..]).into() });
        let end = ended_by(&server, &[validate(), before, bytes.clone(), after].concat());
        assert_eq!(end.received, 1u32.to_le_bytes(), "{bytes:?}");
        assert!(!end.is_reset, "{bytes:?}");
    }
    assert!(!server.connect().is_present("/k"));
    server.assert_healthy();
}

#[test]
fn c04_c06_a_bad_frame_closes_the_connection_within_1_ms_for_less_than_20_us_of_cpu_time() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let rounds = scaled(1_000, 20_000) as u32;
    let too_long_a_key = [&[Op::Set as u8][..], &u64::MAX.to_le_bytes()].concat();
    for bad in [vec![0xff], too_long_a_key] {
        let mut times = Vec::new();
        let mut cpu_time = |bad: Option<&[u8]>| {
            let before = server.process().user_cpu();
            for _ in 0..rounds {
                let mut client = server.connect();
                if let Some(bad) = bad {
                    let start = Instant::now();
                    client.send(bad);
                    client.end();
                    times.push(start.elapsed());
                }
            }
            server.process().user_cpu() - before
        };
        // Each bad frame needs a connection of its own. The CPU time of connections without a bad frame is
        // subtracted.
        let mut costs = Vec::new();
        let is_cheap = (0..10).any(|_| {
            let cost = cpu_time(Some(&bad)).saturating_sub(cpu_time(None)) / rounds;
            costs.push(cost);
            cost < Duration::from_micros(20)
        });
        assert!(is_cheap, "{costs:?} of CPU time per bad frame");
        times.sort();
        let median = times[times.len() / 2];
        println!("{bad:?}: {costs:?} of CPU time per bad frame, closed within {median:?} (median)");
        assert!(median < Duration::from_millis(1), "{median:?}");
    }
    server.assert_healthy();
}

#[test]
fn c05_http_tls_and_ssh_clients_are_disconnected_and_leave_no_file_descriptor_open() {
    let mut server = Server::start();
    let tls_hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0x5a; 506]].concat();
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    for bytes in [http, tls_hello, b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), vec![0xf5], vec![b'*']] {
        let mut client = server.dial();
        client.send(&bytes);
        eventually(Duration::from_secs(5), "the file descriptor is closed", || server.connections() == 0);
        assert_eq!(client.end().received, b"");
    }
    assert!(server.disconnects().iter().all(|line| line.contains("not a c10d store client")));
    server.assert_healthy();
}
