//! Memory for replies that clients don't read while the store changes.

use std::time::Duration;

use rallypoint_core::Key;
use rallypoint_core::wire::{PairList, Reply, ReplyKind, Request};

use crate::harness::{Client, MIB, Server, assert_latency_unaffected, exclusive, message};
use crate::load::LARGE_REQUEST_GRACE;

/// Sets `count` keys whose names start with `/job/`.
fn fill(server: &Server, count: usize) {
    let names: Vec<String> = (0..count).map(|n| format!("/job/rank/{n:07}")).collect();
    let mut client = server.connect();
    for names in names.chunks(10_000) {
        let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b"v"[..])).collect();
        client.send(&message(Request::MultiSet { pairs: PairList::new(&pairs) }));
    }
    client.ping();
}

/// Counts the keys that `fill` has set. The latency probes and the tests set other keys.
fn of_job(keys: &[Key]) -> usize {
    keys.iter().filter(|key| key.starts_with(b"/job/")).count()
}

#[test]
fn unread_key_lists_delay_no_other_client() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let keys = 300_000;
    fill(&server, keys);
    server.wait_until_idle();
    let before = server.process().memory();
    let mut slow_readers: Vec<Client> = Vec::new();
    assert_latency_unaffected(&server, Duration::from_millis(50), || {
        let mut writer = server.connect();
        for _ in 0..18 {
            let mut client = server.connect();
            client.send_request(Request::ListKeys);
            writer.set(&format!("/new/{}", slow_readers.len()), "");
            slow_readers.push(client);
            // The pause separates the requests. Without it, the server would encode several lists in a row, and their
            // delays would add up.
            std::thread::sleep(Duration::from_millis(25));
        }
    });
    let growth = server.process().memory().saturating_sub(before);
    println!("{} lists of {keys} keys that are not read: {} MiB", slow_readers.len(), growth / MIB);
    // Each client has a list of its own, because the keys change between the requests. A list has about 7 MiB.
    assert!(growth < slow_readers.len() * 12 * MIB, "{} lists, {growth} bytes", slow_readers.len());
    // A client that reads its list later gets the keys that were present at the time of its request.
    let Reply::Keys(listed) = slow_readers[0].reply(ReplyKind::Keys) else { panic!() };
    assert_eq!((of_job(&listed), listed.iter().filter(|key| key.starts_with(b"/new/")).count()), (keys, 0));
    drop(slow_readers);
    server.assert_healthy_with_stored(before + 64 * MIB);
}

/// The keys change between the requests, so the lists can't share memory.
#[test]
fn unread_key_lists_of_changing_keys_count_toward_output_total() {
    let _exclusive = exclusive();
    let mut server = Server::with_limits(&["output_total=32MiB"]);
    let long = "k".repeat(4_000);
    let names: Vec<String> = (0..4_000).map(|n| format!("/{n:05}{long}")).collect();
    let mut writer = server.connect();
    for names in names.chunks(1_000) {
        let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b""[..])).collect();
        writer.send(&message(Request::MultiSet { pairs: PairList::new(&pairs) }));
    }
    writer.ping();
    server.wait_until_idle();
    let before = server.process().memory();
    let mut slow_readers: Vec<Client> = Vec::new();
    let mut peak = 0;
    for names in names.chunks(250) {
        let mut client = server.connect();
        client.send_request(Request::ListKeys);
        slow_readers.push(client);
        server.wait_until_idle();
        for name in names {
            writer.send_request(Request::DeleteKey { key: name.as_bytes() });
        }
        writer.bytes(8 * names.len());
        server.wait_until_idle();
        peak = peak.max(server.process().memory().saturating_sub(before));
    }
    println!("{} lists of up to 16 MiB: {} MiB at most", slow_readers.len(), peak / MIB);
    assert!(peak < 64 * MIB, "{peak}");
    assert!(server.first_disconnect().contains("replies of"), "{:?}", server.disconnects());
    drop((slow_readers, writer));
    server.assert_healthy_with_stored(before + 48 * MIB);
}

#[test]
fn a_client_that_reads_a_long_key_list_delays_no_other_client() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    fill(&server, 1_000_000);
    let mut reader = server.connect();
    assert_latency_unaffected(&server, LARGE_REQUEST_GRACE, || {
        for _ in 0..3 {
            let Reply::Keys(listed) = reader.request(Request::ListKeys) else { panic!() };
            assert_eq!(of_job(&listed), 1_000_000);
        }
    });
    drop(reader);
    server.assert_healthy_with_stored(1_000_000 * 300);
}

#[test]
fn output_total_counts_values_that_only_unsent_replies_contain() {
    let _exclusive = exclusive();
    let mut server = Server::with_limits(&["output_total=64MiB"]);
    let value = vec![7; 8 * MIB];
    let mut writer = server.connect();
    let mut slow_readers: Vec<Client> = Vec::new();
    // Each reply references a different value, because the value is replaced before each GET.
    for _ in 0..40 {
        writer.set("/k", &value);
        writer.ping();
        let mut client = server.connect();
        client.send_request(Request::Get { key: b"/k" });
        slow_readers.push(client);
        server.wait_until_idle();
        assert!(
            server.memory_growth() < 192 * MIB,
            "{} bytes for {}",
            server.memory_growth(),
            slow_readers.len()
        );
    }
    let kept = server.connections() - 1;
    println!("{kept} of 40 values of 8 MiB are kept for clients that read nothing");
    assert!((4..=16).contains(&kept), "{kept}");
    assert!(
        server.disconnects().iter().all(|line| line.contains("replies of")),
        "{:?}",
        server.disconnects()
    );
    // The last client was not closed, and gets its whole value.
    let mut last = slow_readers.pop().expect("there are clients");
    assert_eq!(last.bytes(8 + value.len())[8..], value[..]);
    drop((last, slow_readers, writer));
    server.assert_healthy_with_stored(2 * value.len());
}

#[test]
fn above_output_total_the_client_that_read_nothing_for_the_longest_time_is_closed() {
    let _exclusive = exclusive();
    let mut server = Server::with_limits(&["output_total=64MiB"]);
    let item = vec![3; 8 * MIB];
    let mut pusher = server.connect();
    let mut waiter = server.connect();
    waiter.start_waiting(&["/absent"]);
    let mut slow_readers: Vec<Client> = Vec::new();
    for _ in 0..20 {
        pusher.send_request(Request::QueuePush { key: b"/q", value: item[..].into() });
        pusher.ping();
        let mut client = server.connect();
        client.send_request(Request::QueuePop { key: b"/q" });
        slow_readers.push(client);
        server.wait_until_idle();
        assert!(
            server.memory_growth() < 96 * MIB,
            "{} bytes for {}",
            server.memory_growth(),
            slow_readers.len()
        );
    }
    let kept = server.connections() - 2;
    println!("{kept} of 20 items of 8 MiB are kept for clients that read nothing");
    assert!((6..=9).contains(&kept), "{kept}");
    assert!(
        server.disconnects().iter().all(|line| line.contains("replies of")),
        "{:?}",
        server.disconnects()
    );
    // The last client was not closed, and gets its whole item.
    let mut last = slow_readers.pop().expect("there are clients");
    assert_eq!(last.bytes(16 + item.len())[16..], item[..]);
    pusher.set("/absent", "");
    waiter.assert_woken();
    drop((last, slow_readers, pusher, waiter));
    server.assert_healthy_with_stored(2 * item.len());
}
