//! Rows W01–W07, W10 and W11 in docs/internals/robustness.md: which waiters are woken, and the cost of waiters.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{KeyList, PairList, Reply, Request};
use rallypoint_store::Limits;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Client, Server, eventually, exclusive, list, message, pairs};

#[test]
fn w01_a_failed_compare_set_on_an_absent_key_wakes_no_waiter() {
    let mut server = Server::start();
    let [mut waiter, mut other] = [(); 2].map(|()| server.connect());
    waiter.start_waiting(&["/k"]);
    other.request(Request::CompareSet { key: b"/k", expected: b"x".into(), desired: (&b"new"[..]).into() });
    waiter.cancel_wait();
    drop((waiter, other));
    server.assert_healthy();
}

#[test]
fn w02_a_wait_latches_the_values_it_saw_for_the_next_get() {
    let mut server = Server::start();
    let [mut waiter, mut other] = [(); 2].map(|()| server.connect());
    waiter.start_waiting(&["/k1", "/k2"]);
    other.set("/k1", "one");
    other.number(Request::DeleteKey { key: b"/k1" });
    other.set("/k2", "two");
    waiter.assert_woken();
    other.number(Request::DeleteKey { key: b"/k2" });
    let reply = waiter.request(Request::MultiGet { keys: KeyList::new(&list(&["/k1", "/k2"])) });
    assert_eq!(reply, Reply::Values(vec![(&b"one"[..]).into(), (&b"two"[..]).into()]));
    // The latch applies only to the next request after the wait.
    assert_eq!(waiter.value("/k1"), b"");
    drop((waiter, other));
    server.assert_healthy();
}

#[test]
fn w02_a_get_after_a_wait_returns_the_current_value_if_there_is_one() {
    let mut server = Server::start();
    let [mut waiter, mut other] = [(); 2].map(|()| server.connect());
    waiter.start_waiting(&["/k"]);
    other.set("/k", "first");
    other.set("/k", "second");
    waiter.assert_woken();
    assert_eq!(waiter.value("/k"), b"second");
    // The key is present when the client waits, and is deleted before the GET.
    assert_eq!(waiter.request(Request::Wait { keys: KeyList::new(&list(&["/k"])) }), Reply::Stop);
    other.number(Request::DeleteKey { key: b"/k" });
    assert_eq!(waiter.value("/k"), b"second");
    drop((waiter, other));
    server.assert_healthy();
}

#[test]
fn w03_a_compare_set_that_creates_the_key_wakes_its_waiter() {
    let mut server = Server::start();
    let [mut waiter, mut other] = [(); 2].map(|()| server.connect());
    waiter.start_waiting(&["/k"]);
    other.request(Request::CompareSet { key: b"/k", expected: b"".into(), desired: (&b"new"[..]).into() });
    waiter.assert_woken();
    assert_eq!(waiter.value("/k"), b"new");
    drop((waiter, other));
    server.assert_healthy();
}

#[test]
fn w04_an_incomplete_multi_set_is_invisible_and_a_complete_one_is_applied_once() {
    let mut server = Server::start();
    let [mut writer, mut waiter, mut other] = [(); 3].map(|()| server.connect());
    other.set("/b", "old");
    waiter.start_waiting(&["/a"]);
    let entries = [("/a", "1"), ("/b", "2"), ("/c", "3")];
    let frame = message(Request::MultiSet { pairs: PairList::new(&pairs(&entries)) });
    for (at, byte) in frame.iter().enumerate() {
        assert!(!other.is_present("/a") && !other.is_present("/c"), "after {at} bytes");
        assert_eq!(other.value("/b"), b"old", "after {at} bytes");
        writer.send(&[*byte]);
        // The reply to this ping shows that the server has read the byte before the next one is sent.
        other.ping();
    }
    waiter.assert_woken();
    other.set("/b", "newest");
    writer.ping();
    assert_eq!(other.value("/b"), b"newest", "applied once");
    assert_eq!((other.value("/a"), other.value("/c")), (b"1".to_vec(), b"3".to_vec()));
    drop((writer, waiter, other));
    server.assert_healthy();
}

#[test]
fn w04_an_aborted_multi_set_stores_nothing() {
    let mut server = Server::start();
    let [mut writer, mut other] = [(); 2].map(|()| server.connect());
    let entries: Vec<(String, String)> = (0..10_000).map(|n| (format!("/{n}"), "v".repeat(20))).collect();
    let entries: Vec<_> = entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect();
    let frame = message(Request::MultiSet { pairs: PairList::new(&entries) });
    writer.send(&frame[..frame.len() - 1]);
    other.ping();
    writer.reset();
    eventually(Duration::from_secs(5), "the writer has disconnected", || server.connections() == 1);
    assert_eq!(other.num_keys(), 1, "only the key of the health probe");
    drop(other);
    server.assert_healthy();
}

#[test]
fn w05_a_waiter_that_dies_while_its_key_is_set_affects_neither_the_setter_nor_other_waiters() {
    let mut server = Server::start();
    let pid = Pid::from_raw(server.process().0 as i32).expect("a process id");
    let mut setter = server.connect();
    let mut waiters: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for round in 0..30 {
        let key = format!("/k{round}");
        let mut dying = server.connect();
        for waiter in [&mut waiters[0], &mut dying].into_iter() {
            waiter.start_waiting(&[&key]);
        }
        waiters[1].start_waiting(&[&key]);
        waiters[2].start_waiting(&[&key, "/k0"]);
        // The server is stopped, so that it finds the closed connection and the SET at the same time when it
        // continues.
        kill_process(pid, Signal::STOP).expect("the server runs");
        if round % 2 == 0 {
            dying.reset()
        } else {
            drop(dying)
        }
        setter.send_request(Request::Set { key: key.as_bytes(), value: (&b"v"[..]).into() });
        kill_process(pid, Signal::CONT).expect("the server runs");
        setter.ping();
        waiters.iter_mut().for_each(Client::assert_woken);
    }
    drop((setter, waiters));
    server.assert_healthy();
}

#[test]
fn w06_pipelined_waits_are_answered_one_by_one_in_order() {
    let mut server = Server::start();
    let [mut waiter, mut other] = [(); 2].map(|()| server.connect());
    let wait = |key| message(Request::Wait { keys: KeyList::new(&list(&[key])) });
    waiter.send(&[wait("/a"), wait("/b"), message(Request::Ping { nonce: 6 })].concat());
    // The second key is set first, while its wait is still deferred behind the wait for the first key.
    other.set("/b", "v");
    other.set("/a", "v");
    assert_eq!(waiter.bytes(6), [0, 0, 6, 0, 0, 0]);
    waiter.ping();
    drop((waiter, other));
    server.assert_healthy();
}

#[test]
fn w07_a_push_does_not_wake_a_client_that_waits_for_another_key() {
    let mut server = Server::start();
    let [mut client, mut other] = [(); 2].map(|()| server.connect());
    let push = Request::QueuePush { key: b"/q", value: (&b"item"[..]).into() };
    client.start_waiting(&["/q"]);
    other.send_request(push);
    client.assert_woken();
    let item = Some((&b"item"[..]).into());
    assert_eq!(client.request(Request::QueuePop { key: b"/q" }), Reply::Popped { before: 1, item });
    client.start_waiting(&["/B"]);
    other.send_request(push);
    other.ping();
    client.cancel_wait();
    // The same must hold if the client leaves the item in the queue.
    client.request(Request::QueuePop { key: b"/q" });
    client.start_waiting(&["/q"]);
    other.send_request(push);
    client.assert_woken();
    client.start_waiting(&["/B"]);
    other.send_request(push);
    other.ping();
    client.cancel_wait();
    drop((client, other));
    server.assert_healthy();
}

#[test]
fn w07_an_item_wakes_one_waiter_and_the_next_waiter_if_the_first_dies() {
    let mut server = Server::start();
    let [mut first, mut second, mut other] = [(); 3].map(|()| server.connect());
    first.start_waiting(&["/q"]);
    second.start_waiting(&["/q"]);
    other.send_request(Request::QueuePush { key: b"/q", value: (&b"item"[..]).into() });
    first.assert_woken();
    other.ping();
    // The first client has a claim to the item until it disconnects.
    drop(first);
    second.assert_woken();
    assert!(matches!(second.request(Request::QueuePop { key: b"/q" }), Reply::Popped { before: 1, .. }));
    drop((second, other));
    server.assert_healthy();
}

#[test]
fn w10_fifty_waiters_that_die_together_are_closed_within_1_s() {
    let mut server = Server::start();
    let mut other = server.connect();
    let mut waiters: Vec<Client> = (0..50).map(|_| server.connect()).collect();
    waiters.iter_mut().for_each(|waiter| waiter.start_waiting(&["/k"]));
    assert_eq!(server.connections(), 51);
    let start = Instant::now();
    for (n, waiter) in waiters.into_iter().enumerate() {
        if n % 2 == 0 { waiter.reset() } else { drop(waiter) }
    }
    eventually(Duration::from_secs(1), "the files of the connections are closed", || {
        server.connections() == 1
    });
    println!("50 waiters closed in {:?}", start.elapsed());
    other.set("/k", "v");
    drop(other);
    server.assert_healthy();
}

#[test]
fn w10_a_dead_waiter_is_closed_although_requests_behind_its_wait_are_unread() {
    let mut server = Server::with_limits(&["deferred_bytes=1KiB"]);
    for is_reset in [false, true] {
        let mut waiter = server.connect();
        waiter.start_waiting(&["/k"]);
        // The client sends more requests than the server reads during a wait. So the server can't detect the disconnect
        // by reading to the end of the stream.
        waiter.send(&message(Request::Ping { nonce: 1 }).repeat(12_000));
        server.wait_until_idle();
        assert_eq!(server.connections(), 1);
        if is_reset {
            waiter.reset()
        } else {
            drop(waiter)
        }
        eventually(Duration::from_secs(1), "the file of the connection is closed", || {
            server.connections() == 0
        });
    }
    server.assert_healthy();
}

/// Returns the median time in which the server cancels a wait for one key.
fn cancel_time(client: &mut Client) -> Duration {
    let mut times: Vec<Duration> = (0..101)
        .map(|_| {
            client.start_waiting(&["/mine"]);
            let start = Instant::now();
            assert_eq!(client.request(Request::CancelWait), Reply::Canceled);
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn w11_the_cost_of_a_cancel_does_not_depend_on_other_clients() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let mut client = server.connect();
    let mut peers: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for (n, peer) in peers.iter_mut().enumerate() {
        let keys: Vec<String> = (0..100_000).map(|key| format!("/{n}/{key}")).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        peer.send_request(Request::Wait { keys: KeyList::new(&keys) });
    }
    server.wait_until_idle();
    let growth = server.memory_growth();
    let among_many = (0..5).map(|_| cancel_time(&mut client)).min().expect("five tries");
    assert!(among_many < Duration::from_millis(1), "{among_many:?}");
    // A waiter that disconnects does not delay the next request of another client either.
    let mut disconnect_time = || {
        let mut times: Vec<Duration> = (0..51)
            .map(|_| {
                let mut leaving = server.connect();
                leaving.start_waiting(&["/mine"]);
                let start = Instant::now();
                drop(leaving);
                client.ping();
                start.elapsed()
            })
            .collect();
        times.sort();
        times[25]
    };
    let disconnect = (0..5).map(|_| disconnect_time()).min().expect("five tries");
    assert!(disconnect < Duration::from_millis(1), "{disconnect:?}");
    println!("cancel {among_many:?}, disconnect {disconnect:?}, 400,000 keys in {} KiB", growth / 1024);
    for peer in &mut peers {
        peer.cancel_wait();
    }
    drop((client, peers));
    // The C library keeps the small allocations of the 400,000 keys after they are freed, up to 48 bytes each.
    // `assert_healthy_with_stored` allows 16 MiB in addition to its argument.
    server.assert_healthy_with_stored(400_000 * 16);
}

#[test]
fn w11_awaited_keys_have_a_limit_per_client_and_in_total() {
    let limits = Limits::default();
    assert_eq!((limits.awaited_per_client, limits.awaited_total), (131_072, 1_000_000));
    let mut server = Server::with_limits(&["awaited_per_client=10", "awaited_total=25"]);
    let keys: Vec<String> = (0..11).map(|n| format!("/{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let refused = |keys: &[&str]| {
        let mut client = server.connect();
        client.send_request(Request::Wait { keys: KeyList::new(&list(keys)) });
        assert_eq!(client.end().received, b"");
    };
    refused(&keys);
    let mut waiting: Vec<Client> = (0..2).map(|_| server.connect()).collect();
    waiting.iter_mut().for_each(|client| client.start_waiting(&keys[..10]));
    refused(&keys[..6]);
    // The keys of a canceled wait no longer count, so another client can wait for 10 keys.
    waiting[0].cancel_wait();
    waiting.push(server.connect());
    waiting[2].start_waiting(&keys[..10]);
    // Refused waits have registered no keys, and present keys don't count.
    waiting[0].set("/present", "v");
    let reply = waiting[0].request(Request::Wait { keys: KeyList::new(&list(&["/present"; 11])) });
    assert_eq!(reply, Reply::Stop);
    assert!(server.first_disconnect().contains("limit 10"), "{:?}", server.disconnects());
    drop(waiting);
    server.assert_healthy();
}
