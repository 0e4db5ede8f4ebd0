//! A server that is stopped and comes back: K05, and K1 for what is built on top of the operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rallypoint_core::wire::Op;
use rallypoint_store::{
    Awaited, Barrier, PrefixStore, Result, Store, StoreError, TcpStore, barrier, synchronize,
};

use crate::child::Server;
use crate::clock::{SOON, client, eventually, fails_after, goes_on_for};
use crate::fake::{Act, Fake, TORCHS};
use crate::operations::{all, prepare, waiting};
use crate::timing::fails_in_time;

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
                    StoreError::Timeout { awaited: Awaited::Keys(ref keys), .. }
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

/// What it has said until then is told, and of the rest that it is not known.
#[test]
fn a_server_that_falls_silent_while_it_says_which_keys_are_there_is_believed_so_far() {
    let checks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&checks);
    // Enough for the first of the pieces in which it is asked, and not for two.
    let server = Fake::start(TORCHS, move |seen| match seen.op {
        Op::Check if counted.fetch_add(1, Ordering::SeqCst) >= 48 => Act::Ignore,
        _ => Act::Answer,
    });
    let store = client(server.port(), SOON);
    let names: Vec<_> = (0..20_000).map(|n| format!("k{n}")).collect();
    let keys: Vec<_> = names.iter().map(String::as_str).collect();
    store.multi_set(&keys[1..].iter().map(|key| (*key, &b"1"[..])).collect::<Vec<_>>()).unwrap();
    let mut keys = keys;
    // The missing one is behind all that can be asked for.
    keys.rotate_left(1);
    // On a busy machine it may have had no time to say anything.
    let was_heard = |error: &StoreError| matches!(error, StoreError::Timeout { awaited: Awaited::Keys(keys), .. } if keys.present.is_some());
    let error = fails_in_time(TIMEOUT, "wait", was_heard, || {
        checks.store(0, Ordering::SeqCst);
        store.wait_for(&keys, Some(TIMEOUT))
    });
    let said = error.to_string();
    let StoreError::Timeout { awaited: Awaited::Keys(keys), .. } = error else { panic!("{said}") };
    let known = keys.present.as_ref().map_or(0, Vec::len);
    assert!(known > 0 && known < 20_000, "{said}");
    assert!(keys.missing().is_empty(), "{said}");
    let expected = format!(
        "the first {known} keys are all there; the server did not say in time which of the other {} are there",
        20_000 - known
    );
    assert!(said.ends_with(&expected), "{said}");
    // Nothing of it is left over on a connection.
    checks.store(0, Ordering::SeqCst);
    assert!(store.check(&["k1"]).unwrap());
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
                let store = waiting.with_timeout(Some(*timeout));
                fails_after(*timeout, "get", || store.get("missing"));
            });
            scope.spawn(move || {
                let store = asking.with_timeout(Some(*timeout));
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
    fails_after(TIMEOUT, "wait_for", || store.wait_for(&["k"], Some(TIMEOUT)));
    fails_after(TIMEOUT, "barrier_for", || store.barrier_for("b", 2, Some(TIMEOUT)));
    fails_after(TIMEOUT, "a prefix's barrier_for", || part.barrier_for("b", 2, Some(TIMEOUT)));
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
        store.set_timeout(Some(Duration::from_millis(60)));
        server.freeze();
        store.get("a").unwrap_err();
        store.num_keys().unwrap_err();
        server.thaw();
        store.set_timeout(Some(SOON));
        assert_eq!(store.get("b").unwrap(), b"2");
        assert_eq!(store.num_keys().unwrap(), 2);
        assert!(!store.check(&["c"]).unwrap());
    }
}
