//! Tests of how a client keeps and reuses its connections.

use std::time::Duration;

use rallypoint_store::{Store, TcpStoreServer};

use rallypoint_testkit::eventually;

use crate::operations::{all_operations, prepare};
use crate::{CALL_TIMEOUT, assert_blocked_for, client};

#[test]
fn one_thread_uses_one_connection() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let store = client(server.port(), CALL_TIMEOUT);
    prepare(&store);
    for _ in 0..5 {
        for operation in all_operations() {
            (operation.call)(&store).unwrap();
        }
    }
    assert_eq!(server.stats().accepted, 1);
}

#[test]
fn concurrent_threads_use_one_connection_each_and_8_are_kept() {
    const THREADS: u64 = 32;
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let store = client(server.port(), CALL_TIMEOUT);
    for round in 1..=3 {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|_| scope.spawn(|| store.get(&format!("k{round}")))).collect();
            eventually("all threads wait", || server.stats().connections >= THREADS);
            store.set(&format!("k{round}"), b"v").unwrap();
            for thread in threads {
                assert_eq!(thread.join().unwrap().unwrap(), b"v");
            }
        });
        eventually("all but 8 connections are closed", || server.stats().connections <= 8);
    }
    // In each of the two later rounds, the client reused at least 7 of the connections that it had kept.
    let accepted = server.stats().accepted;
    assert!(accepted <= 3 * (THREADS + 1) - 2 * 7, "{accepted} connections were made");
}

#[test]
fn successive_threads_share_one_connection() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let store = client(server.port(), CALL_TIMEOUT);
    for n in 1..=100 {
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(store.add("n", 1).unwrap(), n));
        });
    }
    assert_eq!(server.stats().accepted, 1);
}

#[test]
fn a_dropped_client_closes_its_connections() {
    let server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let store = client(server.port(), CALL_TIMEOUT);
    std::thread::scope(|scope| {
        let waits: Vec<_> = (0..4).map(|_| scope.spawn(|| store.wait(&["k"]))).collect();
        assert_blocked_for(Duration::from_millis(20), &waits[0]);
        store.set("k", b"v").unwrap();
    });
    assert!(server.stats().connections > 0);
    drop(store);
    eventually("all connections are closed", || server.stats().connections == 0);
}
