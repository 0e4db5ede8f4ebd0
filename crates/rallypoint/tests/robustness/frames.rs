//! Rows C09–C12 in docs/internals/robustness.md: truncated and slow frames, half-closed connections, and unusual but
//! legal requests.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{KeyList, MAGIC, Op, PairList, Reply, ReplyKind, Request};
use rallypoint_store::Limits;

use crate::harness::{
    Client, End, MIB, Server, announced, assert_latency_unaffected, eventually, exclusive, list, message,
    scaled,
};

/// Returns one request per operation that creates a key or a queue. A server that carried out a truncated request would
/// create one.
fn writes() -> Vec<Vec<u8>> {
    let value = (&b"value"[..]).into();
    vec![
        message(Request::Set { key: b"/k", value }),
        message(Request::Append { key: b"/k", value }),
        message(Request::CompareSet { key: b"/k", expected: b"".into(), desired: value }),
        message(Request::Add { key: b"/k", delta: 1 }),
        message(Request::QueuePush { key: b"/k", value }),
        message(Request::MultiSet { pairs: PairList::new(&[(b"/k", b"1"), (b"/k2", b"2")]) }),
    ]
}

#[test]
fn c09_a_frame_truncated_at_any_byte_stores_nothing() {
    let mut server = Server::start();
    let mut other = server.connect();
    for frame in writes() {
        for cut in 1..frame.len() {
            for is_reset in [false, true] {
                let mut client = server.connect();
                client.send(&frame[..cut]);
                if is_reset { client.reset() } else { drop(client) }
            }
        }
        assert!(!other.is_present("/k") && !other.is_present("/k2"), "{frame:?}");
    }
    drop(other);
    server.assert_healthy();
}

#[test]
fn c09_thousands_of_truncated_frames_leak_no_memory() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let rounds = scaled(4_000, 100_000);
    let frames = writes();
    let cut_off = |rounds: usize| {
        for round in 0..rounds {
            let frame = &frames[round % frames.len()];
            let mut client = server.dial();
            client.send(&[&message(Request::Validate { magic: MAGIC }), &frame[..frame.len() - 1]].concat());
            if round % 2 == 0 { client.reset() } else { drop(client) }
        }
        eventually(Duration::from_secs(30), "all connections are closed", || server.connections() == 0);
        server.process().memory()
    };
    let before = cut_off(rounds / 4);
    // The allocator keeps the memory of connections that were open at the same time. Their number varies on a busy
    // machine, so memory may grow in some batches. A leak would make it grow in every batch.
    let batches = [(); 8].map(|()| cut_off(rounds / 4));
    let growths: Vec<usize> = std::iter::once(before)
        .chain(batches)
        .zip(batches)
        .map(|(before, after)| after.saturating_sub(before))
        .collect();
    let leak_per_frame = growths.iter().min().expect("eight batches") * 4 / rounds;
    println!("memory grew by {growths:?} B, each over {} frames", rounds / 4);
    assert!(leak_per_frame < 1, "memory grew by {growths:?} B, each over {} frames", rounds / 4);
    server.assert_healthy();
}

#[test]
fn c10_a_thousand_partial_frames_delay_no_other_client() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let frame = message(Request::Set { key: b"/k", value: (&b"value"[..]).into() });
    let mut clients: Vec<Client> = (0..1_000)
        .map(|n| {
            let mut client = server.connect();
            client.send(&frame[..1 + n % (frame.len() - 1)]);
            client
        })
        .collect();
    assert_latency_unaffected(&server, Duration::from_millis(1), || {
        // The server keeps the partial frames while latencies are measured.
        std::thread::sleep(Duration::from_millis(500));
    });
    // The server has kept the partial frames, so each can be completed.
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&frame[1 + n % (frame.len() - 1)..]);
        client.ping();
    }
    drop(clients);
    server.assert_healthy();
}

#[test]
fn c10_a_connection_below_the_minimum_rate_is_closed_and_a_faster_one_is_not() {
    let limits = Limits::default();
    assert_eq!((limits.partial_grace, limits.partial_rate), (Duration::from_secs(30), 1024));
    let mut server = Server::with_limits(&["partial_grace=500ms"]);
    let beginning = announced(Op::Set, b"/k", 1 << 20);
    let [mut steady, mut crawling, mut silent] = [(); 3].map(|()| server.connect());
    for client in [&mut steady, &mut crawling, &mut silent] {
        client.send(&beginning);
    }
    let start = Instant::now();
    let (mut crawl_ended, mut silence_ended) = (None, None);
    let mut sent = 0;
    while start.elapsed() < Duration::from_secs(4) && (crawl_ended.is_none() || silence_ended.is_none()) {
        steady.send(&[1; 512]);
        sent += 512;
        // Sending fails after the server has closed the connection, which is checked below.
        let _ = crawling.try_send(&[1; 4]);
        if crawling.has_ended() {
            crawl_ended.get_or_insert(start.elapsed());
        }
        if silent.has_ended() {
            silence_ended.get_or_insert(start.elapsed());
        }
        // With this pause, `steady` sends about 25,600 bytes per second, which is above the minimum of 1,024.
        // `crawling` sends about 200 bytes per second.
        std::thread::sleep(Duration::from_millis(20));
    }
    for ended in [crawl_ended, silence_ended] {
        assert!(ended.expect("the connection was closed") >= Duration::from_millis(500), "{ended:?}");
    }
    steady.send(&vec![1; (1 << 20) - sent]);
    steady.ping();
    assert_eq!(steady.value("/k").len(), 1 << 20);
    eventually(Duration::from_secs(5), "both disconnects are logged", || server.disconnects().len() >= 2);
    assert_eq!(server.disconnects().len(), 2, "{:?}", server.disconnects());
    drop((steady, crawling, silent));
    server.assert_healthy();
}

#[test]
fn c10_a_request_behind_a_slow_one_has_its_own_deadline() {
    let mut server = Server::with_limits(&["partial_grace=1s"]);
    let mut other = server.connect();
    let mut client = server.connect();
    let frame = message(Request::Set { key: b"/k", value: vec![1; 2_000][..].into() });
    client.send(&frame[..1_500]);
    // The pause is shorter than `partial_grace`, so the server has not measured the rate of the first request yet.
    std::thread::sleep(Duration::from_millis(700));
    let start = Instant::now();
    client.send(&[&frame[1_500..], &frame[..10]].concat());
    // The server must start a new measurement for the second request. If it continued that of the first one, the number
    // of bytes would seem to fall from 1,500 to 10, and the server would close the connection after 300 ms.
    while start.elapsed() < Duration::from_millis(950) {
        other.ping();
        let ended = client.has_ended();
        assert!(
            !ended || start.elapsed() >= Duration::from_millis(950),
            "closed after {:?}",
            start.elapsed()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    eventually(Duration::from_secs(5), "the second request has timed out", || client.has_ended());
    assert_eq!(other.value("/k").len(), 2_000);
    drop((client, other));
    server.assert_healthy();
}

#[test]
fn c10_a_request_that_the_server_does_not_read_is_not_closed_as_slow() {
    let mut server = Server::with_limits(&["partial_grace=200ms", "deferred_bytes=1KiB"]);
    let mut other = server.connect();
    let mut waiter = server.connect();
    let wait = message(Request::Wait { keys: KeyList::new(&list(&["/k"])) });
    let set = message(Request::Set { key: b"/behind", value: vec![1; 500][..].into() });
    // Behind the wait, the client sends more requests than the server reads. The last one is truncated.
    waiter.send(&[wait, set.repeat(10), set[..100].to_vec()].concat());
    // The request stays incomplete for four times `partial_grace`.
    std::thread::sleep(Duration::from_millis(800));
    other.set("/k", "v");
    waiter.send(&set[100..]);
    waiter.assert_woken();
    waiter.ping();
    assert_eq!(server.disconnects(), [""; 0]);
    drop((waiter, other));
    server.assert_healthy();
}

#[test]
fn c11_a_half_closed_connection_gets_its_replies_before_the_end() {
    let mut server = Server::start();
    server.connect().set("/k", "v");
    let ends_with = |bytes: &[u8]| {
        let mut client = server.connect();
        client.send(bytes);
        client.shutdown_write();
        client.end()
    };
    let get = message(Request::Get { key: b"/k" });
    let wait = message(Request::Wait { keys: KeyList::new(&list(&["/absent"])) });
    let answer = [&1u64.to_le_bytes()[..], b"v"].concat();
    assert_eq!(ends_with(&get), End { received: answer.clone(), is_reset: false }, "after a get");
    assert_eq!(ends_with(&wait), End { received: vec![], is_reset: false }, "while waiting");
    assert_eq!(ends_with(&get[..5]), End { received: vec![], is_reset: false }, "mid-frame");
    let both = [get.clone(), get[..5].to_vec()].concat();
    assert_eq!(ends_with(&both), End { received: answer.clone(), is_reset: false }, "whole and half");
    let behind = [get, wait].concat();
    assert_eq!(ends_with(&behind), End { received: answer, is_reset: false }, "answered, then waiting");
    server.assert_healthy();
}

#[test]
fn c11_a_half_closed_connection_gets_all_of_a_large_reply() {
    // With a large `output_pause`, the server reads the bytes behind the GETs before it has sent the replies.
    let mut server = Server::with_limits(&["output_pause=64MiB"]);
    let value = vec![3; 8 * MIB];
    server.connect().set("/k", &value);
    let get = message(Request::Get { key: b"/k" });
    let wait = message(Request::Wait { keys: KeyList::new(&list(&["/absent"])) });
    // Behind the GETs, the client sends nothing, a truncated request, or a wait for an absent key. None of these gets a
    // reply.
    for behind in [vec![], get[..5].to_vec(), wait] {
        let mut client = server.connect();
        client.send(&[&get[..], &get, &behind].concat());
        client.shutdown_write();
        server.wait_until_idle();
        let end = client.end();
        assert_eq!((end.received.len(), end.is_reset), (2 * (8 + value.len()), false), "{behind:?}");
    }
    server.assert_healthy_with_stored(value.len());
}

#[test]
fn c12_unusual_but_legal_requests_get_exact_replies() {
    let mut server = Server::start();
    let mut client = server.connect();
    let no_keys = KeyList::new(&[]);
    let mut answers = |request: Request<'_>, answer: &[u8]| {
        client.send_request(request);
        client.send_request(Request::Ping { nonce: 0xAABB_CCDD });
        let expected = [answer, &0xAABB_CCDDu32.to_le_bytes()].concat();
        assert_eq!(client.bytes(expected.len()), expected, "{request:?}");
    };
    answers(Request::Wait { keys: no_keys }, &[0]);
    answers(Request::Check { keys: no_keys }, &[0]);
    answers(Request::MultiGet { keys: no_keys }, &[]);
    answers(Request::MultiSet { pairs: PairList::new(&[]) }, &[]);
    answers(Request::CancelWait, &[1]);
    let mut keys = 1;
    for key in [&b""[..], b"\0", b"\xff\xfe", b"a\0b"] {
        answers(Request::Get { key }, &0u64.to_le_bytes());
        answers(Request::Set { key, value: (&b"v"[..]).into() }, &[]);
        answers(Request::Get { key }, &[&1u64.to_le_bytes()[..], b"v"].concat());
        keys += 1i64;
        answers(Request::NumKeys, &keys.to_le_bytes());
    }
    answers(Request::Set { key: b"/empty", value: (&b""[..]).into() }, &[]);
    answers(Request::Get { key: b"/empty" }, &0u64.to_le_bytes());
    answers(Request::Check { keys: KeyList::new(&[b"/empty"]) }, &[0]);
    answers(Request::Wait { keys: KeyList::new(&[b"/empty", b"", b"\0"]) }, &[0]);
    answers(Request::DeleteKey { key: b"" }, &1i64.to_le_bytes());
    answers(Request::DeleteKey { key: b"" }, &0i64.to_le_bytes());
    answers(Request::QueuePop { key: b"" }, &0i64.to_le_bytes());
    assert_eq!(client.request(Request::CancelWait), Reply::Canceled);
    client.send_request(Request::Ping { nonce: 4 });
    assert_eq!(client.reply(ReplyKind::Nonce), Reply::Nonce(4));
    drop(client);
    server.assert_healthy();
}
