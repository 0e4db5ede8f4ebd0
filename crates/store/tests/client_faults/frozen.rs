//! A server that is stopped and comes back: K05, and K1 for what is built on top of the operations.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_store::{Barrier, PrefixStore, Result, Store, StoreError, TcpStore, barrier, synchronize};

use crate::child::Server;
use crate::clock::{SOON, client, eventually, fails_after, goes_on_for};
use crate::operations::{all, prepare, waiting};

const TIMEOUT: Duration = Duration::from_millis(400);

#[test]
fn every_operation_returns_in_time_from_a_server_that_is_stopped_and_works_when_it_goes_on() {
    let server = Server::start();
    let operations: Vec<_> = all().into_iter().chain(waiting()).collect();
    let stores: Vec<_> = operations.iter().map(|_| client(server.port(), TIMEOUT)).collect();
    prepare(&stores[0]);
    server.freeze();
    std::thread::scope(|scope| {
        for (operation, store) in operations.iter().zip(&stores) {
            scope.spawn(move || {
                let error = fails_after(TIMEOUT, operation.name, || (operation.call)(store));
                match error {
                    // What was not sent, for lack of a connection that works, is told apart from what was.
                    StoreError::Unreachable { .. } => {}
                    StoreError::Timeout { ref keys, .. }
                        if operation.repeatable || operation.name.contains("empty") =>
                    {
                        assert_eq!(keys.present, None, "nobody can have said so");
                    }
                    StoreError::NoAnswer { .. } if operation.repeatable => {}
                    StoreError::Indeterminate { .. } if !operation.repeatable => {}
                    StoreError::Timeout { .. } if operation.name == "queue_pop" => {}
                    other => panic!("{}: {other:?}", operation.name),
                }
            });
        }
    });
    server.thaw();
    for (operation, store) in all().iter().zip(&stores) {
        eventually("it works again", || (operation.call)(store).is_ok());
    }
}

/// Time-outs of many lengths, of one operation that waits and one that doesn't.
#[test]
fn the_time_out_is_kept_whatever_its_length() {
    let server = Server::start();
    let timeouts = [1, 30, 150, 1000, 2500].map(Duration::from_millis);
    let stores = timeouts.map(|_| [client(server.port(), SOON), client(server.port(), SOON)]);
    server.freeze();
    std::thread::scope(|scope| {
        for (timeout, [waiting, asking]) in timeouts.iter().zip(&stores) {
            scope.spawn(move || {
                let store = waiting.with_timeout(*timeout);
                fails_after(*timeout, "get", || store.get("missing"));
            });
            scope.spawn(move || {
                let store = asking.with_timeout(*timeout);
                fails_after(*timeout, "add", || store.add("n", 1));
            });
        }
    });
}

/// Its machine acknowledges for it, so it is not taken for one that is cut off.
#[test]
fn a_server_that_is_stopped_for_long_is_waited_for_over_the_same_connection() {
    let server = Server::start();
    let timeout = Duration::from_secs(13) + SOON;
    let stores = [(); 3].map(|()| client(server.port(), timeout));
    let ends = |store: &TcpStore| store.socket().map(|(_, local, _)| local).unwrap();
    let before = stores.each_ref().map(ends);
    type Call = fn(&TcpStore) -> Result<()>;
    let calls: [Call; 3] = [
        |store| store.set("k", b"v"),
        |store| store.check(&["k"]).map(drop),
        |store| store.get("k").map(|value| assert_eq!(value, b"v")),
    ];
    server.freeze();
    std::thread::scope(|scope| {
        let under_way: Vec<_> =
            calls.iter().zip(&stores).map(|(call, store)| scope.spawn(|| call(store))).collect();
        goes_on_for(Duration::from_secs(13), &under_way[0]);
        server.thaw();
        under_way.into_iter().for_each(|call| call.join().unwrap().unwrap());
    });
    assert_eq!(stores.each_ref().map(ends), before);
}

/// The store's own time-out is long; the call's is not.
#[test]
fn what_is_built_on_a_store_keeps_its_own_time_out() {
    let server = Server::start();
    let store = Arc::new(client(server.port(), SOON));
    let part = PrefixStore::new("part", store.clone());
    server.freeze();
    fails_after(TIMEOUT, "wait_for", || store.wait_for(&["k"], TIMEOUT));
    fails_after(TIMEOUT, "barrier_for", || store.barrier_for("b", 2, TIMEOUT));
    fails_after(TIMEOUT, "a prefix's barrier_for", || part.barrier_for("b", 2, TIMEOUT));
    fails_after(TIMEOUT, "synchronize", || synchronize(&*store, b"v", 0, 2, "k", TIMEOUT));
    let meeting = Barrier::new("meeting", 2).timeout(TIMEOUT);
    fails_after(TIMEOUT, "barrier", || barrier(&*store, &meeting));
    fails_after(TIMEOUT, "barrier with a rank", || barrier(&*store, &meeting.clone().rank(0)));
}

/// It answers after all, but too late: that answer must not be taken for the next one's.
#[test]
fn an_answer_that_comes_too_late_is_never_taken_for_another() {
    let server = Server::start();
    let store = client(server.port(), SOON);
    store.multi_set(&[("a", b"1"), ("b", b"2")]).unwrap();
    for _ in 0..5 {
        store.set_timeout(Duration::from_millis(60));
        server.freeze();
        store.get("a").unwrap_err();
        store.num_keys().unwrap_err();
        server.thaw();
        store.set_timeout(SOON);
        assert_eq!(store.get("b").unwrap(), b"2");
        assert_eq!(store.num_keys().unwrap(), 2);
        assert!(!store.check(&["c"]).unwrap());
    }
}
