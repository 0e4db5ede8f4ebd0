//! Row R05 and invariant S14: what replies hold that nobody takes, whatever becomes of the store meanwhile.

use std::time::Duration;

use rallypoint_core::Key;
use rallypoint_core::wire::{PairList, Reply, ReplyKind, Request};

use crate::harness::{Client, MIB, Server, alone, assert_undisturbed, eventually, message};

/// Fills a server with so many keys.
fn fill(server: &Server, count: usize) {
    let names: Vec<String> = (0..count).map(|n| format!("/job/rank/{n:07}")).collect();
    let mut client = server.connect();
    for names in names.chunks(10_000) {
        let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b"v"[..])).collect();
        client.send(&message(Request::MultiSet { pairs: PairList::new(&pairs) }));
    }
    client.ping();
}

/// How many of these are not the bystanders'.
fn of_job(keys: &[Key]) -> usize {
    keys.iter().filter(|key| key.starts_with(b"/job/")).count()
}

#[test]
fn many_who_ask_for_all_keys_and_read_nothing_cost_little_and_disturb_nobody() {
    let _alone = alone();
    let mut server = Server::start();
    let keys = 300_000;
    fill(&server, keys);
    server.wait_until_idle();
    let before = server.process().memory();
    let mut lazy: Vec<Client> = Vec::new();
    assert_undisturbed(&server, Duration::from_millis(5), || {
        let mut writer = server.connect();
        // Each new key changes what the next is told, not what those before it are owed.
        for _ in 0..18 {
            let mut client = server.connect();
            client.tell(Request::ListKeys);
            writer.set(&format!("/new/{}", lazy.len()), "");
            lazy.push(client);
            // What the system takes for each is sent all the same, and more of them at a time share the processor.
            std::thread::sleep(Duration::from_millis(25));
        }
    });
    let growth = server.process().memory().saturating_sub(before);
    println!("{} lists of {keys} keys nobody reads: {} MiB", lazy.len(), growth / MIB);
    // Printed once for all, they are 8 MiB; held by each, they would be 15 MiB for each.
    assert!(lazy.len() > 15 && growth < 32 * MIB, "{} lists, {growth} bytes", lazy.len());
    // Who reads on after all gets the list of its moment.
    let Reply::Keys(listed) = lazy[0].reply(ReplyKind::Keys) else { panic!() };
    assert_eq!((of_job(&listed), listed.iter().filter(|key| key.starts_with(b"/new/")).count()), (keys, 0));
    drop(lazy);
    server.assert_unharmed_holding(before + 16 * MIB);
}

/// Each list is of another moment, and the keys of every table change in between: nothing is shared.
#[test]
fn lists_that_nobody_reads_share_the_limit_of_replies_however_the_keys_change() {
    let _alone = alone();
    let mut server = Server::with(&["output_total=32MiB"]);
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
    let mut lazy: Vec<Client> = Vec::new();
    let mut most = 0;
    for names in names.chunks(250) {
        let mut client = server.connect();
        client.tell(Request::ListKeys);
        lazy.push(client);
        server.wait_until_idle();
        for name in names {
            writer.tell(Request::DeleteKey { key: name.as_bytes() });
        }
        writer.bytes(8 * names.len());
        server.wait_until_idle();
        most = most.max(server.process().memory().saturating_sub(before));
    }
    println!("{} lists of up to 16 MiB: {} MiB at most", lazy.len(), most / MIB);
    assert!(most < 64 * MIB, "{most}");
    assert!(server.first_offence().contains("replies of"), "{:?}", server.offences());
    drop((lazy, writer));
    server.assert_unharmed_holding(before + 48 * MIB);
}

#[test]
fn a_reader_of_a_long_list_disturbs_nobody() {
    let _alone = alone();
    let mut server = Server::start();
    fill(&server, 1_000_000);
    let mut reader = server.connect();
    assert_undisturbed(&server, Duration::from_millis(5), || {
        for _ in 0..3 {
            let Reply::Keys(listed) = reader.ask(Request::ListKeys) else { panic!() };
            assert_eq!(of_job(&listed), 1_000_000);
        }
    });
    drop(reader);
    server.assert_unharmed_holding(1_000_000 * 300);
}

#[test]
fn values_that_only_replies_hold_take_room_like_those_of_the_store() {
    let _alone = alone();
    let mut server = Server::with(&["store_bytes=96MiB"]);
    let value = vec![7; 8 * MIB];
    let mut lazy: Vec<Client> = Vec::new();
    // Each time the value is replaced, one more who doesn't read holds the one before.
    let refused = loop {
        let mut writer = server.connect();
        writer.send(&message(Request::Set { key: b"/k", value: value[..].into() }));
        if writer.try_ask(Request::Ping { nonce: 1 }).is_err() {
            break writer;
        }
        let mut client = server.connect();
        client.tell(Request::Get { key: b"/k" });
        lazy.push(client);
        assert!(lazy.len() < 40, "nobody is refused");
        server.wait_until_idle();
    };
    let growth = server.growth();
    println!("{} hold a value each: {} MiB", lazy.len(), growth / MIB);
    assert!(lazy.len() > 8 && growth < 128 * MIB, "{} of them, {growth} bytes", lazy.len());
    assert!(server.only_offence().contains("full"), "{}", server.only_offence());
    // Once they are gone there is room again, and those who did read have what was there.
    let mut last = lazy.pop().expect("there are some");
    drop((lazy, refused));
    assert_eq!(last.bytes(8 + value.len())[8..], value[..]);
    drop(last);
    eventually(Duration::from_secs(5), "there is room", || {
        let mut writer = server.connect();
        writer.send(&message(Request::Set { key: b"/k", value: value[..].into() }));
        writer.try_ask(Request::Ping { nonce: 1 }).is_ok()
    });
    server.assert_unharmed_holding(2 * value.len());
}

#[test]
fn replies_that_nobody_takes_share_a_limit_and_who_has_left_them_longest_goes() {
    let _alone = alone();
    let mut server = Server::with(&["output_total=64MiB"]);
    let item = vec![3; 8 * MIB];
    let mut pusher = server.connect();
    let mut small = server.connect();
    small.start_waiting(&["/absent"]);
    let mut lazy: Vec<Client> = Vec::new();
    for _ in 0..20 {
        pusher.tell(Request::QueuePush { key: b"/q", value: item[..].into() });
        pusher.ping();
        let mut client = server.connect();
        client.tell(Request::QueuePop { key: b"/q" });
        lazy.push(client);
        server.wait_until_idle();
        assert!(server.growth() < 96 * MIB, "{} bytes for {}", server.growth(), lazy.len());
    }
    let kept = server.connections() - 2;
    println!("{kept} of 20 items of 8 MiB are kept for those who take nothing");
    assert!((6..=9).contains(&kept), "{kept}");
    assert!(server.offences().iter().all(|line| line.contains("replies of")), "{:?}", server.offences());
    // The last to come is not the one to go, and gets all of it.
    let mut last = lazy.pop().expect("there are some");
    assert_eq!(last.bytes(16 + item.len())[16..], item[..]);
    pusher.set("/absent", "");
    small.assert_woken();
    drop((last, lazy, pusher, small));
    server.assert_unharmed_holding(2 * item.len());
}
