//! A server that is killed, under calls that wait and before calls that come later: K01, K02, K03.

use std::time::{Duration, Instant};

use rallypoint_store::{ConnectionFault, Store, StoreError, TcpStore, TcpStoreServer};

use crate::child::Server;
use crate::clock::{SOON, TRIES, client, eventually, fails_after, goes_on_for};
use crate::operations::{all, at_once, prepare, waiting};

/// How soon whoever waits must be told.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Far longer than that.
const LONG: Duration = Duration::from_secs(5);

/// Whether the error names the peer, the operation and what it was about.
fn names(error: &StoreError, port: u16, what: &str) -> bool {
    let text = error.to_string();
    text.contains(&format!("127.0.0.1:{port}")) && what.split(' ').next().is_some_and(|op| text.contains(op))
}

/// Whether the thread that was to wait was so late on a busy machine that there was no server any more.
#[track_caller]
fn came_too_late(error: &StoreError, tried: u32) -> bool {
    let is_late = matches!(error, StoreError::Unreachable { .. });
    assert!(!is_late || tried < TRIES, "{error:?}");
    is_late
}

/// What becomes of a call that waits when the server goes away, and how soon.
fn while_waiting(
    store: &TcpStore,
    call: fn(&TcpStore) -> rallypoint_store::Result<()>,
    end: impl FnOnce(),
) -> (StoreError, Duration) {
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| (call(store), Instant::now()));
        goes_on_for(Duration::from_millis(30), &blocked);
        let killed = Instant::now();
        end();
        let (result, ended) = blocked.join().unwrap();
        (result.unwrap_err(), ended - killed)
    })
}

#[test]
fn whoever_waits_on_a_server_that_is_killed_is_told_within_50_ms() {
    for operation in waiting() {
        for tried in 1.. {
            let mut server = Server::start();
            let store = client(server.port(), LONG);
            prepare(&store);
            let port = server.port();
            let (error, took) = while_waiting(&store, operation.call, || server.kill());
            if came_too_late(&error, tried) {
                continue;
            }
            assert!(names(&error, port, operation.name), "{}: {error}", operation.name);
            match &error {
                StoreError::ConnectionLost { context, .. } if !operation.name.starts_with("barrier") => {
                    assert!(!context.keys.is_empty());
                }
                // Whether it was counted there nobody knows.
                StoreError::Indeterminate { context, .. } if operation.name.starts_with("barrier") => {
                    assert_eq!(context.keys, ["two"]);
                }
                other => panic!("{}: {other:?}", operation.name),
            }
            if took <= AT_ONCE {
                break;
            }
            assert!(tried < TRIES, "{} was told after {took:?}", operation.name);
        }
    }
}

#[test]
fn whoever_waits_on_a_server_that_is_dropped_is_told_within_50_ms() {
    for tried in 1.. {
        let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        let store = client(server.port(), LONG);
        let (error, took) = while_waiting(&store, |store| store.wait(&["missing"]), || drop(server));
        if came_too_late(&error, tried) {
            continue;
        }
        assert!(matches!(error, StoreError::ConnectionLost { .. }), "{error:?}");
        if took <= AT_ONCE {
            return;
        }
        assert!(tried < TRIES, "told after {took:?}");
    }
}

/// All threads of a client that wait are told, not only the first.
#[test]
fn every_thread_that_waits_is_told() {
    for tried in 1.. {
        let mut server = Server::start();
        let store = client(server.port(), LONG);
        let errors: Vec<_> = std::thread::scope(|scope| {
            let blocked: Vec<_> = (0..8).map(|_| scope.spawn(|| store.get("missing"))).collect();
            goes_on_for(Duration::from_millis(50), &blocked[0]);
            server.kill();
            blocked.into_iter().map(|thread| thread.join().unwrap().unwrap_err()).collect()
        });
        if errors.iter().any(|error| came_too_late(error, tried)) {
            continue;
        }
        for error in errors {
            assert!(matches!(error, StoreError::ConnectionLost { .. }), "{error:?}");
        }
        return;
    }
}

#[test]
fn later_calls_try_again_until_their_time_is_up_and_say_that_nobody_listens() {
    let mut server = Server::start();
    let timeout = Duration::from_millis(300);
    let store = client(server.port(), timeout);
    prepare(&store);
    let port = server.port();
    server.kill();
    at_once(all(), |operation| {
        let error = fails_after(timeout, operation.name, || (operation.call)(&store));
        let StoreError::Unreachable { context, tried, waited } = &error else {
            panic!("{}: {error:?}", operation.name)
        };
        assert_eq!(context.op, Some(operation.op()), "{error}");
        assert_eq!(&context.peer, &format!("127.0.0.1:{port}"));
        assert!(tried.iter().all(|(_, fault)| *fault == ConnectionFault::Refused), "{error}");
        assert!(*waited >= timeout, "{error}");
    });
}

#[test]
fn what_may_be_repeated_is_repeated_over_a_new_connection() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let relay = crate::relay::Relay::to(server.port());
    let (store, other) = (client(relay.port(), SOON), client(server.port(), SOON));
    store.set("there", b"1").unwrap();
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| store.get("late").map(drop)),
            scope.spawn(|| store.wait(&["there", "late"])),
            scope.spawn(|| store.multi_get(&["late"]).map(drop)),
            scope.spawn(|| store.queue_pop("queue").map(drop)),
        ];
        for _ in 0..3 {
            goes_on_for(Duration::from_millis(40), &waits[0]);
            relay.cut();
            // They are back before anything comes.
            eventually("the waiters are connected again", || server.stats().connections >= 5);
        }
        other.set("late", b"2").unwrap();
        other.queue_push("queue", b"item").unwrap();
        for wait in waits {
            wait.join().unwrap().unwrap();
        }
    });
    assert_eq!(other.queue_len("queue").unwrap(), 0);
    relay.cut();
    assert_eq!(store.get("late").unwrap(), b"2");
}
