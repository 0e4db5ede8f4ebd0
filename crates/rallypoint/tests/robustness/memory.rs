//! Rows R04–R06: what peers make the server hold, by sending without end or by reading nothing.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{KeyList, Op, Request};
use rallypoint_store::Limits;

use crate::harness::{Client, HEAP, KIB, MIB, Server, alone, eventually, message, scaled};

/// A SET of 8 MiB without its last byte.
fn almost_an_upload() -> Vec<u8> {
    let mut frame = message(Request::Set { key: b"/k", value: vec![1; 8 * MIB][..].into() });
    frame.pop();
    frame
}

#[test]
fn r04_aborted_uploads_give_their_memory_back() {
    let _alone = alone();
    let mut server = Server::start();
    let upload = almost_an_upload();
    for round in 0..scaled(40, 400) {
        let mut client = server.connect();
        client.send(&upload);
        if round % 2 == 0 { client.reset() } else { drop(client) }
    }
    eventually(Duration::from_secs(5), "all are gone", || server.connections() == 0);
    assert!(!server.connect().is_present("/k"));
    server.assert_unharmed();
}

#[test]
fn r04_incomplete_requests_share_a_limit_and_those_that_stop_make_room() {
    let _alone = alone();
    let limits = Limits::default();
    assert_eq!((limits.input_total, limits.input_stall), (256 * MIB, Duration::from_secs(3)));
    // A quarter of all: each that has stopped costs the one behind it the time it is given.
    let (uploads, total) = (scaled(13, 50), scaled(64, 256));
    let mut server = Server::with(&["input_stall=500ms", &format!("input_total={total}MiB")]);
    let upload = almost_an_upload();
    let mut small = server.connect();
    small.send(&upload[..1_000]);
    let mut held: Vec<(Client, usize)> = (0..uploads).map(|_| (server.connect(), 0)).collect();
    let (mut most, start) = (0, Instant::now());
    // All send on for as long as they are let, and then stop.
    while start.elapsed() < Duration::from_secs(1) {
        for (client, sent) in &mut held {
            *sent += client.send_nonblocking(&upload[*sent..]);
        }
        most = most.max(server.growth());
    }
    println!("{uploads} held uploads of 8 MiB: {} MiB at most", most / MIB);
    assert!(most > total / 4 * MIB && most < (total + 16) * MIB, "{most}");
    // They have stopped. Who goes on gets through, whether it has begun or not.
    let mut other = server.connect();
    other.send(&upload);
    other.send(&[1]);
    other.ping();
    small.send(&upload[1_000..]);
    small.send(&[1]);
    small.ping();
    assert_eq!(small.number(Request::DeleteKey { key: b"/k" }), 1);
    assert!(server.first_offence().contains("upload stalled"), "{:?}", server.offences());
    drop((held, small, other));
    eventually(Duration::from_secs(5), "all are gone", || server.connections() == 0);
    server.assert_unharmed_holding(HEAP);
}

#[test]
fn r05_replies_that_nobody_reads_cost_nothing_and_stop_the_reading() {
    let mut server = Server::start();
    let value = vec![9; 8 * MIB];
    server.connect().set("/k", &value);
    server.wait_until_idle();
    let before = server.process().memory();
    let mut lazy = server.connect();
    (0..100).for_each(|_| lazy.send_request(Request::Get { key: b"/k" }));
    lazy.send_request(Request::Set { key: b"/behind", value: (&b"v"[..]).into() });
    server.wait_until_idle();
    let cost = server.process().memory().saturating_sub(before);
    assert!(cost < 16 * MIB, "{cost}");
    let mut other = server.connect();
    assert!(!other.is_present("/behind"), "more than a mebibyte is unsent, yet it is read on");
    // Whoever reads after all gets everything.
    for _ in 0..100 {
        assert_eq!(lazy.bytes(8), (value.len() as u64).to_le_bytes());
        assert!(lazy.bytes(value.len()) == value);
    }
    lazy.ping();
    assert!(other.is_present("/behind"));
    drop((lazy, other));
    server.assert_unharmed_holding(value.len());
}

#[test]
fn r05_who_takes_nothing_of_its_replies_is_closed_and_who_takes_some_is_not() {
    assert_eq!(Limits::default().output_stall, Duration::from_secs(30));
    let mut server = Server::with(&["output_stall=2s"]);
    let value = vec![9; 8 * MIB];
    server.connect().set("/k", &value);
    let [mut stuck, mut slow] = [(); 2].map(|()| server.connect());
    for client in [&mut stuck, &mut slow] {
        (0..4).for_each(|_| client.send_request(Request::Get { key: b"/k" }));
    }
    let start = Instant::now();
    let mut taken = 0;
    // Takes a little at a time, at this pace, for longer than the other is let.
    while server.connections() > 1 {
        assert!(start.elapsed() < Duration::from_secs(10), "the one that is stuck is not closed");
        taken += slow.bytes(256 * KIB).len();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    slow.bytes(4 * (8 + value.len()) - taken);
    slow.ping();
    let line = server.only_offence();
    assert!(line.contains("read none"), "{line}");
    drop((stuck, slow));
    server.assert_unharmed_holding(value.len());
}

#[test]
fn r05_who_takes_nothing_of_much_that_only_it_holds_is_closed_sooner() {
    let mut server = Server::with(&["output_hard=1MiB", "output_stall=6s"]);
    let mut client = server.connect();
    let item = vec![7; 8 * MIB];
    client.send_request(Request::QueuePush { key: b"/q", value: item[..].into() });
    client.ping();
    let start = Instant::now();
    client.send_request(Request::QueuePop { key: b"/q" });
    eventually(Duration::from_secs(5), "it is closed", || server.connections() == 0);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(server.only_offence().contains("read none"), "{}", server.only_offence());
    drop(client);
    server.assert_unharmed_holding(item.len());
}

#[test]
fn r05_requests_held_back_behind_a_wait_cost_no_more_than_they_may() {
    let mut server = Server::start();
    let held: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = server.connect();
            client.start_waiting(&["/absent"]);
            // A byte each. What is not read stays with the system, which takes only so much of it.
            client.send_nonblocking(&[Op::NumKeys as u8].repeat(MIB));
            client
        })
        .collect();
    server.wait_until_idle();
    let growth = server.growth();
    println!("10 MiB of one-byte requests: {} KiB", growth / KIB);
    assert!(growth < 48 * MIB, "{growth}");
    // An orderly end would stand behind what has not been read, and come when that is.
    held.into_iter().for_each(Client::tear);
    server.assert_unharmed();
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
    let mut most = server.process().memory();
    for _ in 0..64 {
        assert_eq!(client.bytes(8), (value.len() as u64).to_le_bytes());
        assert!(client.bytes(value.len()) == value);
        most = most.max(server.process().memory());
    }
    assert!(most.saturating_sub(before) < 16 * MIB, "{}", most - before);
    client.ping();
    drop(client);
    server.assert_unharmed_holding(value.len());
}
