//! Rows V01–V09 in docs/internals/robustness.md: returned values, and refused requests, which change nothing.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{KeyList, PairList, Reply, Request};
use rallypoint_store::Limits;

use crate::harness::{
    Client, End, MIB, Server, assert_latency_unaffected, eventually, exclusive, list, message, scaled,
};

/// Sends a request over a new connection, and checks that the server closes the connection without a reply.
fn assert_refused(server: &Server, request: Request<'_>) {
    let mut client = server.connect();
    // Sending fails if the server closes the connection before the whole request is sent.
    let _ = client.try_send(&message(request));
    assert_eq!(client.end().received, b"", "{request:?}");
}

fn compare_set(client: &mut Client, key: &str, expected: &str, desired: &str) -> String {
    let (key, expected) = (key.as_bytes(), expected.as_bytes());
    match client.request(Request::CompareSet {
        key,
        expected: expected.into(),
        desired: desired.as_bytes().into(),
    }) {
        Reply::Value(value) => String::from_utf8(value.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn v01_a_get_of_an_absent_key_returns_an_empty_value_and_creates_no_key() {
    let mut server = Server::start();
    let mut client = server.connect();
    client.send_request(Request::Get { key: b"/absent" });
    assert_eq!(client.bytes(8), 0u64.to_le_bytes());
    assert!(!client.is_present("/absent"));
    drop(client);
    server.assert_healthy();
}

#[test]
fn v02_a_multi_get_returns_an_empty_value_for_each_absent_key_and_keeps_the_order() {
    let mut server = Server::start();
    let mut client = server.connect();
    client.multi_set(&[("/a", "A"), ("/c", "CC")]);
    client.send_request(Request::MultiGet { keys: KeyList::new(&list(&["/a", "/absent", "/c", "/a"])) });
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let expected = [string("A"), string(""), string("CC"), string("A")].concat();
    assert_eq!(client.bytes(expected.len()), expected);
    client.ping();
    drop(client);
    server.assert_healthy();
}

#[test]
fn v03_an_add_to_a_value_that_is_not_a_number_is_refused_and_the_log_names_the_key() {
    for stored in ["abc", "", " ", "-", "12345678901234567890"] {
        let mut server = Server::start();
        let mut client = server.connect();
        client.set("/counter", stored);
        assert_refused(&server, Request::Add { key: b"/counter", delta: 1 });
        assert_eq!(client.value("/counter"), stored.as_bytes());
        let line = server.only_disconnect();
        assert!(line.contains("/counter") && line.contains("not a number"), "{line}");
        drop(client);
        server.assert_healthy();
    }
}

#[test]
fn v04_an_add_parses_the_leading_number_like_stoll() {
    let mut server = Server::start();
    let mut client = server.connect();
    for (stored, sum) in
        [("12abc", 13), (" 7", 8), ("1.5", 2), ("0x10", 1), ("-3", -2), ("+4", 5), ("\t\n9z", 10), ("007", 8)]
    {
        client.set("/n", stored);
        assert_eq!(client.add("/n", 1), sum, "{stored:?}");
        assert_eq!(client.value("/n"), sum.to_string().as_bytes(), "{stored:?}");
    }
    drop(client);
    server.assert_healthy();
}

#[test]
fn v05_an_add_that_would_overflow_is_refused() {
    let mut server = Server::start();
    let mut client = server.connect();
    for (stored, delta) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
        client.set("/n", stored.to_string());
        assert_refused(&server, Request::Add { key: b"/n", delta });
        assert_eq!(client.value("/n"), stored.to_string().as_bytes());
    }
    client.set("/n", (i64::MAX - 1).to_string());
    assert_eq!(client.add("/n", 1), i64::MAX);
    assert_eq!(client.add("/n", i64::MIN), -1);
    drop(client);
    server.assert_healthy();
}

#[test]
fn v06_compare_set_replies_like_torch() {
    let mut server = Server::start();
    let mut client = server.connect();
    assert_eq!(
        compare_set(&mut client, "/k", "x", "new"),
        "x",
        "absent key, non-empty value expected: like torch, the reply is the expected value"
    );
    assert!(!client.is_present("/k"), "nothing is stored");
    assert_eq!(compare_set(&mut client, "/k", "", "new"), "new", "absent key, empty value expected: stored");
    assert_eq!(
        compare_set(&mut client, "/k", "", "newer"),
        "new",
        "present key, empty value expected: the current value"
    );
    assert_eq!(
        compare_set(&mut client, "/k", "old", "newer"),
        "new",
        "present key, different value expected: the current value"
    );
    assert_eq!(client.value("/k"), b"new");
    assert_eq!(
        compare_set(&mut client, "/k", "new", "newer"),
        "newer",
        "present key, its current value expected: stored"
    );
    assert_eq!(client.value("/k"), b"newer");
    client.set("/empty", "");
    assert_eq!(
        compare_set(&mut client, "/empty", "", "filled"),
        "filled",
        "an empty value matches an empty expected value"
    );
    assert_eq!(compare_set(&mut client, "/gone", "", ""), "", "absent key, empty values: stored");
    assert!(client.is_present("/gone"));
    drop(client);
    server.assert_healthy();
}

#[test]
fn v07_an_oversized_value_is_refused_and_the_log_names_key_size_and_peer() {
    let mut server = Server::start();
    let mut client = server.connect();
    let value = vec![0; 8 * MIB + 1];
    let _ = client.try_send(&message(Request::Set { key: b"/weights", value: value[..].into() }));
    client.end();
    assert!(!server.connect().is_present("/weights"));
    let line = server.only_disconnect();
    for part in ["/weights", "8388609", "8388608", "127.0.0.1:"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    server.assert_healthy();
}

#[test]
fn v07_an_oversized_key_is_refused_and_not_stored() {
    let mut server = Server::start();
    let key = [b'k'; 9_000];
    assert_refused(&server, Request::Set { key: &key, value: (&b"v"[..]).into() });
    assert_eq!(server.connect().num_keys(), 1, "only the key of the health probe");
    assert!(server.only_disconnect().contains("9000"));
    server.assert_healthy();
}

#[test]
fn v08_the_value_limit_applies_to_the_result_of_appends() {
    let mut server = Server::start();
    let mut client = server.connect();
    let piece = vec![5; 4 * MIB];
    let append = Request::Append { key: b"/k", value: piece[..].into() };
    client.send_request(append);
    client.send_request(append);
    client.ping();
    assert_refused(&server, append);
    assert_refused(&server, Request::Append { key: b"/k", value: (&b"x"[..]).into() });
    let value = client.value("/k");
    assert_eq!(value.len(), 8 * MIB);
    // Other requests accept a value of the maximum size.
    let reply = client.request(Request::CompareSet {
        key: b"/k",
        expected: value[..].into(),
        desired: (&b"v"[..]).into(),
    });
    assert_eq!(reply, Reply::Value((&b"v"[..]).into()));
    let line = server.first_disconnect();
    assert!(line.contains("/k") && line.contains("12582912"), "{line}");
    drop(client);
    server.assert_healthy();
}

#[test]
fn v09_a_store_at_its_key_limit_refuses_new_keys_and_serves_existing_ones() {
    assert_eq!(Limits::default().keys, 4_000_000);
    let mut server = Server::with_limits(&["keys=10"]);
    let mut client = server.connect();
    // The probe at the start of the server has set one key.
    (1..10).for_each(|n| client.set(&format!("/{n}"), "v"));
    let (key, value) = (&b"/new"[..], (&b"v"[..]).into());
    assert_refused(&server, Request::Set { key, value });
    assert_refused(&server, Request::Append { key, value });
    assert_refused(&server, Request::Add { key, delta: 1 });
    assert_refused(&server, Request::CompareSet { key, expected: b"".into(), desired: value });
    assert_refused(&server, Request::MultiSet { pairs: PairList::new(&[(b"/1", b"w"), (b"/new", b"w")]) });
    assert_eq!(client.num_keys(), 10);
    assert_eq!(client.value("/1"), b"v", "a refused multi_set changes nothing");
    client.multi_set(&[("/1", "w"), ("/2", "w")]);
    assert_eq!(client.value("/1"), b"w");
    assert_eq!(client.number(Request::DeleteKey { key: b"/1" }), 1);
    client.set("/new", "v");
    assert!(
        server.first_disconnect().contains("11 keys in the store, limit 10"),
        "{:?}",
        server.disconnects()
    );
    drop(client);
    server.assert_healthy();
}

#[test]
fn v09_a_store_at_its_byte_limit_refuses_writes_and_evicts_nothing() {
    assert_eq!(Limits::default().store_bytes, 4 << 30);
    let mut server = Server::with_limits(&["store_bytes=64KiB"]);
    let mut client = server.connect();
    client.set("/a", vec![1; 40_000]);
    let more = vec![2; 30_000];
    assert_refused(&server, Request::Set { key: b"/b", value: more[..].into() });
    assert_refused(&server, Request::Append { key: b"/a", value: more[..].into() });
    assert_refused(&server, Request::QueuePush { key: b"/q", value: more[..].into() });
    assert_refused(&server, Request::MultiSet { pairs: PairList::new(&[(b"/c", b"1"), (b"/b", &more)]) });
    assert_eq!(client.value("/a").len(), 40_000);
    assert!(!client.is_present("/b") && !client.is_present("/c") && !client.is_present("/q"));
    // The bytes of a replaced value don't count, so a larger value fits.
    client.set("/a", vec![3; 50_000]);
    assert!(
        server.first_disconnect().contains("bytes in the store, limit 65536"),
        "{:?}",
        server.disconnects()
    );
    drop(client);
    server.assert_healthy();
}

#[test]
fn v09_queues_have_an_item_limit() {
    assert_eq!(Limits::default().queue_items, 1_000_000);
    let mut server = Server::with_limits(&["queue_items=3"]);
    let mut client = server.connect();
    let push = |key| Request::QueuePush { key, value: (&b"i"[..]).into() };
    for key in [b"/q", b"/q", b"/r"] {
        client.send_request(push(key));
    }
    client.ping();
    assert_refused(&server, push(b"/q"));
    assert_eq!(client.number(Request::QueueLen { key: b"/q" }), 2);
    drop(client);
    server.assert_healthy();
}

#[test]
fn v09_many_keys_add_no_latency() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let count = scaled(131_073, 500_000);
    let mut client = server.connect();
    let keys: Vec<String> = (0..count).map(|n| format!("/key/{n}")).collect();
    for chunk in keys.chunks(10_000) {
        client.multi_set(&chunk.iter().map(|key| (&**key, "sixteen bytes...")).collect::<Vec<_>>());
    }
    assert_eq!(client.num_keys(), count as i64 + 1);
    let growth = server.memory_growth();
    println!("{count} keys: {} MiB", growth / MIB);
    assert!(growth < count * 256, "{growth} bytes for {count} keys");
    assert_latency_unaffected(&server, Duration::from_millis(1), || {
        let start = Instant::now();
        for key in keys.iter().step_by(97).cycle() {
            client.set(key, "another sixteen.");
            assert_eq!(client.value(key).len(), 16);
            if start.elapsed() > Duration::from_millis(400) {
                break;
            }
        }
    });
    drop(client);
    server.assert_healthy_with_stored(growth);
}

#[test]
fn a_refused_request_closes_only_its_own_connection() {
    let mut server = Server::start();
    let mut client = server.connect();
    client.set("/n", "abc");
    // The server answers the PING before the refused ADD, and does not carry out the SET after it.
    let ping = message(Request::Ping { nonce: 3 });
    let add = message(Request::Add { key: b"/n", delta: 1 });
    let set = message(Request::Set { key: b"/behind", value: (&b"v"[..]).into() });
    let mut bad = server.connect();
    bad.send(&[ping, add, set].concat());
    assert_eq!(bad.end(), End { received: 3u32.to_le_bytes().to_vec(), is_reset: false });
    eventually(Duration::from_secs(5), "the connection is closed", || server.connections() == 1);
    assert!(!client.is_present("/behind"));
    drop(client);
    server.assert_healthy();
}
