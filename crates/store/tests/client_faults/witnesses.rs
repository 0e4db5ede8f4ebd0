//! A server without a name, as torch's are, is recognised by the keys that were there. K04 again, and that nothing is
//! called lost that is not.

use rallypoint_core::wire::Op;
use rallypoint_store::{Endpoint, Store, StoreError, TcpStore, TcpStoreOptions};

use crate::clock::{SOON, client, eventually};
use crate::fake::{Act, Fake, OURS, TORCHS};
use crate::operations::{all, prepare, waiting};

/// Makes the client connect anew.
fn disconnect(server: &Fake, store: &TcpStore) {
    server.at_next(Op::NumKeys, Act::Refuse);
    store.num_keys().unwrap();
}

fn assert_reset(error: &StoreError, evidence: &str) {
    assert!(
        matches!(error, StoreError::StoreReset { evidence: found, .. } if found.contains(evidence)),
        "{error:?}"
    );
}

#[test]
fn a_server_without_a_name_that_came_back_empty_is_named_by_every_operation() {
    let mut server = Fake::honest(TORCHS);
    for operation in all().into_iter().chain(waiting()) {
        let store = client(server.port(), SOON);
        prepare(&store);
        server = server.replace(TORCHS);
        let error = (operation.call)(&store).expect_err(operation.name);
        assert_reset(&error, "none of the keys seen before is there: ");
        assert_reset(&store.set("k", b"v").unwrap_err(), "none of the keys");
        assert_eq!(server.value("/k"), None);
        client(server.port(), SOON).set("k", b"v").unwrap();
        assert_reset(&store.get("k").unwrap_err(), "none of the keys");
        server = server.replace(TORCHS);
    }
}

/// Each way to learn of a key is enough to notice that it is gone.
#[test]
fn every_key_that_was_seen_is_a_witness() {
    type See = fn(&TcpStore);
    let ways: [(&str, See); 8] = [
        ("set", |store| store.set("k", b"v").unwrap()),
        ("get", |store| drop(store.get("seen").unwrap())),
        ("multi_get", |store| drop(store.multi_get(&["seen"]).unwrap())),
        ("multi_set", |store| store.multi_set(&[("k", b"v")]).unwrap()),
        ("add", |store| assert_eq!(store.add("n", 1).unwrap(), 1)),
        ("append", |store| store.append("l", b"x").unwrap()),
        ("compare_set that stores", |store| drop(store.compare_set("c", b"", b"x").unwrap())),
        ("compare_set that does not", |store| drop(store.compare_set("seen", b"no", b"x").unwrap())),
    ];
    for (name, see) in ways {
        let server = Fake::honest(TORCHS);
        client(server.port(), SOON).set("seen", b"value").unwrap();
        let store = client(server.port(), SOON);
        see(&store);
        let _server = server.replace(TORCHS);
        assert_reset(&store.num_keys().expect_err(name), "none of the keys");
    }
}

#[test]
fn a_server_that_became_another_kind_is_another_server() {
    for (before, after) in [(OURS, TORCHS), (TORCHS, OURS)] {
        let server = Fake::honest(before);
        let store = client(server.port(), SOON);
        let _server = server.replace(after);
        assert_reset(&store.num_keys().unwrap_err(), "rallypoint server");
    }
}

#[test]
fn keys_that_are_gone_for_a_good_reason_are_not_missed() {
    let server = Fake::honest(TORCHS);
    let store = client(server.port(), SOON);
    store.set("k", b"v").unwrap();
    assert!(store.delete_key("k").unwrap());
    disconnect(&server, &store);
    // Nothing was stored, whatever the answer.
    assert_eq!(store.compare_set("absent", b"x", b"x").unwrap(), b"x");
    disconnect(&server, &store);
    // A queue is there as long as it has items; no key was.
    store.queue_push("q", b"item").unwrap();
    store.wait(&["q"]).unwrap();
    assert!(store.check(&["q"]).unwrap());
    assert_eq!(store.get("q").unwrap(), b"");
    store.queue_pop("q").unwrap();
    disconnect(&server, &store);
    store.set("k", b"v").unwrap();
    disconnect(&server, &store);
}

/// The count of those who joined is never deleted, so while it is there the store is.
#[test]
fn a_store_that_was_joined_is_the_same_as_long_as_that_is_counted() {
    let server = Fake::honest(TORCHS);
    let store = TcpStore::open(
        TcpStoreOptions::new(Endpoint::new("127.0.0.1", server.port())).world_size(Some(2)).timeout(SOON),
    )
    .unwrap();
    let other = client(server.port(), SOON);
    for n in 0..20 {
        store.set(&n.to_string(), b"v").unwrap();
        other.delete_key(&n.to_string()).unwrap();
    }
    disconnect(&server, &store);
    assert_eq!(server.value("init/").unwrap(), b"1");
    let _server = server.replace(TORCHS);
    assert_reset(&store.num_keys().unwrap_err(), "init/");
}

/// Who starts it anew joins it anew. Then the count is there again, but it begins anew, too.
#[test]
fn a_store_that_was_joined_anew_by_fewer_is_another_one() {
    let server = Fake::honest(TORCHS);
    let joined =
        |port| TcpStoreOptions::new(Endpoint::new("127.0.0.1", port)).world_size(Some(3)).timeout(SOON);
    let _first = TcpStore::open(joined(server.port())).unwrap();
    let second = TcpStore::open(joined(server.port())).unwrap();
    second.set("k", b"v").unwrap();
    let server = server.replace(TORCHS);
    let _again = TcpStore::open(joined(server.port())).unwrap();
    assert_eq!(server.value("init/").unwrap(), b"1");
    assert_reset(&second.num_keys().unwrap_err(), "init/");
}

/// The first keys that were seen and the last ones are remembered: others may delete many.
#[test]
fn one_key_that_is_left_of_many_is_enough() {
    let server = Fake::honest(TORCHS);
    let (store, other) = (client(server.port(), SOON), client(server.port(), SOON));
    let name = |n: usize| format!("k{n}");
    for left in [0, 7, 50, 99] {
        (0..100).for_each(|n| store.set(&name(n), b"v").unwrap());
        for n in (0..100).filter(|&n| n != left) {
            assert!(other.delete_key(&name(n)).unwrap());
        }
        disconnect(&server, &store);
    }
}

/// A store with keys that others have deleted, and a call of it that waits over the only connection.
fn beside_a_wait(after: impl FnOnce(&Fake, &TcpStore, &TcpStore)) {
    let server = Fake::honest(TORCHS);
    let (store, other) = (client(server.port(), SOON), client(server.port(), SOON));
    for key in ["a", "b", "c"] {
        store.set(key, b"v").unwrap();
        assert!(other.delete_key(key).unwrap());
    }
    after(&server, &store, &other);
}

#[test]
fn keys_that_others_deleted_are_not_missed_beside_a_connection_that_lives() {
    beside_a_wait(|server, store, other| {
        let clone = store.clone_store().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| store.get("late"));
            eventually("it waits", || server.count(Op::Wait) == 1);
            assert_eq!(store.num_keys().unwrap(), 0);
            assert_eq!(server.connections(), 3);
            clone.set("d", b"v").unwrap();
            other.set("late", b"value").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), b"value");
        });
        assert!(other.delete_key("late").unwrap());
        assert!(other.delete_key("d").unwrap());
        // What was missing once is not missed again.
        other.set("d", b"again").unwrap();
        disconnect(server, store);
        assert_eq!(clone.get("d").unwrap(), b"again");
    });
}

#[test]
fn keys_that_are_missing_are_missed_once_the_connection_from_before_breaks() {
    beside_a_wait(|server, store, _| {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| store.get("late"));
            eventually("it waits", || server.count(Op::Wait) == 1);
            assert_eq!(store.num_keys().unwrap(), 0);
            server.close(1);
            assert_reset(&waiting.join().unwrap().unwrap_err(), "none of the keys seen before is there: ");
        });
        assert_reset(&store.num_keys().unwrap_err(), "none of the keys");
        assert_reset(&store.clone_store().err().unwrap(), "none of the keys");
    });
}

/// Calls in flight see that it is gone, and those beside them; nothing is written to the new one.
#[test]
fn a_server_without_a_name_that_came_back_empty_is_named_beside_calls_in_flight() {
    let server = Fake::honest(TORCHS);
    let store = client(server.port(), SOON);
    store.set("k", b"v").unwrap();
    std::thread::scope(|scope| {
        let waits: Vec<_> = (0..4).map(|_| scope.spawn(|| store.get("late"))).collect();
        eventually("all wait", || server.count(Op::Wait) == 4);
        let server = server.replace(TORCHS);
        assert_reset(&store.set("k", b"w").unwrap_err(), "none of the keys");
        for wait in waits {
            let error = wait.join().unwrap().unwrap_err();
            assert!(
                matches!(error, StoreError::StoreReset { .. } | StoreError::ConnectionLost { .. }),
                "{error:?}"
            );
        }
        assert_eq!(server.value("/k"), None);
    });
}

/// Nothing was seen, so nothing can be missed; and nothing was lost that this client knew of.
#[test]
fn who_has_seen_nothing_goes_on() {
    let server = Fake::honest(TORCHS);
    let store = client(server.port(), SOON);
    assert_eq!(store.num_keys().unwrap(), 0);
    let _server = server.replace(TORCHS);
    store.set("k", b"v").unwrap();
}
